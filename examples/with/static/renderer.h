/* A library of one's own. Its users never hear of gpusync. */
#include <stddef.h>

/* Draws a frame, waits for it for at most limit_ms, and says in text how that went. Returns 0 when it went well. */
int renderer_draw(unsigned limit_ms, char *text, size_t size);
