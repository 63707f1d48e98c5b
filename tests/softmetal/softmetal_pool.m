/* softmetal_pool.m - the autorelease pools that programs ask the runtime for: in front of Apple's functions, and in place
   of those that the GNU runtime lacks. They are Foundation's pools, because Foundation's objects look for those. */
#import "softmetal_internal.h"

/* The pools that are open on this thread are written down, so that a pop of something else is noticed before it frees a
   pool twice. A token is the place of its pool here. */
#define MAX_POOLS 256
static __thread NSAutoreleasePool *pools[MAX_POOLS];
static __thread unsigned pool_count;

void *sm_pool_push(void)
{
    SM_REQUIRE(pool_count < MAX_POOLS, POOL_ORDER, "more than %d pools on this thread", MAX_POOLS);
    pools[pool_count] = [[NSAutoreleasePool alloc] init];
    return &pools[pool_count++];
}

/* As Apple's does, popping an outer pool pops those inside it. */
void sm_pool_close(void *token)
{
    unsigned place = pool_count;
    while (place > 0 && (void *)&pools[place - 1] != token) place--;
    SM_REQUIRE(place > 0, POOL_ORDER, "token %p, %u pools on this thread", token, pool_count);
    pool_count = place - 1;
    [pools[pool_count] release];
}

void sm_pool_pop(void *token) SM_SYMBOL("objc_autoreleasePoolPop");
void sm_pool_pop(void *token)
{
    SM_BEFORE("objc_autoreleasePoolPop");
    sm_pool_close(token);
}

bool sm_is_innermost_pool(void *token) { return token == &pools[pool_count - 1]; }

#ifdef __APPLE__
/* Frameworks, and threads of the system's libdispatch, have pools that do not come through here, and the runtime does
   not say whether there is one. */
bool sm_has_pool(void) { return true; }
#else
/* Pools that the program makes by hand count too. */
bool sm_has_pool(void) { return pool_count > 0 || [NSAutoreleasePool currentPool] != nil; }
#endif
