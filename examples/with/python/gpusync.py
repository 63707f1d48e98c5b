"""gpusync for Python: waits with a time limit, `await`, errors as exceptions. It needs nothing but libgpusync.so.

    with gpusync.Device() as device, device.queue(label="frames") as queue:
        with queue.command_buffer() as buffer:
            ...  # encode work into buffer.metal, an id<MTLCommandBuffer>, with PyObjC for instance
            ticket = buffer.commit()
        queue.wait(ticket, timeout=1.0)

    async with gpusync.Device() as device, device.queue() as queue:
        await queue.command_buffer().commit()  # a ticket can be awaited; or: await queue.done(ticket, timeout=1.0)

Errors      Each result of gpusync that is no success is an exception, a subclass of Error. Error.failure tells what is
            known of the work that failed.
Threads     Any thread may call any method. ctypes gives the interpreter's lock back during a call: other threads of
            Python run while one waits. Waits and close() look every 0.1 s whether a signal has come: Ctrl-C ends them.
Callbacks   They run in Device.dispatch and in close, on the thread that calls these, never on a thread of Metal's.
            What Metal's threads call is C: it writes to the descriptor Device.fileno(), which wakes the loop. C knows a
            callback by a number, and the module keeps the function until C has called it: the garbage collector may
            take everything else. An exception in a callback comes out of dispatch or close.
Loops       The first await adds the descriptor to the running loop. Other kinds of loops wait for fileno(), and call
            dispatch().
fork        A forked child must not use the objects of its parent, as gpusync says: with multiprocessing use "spawn".
"""
from __future__ import annotations
import asyncio
import contextlib
import ctypes
import dataclasses
import itertools
import os
import select
import sys
import threading
import time
import warnings
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, Callable, Generator, Iterator, NamedTuple, Optional, Union

EVERYTHING = 2**64 - 1  #: all work that was committed to the queue up to the call
_FOREVER = _FROM_NOW = 2**64 - 1
_SLICE_NS = 100_000_000  # the longest that a signal such as Ctrl-C waits for a call to return
_TIMEOUT, _NOT_READY, _DESTROYED_RESULT, _WOULD_DEADLOCK = 1, 2, -16, -17
_MANUAL = 1  # GPUSYNC_CALLBACKS_MANUAL

# -- the structs of gpusync.h -------------------------------------------------------------------------------------

class _Error(ctypes.Structure):
    _fields_ = [("result", c_int), ("failure", c_int), ("ticket", c_uint64), ("code", c_int64),
                ("dropped", c_uint64), ("domain", c_char * 64), ("message", c_char * 256), ("label", c_char * 64),
                ("queue_label", c_char * 64)]

class _DeviceDesc(ctypes.Structure):
    _fields_ = [("metal_device", c_void_p), ("hooks", c_void_p), ("allocator", c_void_p), ("spin", c_void_p),
                ("log", c_void_p), ("log_user", c_void_p), ("callback_mode", c_int), ("callback_queue", c_void_p),
                ("notify", c_void_p), ("notify_user", c_void_p)]

class _QueueDesc(ctypes.Structure):
    _fields_ = [("metal_queue", c_void_p), ("label", c_char_p), ("max_command_buffer_count", c_uint32),
                ("error_log_count", c_uint32), ("spin", c_void_p), ("metal4", c_bool), ("sticky_failure", c_bool)]

class _CommandBufferDesc(ctypes.Structure):
    _fields_ = [("timeout_ns", POINTER(c_uint64)), ("label", c_char_p), ("unretained_references", c_bool),
                ("descriptor", c_void_p)]

class _WaitOptions(ctypes.Structure):
    _fields_ = [("spin", c_void_p), ("error", POINTER(_Error)), ("handlers", c_bool), ("blocking", c_bool)]

class _Point(ctypes.Structure):
    _fields_ = [("queue", c_void_p), ("ticket", c_uint64), ("timeline", c_void_p), ("value", c_uint64)]

class _TimelineDesc(ctypes.Structure):
    _fields_ = [("initial_value", c_uint64), ("label", c_char_p), ("shared_event", c_void_p),
                ("signalled_by_others", c_bool)]

# -- the library --------------------------------------------------------------------------------------------------

