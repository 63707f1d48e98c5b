/* softmetal_layer.m - CAMetalLayer and its drawables, which are shown to their handlers alone. What Metal promises:
   Apple's documentation of MTLDrawable and CAMetalLayer. */
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

static unsigned being_shown;

bool sm_drawables_settled(void) { return __atomic_load_n(&being_shown, __ATOMIC_ACQUIRE) == 0; }

static void *end_handlers(void *argument)
{
    SoftMetalDrawable *drawable = argument;
    pthread_mutex_lock(&drawable->layer->lock);
    sm_blocks handlers = drawable->handlers;
    drawable->handlers = (sm_blocks){.items = NULL};
    pthread_mutex_unlock(&drawable->layer->lock);
    sm_blocks_end(&handlers, drawable->lost ? nil : drawable);
    [drawable release];
    __atomic_fetch_sub(&being_shown, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* It comes to the display, or is dropped before; once: else false. */
static bool end_drawable(SoftMetalDrawable *drawable, bool shown, bool calls,
                         void (*thread)(void *(*body)(void *), void *argument))
{
    if (shown && SM_QUIRK(lost_drawables)) shown = calls = false;
    double seconds = shown ? (double)sm_now() / 1e9 : 0;
    if (__atomic_exchange_n(&drawable->over, true, __ATOMIC_RELAXED)) return false;
    __atomic_store(&drawable->presented_time, &seconds, __ATOMIC_RELAXED);
    drawable->lost = !calls;
    sm_note_activity();
    __atomic_fetch_add(&being_shown, 1, __ATOMIC_RELAXED);
    thread(end_handlers, [drawable retain]);
    return true;
}

static void end_by_hand(void *drawable, bool shown, bool calls, const char *what)
{
    sm_check_argument((id)drawable, [SoftMetalDrawable class], what);
    SM_REQUIRE(end_drawable(drawable, shown, calls, sm_thread_run), STEP_NOT_DUE, "%s: it was shown or dropped", what);
}

void softmetal_present(void *drawable) { end_by_hand(drawable, true, true, "softmetal_present"); }
void softmetal_drop_drawable(void *drawable, bool calls) { end_by_hand(drawable, false, calls, "softmetal_drop_drawable"); }

@implementation SoftMetalDrawable
+ (sm_kind)softmetalKind { return SM_DRAWABLE; }
- (id)layer { return layer; }
- (id)texture { return texture; }
- (void)addPresentedHandler:(id)block
{
    bool sent = sm_arrived(self, _cmd);
    SM_REQUIRE(block, NIL_ARGUMENT, "addPresentedHandler:");
    sm_block held = sm_block_take(block);
    pthread_mutex_lock(&layer->lock);
    sm_blocks_add(&handlers, held);
    pthread_mutex_unlock(&layer->lock);
    if (sent) sm_hook_after(self, "addPresentedHandler:");
}
- (void)present
{
    if (clock == SOFTMETAL_REAL) end_drawable(self, true, true, sm_thread_start);
}
- (double)presentedTime
{
    double seconds;
    __atomic_load(&presented_time, &seconds, __ATOMIC_RELAXED);
    return seconds;
}
- (void)dealloc
{
    sm_blocks_end(&handlers, nil);
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
    drawable->clock = sm_clock();
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

void *softmetal_new_drawable(void *device)
{
    void *pool = sm_pool_push();
    SoftMetalLayer *layer = [SoftMetalLayer layer];
    [layer setDevice:device];
    [layer setDrawableSize:(sm_extent){1, 1}];
    id drawable = [[layer nextDrawable] retain];
    sm_pool_close(pool);
    return drawable;
}
