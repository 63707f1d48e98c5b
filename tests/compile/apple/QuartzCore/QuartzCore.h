/* QuartzCore/QuartzCore.h - a stand-in for Apple's, see Metal/Metal.h */
#import <Metal/Metal.h>

#ifndef STAND_IN_QUARTZCORE_H
#define STAND_IN_QUARTZCORE_H

typedef double CGFloat;
typedef struct CGSize { CGFloat width, height; } CGSize;
@class NSRunLoop;

@protocol CAMetalDrawable <MTLDrawable>
@property(readonly) id<MTLTexture> texture;
@end
@interface CALayer : NSObject
+ (instancetype)layer;
@property CGFloat contentsScale;
@end
@interface CAMetalLayer : CALayer
@property(strong) id<MTLDevice> device;
@property MTLPixelFormat pixelFormat;
@property CGSize drawableSize;
@property NSUInteger maximumDrawableCount;
- (id<CAMetalDrawable>)nextDrawable;
@end
@interface CADisplayLink : NSObject
- (void)addToRunLoop:(NSRunLoop *)loop forMode:(NSString *)mode;
- (void)invalidate;
@end

#endif