_lib = ctypes.CDLL(os.environ.get("GPUSYNC_LIBRARY") or
                   os.path.join(os.path.dirname(os.path.abspath(__file__)), "libgpusync.so"), use_errno=True)
_DONE = ctypes.CFUNCTYPE(None, c_void_p, c_int, POINTER(_Error))
_DESTROYED = ctypes.CFUNCTYPE(None, c_void_p)
_OUT, _NS = POINTER(c_void_p), c_uint64

for _name, _types in {
    "gpusync_version": [], "gpusync_struct_sizes": [POINTER(c_size_t), c_size_t],
    "gpusync_result_string": [c_int], "gpusync_failure_string": [c_int],
    "gpusync_device_create": [POINTER(_DeviceDesc), _OUT], "gpusync_device_destroy": [c_void_p],
    "gpusync_device_is_lost": [c_void_p], "gpusync_device_metal": [c_void_p],
    "gpusync_dispatch": [c_void_p, c_size_t, POINTER(c_size_t)], "gpusync_report": [c_void_p, c_char_p, c_size_t],
    "gpusync_queue_create": [c_void_p, POINTER(_QueueDesc), _OUT], "gpusync_queue_destroy_now": [c_void_p],
    "gpusync_queue_destroy_later": [c_void_p, _DESTROYED, c_void_p], "gpusync_queue_metal": [c_void_p],
    "gpusync_queue_clear_failure": [c_void_p], "gpusync_cancel_held": [c_void_p],
    "gpusync_command_buffer": [c_void_p, POINTER(_CommandBufferDesc), _OUT],
    "gpusync_command_buffer_discard": [c_void_p, c_void_p],
    "gpusync_commit": [c_void_p, c_void_p, POINTER(c_uint64)],
    "gpusync_is_idle": [c_void_p], "gpusync_is_done": [c_void_p, c_uint64], "gpusync_in_flight": [c_void_p],
    "gpusync_poll": [c_void_p, c_uint64], "gpusync_wait_ex": [c_void_p, c_uint64, _NS, POINTER(_WaitOptions)],
    "gpusync_on_done": [_Point, _DONE, c_void_p],
    "gpusync_next_error": [c_void_p, POINTER(c_uint64), POINTER(_Error)], "gpusync_failure_is_transient": [c_int],
    "gpusync_encode_wait": [c_void_p, c_void_p, _Point], "gpusync_encode_signal": [c_void_p, c_void_p, _Point],
    "gpusync_timeline_create": [c_void_p, POINTER(_TimelineDesc), _OUT],
    "gpusync_timeline_destroy_later": [c_void_p, _DESTROYED, c_void_p],
    "gpusync_timeline_query": [c_void_p, POINTER(c_uint64)], "gpusync_timeline_signal": [c_void_p, c_uint64],
    "gpusync_timeline_fail": [c_void_p, POINTER(_Error)],
    "gpusync_timeline_wait": [c_void_p, c_uint64, _NS, POINTER(_WaitOptions)],
    "gpusync_fd_create": [], "gpusync_fd_get": [c_void_p], "gpusync_fd_clear": [c_void_p],
    "gpusync_fd_destroy": [c_void_p],
}.items():
    getattr(_lib, _name).argtypes = _types
for _type, _names in {
    c_char_p: "result_string failure_string", c_size_t: "struct_sizes report", c_uint64: "in_flight",
    c_bool: "device_is_lost is_idle is_done failure_is_transient", c_void_p: "device_metal queue_metal fd_create",
    None: "fd_clear fd_destroy",
}.items():
    for _name in _names.split():
        getattr(_lib, "gpusync_" + _name).restype = _type
_lib.gpusync_version.restype = c_uint32

#: The structs above by their places in GPUSYNC_STRUCTS
_structs = {0: _Error, 5: _DeviceDesc, 6: _QueueDesc, 7: _CommandBufferDesc, 8: _WaitOptions, 9: _Point,
            10: _TimelineDesc}

def _check_library(version: int, sizes: list[int]) -> None:
    """A library of another header would write behind our structs, or read fields where we have none."""
    wrong = [struct.__name__ for place, struct in _structs.items()
             if place >= len(sizes) or sizes[place] != ctypes.sizeof(struct)]
    if version // 100 != 4 or wrong:  # 0.4, whatever its patch
        raise ImportError(f"libgpusync.so is of another gpusync.h than this binding: version {version}"
                          + (", other sizes: " + " ".join(wrong) if wrong else ""))

