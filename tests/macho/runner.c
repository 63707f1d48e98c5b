/* runner.c - loads a program of macOS and runs it on Linux

     macho-run PROGRAM [ARGUMENT...]

   PROGRAM is a Mach-O executable for this processor as Zig's linker makes it. What dyld would do is done here: it is
   put at a random address, its pointers are moved there, its imports are bound, its classes are registered, its
   initialisers and its main run. What libSystem exports comes from darwin.c and from nowhere else; the Objective-C
   runtime, Foundation and cmocka are what the runner is linked with. Metal is softmetal, which is in the program. A
   program with an import that is not found does not begin.

   A crash that cmocka does not take for itself is shown with a stack of the program's own symbols.

   In the environment
     MACHO_TRACE=1    says where the program is, and what each import was bound to */
#define _GNU_SOURCE
#include "darwin.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------ the format */

/* clang-format off */
#define MAGIC_64 0xFEEDFACFu
#define EXECUTE 2u
#ifdef __x86_64__
#define CPU_TYPE 0x01000007u
#define PAGE 0x1000u
#else
#define CPU_TYPE 0x0100000Cu
#define PAGE 0x4000u
#endif
enum {
    LC_SYMTAB = 0x2, LC_LOAD_DYLIB = 0xC, LC_SEGMENT_64 = 0x19, LC_MAIN = 0x80000028, LC_DYLD_INFO = 0x22,
    LC_DYLD_INFO_ONLY = 0x80000022, LC_CHAINED_FIXUPS = 0x80000034, LC_LOAD_WEAK_DYLIB = 0x80000018
};
enum { S_MOD_INIT = 0x9, S_TLV_REGULAR = 0x11, S_TLV_ZEROFILL = 0x12, S_TLV = 0x13, S_INIT_OFFSETS = 0x16 };
#define SG_READ_ONLY 0x10u
typedef struct header { uint32_t magic, cpu, cpu_kind, kind, commands, commands_size, flags, reserved; } header;
typedef struct command { uint32_t kind, size; } command;
typedef struct segment {
    uint32_t kind, size;
    char name[16];
    uint64_t address, memory_size, offset, file_size;
    uint32_t max_protection, protection, sections, flags;
} segment;
typedef struct section {
    char name[16], segment[16];
    uint64_t address, size;
    uint32_t offset, align, relocations, relocation_count, flags, reserved[3];
} section;
typedef struct symtab { uint32_t kind, size, symbols, count, strings, strings_size; } symtab;
typedef struct symbol { uint32_t name; uint8_t type, section; uint16_t description; uint64_t value; } symbol;
typedef struct dyld_info { uint32_t kind, size, rebase[2], bind[2], weak[2], lazy[2], exports[2]; } dyld_info;
typedef struct entry_point { uint32_t kind, size; uint64_t offset, stack_size; } entry_point;
typedef struct dylib { uint32_t kind, size, name; } dylib;
typedef struct tlv_descriptor { void *(*address)(struct tlv_descriptor *); uint64_t key, offset; } tlv_descriptor;
/* clang-format on */

/* ------------------------------------------------------------------------------------------------- the image */

#define MOST 32
static struct {
    const char *path;
    const uint8_t *file;
    size_t file_size;
    uint64_t low, high; /* before the slide */
    intptr_t slide;
    const segment *segments[MOST];
    const char *libraries[MOST];
    unsigned segment_count, library_count;
    const symtab *symbols;
    const dyld_info *fixups;
    const entry_point *entry;
    struct {
        const uint8_t *start;
        size_t size, align;
    } tlv; /* the first values of a thread's variables */
    unsigned missing;
} image;
static bool tracing;

__attribute__((noreturn, format(printf, 1, 2))) static void refuse(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "macho-run: %s: ", image.path ? image.path : "?");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(127);
}

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)(address + (uint64_t)image.slide);
}
static const void *in_file(uint64_t offset, uint64_t size)
{
    if (offset > image.file_size || size > image.file_size - offset) refuse("the file is cut short");
    return image.file + offset;
}

