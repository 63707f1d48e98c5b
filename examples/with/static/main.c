/* Has a copy of gpusync of its own, besides that of the library: the two do not meet. */
#define GPUSYNC_IMPLEMENTATION
#include "gpusync.h"
#include "renderer.h"
#include <stdio.h>

int main(void)
{
    char text[512];
    int bad = renderer_draw(1000, text, sizeof text);
    fprintf(bad ? stderr : stdout, "%s\n", text);
    return bad || gpusync_version() != GPUSYNC_VERSION;
}