_sizes = (c_size_t * 64)()
_check_library(_lib.gpusync_version(), _sizes[:_lib.gpusync_struct_sizes(_sizes, len(_sizes))])

# -- errors -------------------------------------------------------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Failure:
    """How work failed: gpusync_error. Work that failed for what it waited for has the first failure here."""
    ticket: int        #: of the queue that was asked
    result: int        #: what a wait for the ticket returns
    failure: int       #: the class: what helps
    code: int          #: of the NSError
    domain: str        #: of the NSError
    message: str       #: why
    label: str         #: of the command buffer
    queue_label: str   #: of its queue
    dropped: int       #: of Queue.failures: records that went before this one, unseen

    @property
    def text(self) -> str:
        """The class in words."""
        return _lib.gpusync_failure_string(self.failure).decode()

    @property
    def transient(self) -> bool:
        """May the same work succeed later?"""
        return _lib.gpusync_failure_is_transient(self.failure)

def _failure(error: _Error) -> Failure:
    text = {name: getattr(error, name).decode() for name in ("domain", "message", "label", "queue_label")}
    return Failure(error.ticket, error.result, error.failure, error.code, dropped=error.dropped, **text)

class Error(Exception):
    """A call of gpusync returned no success."""
    def __init__(self, call: str, result: int, failure: Optional[Failure] = None) -> None:
        super().__init__(call, result, failure)
        self.call = call        #: the function of gpusync.h
        self.result = result    #: gpusync_result
        self.failure = failure  #: of the work; None where the call itself failed

    def __str__(self) -> str:
        text = f"{self.call}: {_lib.gpusync_result_string(self.result).decode()}"
        return f"{text}: {self.failure.text}: {self.failure.message}" if self.failure else text

class Timeout(Error, TimeoutError): """The time limit passed first. The work goes on."""
class NotReady(Error): """Not yet."""
class InvalidArgument(Error, ValueError): """An argument is None or invalid."""
class Unsupported(Error): """Metal is not here, or lacks what is asked for."""
class OutOfMemory(Error, MemoryError): """The allocator returned NULL."""
class NoDevice(Error): """Metal has no device."""
class MetalNil(Error): """Metal returned nil where it should have made an object."""
class InvalidTicket(Error, ValueError): """Not a ticket of this queue."""
class WrongQueue(Error, ValueError): """The command buffer belongs to another command queue."""
class AlreadyCommitted(Error): """The command buffer is committed already."""
class AlreadyTracked(Error): """The command buffer has a ticket already."""
class UnknownBuffer(Error): """gpusync does not keep this command buffer."""
class ExecutionFailed(Error): """The work ended with an error."""
class ResultUnknown(Error): """The work ended; how is no longer on record."""
class Cancelled(Error): """The work was cancelled. Not asyncio's CancelledError, which cancels a task."""
class DeviceLost(Error): """The device was removed or ignores this program, permanently."""
class Destroyed(Error): """The object is being destroyed, or was."""
class WouldDeadlock(Error): """In a callback, where nothing may wait."""
class InUse(Error): """The device still has queues or timelines."""
class NotRising(Error, ValueError): """The value is signalled or pending already, or out of range."""
class QueueFull(Error): """The queue allows no more command buffers that are held or not committed."""
class Enqueued(Error): """The command buffer is enqueued already and cannot be held."""
class CompileFailed(Error): """A shader does not compile."""

_errors: dict[int, type[Error]] = dict(zip(
    [1, 2, *range(-1, -9, -1), *range(-10, -23, -1)],  # -9 was a result of 0.3
    [Timeout, NotReady, InvalidArgument, Unsupported, OutOfMemory, NoDevice, MetalNil, InvalidTicket, WrongQueue,
     AlreadyCommitted, AlreadyTracked, UnknownBuffer, ExecutionFailed, ResultUnknown, Cancelled,
     DeviceLost, Destroyed, WouldDeadlock, InUse, NotRising, QueueFull, Enqueued, CompileFailed]))

def _make_error(call: str, result: int, failure: Optional[Failure] = None) -> Error:
    return _errors.get(result, Error)(call, result, failure)  # a later 0.4 may have more results

