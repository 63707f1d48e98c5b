#version 450
/* kernels.comp - the kernels of stress.c, in GLSL. A library of Metal source text has those of its kernels that are
   defined here, by their names; glslangValidator makes one module of each: -Dstep, -Dwork. */
#extension GL_EXT_buffer_reference : require

layout(local_size_x = 32) in;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer words { uint at[]; };
layout(push_constant) uniform arguments /* kernel_arguments of vulkan_metal.m */
{
    words buffers[4];
    uvec4 bytes;
    uint threads;
};

void main()
{
    uint i = gl_GlobalInvocationID.x;
    if (i >= threads) return;
#if defined(step)
    buffers[1].at[i] = 3 * buffers[0].at[i] + 1;
#elif defined(work)
    uint x = buffers[0].at[i];
    for (uint round = 0; round < bytes.x; round++) { /* Mesa's llvmpipe leaves a kernel's loops after 65,535 turns */
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
    }
    buffers[0].at[i] = x;
#else
#error "which kernel?"
#endif
}
