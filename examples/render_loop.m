// clang -fobjc-arc render_loop.m -framework Cocoa -framework Metal -framework QuartzCore -o render_loop
//
// Unverified: not yet compiled with Apple's headers, nor run on a Mac.
//
// A window with a turning triangle: a render loop with drawables, three frames in flight. It shows what frames.c
// cannot: a display link whose callback waits for nothing, what a resize needs, and a device that is lost and replaced.
// `./render_loop 300` ends after so many frames, with status 0 if all of them ended well. macOS 14, for CADisplayLink.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#import <AppKit/AppKit.h>
#import <Metal/Metal.h>
#import <QuartzCore/QuartzCore.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 3, TRIES = 3 };

static NSString *const source =
    @"#include <metal_stdlib>\n"
     "using namespace metal;\n"
     "vertex float4 corner(uint i [[vertex_id]], constant float &turn [[buffer(0)]]) {\n"
     "    float a = turn + float(i) * 2.0944;\n"
     "    return float4(0.7 * cos(a), 0.7 * sin(a), 0, 1);\n"
     "}\n"
     "fragment float4 paint() { return float4(0.2, 0.6, 1, 1); }\n";

@interface FrameView : NSView
- (bool)openDevice;
- (unsigned long)finish; /* failures */
@property unsigned long framesToDraw; /* 0: until the window is closed */
@end

@implementation FrameView {
    gpusync_device *_device;
    gpusync_queue *_queue;
    gpusync_ticket _newest;      /* 0 at first: no frame */
    id<MTLBuffer> _slots[DEPTH]; /* what the CPU writes and the GPU reads; ticket n uses n % DEPTH */
    id<MTLRenderPipelineState> _pipeline;
    CADisplayLink *_link;
    uint64_t _cursor; /* of the failures on record */
    unsigned long _drawn, _leftOut, _failures;
    unsigned _losses;
}

/* -- the layer, and its size -------------------------------------------------------------------------------------- */

- (CALayer *)makeBackingLayer
{
    CAMetalLayer *layer = [CAMetalLayer layer];
    layer.pixelFormat = MTLPixelFormatBGRA8Unorm;
    layer.maximumDrawableCount = DEPTH; /* with fewer, nextDrawable waits for the display */
    return layer;
}

/* A resize waits for nothing: frames in flight have drawables of the old size, and a pass takes that of its own. Metal
   keeps what a command buffer refers to, unless that was made with unretained references. */
- (void)fitDrawables
{
    if (!self.window) return;
    CAMetalLayer *layer = (CAMetalLayer *)self.layer;
    NSSize size = [self convertSizeToBacking:self.bounds.size];
    layer.contentsScale = self.window.backingScaleFactor;
    if (size.width >= 1 && size.height >= 1) layer.drawableSize = size; /* zero is an error */
}

- (void)setFrameSize:(NSSize)size
{
    [super setFrameSize:size];
    [self fitDrawables];
}

- (void)viewDidChangeBackingProperties
{
    [super viewDidChangeBackingProperties];
    [self fitDrawables];
}

- (void)viewDidMoveToWindow
{
    [super viewDidMoveToWindow];
    [_link invalidate]; /* it retains its target, so this also lets the view go */
    _link = nil;
    if (!self.window) return;
    [self fitDrawables];
    _link = [self displayLinkWithTarget:self selector:@selector(frame:)];
    [_link addToRunLoop:NSRunLoop.mainRunLoop forMode:NSRunLoopCommonModes]; /* also while the window is resized */
}

/* -- the device: at the start, and again when it was lost --------------------------------------------------------- */

