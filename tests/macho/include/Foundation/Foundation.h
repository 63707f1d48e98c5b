/* Foundation.h - what softmetal uses of Apple's Foundation, in place of the header, which is not free. The rest of what it
   includes is Apple's own, and comes with Zig. */
#ifndef FOUNDATION_H
#define FOUNDATION_H

#include <dispatch/dispatch.h>
#include <math.h>
#include <objc/NSObject.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <stdlib.h>
#include <string.h>

typedef struct _NSZone NSZone;
@class NSString;
extern id NSAllocateObject(Class cls, NSUInteger extra, NSZone *zone);
extern void NSDeallocateObject(id object);
extern NSString *const NSLocalizedDescriptionKey, *const NSUnderlyingErrorKey;

@interface NSString : NSObject
- (instancetype)initWithFormat:(NSString *)format, ...;
- (instancetype)initWithUTF8String:(const char *)text;
- (const char *)UTF8String;
- (BOOL)isEqualToString:(NSString *)other;
@end

@interface NSArray : NSObject
- (instancetype)initWithObjects:(const id *)objects count:(NSUInteger)count;
- (NSUInteger)count;
- (BOOL)containsObject:(id)object;
- (id)objectAtIndex:(NSUInteger)index;
@end

@interface NSMutableArray : NSArray
- (void)addObject:(id)object;
@end

@interface NSNull : NSObject
+ (NSNull *)null;
@end

@interface NSDictionary : NSObject
@end

@interface NSMutableDictionary : NSDictionary
- (void)setObject:(id)object forKey:(id)key;
@end

@interface NSMethodSignature : NSObject
@end

@interface NSInvocation : NSObject
- (SEL)selector;
@end

@interface NSAutoreleasePool : NSObject
@end

#endif
