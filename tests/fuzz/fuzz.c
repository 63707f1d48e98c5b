/* fuzz.c - bytes to sequences of public calls

   The first byte says what an input is: a program of submit_graphs.h, judged by the model (programs.h), or calls as they come,
   with objects that are destroyed, devices that are lost, and faults (calls.h), and perhaps with queues of Metal 4 among
   the others (calls4.h). Either may have what came with 0.3: queues where failures stick, objects that are destroyed
   later, waits that come when the device is lost. Every input ends with everything
   destroyed: no memory of the allocators' is left then, and no object of Metal's.

   FUZZ_TELL=1   tells every call, with its result where that is judged
   FUZZ_CALLS=1  tells at the end which public functions were not called, and which kinds and options were not met, and fails
                 when there is one; numbers: how often each was
   FUZZ_LIMIT    seconds after which an input hangs; default 20 */
#include "programs.h"
#include "calls.h"

/* -- the watchdog: real seconds, on a thread of its own ------------------------------------------------ */

static uint64_t inputs; /* begun and ended */

static void *watch(void *argument)
{
    const char *text = getenv("FUZZ_LIMIT");
    unsigned limit = text ? (unsigned)atoi(text) : 20, same = 0;
    uint64_t last = 0;
    for (;;) {
        struct timespec second = {1, 0};
        uint64_t now = __atomic_load_n(&inputs, __ATOMIC_SEQ_CST);
        nanosleep(&second, NULL);
        same = now == last && now % 2 ? same + 1 : 0;
        last = now;
        if (same < limit) continue;
        fprintf(stderr, "fuzz: hangs: %s has not returned for %u s: %u parks and %u yields\n", fuzz_doing[0], same,
                GET(&gpu.idle), GET(&gpu.yields));
        pthread_kill(gpu.main, SIGABRT); /* so that it tells where it is */
        same = 0;
    }
    return argument;
}

/* -- what libFuzzer calls ------------------------------------------------------------------------------ */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    begin();
    gpu.main = pthread_self();
    (void)start(watch, NULL);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    size_t at, count;
    drawn = seed;
    if (draw_below(4)) return LLVMFuzzerMutate(data, size, most);
    switch (draw_below(4)) {
    case 0: return draw_input(data, 2, most);
    case 1: /* what kind it is, and how it begins */
        draw_bytes(data, size < 2 ? size : 1 + draw_below(2));
        break;
    case 2: /* it goes on */
        count = 1 + draw_below(64);
        if (open_gap(data, &size, most, size, count)) draw_bytes(data + size - count, count);
        break;
    default:
        at = draw_below(size + 1);
        count = 1 + draw_below(16);
        if (open_gap(data, &size, most, at, count)) draw_bytes(data + at, count);
        break;
    }
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *pool;
    unsigned kind;
    if (size < 2) return 0;
    __atomic_fetch_add(&inputs, 1, __ATOMIC_SEQ_CST);
    pool = metal_pool_push();
    input.at = data;
    input.end = data + size;
    input.filler = 0x9E3779B97F4A7C15u * (1 + data[0] + 256u * data[1]);
    clock_is_real = false;
    clock_now = SECONDS(1000);
    gpu.idle = gpu.yields = 0;
    softmetal_reset();
    kind = byte();
    switch (kind % 8) {
    case 0: play_program(false); break;
    case 4: play_program(true); break;
    case 1:
    case 7: play_calls(false, false); break;
    case 5: play_calls(true, false); break;
    default: play_calls(kind >= 128, true); break;
    }
    metal_pool_pop(pool);
    check_nothing_is_left();
    __atomic_fetch_add(&inputs, 1, __ATOMIC_SEQ_CST);
    return 0;
}