- (bool)openDevice
{
    id<MTLDevice> metal = MTLCreateSystemDefaultDevice();
    gpusync_device_desc desc = {0};
    gpusync_queue_desc queueDesc = {.label = "frames"};
    NSError *error = nil;
    desc.metal_device = (__bridge void *)metal;
    if (!metal || gpusync_device_create(&desc, &_device) != GPUSYNC_OK) return false;
    if (gpusync_queue_create(_device, &queueDesc, &_queue) != GPUSYNC_OK) return false;
    id<MTLLibrary> library = [metal newLibraryWithSource:source options:nil error:&error];
    MTLRenderPipelineDescriptor *pipeline = [MTLRenderPipelineDescriptor new];
    pipeline.vertexFunction = [library newFunctionWithName:@"corner"];
    pipeline.fragmentFunction = [library newFunctionWithName:@"paint"];
    pipeline.colorAttachments[0].pixelFormat = MTLPixelFormatBGRA8Unorm;
    if (library) _pipeline = [metal newRenderPipelineStateWithDescriptor:pipeline error:&error];
    if (!_pipeline) {
        fprintf(stderr, "no pipeline: %s\n", error.localizedDescription.UTF8String);
        return false;
    }
    for (unsigned i = 0; i < DEPTH; i++) {
        _slots[i] = [metal newBufferWithLength:sizeof(float) options:MTLResourceStorageModeShared];
        if (!_slots[i]) return false;
    }
    ((CAMetalLayer *)self.layer).device = metal;
    _newest = GPUSYNC_NO_TICKET; /* tickets of a queue that is gone mean nothing to the next */
    _cursor = 0;
    return true;
}

/* Waits for the frames in flight; a second at most for those of a device that is lost. */
- (void)closeDevice
{
    if (_queue) [self countFailures];
    gpusync_queue_destroy(_queue);
    gpusync_device_destroy(_device);
    _queue = NULL;
    _device = NULL;
    _pipeline = nil;
    for (unsigned i = 0; i < DEPTH; i++) _slots[i] = nil;
}

/* An external GPU may be gone, and another one be there. After too many faults the process may get no device at all:
   so this is tried a few times, and no more. */
- (void)deviceIsLost
{
    fprintf(stderr, "frame %lu: the device is lost\n", _drawn);
    [self closeDevice];
    if (++_losses < TRIES && [self openDevice]) return;
    fprintf(stderr, "there is no device to go on with\n");
    _failures++;
    [self stop];
}

- (void)stop
{
    [_link invalidate];
    _link = nil;
    [NSApp terminate:nil];
}

/* -- a frame ------------------------------------------------------------------------------------------------------ */

/* A failed frame is no reason to stop. Its drawable is presented all the same, with whatever is in it: presentDrawable:
   presents when the command buffer is scheduled (Apple's documentation). */
- (void)countFailures
{
    gpusync_error error;
    while (gpusync_queue_next_error(_queue, &_cursor, &error) == GPUSYNC_OK) {
        fprintf(stderr, "ticket %lld failed: %s (%s)\n", (long long)error.ticket, error.message,
                gpusync_failure_string(error.failure));
        _failures++;
    }
}

/* The main thread does not wait for the GPU: where that is three frames behind, this one is left out. */
- (void)frame:(CADisplayLink *)link
{
    (void)link;
    if (!_queue) return;
    if (gpusync_device_is_lost(_device)) {
        [self deviceIsLost];
        return;
    }
    [self countFailures];
    if (gpusync_poll(_queue, _newest + 1 - DEPTH, NULL) == GPUSYNC_NOT_READY) { /* the GPU still reads the slot */
        _leftOut++;
        return;
    }
    @autoreleasepool { /* a drawable that waits for the run loop's pool is one that the next frame lacks */
        [self draw];
    }
    if (_framesToDraw && _drawn >= _framesToDraw) [self stop];
}

