"""gpusync 0.2 through ctypes, by the symbols gpusync_device_create_0_2 and the like."""
import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_uint32, c_uint64, c_void_p

class Spin(ctypes.Structure):  # gpusync_spin
    _fields_ = [("pause_iterations", c_uint32), ("yield_iterations", c_uint32), ("max_spin_ns", c_uint64)]

class WaitOptions(ctypes.Structure):
    _fields_ = [("spin", POINTER(Spin)), ("mode", ctypes.c_int), ("error", c_void_p), ("handlers", c_bool)]

lib = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpusync.so"))
for name in "device_create", "queue_create":
    if not hasattr(lib, "gpusync_" + name):  # 0.2 has the version in three symbols
        setattr(lib, "gpusync_" + name, getattr(lib, "gpusync_" + name + "_0_2"))
make = lib["gpusync_command_buffer_0_2"]  # not gpusync_command_buffer_0_2 of another library
lib.gpusync_commit.argtypes = [c_void_p, c_void_p, POINTER(c_uint64)]
lib.gpusync_wait_ex.argtypes = [c_void_p, c_uint64, c_uint64, POINTER(WaitOptions)]
device, queue, buffer, ticket = c_void_p(), c_void_p(), c_void_p(), c_uint64()
for result in (lib.gpusync_device_create(None, byref(device)), lib.gpusync_queue_create(device, None, byref(queue)),
               make(queue, None, byref(buffer)), lib.gpusync_commit(queue, buffer, byref(ticket)),
               lib.gpusync_wait_ex(queue, ticket, 10 ** 9, byref(WaitOptions(handlers=True))),
               lib.gpusync_queue_destroy(queue), lib.gpusync_device_destroy(device)):
    if result:
        raise SystemExit(f"result {result}")
print("ticket 1: done")
