/* softmetal_layer.m - CAMetalLayer and its drawables. Nothing is shown. What Metal promises: Apple's documentation of
   MTLDrawable and CAMetalLayer. */
#import "softmetal_internal.h"
#include <stdlib.h>
#include <string.h>

enum { BGRA8 = 80, BYTES_OF_PIXEL = 4 };
#define PATIENCE UINT64_C(1000000000) /* of nextDrawable, as documented */

/* ---------------------------------------------------------------------------- texture -- */

static void require_access(SoftMetalTexture *texture, const char *what)
{
    SM_REQUIRE(!texture->framebuffer_only, FRAMEBUFFER_ONLY, "%s", what);
}

@implementation SoftMetalTexture
+ (sm_kind)softmetalKind { return SM_TEXTURE; }
- (unsigned long)width { return width; }
- (unsigned long)height { return height; }
- (void)getBytes:(void *)bytes
     bytesPerRow:(unsigned long)pitch
      fromRegion:(sm_region)region
     mipmapLevel:(unsigned long)level
{
    static const char what[] = "getBytes:bytesPerRow:fromRegion:mipmapLevel:";
    require_access(self, what);
    sm_origin at = region.origin;
    SM_REQUIRE(level == 0 && at.x + region.size.width <= width && at.y + region.size.height <= height, BLIT_RANGE, "%s",
               what);
    for (unsigned long row = 0; row < region.size.height; row++)
        memcpy((char *)bytes + row * pitch, memory->bytes + ((at.y + row) * width + at.x) * BYTES_OF_PIXEL,
               region.size.width * BYTES_OF_PIXEL);
}
- (void)dealloc
{
    [memory release];
    [super dealloc];
}
@end

void sm_encode_copy_to_texture(SoftMetalEncoder *encoder, id source, unsigned long from, unsigned long pitch,
                               sm_size size, id target, sm_origin to, const char *what)
{
    sm_check_argument(target, [SoftMetalTexture class], what);
    SoftMetalTexture *texture = target;
    require_access(texture, what);
    SM_REQUIRE(size.depth == 1 && to.z == 0 && to.x + size.width <= texture->width &&
                   to.y + size.height <= texture->height && pitch >= size.width * BYTES_OF_PIXEL,
               BLIT_RANGE, "%s", what);
    for (unsigned long row = 0; row < size.height; row++)
        sm_encode_copy(encoder, source, from + row * pitch, texture->memory,
                       ((to.y + row) * texture->width + to.x) * BYTES_OF_PIXEL, size.width * BYTES_OF_PIXEL, what);
}

static SoftMetalTexture *new_texture(SoftMetalLayer *layer, unsigned long width, unsigned long height)
{
    SoftMetalTexture *texture = [[SoftMetalTexture alloc] init];
    texture->memory = [[SoftMetalBuffer alloc] init];
    texture->memory->device = [layer->device retain];
    texture->memory->length = width * height * BYTES_OF_PIXEL;
    texture->memory->bytes = calloc(1, texture->memory->length);
    SM_REQUIRE(texture->memory->bytes, INTERNAL, "out of memory");
    texture->width = width;
    texture->height = height;
    texture->framebuffer_only = layer->framebuffer_only;
    return texture;
}

/* --------------------------------------------------------------------------- drawable -- */

@implementation SoftMetalDrawable
+ (sm_kind)softmetalKind { return SM_DRAWABLE; }
- (id)layer { return layer; }
- (id)texture { return texture; }
- (void)dealloc
{
    pthread_mutex_lock(&layer->lock);
    layer->out--;
    pthread_cond_signal(&layer->room);
    pthread_mutex_unlock(&layer->lock);
    [texture release];
    [layer release];
    [super dealloc];
}
@end

void sm_present(SoftMetalCommandBuffer *buffer, id drawable, const char *what)
{
    sm_check_encodable(buffer, what);
    sm_check_argument(drawable, [SoftMetalDrawable class], what);
    SM_REQUIRE(((SoftMetalDrawable *)drawable)->layer->device == buffer->engine->device, OTHER_DEVICE, "%s", what);
    if (!buffer->presents) buffer->presents = [[NSMutableArray alloc] init];
    [buffer->presents addObject:drawable];
}

/* ------------------------------------------------------------------------------ layer -- */

@implementation SoftMetalLayer
+ (sm_kind)softmetalKind { return SM_LAYER; }
+ (id)layer { return [[[self alloc] init] autorelease]; }
- (id)init
{
    if (!(self = [super init])) return nil;
    pthread_mutex_init(&lock, NULL);
    sm_cond_init(&room);
    framebuffer_only = YES;
    most = 3;
    return self;
}
- (id)device { return device; }
- (void)setDevice:(id)one
{
    if (one) sm_check_argument(one, [SoftMetalDevice class], "setDevice:");
    [one retain];
    [device release];
    device = one;
}
- (void)setPixelFormat:(unsigned long)format
{
    SM_REQUIRE(format == BGRA8, BAD_LAYER, "softmetal knows MTLPixelFormatBGRA8Unorm alone, not %lu", format);
}
- (void)setFramebufferOnly:(BOOL)only { framebuffer_only = only; }
- (void)setDrawableSize:(sm_extent)extent { size = extent; }
- (void)setMaximumDrawableCount:(unsigned long)count
{
    SM_REQUIRE(count == 2 || count == 3, BAD_LAYER, "maximumDrawableCount %lu", count);
    most = (unsigned)count;
}

/* A drawable is in use until its last reference goes. */
- (bool)takesPlace
{
    uint64_t deadline = sm_after(sm_now(), PATIENCE);
    pthread_mutex_lock(&lock);
    while (out >= most && sm_now() < deadline) sm_cond_wait_until(&room, &lock, deadline);
    bool taken = out < most;
    if (taken) out++;
    pthread_mutex_unlock(&lock);
    return taken;
}

- (id)nextDrawable
{
    SM_REQUIRE(sm_has_pool(), NO_POOL, "nextDrawable");
    if (sm_creation_fails() || !device || size.width < 1 || size.height < 1 || ![self takesPlace]) return nil;
    SoftMetalDrawable *drawable = [[SoftMetalDrawable alloc] init];
    drawable->layer = [self retain];
    drawable->texture = new_texture(self, (unsigned long)size.width, (unsigned long)size.height);
    return [drawable autorelease];
}

- (void)dealloc
{
    pthread_cond_destroy(&room);
    pthread_mutex_destroy(&lock);
    [device release];
    [super dealloc];
}
@end