def _call(name: str, *arguments: Any) -> None:
    result = getattr(_lib, name)(*arguments)
    if result:
        raise _make_error(name, result)

# -- callbacks ----------------------------------------------------------------------------------------------------

# gpusync calls two functions of Python, _told and _destroyed, and only while a thread of Python calls gpusync. The
# module never frees them.
_Callback = Callable[[int, Optional[Failure]], None]
_ids = itertools.count(1)
_callbacks: dict[int, _Callback] = {}  # what C still has to call, by the number that C was given for it

_here = threading.local()  # inside: a callback runs on this thread; raised: the exception that one let out

def _tell(key: int, result: int, failure: Optional[Failure]) -> None:
    callback = _callbacks.pop(key, None)
    if callback is None:  # Ctrl-C came between the call of gpusync and its return
        return
    _here.inside = True
    try:
        callback(result, failure)
    except BaseException as raised:  # C cannot pass it on
        if getattr(_here, "raised", None) is None:
            _here.raised = raised
        else:
            sys.excepthook(type(raised), raised, raised.__traceback__)
    finally:
        _here.inside = False

def _raise_from_callbacks() -> None:
    raised, _here.raised = getattr(_here, "raised", None), None
    if raised is not None:
        raise raised

def _refuse_in_callback(call: str) -> None:
    if getattr(_here, "inside", False):
        raise _make_error(call, _WOULD_DEADLOCK)

@_DONE
def _told(key: int, result: int, error: Any) -> None:
    _tell(key, result, _failure(error.contents) if error else None)

@_DESTROYED
def _destroyed(key: int) -> None:
    _tell(key, 0, None)

@contextlib.contextmanager
def _registered(callback: _Callback) -> Iterator[int]:
    """A number for C. After an error gpusync does not call: then nothing is kept."""
    key = next(_ids)
    _callbacks[key] = callback
    try:
        yield key
    except BaseException:
        _callbacks.pop(key, None)  # Ctrl-C may come after C has called
        raise

# -- time ---------------------------------------------------------------------------------------------------------

def _ns(timeout: Optional[float]) -> int:
    if timeout is None or timeout >= 1.8e10:  # 2**64 ns; inf, too
        return _FOREVER
    return max(0, int(timeout * 1e9))

def _wait_in_slices(call: Callable[[int], int], timeout: Optional[float], closing: Callable[[], bool]) -> int:
    """Between two slices Python handles signals, and a wait leaves an object that another thread closes."""
    left = _ns(timeout)
    end = None if left == _FOREVER else time.monotonic_ns() + left
    while True:
        result = call(min(left, _SLICE_NS))
        if result != _TIMEOUT:
            return result
        if closing():
            return _DESTROYED_RESULT
        if end is not None:
            left = max(0, end - time.monotonic_ns())
            if left == 0:
                return result

# -- objects ------------------------------------------------------------------------------------------------------

class _Object:
    """A pointer that is used by any thread, and not after it is closed: close waits for the calls in progress."""
    _pointer: Optional[int] = None

    def __init__(self) -> None:
        self._calls = 0
        self._closing = False
        self._lock = threading.Condition()

    @contextlib.contextmanager
    def _use(self) -> Iterator[int]:
        with self._lock:
            if self._closing or self._pointer is None:
                raise ValueError(f"this {type(self).__name__} is closed")
            self._calls += 1
        try:
            yield self._pointer
        finally:
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

    def _retire(self) -> Optional[int]:
        """The pointer, for its destroy call, once no call uses it any more; None: it is closed already."""
        with self._lock:
            if self._closing or self._pointer is None:
                return None
            self._closing = True
            try:
                self._lock.wait_for(lambda: self._calls == 0)
            except BaseException:  # Ctrl-C
                self._closing = False
                raise
            pointer, self._pointer = self._pointer, None
            return pointer

    @property
    def closed(self) -> bool:
        return self._pointer is None or self._closing

    def __del__(self) -> None:
        if self._pointer is not None and not self._closing:
            warnings.warn(f"a gpusync.{type(self).__name__} was never closed", ResourceWarning, source=self)

