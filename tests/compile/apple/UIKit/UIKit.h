/* UIKit/UIKit.h - a stand-in for Apple's: what examples/ios_background.c takes from it, with the types it is believed to
   have */
#import <Metal/Metal.h>

#ifndef STAND_IN_UIKIT_H
#define STAND_IN_UIKIT_H

typedef NSString *NSNotificationName;
extern NSNotificationName const UIApplicationDidEnterBackgroundNotification;
extern NSNotificationName const UIApplicationDidBecomeActiveNotification;
extern NSString *NSStringFromClass(Class cls);

@class NSDictionary;
@interface NSObject (AfterDelay)
- (void)performSelector:(SEL)selector withObject:(id)object afterDelay:(double)seconds;
@end
@interface NSNotification : NSObject
@end
@interface NSNotificationCenter : NSObject
@property(class, readonly, strong) NSNotificationCenter *defaultCenter;
- (void)addObserver:(id)observer selector:(SEL)selector name:(NSNotificationName)name object:(id)object;
@end

@class UIApplication;
@interface UIResponder : NSObject
@end
@protocol UIApplicationDelegate <NSObject>
@optional
- (BOOL)application:(UIApplication *)application didFinishLaunchingWithOptions:(NSDictionary *)options;
@end
extern int UIApplicationMain(int argc, char **argv, NSString *principal, NSString *delegate);

#endif
