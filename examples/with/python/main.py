"""gpusync by ctypes, which gives the interpreter's lock back during a call: other threads run while one waits."""
import asyncio
import os
import sys
from ctypes import CDLL, POINTER, Structure, byref, pointer
from ctypes import c_bool, c_char, c_char_p, c_int, c_int64, c_uint64, c_void_p

lib = CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "build", "libgpusync.so"))
if lib.gpusync_version() // 100 != 6:
    sys.exit("this binding is for gpusync 0.6: another version may have other structs")


class Error(Structure):  # gpusync_error
    _fields_ = [("result", c_int), ("failure", c_int), ("ticket", c_int64), ("origin", c_int64), ("code", c_int64),
                ("dropped", c_uint64), ("inherited", c_bool), ("ran", c_bool), ("in_use", c_bool),
                ("transient", c_bool), ("queue_user", c_void_p), ("domain", c_char * 64), ("message", c_char * 256),
                ("label", c_char * 64), ("queue_label", c_char * 64), ("encoder", c_char * 64)]


class WaitOptions(Structure):  # gpusync_wait_options
    _fields_ = [("spin", c_void_p), ("error", POINTER(Error)), ("handlers", c_bool)]


def check(result, function, arguments):
    if result:
        raise RuntimeError(f"{function.__name__}: {lib.gpusync_result_string(result).decode()}")


lib.gpusync_is_done.argtypes, lib.gpusync_is_done.restype = (c_void_p, c_int64), c_bool
lib.gpusync_result_string.restype = c_char_p
for name, *arguments in (  # without argtypes ctypes passes a number as 32 bits
        ("device_create", c_void_p, POINTER(c_void_p)), ("device_destroy", c_void_p),
        ("queue_create", c_void_p, c_void_p, POINTER(c_void_p)), ("queue_destroy", c_void_p),
        ("queue_abandon", c_void_p), ("commit", c_void_p, c_void_p, POINTER(c_int64)),
        ("command_buffer_create", c_void_p, c_void_p, c_uint64, POINTER(c_void_p)),
        ("wait", c_void_p, c_int64, c_uint64, POINTER(WaitOptions))):
    function = getattr(lib, "gpusync_" + name)
    function.argtypes, function.errcheck = arguments, check


async def main():
    device, queue, buffer, ticket, error = c_void_p(), c_void_p(), c_void_p(), c_int64(), Error()
    try:
        lib.gpusync_device_create(None, byref(device))
        lib.gpusync_queue_create(device, None, byref(queue))
        lib.gpusync_command_buffer_create(queue, None, 0, byref(buffer))
        # ... encode work into buffer.value, an id<MTLCommandBuffer>, for example with PyObjC ...
        lib.gpusync_commit(queue, buffer, byref(ticket))
        options = WaitOptions(error=pointer(error))
        await asyncio.to_thread(lib.gpusync_wait, queue, ticket, 10**9, options)  # the loop goes on meanwhile
        print(f"ticket {ticket.value}: done")
    except RuntimeError as failure:
        sys.exit(f"{failure}\n{error.message.decode()}")
    finally:  # of a GPU that hangs destroy would not return
        (lib.gpusync_queue_destroy if lib.gpusync_is_done(queue, ticket) else lib.gpusync_queue_abandon)(queue)
        lib.gpusync_device_destroy(device)


asyncio.run(main())