class Device(_Object):
    """Stands for an MTLDevice. metal_device: None for the system's default."""

    def __init__(self, metal_device: Optional[int] = None) -> None:
        super().__init__()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fd = _lib.gpusync_fd_create()
        if not self._fd:
            raise OSError(ctypes.get_errno(), f"gpusync_fd_create: {os.strerror(ctypes.get_errno())}")
        desc = _DeviceDesc(metal_device=metal_device, callback_mode=_MANUAL, notify_user=self._fd,
                           notify=ctypes.cast(_lib.gpusync_fd_notify, c_void_p).value)
        pointer = c_void_p()
        try:
            _call("gpusync_device_create", byref(desc), byref(pointer))
        except BaseException:
            _lib.gpusync_fd_destroy(self._fd)
            raise
        self._pointer = pointer.value

    def queue(self, *, label: Optional[str] = None, metal_queue: Optional[int] = None,
              max_command_buffer_count: int = 0, error_log_count: int = 0, sticky_failure: bool = False) -> Queue:
        """A queue over a command queue of this device: the options are those of gpusync_queue_desc."""
        desc = _QueueDesc(metal_queue=metal_queue, label=label.encode() if label else None,
                          max_command_buffer_count=max_command_buffer_count, error_log_count=error_log_count,
                          sticky_failure=sticky_failure)
        return Queue(self, desc)

    def timeline(self, *, initial_value: int = 0, label: Optional[str] = None) -> Timeline:
        """A number that only rises, raised by the host or by the GPU."""
        return Timeline(self, _TimelineDesc(initial_value=initial_value, label=label.encode() if label else None))

    @property
    def metal(self) -> int:
        """The id<MTLDevice>, borrowed."""
        with self._use() as device:
            return _lib.gpusync_device_metal(device)

    @property
    def lost(self) -> bool:
        """Is the GPU gone for good?"""
        with self._use() as device:
            return _lib.gpusync_device_is_lost(device)

    def report(self) -> str:
        """What is in flight, held, and waited for, in lines of text."""
        with self._use() as device:
            size = _lib.gpusync_report(device, None, 0) + 4096  # more may be in flight by the second call
            text = ctypes.create_string_buffer(size)
            _lib.gpusync_report(device, text, size)
            return text.value.decode()  # valid UTF-8, as all text of gpusync

    def fileno(self) -> int:
        """Readable when callbacks are due: wait for it with select, poll, epoll or kqueue, then call dispatch()."""
        with self._use():
            return _lib.gpusync_fd_get(self._fd)

    def dispatch(self) -> None:
        """Runs the callbacks that are due."""
        _refuse_in_callback("gpusync_dispatch")
        self._dispatch()
        _raise_from_callbacks()

    def _dispatch(self) -> None:
        with self._use() as device:
            _lib.gpusync_fd_clear(self._fd)  # before the dispatch: see gpusync_fd.h
            _call("gpusync_dispatch", device, 2**64 - 1, None)

    def _dispatch_until(self, over: threading.Event) -> None:
        """For close. Another thread, such as the loop's, may clear the descriptor first: so this looks in slices."""
        readable = select.poll()
        readable.register(self.fileno(), select.POLLIN)
        while not over.is_set():
            if readable.poll(10):
                self._dispatch()

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("another event loop awaits work of this device")
            loop.add_reader(self.fileno(), self.dispatch)
            self._loop = loop
        return loop

    def close(self) -> None:
        """Destroys the device. Its queues and timelines are closed before, else this raises InUse. Where a loop has
        awaited work of it, call this on the thread of that loop."""
        loop = self._loop if self._loop and not self._loop.is_closed() else None
        if loop and loop.is_running() and loop is not _running_loop():
            raise RuntimeError("close the device on the thread of its event loop")
        _refuse_in_callback("gpusync_device_destroy")
        pointer = self._retire()
        if pointer is None:
            return
        result = _lib.gpusync_device_destroy(pointer)
        if result:
            self._pointer, self._closing = pointer, False  # nothing was done
            raise _make_error("gpusync_device_destroy", result)
        if loop:
            loop.remove_reader(_lib.gpusync_fd_get(self._fd))
        _lib.gpusync_fd_destroy(self._fd)  # now that no thread of Metal's notifies any more

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Device:
        self._attach()
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

def _running_loop() -> Optional[asyncio.AbstractEventLoop]:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None

