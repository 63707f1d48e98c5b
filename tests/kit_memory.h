/* kit_memory.h - the memory of gpusync in tests: kit.c counts it, makes it fail, and spoils what is freed

   Included before gpusync.h by the file that defines GPUSYNC_IMPLEMENTATION; kit.h includes it for such a file. */
#ifndef KIT_MEMORY_H
#define KIT_MEMORY_H

#include <stddef.h>

void *kit_malloc(size_t size);
void kit_free(void *memory);

#if defined(GPUSYNC_IMPLEMENTATION) && !defined(GPUSYNC_MALLOC)
#define GPUSYNC_MALLOC(size) kit_malloc(size)
#define GPUSYNC_FREE(memory) kit_free(memory)
#endif

#endif
