/* softmetal_error.m - what NSErrors say, and how Metal makes one of the driver's number

   The driver ends a command buffer with a number. Metal turns this into a code of MTLCommandBufferError, of which several
   numbers share one. The number itself stands in the text, and is the code of the error below. examples/README.md, in
   "Errors", names a public log for each number; WebKit's Queue.mm has names of numbers, too. The code for the number 5,
   and those of a queue of Metal 4, are assumed: no log shows them. Metal 4 gets the code that MTL4CommandQueue.h has for
   the case, and Internal where it has none. */
#import "softmetal_internal.h"
#include <stdio.h>

NSString *const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";
NSString *const MTL4CommandQueueErrorDomain = @"MTL4CommandQueueErrorDomain";
/* MTLCommandBuffer.h has the name. That the text is the same is assumed. */
NSString *const MTLCommandBufferEncoderInfoErrorKey = @"MTLCommandBufferEncoderInfoErrorKey";

/* ---------------------------------------------------------------------------- the class -- */

/* +1; `encoders` as the quirks leave them, or nil */
static id new_encoder_info(NSArray *encoders)
{
    if (SM_QUIRK(no_encoder_info)) return nil;
    if (SM_QUIRK(null_encoder_info)) return [[NSNull null] retain];
    if (SM_QUIRK(empty_encoder_info)) return [[NSArray alloc] init];
    if (!SM_QUIRK(alien_encoder_info)) return [encoders retain];
    NSMutableArray *aliens = [[NSMutableArray alloc] init];
    for (unsigned k = 0; k < [encoders count]; k++) [aliens addObject:[NSNull null]];
    return aliens;
}

@implementation SoftMetalError
+ (sm_kind)softmetalKind { return SM_ERROR; }
- (NSString *)domain { return domain; }
- (long)code { return code; }
- (NSString *)localizedDescription
{
    if (text) return sm_handed_out(text);
    NSString *own =
        [[NSString alloc] initWithFormat:@"The operation could not be completed. (%@ error %ld.)", domain, code];
    id result = sm_handed_out(own);
    [own release];
    return result;
}
/* NSUnderlyingErrorKey has another value in GNUstep than on a Mac: an error is found under either. */
- (NSDictionary *)userInfo
{
    NSMutableDictionary *info = [[NSMutableDictionary alloc] init];
    if (text) [info setObject:text forKey:NSLocalizedDescriptionKey];
    if (underlying) {
        id below = SM_QUIRK(alien_error_below) ? [NSNull null] : underlying;
        [info setObject:below forKey:NSUnderlyingErrorKey];
        [info setObject:below forKey:@"NSUnderlyingError"];
    }
    if (wraps) {
        NSArray *all = [[NSArray alloc] initWithObjects:&underlying count:1];
        [info setObject:all forKey:@"NSMultipleUnderlyingErrorsKey"];
        [all release];
    }
    id encoder_info = encoders ? new_encoder_info(encoders) : nil;
    if (encoder_info) [info setObject:encoder_info forKey:MTLCommandBufferEncoderInfoErrorKey];
    [encoder_info release];
    id result = sm_handed_out(info);
    [info release];
    return result;
}
- (NSString *)description { return [self localizedDescription]; }
- (void)dealloc
{
    [underlying release];
    [encoders release];
    [domain release];
    [text release];
    [super dealloc];
}
@end

SoftMetalError *sm_new_error(NSString *domain, long code, NSString *text)
{
    SoftMetalError *error = [[SoftMetalError alloc] init];
    error->domain = [domain retain];
    error->code = code;
    error->text = [text retain];
    return error;
}

/* ------------------------------------------------------------------- the buffer's encoders -- */

@implementation SoftMetalEncoderInfo
+ (sm_kind)softmetalKind { return SM_ENCODER_INFO; }
- (NSString *)label { return SM_QUIRK(bare_encoder_info) ? nil : sm_handed_out(label); }
- (long)errorState { return error_state; }
- (void)dealloc
{
    [label release];
    [super dealloc];
}
@end

/* The first encoder with which the GPU was not through as the buffer ended; pass_count: there is none. One without a
   command counts as behind the commands before it. */
static unsigned encoder_at_end(const SoftMetalCommandBuffer *buffer)
{
    unsigned k = 0;
    while (k < buffer->pass_count && buffer->passes[k].begins < buffer->stopped &&
           buffer->passes[k].ends <= buffer->stopped)
        k++;
    return k;
}

static long state_of_encoder(const SoftMetalCommandBuffer *buffer, unsigned k, unsigned at, long here)
{
    if (k < buffer->encoder_state_count) return buffer->encoder_states[k];
    if (k == at) return here;
    return k < at ? SOFTMETAL_ENCODER_COMPLETED : SOFTMETAL_ENCODER_PENDING;
}

void sm_tell_encoders(SoftMetalError *error, SoftMetalCommandBuffer *buffer, softmetal_encoder_state here)
{
    if (!(buffer->error_options & SM_ENCODER_EXECUTION_STATUS)) return;
    if (![error->domain isEqualToString:MTLCommandBufferErrorDomain]) return;
    unsigned at = encoder_at_end(buffer);
    if (here != SOFTMETAL_ENCODER_PENDING && at > 0 && at == buffer->pass_count) at--; /* the last one is to blame */
    NSMutableArray *all = [[NSMutableArray alloc] init];
    for (unsigned k = 0; k < buffer->pass_count; k++) {
        const sm_pass *pass = &buffer->passes[k];
        SoftMetalEncoderInfo *info = [[SoftMetalEncoderInfo alloc] init];
        info->label = pass->label ? [pass->label retain] : @"";
        info->error_state = state_of_encoder(buffer, k, at, here);
        [all addObject:info];
        [info release];
    }
    error->encoders = all;
}