class _Child(_Object):
    """What a device has, and what can be waited for."""
    _later: str  # the function that destroys it

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def _point(self, pointer: int, number: int) -> _Point:
        raise NotImplementedError

    def _on_done(self, number: int, callback: _Callback) -> None:
        with self._use() as pointer, _registered(callback) as key:
            _call("gpusync_on_done", self._point(pointer, number), _told, key)

    def _finish(self, pointer: int, ended: _Callback) -> bool:
        """Before destroy: will `ended` be called when all the work has ended?"""
        return False

    def _destroy(self, pointer: int, over: _Callback) -> None:
        with _registered(over) as key:
            _call(self._later, pointer, _destroyed, key)

    def on_done(self, number: int, callback: Callable[[Optional[Error]], None]) -> None:
        """Has callback(error) called once when the ticket or value has ended, in Device.dispatch or in close."""
        self._on_done(number, lambda result, failure: callback(
            _make_error("gpusync_on_done", result, failure) if result else None))

    async def done(self, number: int, timeout: Optional[float] = None) -> None:
        """Waits in asyncio. The work goes on when the await is cancelled, or the timeout passes first."""
        future = self._future(number)
        if timeout is None:
            await future
        else:
            await asyncio.wait([future], timeout=timeout)
            if not future.done():
                future.cancel()  # its callback finds no future
                raise _make_error("gpusync_on_done", _TIMEOUT)
            future.result()

    def _future(self, number: int) -> asyncio.Future[None]:
        future = self.device._attach().create_future()
        self._on_done(number, _settle(future))
        return future

    def close(self) -> None:
        """Destroys the object when its work has ended. Until then this runs the callbacks of the device. Ctrl-C ends
        the wait, and leaves the rest to gpusync: the device then stays in use."""
        _refuse_in_callback(self._later)
        pointer = self._retire()
        if pointer is not None:
            ended, over = threading.Event(), threading.Event()
            try:
                if self._finish(pointer, lambda *_: ended.set()):
                    self.device._dispatch_until(ended)
            finally:  # Ctrl-C, too
                self._destroy(pointer, lambda *_: over.set())
            self.device._dispatch_until(over)
            _raise_from_callbacks()

    async def aclose(self) -> None:
        """close() for asyncio."""
        loop = self.device._attach()
        pointer = await loop.run_in_executor(None, self._retire) if self._calls else self._retire()
        if pointer is not None:
            ended, over = loop.create_future(), loop.create_future()
            try:
                if self._finish(pointer, lambda *_: _settle(ended)(0, None)):
                    await ended
            finally:
                self._destroy(pointer, _settle(over))
            await over

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

def _settle(future: asyncio.Future[None]) -> _Callback:
    """A callback that ends the future, on whatever thread it runs."""
    loop = future.get_loop()

    def callback(result: int, failure: Optional[Failure]) -> None:
        def settle() -> None:
            if not future.done():  # cancelled: no task waits
                if result:
                    future.set_exception(_make_error("gpusync_on_done", result, failure))
                else:
                    future.set_result(None)

        if _running_loop() is loop:
            settle()
        elif not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                loop.call_soon_threadsafe(settle)

    return callback

class Ticket(int):
    """The number of a commit on its queue. It can be awaited."""
    queue: Queue

    def __new__(cls, number: int, queue: Queue) -> Ticket:
        ticket = super().__new__(cls, number)
        ticket.queue = queue
        return ticket

    def __await__(self) -> Generator[Any, None, None]:
        return self.queue.done(self).__await__()

class Value(NamedTuple):
    """A value of a timeline, as Timeline.at makes it."""
    timeline: Timeline
    number: int

