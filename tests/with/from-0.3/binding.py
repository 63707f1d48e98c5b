"""gpusync 0.3 through ctypes, by the symbols gpusync_device_create_0_3 and the like."""
import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_int, c_uint32, c_uint64, c_void_p

class QueueDesc(ctypes.Structure):
    _fields_ = [("metal_queue", c_void_p), ("label", ctypes.c_char_p), ("max_command_buffer_count", c_uint32),
                ("max_in_flight", c_uint32), ("error_log_count", c_uint32), ("spin", c_void_p),
                ("wait_mode", c_int), ("metal4", c_bool), ("sticky_failure", c_bool)]

class WaitOptions(ctypes.Structure):
    _fields_ = [("spin", c_void_p), ("mode", c_int), ("error", c_void_p), ("handlers", c_bool),
                ("through_loss", c_bool)]

lib = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpusync.so"))
make = lib["gpusync_command_buffer_0_3"]  # not gpusync_command_buffer_0_3 of another library
lib.gpusync_commit.argtypes = [c_void_p, c_void_p, POINTER(c_uint64)]
lib.gpusync_wait_ex.argtypes = [c_void_p, c_uint64, c_uint64, POINTER(WaitOptions)]
lib.gpusync_device_wait_ex.argtypes = [c_void_p, c_uint64, POINTER(WaitOptions)]
device, queue, buffer, ticket = c_void_p(), c_void_p(), c_void_p(), c_uint64()
for result in (lib.gpusync_device_create(None, byref(device)),
               lib.gpusync_queue_create(device, byref(QueueDesc(max_command_buffer_count=8)), byref(queue)),
               make(queue, None, byref(buffer)), lib.gpusync_commit(queue, buffer, byref(ticket)),
               lib.gpusync_wait_ex(queue, ticket, 10 ** 9, byref(WaitOptions(handlers=True))),
               lib.gpusync_device_wait_ex(device, 0, None), lib.gpusync_device_wait(device, c_uint64(0)),
               lib.gpusync_queue_destroy(queue), lib.gpusync_device_destroy(device)):
    if result:
        raise SystemExit(f"result {result}")
print("ticket 1: done")