static void read_commands(void)
{
    const header *h = in_file(0, sizeof *h);
    uint64_t offset = sizeof *h;
    if (h->magic != MAGIC_64 || h->kind != EXECUTE) refuse("no 64-bit Mach-O program");
    if (h->cpu != CPU_TYPE) refuse("a program for another processor (cpu type %#x)", h->cpu);
    image.low = UINT64_MAX;
    for (uint32_t i = 0; i < h->commands; i++) {
        const command *c = in_file(offset, sizeof *c);
        in_file(offset, c->size);
        offset += c->size;
        switch (c->kind) {
        case LC_SEGMENT_64: {
            const segment *s = (const segment *)c;
            if (image.segment_count == MOST) refuse("more than %d segments", MOST);
            image.segments[image.segment_count++] = s;
            if (!s->protection || !s->memory_size) break; /* __PAGEZERO */
            if (s->address < image.low) image.low = s->address;
            if (s->address + s->memory_size > image.high) image.high = s->address + s->memory_size;
            break;
        }
        case LC_LOAD_DYLIB:
        case LC_LOAD_WEAK_DYLIB:
            if (image.library_count == MOST) refuse("more than %d libraries", MOST);
            image.libraries[image.library_count++] = (const char *)c + ((const dylib *)c)->name;
            break;
        case LC_SYMTAB: image.symbols = (const symtab *)c; break;
        case LC_DYLD_INFO:
        case LC_DYLD_INFO_ONLY: image.fixups = (const dyld_info *)c; break;
        case LC_CHAINED_FIXUPS: refuse("chained fixups: link it with Zig, or with -Wl,-no_fixup_chains");
        case LC_MAIN: image.entry = (const entry_point *)c; break;
        default: break;
        }
    }
    if (!image.entry || !image.fixups || image.low > image.high) refuse("no entry point, fixups or segments");
}

