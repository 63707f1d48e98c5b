/* machine.S - thread variables, messages to super, and Apple's way with variable arguments on arm64: none of it
   can be C */

#if defined(__x86_64__)
/* ------------------------------------------------------------------------------------- thread variables */
/* %rdi is the descriptor {darwin_tlv_address, key, offset}, %rax the address. The compiler takes every other register
   for unchanged, so the first call on a thread, which allocates, keeps them all. */
    .text
    .globl  darwin_tlv_address
darwin_tlv_address:
    movq    darwin_tlv_block@gottpoff(%rip), %rax
    movq    %fs:(%rax), %rax
    testq   %rax, %rax
    jz      1f
    addq    16(%rdi), %rax
    ret
1:  pushq   %rbp
    movq    %rsp, %rbp
    andq    $-16, %rsp
    subq    $(16 * 16 + 8 * 8), %rsp
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps  %xmm\n, 16 * \n(%rsp)
    .endr
    movq    %rdi, 256(%rsp)
    movq    %rsi, 264(%rsp)
    movq    %rdx, 272(%rsp)
    movq    %rcx, 280(%rsp)
    movq    %r8, 288(%rsp)
    movq    %r9, 296(%rsp)
    movq    %r10, 304(%rsp)
    movq    %r11, 312(%rsp)
    call    darwin_tlv_make@PLT
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
    movaps  16 * \n(%rsp), %xmm\n
    .endr
    movq    256(%rsp), %rdi
    movq    264(%rsp), %rsi
    movq    272(%rsp), %rdx
    movq    280(%rsp), %rcx
    movq    288(%rsp), %r8
    movq    296(%rsp), %r9
    movq    304(%rsp), %r10
    movq    312(%rsp), %r11
    addq    16(%rdi), %rax
    leave
    ret

/* ----------------------------------------------------------------------------------------------- messages */
/* %rdi is {receiver, class}: to the method of the superclass, with the receiver and all other arguments as they are. */
    .globl  objc_msgSendSuper2
    .type   objc_msgSendSuper2, @function
objc_msgSendSuper2:
    pushq   %rbp
    movq    %rsp, %rbp
    subq    $192, %rsp
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7
    movaps  %xmm\n, 16 * \n(%rsp)
    .endr
    movq    %rdi, 128(%rsp)
    movq    %rsi, 136(%rsp)
    movq    %rdx, 144(%rsp)
    movq    %rcx, 152(%rsp)
    movq    %r8, 160(%rsp)
    movq    %r9, 168(%rsp)
    movq    %rax, 176(%rsp)
    call    darwin_super_method@PLT
    movq    %rax, %r11
    .irp    n, 0, 1, 2, 3, 4, 5, 6, 7
    movaps  16 * \n(%rsp), %xmm\n
    .endr
    movq    128(%rsp), %rdi
    movq    136(%rsp), %rsi
    movq    144(%rsp), %rdx
    movq    152(%rsp), %rcx
    movq    160(%rsp), %r8
    movq    168(%rsp), %r9
    movq    176(%rsp), %rax
    movq    (%rdi), %rdi
    leave
    jmp     *%r11

#elif defined(__aarch64__)
/* ------------------------------------------------------------------------------------- thread variables */
/* x0 is the descriptor, and then the address; beside it only x16 and x17 may change. */
    .text
    .globl  darwin_tlv_address
    .type   darwin_tlv_address, %function
