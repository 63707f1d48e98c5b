/* AppKit/AppKit.h - a stand-in for Apple's, see Metal/Metal.h */
#import <QuartzCore/QuartzCore.h>

#ifndef STAND_IN_APPKIT_H
#define STAND_IN_APPKIT_H

typedef CGSize NSSize;
typedef struct NSRect { struct { CGFloat x, y; } origin; NSSize size; } NSRect;
extern NSRect NSMakeRect(CGFloat x, CGFloat y, CGFloat width, CGFloat height);
typedef enum NSWindowStyleMask : NSUInteger {
    NSWindowStyleMaskTitled = 1, NSWindowStyleMaskClosable = 2, NSWindowStyleMaskMiniaturizable = 4,
    NSWindowStyleMaskResizable = 8
} NSWindowStyleMask;
typedef enum NSBackingStoreType : NSUInteger { NSBackingStoreBuffered = 2 } NSBackingStoreType;
typedef enum NSApplicationActivationPolicy : NSInteger {
    NSApplicationActivationPolicyRegular
} NSApplicationActivationPolicy;
extern NSString *const NSRunLoopCommonModes;

@interface NSRunLoop : NSObject
@property(class, readonly, strong) NSRunLoop *mainRunLoop;
@end
@interface NSNotification : NSObject
@end
@class NSWindow;
@interface NSView : NSObject
- (instancetype)initWithFrame:(NSRect)frame;
- (CALayer *)makeBackingLayer;
- (void)setFrameSize:(NSSize)size;
- (void)viewDidChangeBackingProperties;
- (void)viewDidMoveToWindow;
- (NSSize)convertSizeToBacking:(NSSize)size;
- (CADisplayLink *)displayLinkWithTarget:(id)target selector:(SEL)selector;
@property BOOL wantsLayer;
@property(strong) CALayer *layer;
@property NSRect bounds;
@property(readonly, assign) NSWindow *window;
@end
@interface NSWindow : NSObject
- (instancetype)initWithContentRect:(NSRect)rect
                          styleMask:(NSWindowStyleMask)style
                            backing:(NSBackingStoreType)backing
                              defer:(BOOL)flag;
- (void)center;
- (void)makeKeyAndOrderFront:(id)sender;
@property(readonly) CGFloat backingScaleFactor;
@property BOOL releasedWhenClosed;
@property(copy) NSString *title;
@property(strong) NSView *contentView;
@end
@class NSApplication;
@protocol NSApplicationDelegate <NSObject>
@optional
- (BOOL)applicationShouldTerminateAfterLastWindowClosed:(NSApplication *)application;
- (void)applicationWillTerminate:(NSNotification *)notification;
@end
@interface NSApplication : NSObject
@property(class, readonly, strong) NSApplication *sharedApplication;
@property(weak) id<NSApplicationDelegate> delegate;
- (BOOL)setActivationPolicy:(NSApplicationActivationPolicy)policy;
- (void)activateIgnoringOtherApps:(BOOL)flag;
- (void)run;
- (void)terminate:(id)sender;
@end
extern NSApplication *NSApp;

#endif