/* nextDrawable may wait. It gives nil after a second, and where the layer has no size. */
- (void)draw
{
    gpusync_command_buffer_desc desc = {.label = "frame"};
    unsigned long slot = (unsigned long)(_newest + 1) % DEPTH; /* of the ticket to come */
    id<CAMetalDrawable> drawable = [(CAMetalLayer *)self.layer nextDrawable];
    void *raw;
    if (!drawable) {
        _leftOut++;
        return;
    }
    *(float *)_slots[slot].contents = (float)fmod((double)_drawn * 0.02, 6.2831853); /* the slot is the CPU's now */
    if (gpusync_command_buffer_create(_queue, &desc, 0, &raw) != GPUSYNC_OK) return; /* the next frame finds out why */
    id<MTLCommandBuffer> buffer = (__bridge id<MTLCommandBuffer>)raw;
    MTLRenderPassDescriptor *pass = [MTLRenderPassDescriptor renderPassDescriptor];
    pass.colorAttachments[0].texture = drawable.texture;
    pass.colorAttachments[0].loadAction = MTLLoadActionClear;
    pass.colorAttachments[0].storeAction = MTLStoreActionStore;
    pass.colorAttachments[0].clearColor = MTLClearColorMake(0.1, 0.1, 0.12, 1);
    id<MTLRenderCommandEncoder> encoder = [buffer renderCommandEncoderWithDescriptor:pass];
    [encoder setRenderPipelineState:_pipeline];
    [encoder setVertexBuffer:_slots[slot] offset:0 atIndex:0];
    [encoder drawPrimitives:MTLPrimitiveTypeTriangle vertexStart:0 vertexCount:3];
    [encoder endEncoding];
    [buffer presentDrawable:drawable]; /* before the commit */
    if (gpusync_commit(_queue, raw, &_newest) == GPUSYNC_OK) _drawn++;
    else gpusync_command_buffer_discard(_queue, raw); /* the frame was never drawn */
}

/* When the program ends. A GPU that hangs: say what it has, and wait no longer. */
- (unsigned long)finish
{
    if (_queue && gpusync_wait(_queue, GPUSYNC_EVERYTHING, 1000000000, NULL) == GPUSYNC_TIMEOUT) {
        char text[2048];
        gpusync_device_report(_device, text, sizeof text);
        fprintf(stderr, "%s\n", text);
        gpusync_queue_abandon(_queue);
        _queue = NULL;
        _failures++;
    }
    [self closeDevice];
    fprintf(stderr, "%lu frames, %lu left out, %lu failures\n", _drawn, _leftOut, _failures);
    return _failures;
}

@end

/* -- the program -------------------------------------------------------------------------------------------------- */

@interface Program : NSObject <NSApplicationDelegate>
@property(strong) NSWindow *window;
@property(strong) FrameView *view;
@end

@implementation Program

- (BOOL)applicationShouldTerminateAfterLastWindowClosed:(NSApplication *)application
{
    (void)application;
    return YES;
}

/* NSApplication ends the process itself, with status 0. */
- (void)applicationWillTerminate:(NSNotification *)notification
{
    (void)notification;
    if ([self.view finish]) exit(1);
}

@end

int main(int argc, char **argv)
{
    @autoreleasepool {
        NSApplication *application = NSApplication.sharedApplication;
        Program *program = [Program new];
        NSRect place = NSMakeRect(0, 0, 640, 480);
        NSWindowStyleMask style = NSWindowStyleMaskTitled | NSWindowStyleMaskClosable |
                                  NSWindowStyleMaskMiniaturizable | NSWindowStyleMaskResizable;
        application.delegate = program; /* which it does not retain: main does, until run returns */
        [application setActivationPolicy:NSApplicationActivationPolicyRegular];
        program.view = [[FrameView alloc] initWithFrame:place];
        program.view.wantsLayer = YES;
        program.view.framesToDraw = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
        if (![program.view openDevice]) {
            fprintf(stderr, "there is no device to draw with\n");
            return 1;
        }
        program.window = [[NSWindow alloc] initWithContentRect:place
                                                     styleMask:style
                                                       backing:NSBackingStoreBuffered
                                                         defer:NO];
        program.window.releasedWhenClosed = NO; /* program has it */
        program.window.title = @"gpusync";
        program.window.contentView = program.view;
        [program.window center];
        [program.window makeKeyAndOrderFront:nil];
        [application activateIgnoringOtherApps:YES];
        [application run];
    }
    return 0;
}
