"""gpusync through ctypes: a wait with a time limit, errors as exceptions, no callback. ctypes lets go of the
interpreter's lock during a call, so that other threads of Python run while one waits."""
import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p

class Failure(ctypes.Structure):  # gpusync_error
    _fields_ = [("result", c_int), ("failure", c_int), ("ticket", c_uint64), ("code", c_int64),
                ("dropped", c_uint64), ("domain", c_char * 64), ("message", c_char * 256), ("label", c_char * 64),
                ("queue_label", c_char * 64)]

class Error(Exception):
    pass

_lib = ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpusync.so"))
_arguments = {"gpusync_device_create": [c_void_p, POINTER(c_void_p)], "gpusync_device_destroy": [c_void_p],
    "gpusync_queue_create": [c_void_p, c_void_p, POINTER(c_void_p)], "gpusync_queue_destroy": [c_void_p],
    "gpusync_command_buffer": [c_void_p, c_void_p, POINTER(c_void_p)],
    "gpusync_commit": [c_void_p, c_void_p, POINTER(c_uint64)], "gpusync_wait": [c_void_p, c_uint64, c_uint64],
    "gpusync_next_error": [c_void_p, POINTER(c_uint64), POINTER(Failure)], "gpusync_result_string": [c_int],
    "gpusync_struct_sizes": [POINTER(c_size_t), c_size_t]}
for _name, _types in _arguments.items():
    getattr(_lib, _name).argtypes = _types
_lib.gpusync_result_string.restype, _lib.gpusync_struct_sizes.restype = c_char_p, c_size_t
_size = c_size_t(0)  # of gpusync_error, the first of GPUSYNC_STRUCTS
_lib.gpusync_struct_sizes(byref(_size), 1)
if _lib.gpusync_version() // 100 != 3 or _size.value != ctypes.sizeof(Failure):  # 0.3, whatever its patch
    raise ImportError("libgpusync.so is of another gpusync.h than this binding")

def call(name, *arguments):
    """Calls a function of the header by its name. Raises TimeoutError, or Error with the reason."""
    result = getattr(_lib, name)(*arguments)
    if result:
        raise (TimeoutError if result == 1 else Error)(f"{name}: {_lib.gpusync_result_string(result).decode()}")

def failures(queue):
    """The text of each command buffer that failed."""
    cursor, failure = c_uint64(0), Failure()
    while _lib.gpusync_next_error(queue, byref(cursor), byref(failure)) == 0:
        yield f"ticket {failure.ticket}: {failure.message.decode()}"