/* One stretch of memory for all segments: their places relative to each other are fixed. Writable, for bind's sake. */
static void map_segments(void)
{
    const uint8_t *random = (const uint8_t *)getauxval(AT_RANDOM);
    uint64_t size = (image.high - image.low + PAGE - 1) & ~(uint64_t)(PAGE - 1);
    for (unsigned tries = 0;; tries++) { /* above 4 GiB, as on a Mac: half a pointer points nowhere */
        uint64_t wanted =
            image.low + (((uint64_t)random[tries & 7] << 8 | random[8 + (tries & 7)]) + tries + 1) * 0x100000;
        void *got = mmap((void *)(uintptr_t)wanted, size, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (got == (void *)(uintptr_t)wanted) {
            image.slide = (intptr_t)(wanted - image.low);
            break;
        }
        if (got != MAP_FAILED) munmap(got, size);
        if (tries == 100) refuse("no room for it in memory");
    }
    for (unsigned i = 0; i < image.segment_count; i++) {
        const segment *s = image.segments[i];
        if (s->protection && s->file_size) memcpy(at(s->address), in_file(s->offset, s->file_size), s->file_size);
    }
}

/* When all is bound. dyld makes __DATA_CONST read-only at this point. */
static void protect_segments(void)
{
    for (unsigned i = 0; i < image.segment_count; i++) {
        const segment *s = image.segments[i];
        int protection = (s->protection & 1 ? PROT_READ : 0) | (s->protection & 4 ? PROT_EXEC : 0);
        bool constant = s->flags & SG_READ_ONLY || strcmp(s->name, "__DATA_CONST") == 0;
        if (!s->protection || !s->memory_size) continue;
        if (s->protection & 2 && !constant) protection |= PROT_WRITE;
        if (mprotect(at(s->address), (s->memory_size + PAGE - 1) & ~(uint64_t)(PAGE - 1), protection))
            refuse("cannot protect %.16s", s->name);
        if (protection & PROT_EXEC)
            __builtin___clear_cache((char *)at(s->address), (char *)at(s->address) + s->memory_size);
    }
}

/* ------------------------------------------------------------------------------------- symbols, both ways */

static const char *symbol_near(uintptr_t address, uintptr_t *offset)
{
    const symbol *list = image.symbols ? in_file(image.symbols->symbols, image.symbols->count * sizeof *list) : NULL;
    const char *name = NULL;
    uint64_t best = 0, linked = address - (uintptr_t)image.slide;
    if (linked < image.low || linked >= image.high) return NULL;
    for (uint32_t i = 0; list && i < image.symbols->count; i++) {
        if (list[i].type & 0xE0 || (list[i].type & 0x0E) != 0x0E) continue; /* a debugger's, or in no section */
        if (list[i].value > linked || list[i].value < best) continue;
        best = list[i].value;
        name = (const char *)image.file + image.symbols->strings + list[i].name;
    }
    *offset = (uintptr_t)(linked - best);
    return name;
}

bool darwin_in_program(const void *address)
{
    uint64_t linked = (uint64_t)(uintptr_t)address - (uint64_t)image.slide;
    return linked >= image.low && linked < image.high;
}

void *darwin_own_symbol(const char *name)
{
    const symbol *list = image.symbols ? in_file(image.symbols->symbols, image.symbols->count * sizeof *list) : NULL;
    for (uint32_t i = 0; list && i < image.symbols->count; i++) {
        const char *here = (const char *)image.file + image.symbols->strings + list[i].name;
        if ((list[i].type & 0xEF) == 0x0F && here[0] == '_' && strcmp(here + 1, name) == 0) return at(list[i].value);
    }
    return NULL;
}

static void lazy_binder(void)
{
    fprintf(stderr, "macho-run: an import was called that was not bound\n");
    abort();
}

/* For names that the linker did not find in libSystem. Not from the C library: a function that glibc has and macOS
   lacks has to stay missing. */
static void *host_symbol(const char *name)
{
    Dl_info where;
    void *found = NULL;
#ifdef __aarch64__ /* functions with variable arguments are entered through machine.S */
    char entrance[100];
    snprintf(entrance, sizeof entrance, "darwin_%s", name);
    found = dlsym(RTLD_DEFAULT, entrance);
#endif
    if (!found) found = darwin_objc_symbol(name);
    if (!found) found = dlsym(RTLD_DEFAULT, name);
    if (!found || !dladdr(found, &where)) return found;
    return strstr(where.dli_fname, "/libc.so") || strstr(where.dli_fname, "/ld-linux") ? NULL : found;
}

/* library: which of the program's libraries has it, counted from 1; otherwise any may. */
static void *resolve(const char *name, int library, bool weak)
{
    void *found = NULL;
    const char *from = "nowhere";
    if (strcmp(name, "dyld_stub_binder") == 0) return (void *)(uintptr_t)lazy_binder;
    if (name[0] != '_') refuse("an import without an underscore: %s", name);
    if (library > 0) {
        found = darwin_symbol(name + 1);
        from = "libSystem";
        if (library > (int)image.library_count || !strstr(image.libraries[library - 1], "/libSystem."))
            refuse("%s is to come from %s", name,
                   library > (int)image.library_count ? "?" : image.libraries[library - 1]);
    } else {
        found = host_symbol(name + 1);
        from = "this program";
    }
    if (tracing)
        fprintf(stderr, "macho-run: %s = %p, of %s%s\n", name, found, found ? from : "no image", weak ? ", weak" : "");
    if (found || weak) return found;
    fprintf(stderr, "macho-run: %s: %s %s\n", image.path, name,
            library > 0 ? "of libSystem is not in darwin.c"
                        : "is neither Apple's libSystem's nor one of libobjc, Foundation, cmocka");
    image.missing++;
    return NULL;
}

/* ------------------------------------------------------------------------------------------ rebase and bind */

typedef struct stream {
    const uint8_t *next, *end;
} stream;
static uint8_t byte(stream *s)
{
    if (s->next >= s->end) refuse("fixups end early");
    return *s->next++;
}
static uint64_t uleb(stream *s)
{
    uint64_t value = 0;
    unsigned shift = 0;
    uint8_t b;
    do value |= (uint64_t)((b = byte(s)) & 0x7F) << (shift & 63), shift += 7;
    while (b & 0x80);
    return value;
}
static int64_t sleb(stream *s)
{
    int64_t value = 0;
    unsigned shift = 0;
    uint8_t b;
    do value |= (int64_t)((uint64_t)((b = byte(s)) & 0x7F) << (shift & 63)), shift += 7;
    while (b & 0x80);
    if (b & 0x40 && shift < 64) value |= -((int64_t)1 << shift);
    return value;
}
static stream stream_of(const uint32_t where[2])
{
    stream s;
    s.next = in_file(where[0], where[1]);
    s.end = s.next + where[1];
    return s;
}
static uint64_t segment_address(unsigned index)
{
    if (index >= image.segment_count) refuse("fixups of segment %u", index);
    return image.segments[index]->address;
}
static void **slot(uint64_t address)
{
    if (address < image.low || address + 8 > image.high) refuse("a fixup outside of the program");
    return (void **)at(address);
}

static void rebase(void)
{
    stream s = stream_of(image.fixups->rebase);
    uint64_t address = 0, times, skip;
    while (s.next < s.end) {
        uint8_t op = byte(&s), low = op & 0xF;
        times = skip = 0;
        switch (op & 0xF0) {
        case 0x00: return;
        case 0x10:
            if (low != 1) refuse("rebase of kind %u", low);
            break;
        case 0x20:
            address = segment_address(low);
            address += uleb(&s);
            break;
        case 0x30: address += uleb(&s); break;
        case 0x40: address += low * 8u; break;
        case 0x50: times = low; break;
        case 0x60: times = uleb(&s); break;
        case 0x70:
            times = 1;
            skip = uleb(&s);
            break;
        case 0x80:
            times = uleb(&s);
            skip = uleb(&s);
            break;
        default: refuse("rebase opcode %#x", op);
        }
        for (; times; times--, address += 8 + skip) *(intptr_t *)slot(address) += image.slide;
    }
}

enum { EAGER, LAZY, WEAK };
static void bind(const uint32_t where[2], int kind)
{
    stream s = stream_of(where);
    const char *name = "";
    uint64_t address = 0, times, skip;
    int64_t addend = 0;
    int library = 0;
    bool weak = false;
    while (s.next < s.end) {
        uint8_t op = byte(&s), low = op & 0xF;
        times = skip = 0;
        switch (op & 0xF0) {
        case 0x00:
            if (kind != LAZY) return;
            break; /* the end of one, of many */
        case 0x10: library = low; break;
        case 0x20: library = (int)uleb(&s); break;
        case 0x30: library = low ? (int)(int8_t)(op | 0xF0) : 0; break;
        case 0x40:
            weak = low & 1;
            name = (const char *)s.next;
            while (byte(&s)) {
            }
            break;
        case 0x50:
            if (low != 1) refuse("bind of kind %u", low);
            break;
        case 0x60: addend = sleb(&s); break;
        case 0x70:
            address = segment_address(low);
            address += uleb(&s);
            break;
        case 0x80: address += uleb(&s); break;
        case 0x90: times = 1; break;
        case 0xA0:
            times = 1;
            skip = uleb(&s);
            break;
        case 0xB0:
            times = 1;
            skip = low * 8u;
            break;
        case 0xC0:
            times = uleb(&s);
            skip = uleb(&s);
            break;
        default: refuse("bind opcode %#x", op);
        }
        for (; times; times--, address += 8 + skip) {
            void *found;
            if (kind == WEAK) { /* a definition that others go before: the runner's does */
                found = host_symbol(name + 1);
                if (!found) found = darwin_own_symbol(name + 1);
                if (!found) continue; /* as EAGER left it */
            } else
                found = resolve(name, library, weak);
            *slot(address) = found ? (char *)found + addend : NULL;
        }
    }
}

/* -------------------------------------------------------------------------- sections: threads, initialisers */

static void each_section(void (*act)(const section *, void *), void *argument)
{
    uint32_t k;
    for (unsigned i = 0; i < image.segment_count; i++)
        for (k = 0; k < image.segments[i]->sections; k++) act((const section *)(image.segments[i] + 1) + k, argument);
}

/* The sections of thread variables make one block, which each thread has a copy of; descriptors have offsets in it. */
static void find_tlv(const section *s, void *unused)
{
    uint32_t kind = s->flags & 0xFF;
    (void)unused;
    if (kind == S_TLV_REGULAR || kind == S_TLV_ZEROFILL) {
        const uint8_t *start = at(s->address);
        if (!image.tlv.start || start < image.tlv.start) {
            if (image.tlv.start) image.tlv.size += (size_t)(image.tlv.start - start);
            image.tlv.start = start;
        }
        if (start + s->size > image.tlv.start + image.tlv.size)
            image.tlv.size = (size_t)(start + s->size - image.tlv.start);
        if ((size_t)1 << s->align > image.tlv.align) image.tlv.align = (size_t)1 << s->align;
    } else if (kind == S_TLV) {
        tlv_descriptor *d = at(s->address), *end = d + s->size / sizeof *d;
        for (; d < end; d++) d->address = (void *(*)(tlv_descriptor *))(uintptr_t)darwin_tlv_address;
    }
}

static void take_objc(const section *s, void *round)
{
    char name[17] = ""; /* without a 0 where it is as long as that */
    memcpy(name, s->name, 16);
    darwin_objc_section(name, at(s->address), s->size, *(int *)round);
}

typedef struct arguments {
    int count;
    char **list, **environment, *apple[2];
} arguments;
static void run_initialisers(const section *s, void *argument)
{
    typedef void (*initialiser)(int, char **, char **, char **);
    arguments *a = argument;
    if ((s->flags & 0xFF) == S_MOD_INIT)
        for (size_t i = 0; i < s->size / 8; i++)
            ((initialiser *)at(s->address))[i](a->count, a->list, a->environment, a->apple);
    else if ((s->flags & 0xFF) == S_INIT_OFFSETS)
        for (size_t i = 0; i < s->size / 4; i++)
            ((initialiser)(uintptr_t)at(image.low + ((uint32_t *)at(s->address))[i]))(a->count, a->list, a->environment,
                                                                                      a->apple);
}

/* -------------------------------------------------------------------------------------------------- crashes */

static void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0) {
    }
}
static bool say_place(uintptr_t address) /* is it the program's? */
{
    char line[512];
    uintptr_t offset = 0;
    const char *name = symbol_near(address, &offset);
    Dl_info where;
    if (name)
        snprintf(line, sizeof line, "macho-run:   %s + %lu\n", name, (unsigned long)offset);
    else if (dladdr((void *)address, &where) && where.dli_sname)
        snprintf(line, sizeof line, "macho-run:   %s + %lu, of Linux\n", where.dli_sname,
                 (unsigned long)(address - (uintptr_t)where.dli_saddr));
    else
        snprintf(line, sizeof line, "macho-run:   %#lx\n", (unsigned long)address);
    say(line);
    return name != NULL;
}