class CommandBuffer:
    """Not committed yet. As a context manager it is given back where it was not committed."""
    def __init__(self, queue: Queue, pointer: int) -> None:
        self.queue = queue
        self._pointer: Optional[int] = pointer

    @property
    def metal(self) -> int:
        """The id<MTLCommandBuffer>, borrowed until commit or discard: objc.objc_object(c_void_p=buffer.metal)."""
        if self._pointer is None:
            raise ValueError("the command buffer is committed or discarded")
        return self._pointer

    def commit(self) -> Ticket:
        """Instead of [buffer commit]. After an error the buffer is as before."""
        ticket = self.queue._commit(self.metal)
        self._pointer = None
        return ticket

    def discard(self) -> None:
        """Gives the buffer back."""
        with self.queue._use() as queue:
            _call("gpusync_command_buffer_discard", queue, self.metal)
        self._pointer = None

    def encode_wait(self, point: Union[Ticket, Value]) -> None:
        """What comes later in the buffer waits for the value, on the GPU. For a ticket the host waits: gpusync holds
        the buffer until the ticket has ended."""
        on = point.queue if isinstance(point, Ticket) else point.timeline
        number = int(point) if isinstance(point, Ticket) else point.number
        with self.queue._use() as queue, on._use() as pointer:
            _call("gpusync_encode_wait", queue, self.metal, on._point(pointer, number))

    def encode_signal(self, value: Value) -> None:
        """The GPU signals the value here."""
        with self.queue._use() as queue, value.timeline._use() as timeline:
            _call("gpusync_encode_signal", queue, self.metal, value.timeline._point(timeline, value.number))

    def __enter__(self) -> CommandBuffer:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._pointer is not None and not self.queue.closed:  # a closed queue has given it back
            self.discard()

class Queue(_Child):
    """Stands for an MTLCommandQueue: tickets and failures. Made by Device.queue."""
    _later = "gpusync_queue_destroy_later"
    _last = 0  # the last ticket, or with several threads one of the last

    def __init__(self, device: Device, desc: _QueueDesc) -> None:
        super().__init__(device)
        pointer = c_void_p()
        with device._use() as parent:
            _call("gpusync_queue_create", parent, byref(desc), byref(pointer))
        self._pointer = pointer.value

    def _point(self, pointer: int, number: int) -> _Point:
        return _Point(queue=pointer, ticket=number)

    def _finish(self, pointer: int, ended: _Callback) -> bool:
        """gpusync_queue_destroy_later finds the end by a timer, up to half a second late. A callback is punctual. Held
        work is given up here, as destroy does: its callback might never come."""
        _lib.gpusync_cancel_held(pointer)
        try:
            with _registered(ended) as key:
                _call("gpusync_on_done", self._point(pointer, self._last), _told, key)
            return True
        except Error:  # no memory: the timer remains
            return False

    def _commit(self, metal_buffer: int) -> Ticket:
        ticket = c_uint64()
        with self._use() as queue:
            _call("gpusync_commit", queue, metal_buffer, byref(ticket))
            self._last = ticket.value
        return Ticket(ticket.value, self)

    @property
    def metal(self) -> int:
        """The id<MTLCommandQueue>, borrowed."""
        with self._use() as queue:
            return _lib.gpusync_queue_metal(queue)

    def command_buffer(self, *, timeout: Optional[float] = None, label: Optional[str] = None,
                       unretained_references: bool = False, descriptor: Optional[int] = None) -> CommandBuffer:
        """A command buffer, when the queue has room. Raises ExecutionFailed while a failure sticks. In asyncio pass
        timeout=0, and try again after a ticket. Without a limit this does not raise QueueFull when the program itself
        keeps all buffers: it looks in slices. descriptor: an MTLCommandBufferDescriptor, not beside
        unretained_references."""
        pointer, limit = c_void_p(), c_uint64()
        desc = _CommandBufferDesc(timeout_ns=ctypes.pointer(limit), label=label.encode() if label else None,
                                  unretained_references=unretained_references, descriptor=descriptor)
        with self._use() as queue:
            def slice_of(ns: int) -> int:
                limit.value = ns
                return _lib.gpusync_command_buffer(queue, byref(desc), byref(pointer))
            result = _wait_in_slices(slice_of, timeout, lambda: self._closing)
        if result:
            raise _make_error("gpusync_command_buffer", result)
        assert pointer.value
        return CommandBuffer(self, pointer.value)

    def commit(self, metal_buffer: int) -> Ticket:
        """Commits a command buffer that was made elsewhere, on the same MTLCommandQueue."""
        return self._commit(metal_buffer)

    def wait(self, ticket: int = EVERYTHING, timeout: Optional[float] = None, *, handlers: bool = False) -> None:
        """Blocks until the ticket has ended. In asyncio await done() instead."""
        error = _Error()
        options = _WaitOptions(error=ctypes.pointer(error), handlers=handlers)
        with self._use() as queue:
            result = _wait_in_slices(lambda ns: _lib.gpusync_wait_ex(queue, ticket, ns, byref(options)), timeout,
                                     lambda: self._closing)
        if result:
            raise _make_error("gpusync_wait", result, _failure(error) if error.result else None)

    def poll(self, ticket: int) -> bool:
        """Has the ticket ended, by Metal's own status? Raises how, where it did not end well."""
        with self._use() as queue:
            result = _lib.gpusync_poll(queue, ticket)
        if result not in (0, _NOT_READY):
            raise _make_error("gpusync_poll", result)
        return result == 0

    def is_done(self, ticket: int) -> bool:
        """Has the ticket ended, well or badly? One load."""
        with self._use() as queue:
            return _lib.gpusync_is_done(queue, ticket)

    def is_idle(self) -> bool:
        """Has everything ended? Two loads."""
        with self._use() as queue:
            return _lib.gpusync_is_idle(queue)

    def in_flight(self) -> int:
        """The number of tickets that have not ended, or a little more."""
        with self._use() as queue:
            return _lib.gpusync_in_flight(queue)

    def failures(self, *, from_now: bool = False) -> Iterator[Failure]:
        """All that failed and is on record; from_now: only what is recorded after this call. The iterator can be asked
        again later: it goes on where it was. Each iterator finds every failure."""
        failures = _Failures(self, _FROM_NOW if from_now else 0)
        if from_now:
            next(failures, None)  # goes to the end of the record
        return failures

    def clear_failure(self) -> None:
        """Lets a queue with sticky_failure take new work. Failures of earlier work are recorded, and stick no more."""
        with self._use() as queue:
            _call("gpusync_queue_clear_failure", queue)

    def cancel_held(self) -> None:
        """Ends all held work with Cancelled."""
        with self._use() as queue:
            _call("gpusync_cancel_held", queue)

    def close_now(self) -> None:
        """For a GPU that hangs. The GPU goes on with the work in flight, and gpusync does not tell its end:
        see gpusync_queue_destroy_now before you use the memory of that work again."""
        _refuse_in_callback("gpusync_queue_destroy_now")
        pointer = self._retire()
        if pointer is not None:
            _call("gpusync_queue_destroy_now", pointer)  # what has to be called back is called in it
            _raise_from_callbacks()

