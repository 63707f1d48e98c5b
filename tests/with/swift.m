/* What examples/with/swift assumes of the module CGpusync: each declaration that it uses, with its type, and what may be
   nil there. Clang reads the module here, as Swift does. with.sh looks for names of the Swift code that are not here. */
#include <stdint.h>
@import CGpusync;

#define SAME(a, ...) _Static_assert(__builtin_types_compatible_p(a, __VA_ARGS__), #a)
#define IS(name, ...) SAME(__typeof__(name), __VA_ARGS__)

/* Types. Those of the objects are declared only: in Swift an OpaquePointer. */
SAME(gpusync_ticket, uint64_t);
SAME(gpusync_done_fn, void (*)(void *, gpusync_result, const gpusync_error *));
SAME(__typeof__(((gpusync_error *)0)->message), char[256]);
_Static_assert(GPUSYNC_OK == 0, "GPUSYNC_OK");
_Static_assert((enum gpusync_result)0 == GPUSYNC_OK, "an enumeration: it has a rawValue");

/* Functions */
IS(gpusync_result_string, const char *(gpusync_result));
IS(gpusync_device_create, gpusync_result(const gpusync_device_desc *, gpusync_device **));
IS(gpusync_device_destroy_later, gpusync_result(gpusync_device *, gpusync_destroyed_fn, void *));
IS(gpusync_queue_create, gpusync_result(gpusync_device *, const gpusync_queue_desc *, gpusync_queue **));
IS(gpusync_queue_destroy_later, gpusync_result(gpusync_queue *, gpusync_destroyed_fn, void *));
IS(gpusync_command_buffer, gpusync_result(gpusync_queue *, const gpusync_command_buffer_desc *, void **));
IS(gpusync_commit, gpusync_result(gpusync_queue *, void *, gpusync_ticket *));
IS(gpusync_wait, gpusync_result(gpusync_queue *, gpusync_ticket, uint64_t));
IS(gpusync_at_ticket, gpusync_point(gpusync_queue *, gpusync_ticket));
IS(gpusync_on_done, gpusync_result(gpusync_point, gpusync_done_fn, void *));

/* With -Wnullable-to-nonnull-conversion this compiles where the Swift code may pass nil, and may take a result for no
   optional; `told` gets optionals where its C type has _Nullable. */
static void told(void *_Nullable user, gpusync_result result, const gpusync_error *_Nullable error)
{
    (void)user, (void)result, (void)error;
}

const char *_Nonnull text(gpusync_result result);
const char *_Nonnull text(gpusync_result result) { return gpusync_result_string(result); }

int nil(gpusync_device *_Nonnull device, gpusync_queue *_Nonnull queue, void *_Nullable user, gpusync_done_fn _Nonnull fn);
int nil(gpusync_device *_Nonnull device, gpusync_queue *_Nonnull queue, void *_Nullable user, gpusync_done_fn _Nonnull fn)
{
    gpusync_device *_Nullable made = 0;
    gpusync_queue *_Nullable also = 0;
    void *_Nullable buffer = 0;
    const gpusync_error *_Nullable error = 0;
    int results = gpusync_device_create(0, &made) + gpusync_queue_create(device, 0, &also);
    results += gpusync_command_buffer(queue, 0, &buffer) + gpusync_on_done(gpusync_at_ticket(queue, 1), told, user);
    results += gpusync_queue_destroy_later(queue, 0, 0) + gpusync_device_destroy_later(device, 0, 0);
    fn(user, GPUSYNC_OK, error);
    return results;
}
