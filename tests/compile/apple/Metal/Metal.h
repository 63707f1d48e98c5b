/* Metal/Metal.h - a stand-in for Apple's: what examples/render_loop.m takes from it, with the types it is believed to have
   there. That it compiles proves that the example is Objective-C and agrees with this file, and no more. */
#import <objc/NSObject.h>
#include <stdbool.h>
#include <stdint.h>

#ifndef STAND_IN_METAL_H
#define STAND_IN_METAL_H

@interface NSString : NSObject
@property(readonly) const char *UTF8String;
@end
@interface NSError : NSObject
@property(readonly, copy) NSString *localizedDescription;
@end

typedef enum MTLPixelFormat : NSUInteger { MTLPixelFormatBGRA8Unorm = 80 } MTLPixelFormat;
typedef enum MTLLoadAction : NSUInteger { MTLLoadActionClear = 2 } MTLLoadAction;
typedef enum MTLStoreAction : NSUInteger { MTLStoreActionStore = 1 } MTLStoreAction;
typedef enum MTLPrimitiveType : NSUInteger { MTLPrimitiveTypeTriangle = 3 } MTLPrimitiveType;
typedef enum MTLResourceOptions : NSUInteger { MTLResourceStorageModeShared = 0 } MTLResourceOptions;
typedef struct MTLClearColor { double red, green, blue, alpha; } MTLClearColor;
extern MTLClearColor MTLClearColorMake(double red, double green, double blue, double alpha);

@protocol MTLFunction <NSObject>
@end
@protocol MTLTexture <NSObject>
@end
@protocol MTLDrawable <NSObject>
@end
@protocol MTLRenderPipelineState <NSObject>
@end
@protocol MTLBuffer <NSObject>
- (void *)contents;
@end
@protocol MTLLibrary <NSObject>
- (id<MTLFunction>)newFunctionWithName:(NSString *)name;
@end

@interface MTLCompileOptions : NSObject
@end
@interface MTLRenderPipelineColorAttachmentDescriptor : NSObject
@property MTLPixelFormat pixelFormat;
@end
@interface MTLRenderPipelineColorAttachmentDescriptorArray : NSObject
- (MTLRenderPipelineColorAttachmentDescriptor *)objectAtIndexedSubscript:(NSUInteger)index;
@end
@interface MTLRenderPipelineDescriptor : NSObject
@property(strong) id<MTLFunction> vertexFunction, fragmentFunction;
@property(readonly) MTLRenderPipelineColorAttachmentDescriptorArray *colorAttachments;
@end
@interface MTLRenderPassColorAttachmentDescriptor : NSObject
@property(strong) id<MTLTexture> texture;
@property MTLLoadAction loadAction;
@property MTLStoreAction storeAction;
@property MTLClearColor clearColor;
@end
@interface MTLRenderPassColorAttachmentDescriptorArray : NSObject
- (MTLRenderPassColorAttachmentDescriptor *)objectAtIndexedSubscript:(NSUInteger)index;
@end
@interface MTLRenderPassDescriptor : NSObject
+ (MTLRenderPassDescriptor *)renderPassDescriptor;
@property(readonly) MTLRenderPassColorAttachmentDescriptorArray *colorAttachments;
@end

@protocol MTLRenderCommandEncoder <NSObject>
- (void)setRenderPipelineState:(id<MTLRenderPipelineState>)state;
- (void)setVertexBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)drawPrimitives:(MTLPrimitiveType)type vertexStart:(NSUInteger)start vertexCount:(NSUInteger)count;
- (void)endEncoding;
@end
@protocol MTLCommandBuffer <NSObject>
- (id<MTLRenderCommandEncoder>)renderCommandEncoderWithDescriptor:(MTLRenderPassDescriptor *)pass;
- (void)presentDrawable:(id<MTLDrawable>)drawable;
@end
@protocol MTLDevice <NSObject>
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLRenderPipelineState>)newRenderPipelineStateWithDescriptor:(MTLRenderPipelineDescriptor *)descriptor
                                                             error:(NSError **)error;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
@end
extern id<MTLDevice> MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));

#endif