class _Failures(Iterator[Failure]):
    def __init__(self, queue: Queue, cursor: int) -> None:
        self._queue, self._cursor = queue, c_uint64(cursor)

    def __next__(self) -> Failure:
        error = _Error()
        with self._queue._use() as queue:
            if _lib.gpusync_next_error(queue, byref(self._cursor), byref(error)):
                raise StopIteration
        return _failure(error)

class Timeline(_Child):
    """A 64-bit number that only rises, over an MTLSharedEvent. Made by Device.timeline."""
    _later = "gpusync_timeline_destroy_later"

    def __init__(self, device: Device, desc: _TimelineDesc) -> None:
        super().__init__(device)
        pointer = c_void_p()
        with device._use() as parent:
            _call("gpusync_timeline_create", parent, byref(desc), byref(pointer))
        self._pointer = pointer.value

    def _point(self, pointer: int, number: int) -> _Point:
        return _Point(timeline=pointer, value=number)

    def at(self, value: int) -> Value:
        """The value as a point, for CommandBuffer.encode_wait and encode_signal."""
        return Value(self, value)

    @property
    def value(self) -> int:
        """Every value up to it is reached. Raises the failure of a timeline that has failed."""
        value = c_uint64()
        with self._use() as timeline:
            _call("gpusync_timeline_query", timeline, byref(value))
        return value.value

    def signal(self, value: int) -> None:
        """Raises the timeline from the host."""
        with self._use() as timeline:
            _call("gpusync_timeline_signal", timeline, value)

    def fail(self) -> None:
        """Ends every wait for a value with ExecutionFailed."""
        with self._use() as timeline:
            _call("gpusync_timeline_fail", timeline, None)

    def wait(self, value: int, timeout: Optional[float] = None) -> None:
        """Blocks until the value is reached."""
        error = _Error()
        options = _WaitOptions(error=ctypes.pointer(error))
        with self._use() as timeline:
            result = _wait_in_slices(lambda ns: _lib.gpusync_timeline_wait(timeline, value, ns, byref(options)),
                                     timeout, lambda: self._closing)
        if result:
            raise _make_error("gpusync_timeline_wait", result, _failure(error) if error.result else None)