static void on_crash(int number, siginfo_t *info, void *context)
{
    const mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
#ifdef __x86_64__
    uintptr_t pc = (uintptr_t)machine->gregs[REG_RIP], frame = (uintptr_t)machine->gregs[REG_RBP];
#else
    uintptr_t pc = (uintptr_t)machine->pc, frame = (uintptr_t)machine->regs[29];
#endif
    uintptr_t low = (uintptr_t)&machine, pair[2];
    void *places[32];
    char line[100];
    int i, depth, memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    snprintf(line, sizeof line, "macho-run: signal %d, address %p, at\n", number, info->si_addr);
    say(line);
    bool seen = say_place(pc);
    for (depth = 0; depth < 24 && frame > low && frame - low < 1 << 24 && frame % 8 == 0; depth++) {
        if (pread(memory, pair, sizeof pair, (off_t)frame) != sizeof pair) break; /* code without frame pointers */
        seen |= say_place(pair[1]);
        if (pair[0] <= frame) break;
        frame = pair[0];
    }
    close(memory);
    /* Linux's libraries have unwind tables instead: those lead to the call that the program made, and no further. */
    depth = seen ? 0 : backtrace(places, 32);
    for (i = 0; i < depth; i++)
        if (say_place((uintptr_t)places[i])) break;
    signal(number, SIG_DFL);
    raise(number);
}

