import ctypes
import sys
import gpusync

device, queue, buffer, ticket = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
try:
    gpusync.call("gpusync_device_create", None, device)
    gpusync.call("gpusync_queue_create", device, None, queue)
    gpusync.call("gpusync_command_buffer", queue, None, buffer)  # an id<MTLCommandBuffer>
    # ... encode work into the buffer here, with PyObjC for instance ...
    gpusync.call("gpusync_commit", queue, buffer, ticket)
    gpusync.call("gpusync_wait", queue, ticket, 1_000_000_000)  # a second at most
    print(f"ticket {ticket.value}: done")
except (gpusync.Error, TimeoutError) as error:
    print(error, *gpusync.failures(queue), sep="\n")
    sys.exit(1)
finally:
    if queue:
        gpusync.call("gpusync_queue_destroy", queue)  # waits for what is in flight
    if device:
        gpusync.call("gpusync_device_destroy", device)