darwin_tlv_address:
    mrs     x16, tpidr_el0
    adrp    x17, :gottprel:darwin_tlv_block
    ldr     x17, [x17, :gottprel_lo12:darwin_tlv_block]
    ldr     x16, [x16, x17]
    cbz     x16, 1f
    ldr     x17, [x0, #16]
    add     x0, x16, x17
    ret
1:  stp     x29, x30, [sp, #-16]!
    mov     x29, sp
    stp     x0, x1, [sp, #-16]!
    stp     x2, x3, [sp, #-16]!
    stp     x4, x5, [sp, #-16]!
    stp     x6, x7, [sp, #-16]!
    stp     x8, x9, [sp, #-16]!
    stp     x10, x11, [sp, #-16]!
    stp     x12, x13, [sp, #-16]!
    stp     x14, x15, [sp, #-16]!
    .irp    n, 0, 2, 4, 6, 16, 18, 20, 22, 24, 26, 28, 30
    stp     q\n, q\n, [sp, #-32]!
    .endr
    .irp    n, 1, 3, 5, 7, 17, 19, 21, 23, 25, 27, 29, 31
    stp     q\n, q\n, [sp, #-32]!
    .endr
    bl      darwin_tlv_make
    mov     x16, x0
    .irp    n, 31, 29, 27, 25, 23, 21, 19, 17, 7, 5, 3, 1
    ldr     q\n, [sp], #32
    .endr
    .irp    n, 30, 28, 26, 24, 22, 20, 18, 16, 6, 4, 2, 0
    ldr     q\n, [sp], #32
    .endr
    ldp     x14, x15, [sp], #16
    ldp     x12, x13, [sp], #16
    ldp     x10, x11, [sp], #16
    ldp     x8, x9, [sp], #16
    ldp     x6, x7, [sp], #16
    ldp     x4, x5, [sp], #16
    ldp     x2, x3, [sp], #16
    ldp     x0, x1, [sp], #16
    ldr     x17, [x0, #16]
    add     x0, x16, x17
    ldp     x29, x30, [sp], #16
    ret

/* ----------------------------------------------------------------------------------------------- messages */
/* x0 is {receiver, class}: to the method of the superclass, with the receiver and all other arguments as they are. */
    .globl  objc_msgSendSuper2
    .type   objc_msgSendSuper2, %function
objc_msgSendSuper2:
    stp     x29, x30, [sp, #-224]!
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    str     x8, [sp, #80]
    stp     q0, q1, [sp, #96]
    stp     q2, q3, [sp, #128]
    stp     q4, q5, [sp, #160]
    stp     q6, q7, [sp, #192]
    bl      darwin_super_method
    mov     x16, x0
    ldp     q0, q1, [sp, #96]
    ldp     q2, q3, [sp, #128]
    ldp     q4, q5, [sp, #160]
    ldp     q6, q7, [sp, #192]
    ldr     x8, [sp, #80]
    ldp     x0, x1, [sp, #16]
    ldp     x2, x3, [sp, #32]
    ldp     x4, x5, [sp, #48]
    ldp     x6, x7, [sp, #64]
    ldr     x0, [x0]
    ldp     x29, x30, [sp], #224
    br      x16

/* ----------------------------------------------------------------------------------- variable arguments */
/* Apple passes variable arguments on the stack only, in words, and its va_list points to the next one. Linux's va_list
   {stack, gr_top, vr_top, gr_offs, vr_offs} does the same once the offsets are 0, for then the registers' part of it is
   used up. Each entrance makes one of these and hands it to the function with a list; \fixed is the number of arguments
   before it. VARIADIC: the caller gave the arguments. LISTED: it gave a va_list of Apple's. */
    .macro  VARIADIC name, function, fixed
    .globl  darwin_\name
    .type   darwin_\name, %function
darwin_\name:
    add     x16, sp, #0
    MAKE    \function, \fixed
    .endm
    .macro  LISTED name, function, fixed
    .globl  darwin_\name
    .type   darwin_\name, %function
darwin_\name:
    mov     x16, x\fixed
    MAKE    \function, \fixed
    .endm
    .macro  MAKE function, fixed
    stp     x29, x30, [sp, #-48]!
    mov     x29, sp
    str     x16, [sp, #16]
    stp     xzr, xzr, [sp, #24]
    str     xzr, [sp, #40]
    add     x\fixed, sp, #16
    bl      \function
    ldp     x29, x30, [sp], #48
    ret
    .endm

    VARIADIC fprintf, vfprintf, 2
    VARIADIC snprintf, vsnprintf, 3
    VARIADIC print_message, vprint_message, 1
    VARIADIC print_error, vprint_error, 1
    LISTED  vsnprintf, vsnprintf, 3
#endif

    .section .note.GNU-stack, "", %progbits