/* --------------------------------------------------------------------- the driver's numbers -- */

typedef struct reason {
    unsigned number;
    const char *name, *words;
    long code;  /* of MTLCommandBufferError */
    long code4; /* of MTL4CommandQueueError */
} reason;

/* softmetal knows no other numbers below SOFTMETAL_FIRST_INTERNAL. Where several numbers have one code the first has the
   star of softmetal.h, in Metal 4's codes as well. */
static const reason reasons[] = {
    {SOFTMETAL_TIMEOUT, "Timeout", "Caused GPU Timeout Error", 2, 1},
    {SOFTMETAL_HANG, "Hang", "Caused GPU Hang Error", 2, 1},
    {SOFTMETAL_SUBMISSIONS_IGNORED, "SubmissionsIgnored", "Ignored (for causing prior/excessive GPU errors)", 4, 5},
    {SOFTMETAL_BACKGROUND, "BackgroundExecutionNotPermitted",
     "Insufficient Permission (to submit GPU work from background)", 7, 2},
    {SOFTMETAL_OUT_OF_MEMORY, "OutOfMemory", "Insufficient Memory", 8, 3},
    {SOFTMETAL_INTERNAL, NULL, "Internal Error", 1, 6}, /* all numbers from SOFTMETAL_FIRST_INTERNAL on */
    {SOFTMETAL_INVALID_RESOURCE, "InvalidResource", "Invalid Resource", 9, 6},
    {SOFTMETAL_PAGE_FAULT, "PageFault", "Caused GPU Address Fault Error", 3, 6},
    {SOFTMETAL_INNOCENT_VICTIM, "InnocentVictim", "Discarded (victim of GPU error/recovery)", 1, 6},
    {SOFTMETAL_IMPACTING_INTERACTIVITY, "ImpactingInteractivity", "Impacting Interactivity", 1, 6},
};
#define REASONS (sizeof reasons / sizeof *reasons)

static long code_for(const reason *r, bool metal4) { return metal4 ? r->code4 : r->code; }

static const reason *reason_of(unsigned number)
{
    if (number >= SOFTMETAL_FIRST_INTERNAL) number = SOFTMETAL_INTERNAL;
    for (size_t i = 0; i < REASONS; i++)
        if (reasons[i].number == number) return &reasons[i];
    return NULL;
}

static const reason *reason_behind(long code, bool metal4)
{
    for (size_t i = 0; i < REASONS; i++)
        if (code_for(&reasons[i], metal4) == code) return &reasons[i];
    return NULL;
}

void sm_check_reason(unsigned number, const char *what)
{
    SM_REQUIRE(reason_of(number), PANEL_MISUSE, "%s: softmetal makes no error of the driver's number %u", what, number);
}

/* Codes without a number. */
static const char *words_of_code(long code, bool metal4)
{
    if (metal4 && code == 4) return "Device Removed";
    switch (code) {
    case 0: return "No error";
    case 10: return "Insufficient Tile Memory";
    case 11: return "Device Removed";
    case 12: return "Stack Overflow";
    default: return "Unknown Error";
    }
}

/* ---------------------------------------------------------------------------- the errors -- */

/* +1 */
static NSString *new_text(const reason *r, unsigned number, softmetal_quirks quirks)
{
    char text[256];
    if (quirks.bare_errors)
        snprintf(text, sizeof text, "%s", r->words);
    else if (quirks.ioaf_errors)
        snprintf(text, sizeof text, "%s (IOAF code %d)", r->words, (int)number);
    else if (r->name)
        snprintf(text, sizeof text, "%s (%08x:kIO%sCommandBufferCallbackError%s)", r->words, number,
                 quirks.ioaccel_errors ? "Accel" : "GPU", r->name);
    else
        snprintf(text, sizeof text, "%s (%08x:%s)", r->words, number, r->words);
    return sm_new_string(text);
}

static SoftMetalError *new_wrapper(SoftMetalError *error)
{
    SoftMetalError *wrapper = sm_new_error(MTL4CommandQueueErrorDomain, 1, nil);
    wrapper->underlying = error;
    wrapper->wraps = true;
    return wrapper;
}

SoftMetalError *sm_new_failure(const sm_fault *fault, bool metal4)
{
    if (fault->domain) return sm_new_error(fault->domain, fault->code, fault->text ? fault->text : @"Unknown Error");
    softmetal_quirks quirks = sm_quirks();
    const reason *r = fault->by_number ? reason_of(fault->number) : reason_behind(fault->code, metal4);
    unsigned number = fault->by_number ? fault->number : r ? r->number : 0;
    NSString *text = fault->text ? [fault->text retain]
                     : r         ? new_text(r, number, quirks)
                                 : sm_new_string(words_of_code(fault->code, metal4));
    SoftMetalError *error = sm_new_error(metal4 ? MTL4CommandQueueErrorDomain : MTLCommandBufferErrorDomain,
                                         r ? code_for(r, metal4) : fault->code, text);
    [text release];
    if (r && !quirks.bare_errors && !quirks.ioaccel_errors && !quirks.ioaf_errors)
        error->underlying = sm_new_error(@"IOGPUCommandQueueErrorDomain", (long)number, nil);
    return metal4 && !quirks.bare_feedback_errors ? new_wrapper(error) : error;
}

SoftMetalError *sm_new_error_of_timeout(void)
{
    return sm_new_failure(&(sm_fault){.by_number = true, .number = SOFTMETAL_TIMEOUT}, false);
}

SoftMetalError *sm_new_error_of_removal(bool metal4)
{
    return sm_new_failure(&(sm_fault){.code = metal4 ? 4 : 11}, metal4);
}