/* ----------------------------------------------------------------------------------------------------- main */

int main(int argc, char **argv, char **environment)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE, SIGABRT};
    struct sigaction action;
    struct stat status;
    arguments a;
    if (argc < 2) {
        fprintf(stderr, "usage: macho-run PROGRAM [ARGUMENT...]\n");
        return 127;
    }
    tracing = getenv("MACHO_TRACE") != NULL;
    image.path = argv[1];
    int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &status) || status.st_size < (off_t)sizeof(header)) refuse("cannot be read");
    image.file_size = (size_t)status.st_size;
    image.file = mmap(NULL, image.file_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (image.file == MAP_FAILED) refuse("cannot be read");
    close(file);

    read_commands();
    map_segments();
    rebase();
    bind(image.fixups->bind, EAGER);
    bind(image.fixups->lazy, LAZY); /* at once, so that what is missing is known now */
    bind(image.fixups->weak, WEAK);
    if (image.missing) refuse("%u imports are missing", image.missing);
    for (int round = 0; round < 2; round++) each_section(take_objc, &round);
    each_section(find_tlv, NULL);
    darwin_start(image.tlv.start, image.tlv.size, image.tlv.align);
    protect_segments();
    if (tracing) fprintf(stderr, "macho-run: mapped at %p\n", at(image.low));

    backtrace(&(void *){NULL}, 1); /* loads a library the first time, which a handler should not */
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++) sigaction(crashes[i], &action, NULL);

    a.count = argc - 1;
    a.list = argv + 1;
    a.environment = environment;
    a.apple[0] = argv[1];
    a.apple[1] = NULL;
    each_section(run_initialisers, &a);
    int result = ((int (*)(int, char **, char **, char **))(uintptr_t)at(image.low + image.entry->offset))(
            a.count, a.list, a.environment, a.apple);
    exit(result);
}
