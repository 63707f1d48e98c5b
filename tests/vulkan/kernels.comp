#version 450
/* kernels.comp - what the kernels of the tests, examples and benches do, in GLSL. A library of Metal source text has those of
   its kernels that are defined here, by their names; glslangValidator makes one module of each: -Dstep, -Dwork, -Dbench_loop. */
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 32) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer words { uint at[]; };
layout(push_constant) uniform arguments /* kernel_arguments of vulkan_internal.h */
{
    words buffers[4];
    uvec4 bytes;
    uint threads;
};

#define STEP x ^= x << 13; x ^= x >> 17; x ^= x << 5;
#define FOUR(what) what what what what

/* Mesa's llvmpipe leaves the loops of a kernel after 65,535 turns of all of them, and says nothing
   (LP_MAX_TGSI_LOOP_ITERATIONS in its lp_bld_limits.h). So most turns are long. */
uint scrambled(uint x, uint rounds)
{
    for (uint i = 0; i < rounds / 256; i++) { FOUR(FOUR(FOUR(FOUR(STEP)))) }
    for (uint i = 0; i < rounds % 256; i++) { STEP }
    return x;
}

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i >= threads) return;
#if defined(step)
    buffers[1].at[i] = 3 * buffers[0].at[i] + 1;
#elif defined(work)
    buffers[0].at[i] = scrambled(buffers[0].at[i], bytes.x);
#elif defined(bench_loop)
    buffers[0].at[i] = scrambled(i + 1, bytes.x);
#else
#error "which kernel?"
#endif
}
