/* What examples/with/objc++ takes from Apple's header: the names, with the types that they have there. */
#define MTL_EXTERN extern "C" __attribute__((visibility("default")))
@protocol MTLBlitCommandEncoder
- (void)endEncoding;
@end
@protocol MTLCommandBuffer
- (id<MTLBlitCommandEncoder>)blitCommandEncoder;
@end
@protocol MTLDevice
@end
MTL_EXTERN id<MTLDevice> MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));
