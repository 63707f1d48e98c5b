/* softmetal_witness.m - an object that tells of its end */
#import "softmetal_internal.h"

@interface SoftMetalWitness : NSObject {
@public
    void (*gone)(void *user);
    void *user;
}
@end

@implementation SoftMetalWitness

- (void)dealloc
{
    gone(user);
    [super dealloc];
}

@end

void *softmetal_new_witness(void (*gone)(void *user), void *user)
{
    SM_REQUIRE(gone, PANEL_MISUSE, "softmetal_new_witness");
    SoftMetalWitness *witness = [[SoftMetalWitness alloc] init];
    witness->gone = gone;
    witness->user = user;
    return witness;
}
