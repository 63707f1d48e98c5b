/* machine.S - thread variables, contexts, messages to super, and Apple's way with variable arguments on arm64: none of it
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

/* --------------------------------------------------------------------------------------------- contexts */
/* Apple's ucontext_t: uc_link at 32, uc_mcsize at 40, uc_mcontext at 48, __mcontext_data at 56. In that, after 16 bytes:
   rax rbx rcx rdx rdi rsi rbp rsp r8 ... r15 rip. Only what a call preserves is kept. */
#define AT(n) (56 + 16 + 8 * n)
    .macro  SAVE context
    movq    %rbx, AT(1)(\context)
    movq    %rbp, AT(6)(\context)
    leaq    8(%rsp), %rax
    movq    %rax, AT(7)(\context)
    movq    %r12, AT(12)(\context)
    movq    %r13, AT(13)(\context)
    movq    %r14, AT(14)(\context)
    movq    %r15, AT(15)(\context)
    movq    (%rsp), %rax
    movq    %rax, AT(16)(\context)
    .endm

    .globl  darwin_context_save
darwin_context_save:
    leaq    56(%rdi), %rax
    movq    %rax, 48(%rdi)
    movq    $712, 40(%rdi)
    movq    $0, 32(%rdi)
    SAVE    %rdi
    xorl    %eax, %eax
    ret

    .globl  darwin_context_swap
darwin_context_swap:
    SAVE    %rdi
    movq    %rsi, %rdi
    /* and on into darwin_context_load */
    .globl  darwin_context_load
darwin_context_load:
    movq    AT(1)(%rdi), %rbx
    movq    AT(6)(%rdi), %rbp
    movq    AT(7)(%rdi), %rsp
    movq    AT(12)(%rdi), %r12
    movq    AT(13)(%rdi), %r13
    movq    AT(14)(%rdi), %r14
    movq    AT(15)(%rdi), %r15
    xorl    %eax, %eax
    jmp     *AT(16)(%rdi)

    .globl  darwin_context_start /* rbx: the function, r12: its arguments, r13: the context */
darwin_context_start:
    movq    0(%r12), %rdi
    movq    8(%r12), %rsi
    movq    16(%r12), %rdx
    movq    24(%r12), %rcx
    movq    32(%r12), %r8
    movq    40(%r12), %r9
    xorl    %eax, %eax
    call    *%rbx
    movq    %r13, %rdi
    call    darwin_context_done@PLT
    ud2

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

/* --------------------------------------------------------------------------------------------- contexts */
/* The same fields, then in __mcontext_data: x0 ... x28, fp, lr, sp, pc after 16 bytes, the vector registers after 288. */
#define AT(n) (56 + 16 + 8 * n)
#define VECTOR(n) (56 + 288 + 16 * n)
    .macro  SAVE context
    stp     x19, x20, [\context, #AT(19)]
    stp     x21, x22, [\context, #AT(21)]
    stp     x23, x24, [\context, #AT(23)]
    stp     x25, x26, [\context, #AT(25)]
    stp     x27, x28, [\context, #AT(27)]
    stp     x29, x30, [\context, #AT(29)]
    mov     x9, sp
    str     x9, [\context, #AT(31)]
    .irp    n, 8, 9, 10, 11, 12, 13, 14, 15
    str     d\n, [\context, #VECTOR(\n)]
    .endr
    .endm

    .globl  darwin_context_save
    .type   darwin_context_save, %function
darwin_context_save:
    add     x9, x0, #56
    str     x9, [x0, #48]
    mov     x9, #816
    str     x9, [x0, #40]
    str     xzr, [x0, #32]
    SAVE    x0
    mov     w0, #0
    ret

    .globl  darwin_context_swap
    .type   darwin_context_swap, %function
darwin_context_swap:
    SAVE    x0
    mov     x0, x1
    /* and on into darwin_context_load */
    .globl  darwin_context_load
    .type   darwin_context_load, %function
darwin_context_load:
    ldp     x19, x20, [x0, #AT(19)]
    ldp     x21, x22, [x0, #AT(21)]
    ldp     x23, x24, [x0, #AT(23)]
    ldp     x25, x26, [x0, #AT(25)]
    ldp     x27, x28, [x0, #AT(27)]
    ldp     x29, x30, [x0, #AT(29)]
    ldr     x9, [x0, #AT(31)]
    mov     sp, x9
    .irp    n, 8, 9, 10, 11, 12, 13, 14, 15
    ldr     d\n, [x0, #VECTOR(\n)]
    .endr
    mov     w0, #0
    ret

    .globl  darwin_context_start /* x20: the function, x21: its arguments, x19: the context */
    .type   darwin_context_start, %function
darwin_context_start:
    ldp     x0, x1, [x21]
    ldp     x2, x3, [x21, #16]
    ldp     x4, x5, [x21, #32]
    ldp     x6, x7, [x21, #48]
    blr     x20
    mov     x0, x19
    bl      darwin_context_done
    brk     #1

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

    VARIADIC printf, vprintf, 1
    VARIADIC fprintf, vfprintf, 2
    VARIADIC snprintf, vsnprintf, 3
    VARIADIC __snprintf_chk, __vsnprintf_chk, 5
    VARIADIC sscanf, vsscanf, 2
    VARIADIC fcntl, darwin_fcntl_list, 2
    VARIADIC execl, darwin_execl_list, 2
    VARIADIC makecontext, darwin_makecontext_list, 3
    VARIADIC print_message, vprint_message, 1
    VARIADIC print_error, vprint_error, 1
    LISTED  vsnprintf, vsnprintf, 3
    LISTED  __vsnprintf_chk, __vsnprintf_chk, 5
    LISTED  vfprintf, vfprintf, 2
#endif

    .section .note.GNU-stack, "", %progbits
