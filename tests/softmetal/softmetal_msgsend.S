/* softmetal_msgsend.S - objc_msgSend for the program: in front of Apple's, and in place of the one that the GNU runtime
   lacks

   The arguments are in registers that a C call may overwrite, so all of them are saved, softmetal_lookup
   is asked for the method and for the object that answers, and the method is entered by a jump: but for
   the object it finds registers and stack as its caller left them. For a nil receiver the lookup answers
   softmetal_return_zero.

   On Apple's runtime softmetal_own_send does the same for softmetal's own messages (softmetal_internal.h, >>symbols). */

#ifdef __APPLE__
#define SYMBOL(name) _##name
#else
#define SYMBOL(name) name
#endif

    .macro BEGIN name
    .globl  \name
#ifndef __APPLE__
    .type   \name, STT_FUNC
#endif
    .p2align 4
\name:
    .cfi_startproc
    .endm

    .macro END name
    .cfi_endproc
#ifndef __APPLE__
    .size   \name, . - \name
#endif
    .endm

    .text

#if defined(__x86_64__)

    .macro SEND name, lookup
    BEGIN   \name
    pushq   %rbp                    /* the return address and rbp: the stack is 16-byte aligned */
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq    %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq    $192, %rsp              /* 8 vector registers of 16 bytes, 7 words, 8 bytes unused */
    movaps  %xmm0, 0(%rsp)
    movaps  %xmm1, 16(%rsp)
    movaps  %xmm2, 32(%rsp)
    movaps  %xmm3, 48(%rsp)
    movaps  %xmm4, 64(%rsp)
    movaps  %xmm5, 80(%rsp)
    movaps  %xmm6, 96(%rsp)
    movaps  %xmm7, 112(%rsp)
    movq    %rdi, 128(%rsp)
    movq    %rsi, 136(%rsp)
    movq    %rdx, 144(%rsp)
    movq    %rcx, 152(%rsp)
    movq    %r8, 160(%rsp)
    movq    %r9, 168(%rsp)
    movq    %rax, 176(%rsp)         /* al: number of vector arguments of a variadic method */
    call    \lookup
    movq    %rax, %r11
    movq    %rdx, 128(%rsp)         /* the object that answers */
    movaps  0(%rsp), %xmm0
    movaps  16(%rsp), %xmm1
    movaps  32(%rsp), %xmm2
    movaps  48(%rsp), %xmm3
    movaps  64(%rsp), %xmm4
    movaps  80(%rsp), %xmm5
    movaps  96(%rsp), %xmm6
    movaps  112(%rsp), %xmm7
    movq    128(%rsp), %rdi
    movq    136(%rsp), %rsi
    movq    144(%rsp), %rdx
    movq    152(%rsp), %rcx
    movq    160(%rsp), %r8
    movq    168(%rsp), %r9
    movq    176(%rsp), %rax
    leave
    .cfi_def_cfa %rsp, 8
    jmp     *%r11
    END     \name
    .endm

    BEGIN   SYMBOL(softmetal_return_zero)
    xorl    %eax, %eax
    xorl    %edx, %edx
    xorps   %xmm0, %xmm0
    xorps   %xmm1, %xmm1
    ret
    END     SYMBOL(softmetal_return_zero)

#elif defined(__aarch64__)

    .macro SEND name, lookup
    BEGIN   \name
    stp     x29, x30, [sp, #-224]!  /* frame: 16 bytes, x0-x8 and padding: 80, q0-q7: 128 */
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov     x29, sp
    .cfi_def_cfa_register x29
    stp     x0, x1, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    str     x8, [sp, #80]           /* where a large struct result goes */
    stp     q0, q1, [sp, #96]
    stp     q2, q3, [sp, #128]
    stp     q4, q5, [sp, #160]
    stp     q6, q7, [sp, #192]
    bl      \lookup
    mov     x16, x0
    str     x1, [sp, #16]           /* the object that answers */
    ldp     q0, q1, [sp, #96]
    ldp     q2, q3, [sp, #128]
    ldp     q4, q5, [sp, #160]
    ldp     q6, q7, [sp, #192]
    ldr     x8, [sp, #80]
    ldp     x0, x1, [sp, #16]
    ldp     x2, x3, [sp, #32]
    ldp     x4, x5, [sp, #48]
    ldp     x6, x7, [sp, #64]
    .cfi_def_cfa_register sp
    ldp     x29, x30, [sp], #224
    .cfi_def_cfa_offset 0
    .cfi_restore x29
    .cfi_restore x30
    br      x16
    END     \name
    .endm

    BEGIN   SYMBOL(softmetal_return_zero)
    mov     x0, #0
    mov     x1, #0
    movi    d0, #0
    movi    d1, #0
    movi    d2, #0
    movi    d3, #0
    ret
    END     SYMBOL(softmetal_return_zero)

#else
#error "softmetal: write objc_msgSend for this processor"
#endif

#ifdef __APPLE__
    SEND    SYMBOL(objc_msgSend), SYMBOL(softmetal_lookup)
    SEND    SYMBOL(softmetal_own_send), SYMBOL(softmetal_own_lookup)
    .subsections_via_symbols
#else
#ifdef __x86_64__
    SEND    objc_msgSend, softmetal_lookup@PLT
#else
    SEND    objc_msgSend, softmetal_lookup
#endif
    .section .note.GNU-stack, "", %progbits
#endif
