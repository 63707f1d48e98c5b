// clang -fobjc-arc render_loop.m -framework Cocoa -framework Metal -framework QuartzCore -o render_loop
//
// Unverified: not yet compiled with Apple's headers, nor run on a Mac. A window with a moving triangle, and three frames
// in flight. The callback of the display link does not wait for the GPU: while the GPU still reads the slot of memory,
// a frame is left out. `./render_loop 300` ends after 300 frames. Status 0: all of them ended well. From macOS 14.

#define GPUSYNC_IMPLEMENTATION /* in exactly one file of a program */
#include "../gpusync.h"
#include "metal.h"
#import <AppKit/AppKit.h>
#import <Metal/Metal.h>
#import <QuartzCore/QuartzCore.h>

enum { DEPTH = 3, SLOT = 256 }; /* 256: how Metal aligns what a shader finds as `constant` */

static NSString *const source = @"#include <metal_stdlib>\n"
                                 "vertex float4 corner(uint i [[vertex_id]], constant float &x [[buffer(0)]]) {\n"
                                 "    return float4(x + float(i % 2), float(i / 2), 0, 2); }\n"
                                 "fragment float4 paint() { return float4(0.2, 0.6, 1, 1); }\n";

static gpusync_device *device;
static gpusync_queue *queue;
static gpusync_ticket newest; /* 0 at first: no frame */
static id<MTLBuffer> slots;   /* the CPU writes, the GPU reads; ticket n uses slot n % DEPTH */
static id<MTLRenderPipelineState> pipeline;
static unsigned long drawn, left_out;

@interface FrameView : NSView
@end
@implementation FrameView

- (CALayer *)makeBackingLayer
{
    CAMetalLayer *layer = [CAMetalLayer layer];
    layer.device = (__bridge id<MTLDevice>)gpusync_device_metal(device);
    return layer;
}

- (void)setFrameSize:(NSSize)size /* waits for nothing: frames in flight retain the drawables of the old size */
{
    [super setFrameSize:size];
    size = [self convertSizeToBacking:size];
    if (size.width >= 1 && size.height >= 1) /* zero is an error */
        ((CAMetalLayer *)self.layer).drawableSize = size;
}

- (void)frame:(CADisplayLink *)link
{
    @autoreleasepool { /* a drawable that waits for the run loop's pool is one that the next frame lacks */
        if (gpusync_poll(queue, newest + 1 - DEPTH, NULL) == GPUSYNC_NOT_READY || ![self draw])
            left_out++;
    }
}

- (bool)draw
{
    NSUInteger slot = (NSUInteger)(newest + 1) % DEPTH * SLOT;
    id<CAMetalDrawable> drawable = [(CAMetalLayer *)self.layer nextDrawable]; /* nil after a second */
    MTLRenderPassDescriptor *pass = [MTLRenderPassDescriptor renderPassDescriptor];
    void *raw;
    if (!drawable || gpusync_command_buffer_create(queue, NULL, 0, &raw) != GPUSYNC_OK)
        return false;
    *(float *)((char *)slots.contents + slot) = (float)(drawn % 200) / 100 - 1;
    pass.colorAttachments[0].texture = drawable.texture;
    pass.colorAttachments[0].loadAction = MTLLoadActionClear;
    id<MTLCommandBuffer> buffer = (__bridge id<MTLCommandBuffer>)raw;
    id<MTLRenderCommandEncoder> encoder = [buffer renderCommandEncoderWithDescriptor:pass];
    [encoder setRenderPipelineState:pipeline];
    [encoder setVertexBuffer:slots offset:slot atIndex:0];
    [encoder drawPrimitives:MTLPrimitiveTypeTriangle vertexStart:0 vertexCount:3];
    [encoder endEncoding];
    [buffer presentDrawable:drawable]; /* before the commit */
    if (gpusync_commit(queue, raw, &newest) != GPUSYNC_OK)
        return gpusync_command_buffer_discard(queue, raw), false;
    return ++drawn > 0;
}

@end

int main(int argc, char **argv)
{
    @autoreleasepool {
        unsigned long frames = argc > 1 ? strtoul(argv[1], NULL, 10) : 0; /* 0: until the window is closed */
        NSApplication *app = NSApplication.sharedApplication;
        NSRunLoopMode mode = NSDefaultRunLoopMode;
        MUST(gpusync_device_create(NULL, &device));
        MUST(gpusync_queue_create(device, NULL, &queue));
        id<MTLDevice> metal = (__bridge id<MTLDevice>)gpusync_device_metal(device);
        id<MTLLibrary> library = [metal newLibraryWithSource:source options:nil error:nil];
        MTLRenderPipelineDescriptor *desc = [MTLRenderPipelineDescriptor new];
        desc.vertexFunction = [library newFunctionWithName:@"corner"];
        desc.fragmentFunction = [library newFunctionWithName:@"paint"];
        desc.colorAttachments[0].pixelFormat = MTLPixelFormatBGRA8Unorm; /* a layer's, by default */
        pipeline = library ? [metal newRenderPipelineStateWithDescriptor:desc error:nil] : nil;
        slots = [metal newBufferWithLength:DEPTH * SLOT options:MTLResourceStorageModeShared];
        MUST(pipeline && slots ? GPUSYNC_OK : GPUSYNC_ERROR_METAL_NIL);
        FrameView *view = [[FrameView alloc] initWithFrame:NSMakeRect(0, 0, 640, 480)];
        NSViewController *controller = [NSViewController new];
        controller.view = view;
        view.wantsLayer = YES;
        NSWindow *window = [NSWindow windowWithContentViewController:controller];
        window.releasedWhenClosed = NO; /* main has it */
        [app setActivationPolicy:NSApplicationActivationPolicyRegular];
        [app finishLaunching];
        [window makeKeyAndOrderFront:nil];
        [view setFrameSize:view.frame.size]; /* now the view knows the scale of its screen */
        CADisplayLink *link = [view displayLinkWithTarget:view selector:@selector(frame:)];
        [link addToRunLoop:NSRunLoop.mainRunLoop forMode:NSRunLoopCommonModes];
        while (window.visible && !gpusync_device_is_lost(device) && (!frames || drawn < frames))
            @autoreleasepool {
                NSDate *t = [NSDate dateWithTimeIntervalSinceNow:0.1];
                id event = [app nextEventMatchingMask:NSEventMaskAny untilDate:t inMode:mode dequeue:YES];
                if (event)
                    [app sendEvent:event];
            }
        gpusync_result result = gpusync_wait(queue, GPUSYNC_EVERYTHING, 1000000000, NULL);
        fprintf(stderr, "%lu frames, %lu left out: %s\n", drawn, left_out, gpusync_result_string(result));
        return result != GPUSYNC_OK; /* at exit nothing has to be destroyed */
    }
}
