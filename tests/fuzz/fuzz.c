/* fuzz.c - bytes to a program of graphs.h, which the model judges: see fuzz.sh

   The first byte is the kind of the program, the others are its choices, in the order in which they are drawn. What
   the model does not agree with ends the process, as a sanitizer's finding does: libFuzzer keeps the input then.
   FUZZ_TELL=1 prints each step as it is made. */
#define GPUSYNC_IMPLEMENTATION
#include "graphs.h"

#include "metal.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* there is no test that an assertion could leave */
    graph_tells = getenv("FUZZ_TELL") != NULL;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const graph_rules *rules = &graph_kinds[data[0] % LENGTH(graph_kinds)];
    void *pool = metal_pool_push();
    run_bytes(rules, data + 1, size - 1);
    metal_pool_pop(pool);
    return 0;
}

/* libFuzzer's own changes are small, and begin with nothing. Every fourth input goes on at random from some byte on, or
   is new: so there are long programs of all kinds at once, and those with an interesting beginning have many ends. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    unsigned draw = seed * 2654435761u | 1u;
    size_t at;
    if (seed % 4)
        return LLVMFuzzerMutate(data, size, most);
    for (at = size && seed % 16 ? seed / 16 % size : 0, size = most; at < size; at++) {
        draw ^= draw << 13;
        draw ^= draw >> 17;
        draw ^= draw << 5;
        data[at] = (uint8_t)(draw >> 11);
    }
    return size;
}
