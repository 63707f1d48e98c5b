"""The test of gpusync.py, with faults that softmetal plants: work that fails, hangs, or ends with the device; no Metal
object; no memory. Run it where libgpusync.so is linked with softmetal."""
import asyncio
import ctypes
import errno
import faulthandler
import gc
import os
import pickle
import resource
import signal
import threading
import time
import unittest
import warnings
from ctypes import c_char_p, c_long, c_size_t, c_uint64, c_void_p
import gpusync

soft = gpusync._lib  # softmetal is among the libraries that it has brought
soft.softmetal_settle.restype = soft.softmetal_unhang.restype = ctypes.c_bool
soft.softmetal_settle.argtypes = [c_uint64]
soft.softmetal_live.argtypes, soft.softmetal_live.restype = [c_char_p], c_long
soft.softmetal_set_duration.argtypes = [c_void_p, c_uint64]
soft.softmetal_fail_as.argtypes = [c_void_p, ctypes.c_uint, c_char_p]
soft.softmetal_fail_creation.argtypes = [ctypes.c_uint, ctypes.c_bool]
for name in ("softmetal_hang", "softmetal_unhang", "softmetal_remove_device"):
    getattr(soft, name).argtypes = [c_void_p]
MS = 1_000_000
PAGE_FAULT, OUT_OF_MEMORY, CLASS_PAGE_FAULT, CLASS_REMOVED = 11, 8, 3, 8

def descriptors():
    return sum(os.path.exists(f"/dev/fd/{number}") for number in range(256))

class Case(unittest.TestCase):
    def setUp(self):
        self.assertTrue(soft.softmetal_settle(5000 * MS))
        soft.softmetal_reset()
        self.hung = []
        self.open = descriptors()

    def tearDown(self):
        """Whatever a test meets, nothing is left over."""
        self.assertTrue(soft.softmetal_settle(5000 * MS))
        for kind in (b"device", b"queue", b"command_buffer", b"shared_event"):
            self.assertEqual(soft.softmetal_live(kind), 0, kind)
        self.assertEqual(gpusync._callbacks, {})
        self.assertEqual(descriptors(), self.open)

def work(queue, ms=0, failing=False, hanging=False, label=None):
    buffer = queue.command_buffer(timeout=1, label=label)
    if ms:
        soft.softmetal_set_duration(buffer.metal, ms * MS)
    if failing:
        soft.softmetal_fail_as(buffer.metal, PAGE_FAULT, b"page fault on purpose")
    if hanging:
        soft.softmetal_hang(buffer.metal)
    pointer = buffer.metal
    ticket = buffer.commit()
    ticket.metal = pointer
    return ticket

def dispatch_for_ever(device):
    """Until a callback raises."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        device.dispatch()

class TestLibrary(unittest.TestCase):
    def test_another_header_is_refused(self):
        sizes = gpusync._sizes[:gpusync._lib.gpusync_struct_sizes(None, 0)]
        gpusync._check_library(400, sizes)
        gpusync._check_library(499, sizes + [8])  # a patch, and a struct of a later one
        for version in (300, 500, 10400):
            self.assertRaises(ImportError, gpusync._check_library, version, sizes)
        declared = {each for each in vars(gpusync).values() if isinstance(each, type(ctypes.Structure))}
        self.assertEqual(declared, set(gpusync._structs.values()))
        for place in gpusync._structs:
            wrong = list(sizes)
            wrong[place] += 8
            self.assertRaisesRegex(ImportError, "of another gpusync.h", gpusync._check_library, 400, wrong)
            self.assertRaises(ImportError, gpusync._check_library, 400, sizes[:place])

    def test_each_result_has_its_exception(self):
        for result in [1, 2, *range(-22, -9), *range(-8, 0)]:
            error = gpusync._make_error("gpusync_wait", result)
            self.assertIsNot(type(error), gpusync.Error)
            self.assertNotIn("unknown result", str(error))
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), again.result, str(again)), (type(error), result, str(error)))
        for result in (-23, -9):  # a later one, and one of 0.3
            self.assertIs(type(gpusync._make_error("gpusync_wait", result)), gpusync.Error)
            self.assertIn("unknown result", gpusync._lib.gpusync_result_string(result).decode())

class TestBlocking(Case):
    def test_work(self):
        with gpusync.Device() as device, device.queue(label="frames") as queue:
            first, second = work(queue), work(queue, ms=20)
            queue.wait(first, timeout=5)
            self.assertEqual((first, second), (1, 2))
            self.assertFalse(queue.is_idle())
            self.assertFalse(queue.poll(second))
            queue.wait(timeout=5)
            self.assertTrue(queue.is_done(second) and queue.poll(second) and queue.is_idle())
            self.assertEqual(queue.in_flight(), 0)
            self.assertIn("frames", device.report())
            self.assertTrue(device.metal and queue.metal)

    def test_a_failure_is_an_exception(self):
        with gpusync.Device() as device, device.queue(label="frames") as queue:
            failures = queue.failures()
            self.assertEqual(list(failures), [])
            ticket = work(queue, failing=True, label="shadow")
            with self.assertRaises(gpusync.ExecutionFailed) as caught:
                queue.wait(ticket, timeout=5)
            for failure in [caught.exception.failure, *failures]:
                self.assertEqual((failure.ticket, failure.failure, failure.label, failure.queue_label, failure.message),
                                 (1, CLASS_PAGE_FAULT, "shadow", "frames", "page fault on purpose"))
                self.assertEqual((failure.text, failure.transient), ("page fault", False))
            self.assertEqual(list(failures), [])
            self.assertIn("page fault on purpose", str(caught.exception))
            self.assertRaises(gpusync.ExecutionFailed, queue.poll, ticket)
            self.assertRaises(gpusync.InvalidTicket, queue.wait, 7)

    def test_each_reader_finds_every_failure_and_a_new_one_may_begin_at_the_end(self):
        with gpusync.Device() as device, device.queue() as queue:
            first, late = queue.failures(), queue.failures()
            work(queue, failing=True)
            self.assertRaises(gpusync.ExecutionFailed, queue.wait, timeout=5)
            new = queue.failures(from_now=True)
            self.assertEqual(([failure.ticket for failure in first], list(new)), ([1], []))
            work(queue, failing=True)
            self.assertRaises(gpusync.ExecutionFailed, queue.wait, timeout=5)
            self.assertEqual([[failure.ticket for failure in reader] for reader in (first, late, new)],
                             [[2], [1, 2], [2]])

    def test_text_is_cut_between_characters(self):
        long = "a\u00e9\u20ac\U0001d11e" * 20  # of one, two, three and four bytes
        for begin in range(4):
            label, queue_label = long[begin:], long[3 - begin:]
            with gpusync.Device() as device, device.queue(label=queue_label) as queue:
                with self.assertRaises(gpusync.ExecutionFailed) as caught:
                    queue.wait(work(queue, failing=True, label=label), timeout=5)
                failure = caught.exception.failure
                for whole, cut in (label, failure.label), (queue_label, failure.queue_label):
                    self.assertTrue(whole.startswith(cut))
                    self.assertIn(len(cut.encode()), range(60, 64))

    def test_a_failure_that_passes(self):
        with gpusync.Device() as device, device.queue() as queue:
            buffer = queue.command_buffer(timeout=5)
            soft.softmetal_fail_as(buffer.metal, OUT_OF_MEMORY, b"memory on purpose")
            with self.assertRaises(gpusync.ExecutionFailed) as caught:
                queue.wait(buffer.commit(), timeout=5)
            self.assertTrue(caught.exception.failure.transient)

    def test_a_descriptor_of_metal(self):
        with gpusync.Device() as device, device.queue() as queue:
            with queue.command_buffer(descriptor=None) as buffer:
                buffer.commit()
            self.assertRaises(gpusync.InvalidArgument, queue.command_buffer, descriptor=device.metal)

    def test_a_timeout_is_a_timeout(self):
        with gpusync.Device() as device, device.queue() as queue:
            ticket = work(queue, hanging=True)
            for limit in (0, 0.02, 0.25):
                begin = time.monotonic()
                with self.assertRaises(TimeoutError) as caught:
                    queue.wait(ticket, timeout=limit)
                self.assertIsInstance(caught.exception, gpusync.Timeout)
                self.assertGreaterEqual(time.monotonic() - begin, limit)
            soft.softmetal_unhang(ticket.metal)
            queue.wait(ticket)

    def test_a_full_queue_times_out(self):
        with gpusync.Device() as device, device.queue(max_command_buffer_count=1) as queue, queue.command_buffer():
            self.assertRaises(gpusync.Timeout, queue.command_buffer, timeout=0.15)
        with gpusync.Device() as device, device.queue(max_command_buffer_count=1) as queue:
            work(queue, ms=150)
            queue.command_buffer().discard()  # waits for room in more than one slice

    def test_the_device_goes(self):
        with gpusync.Device() as device, device.queue() as queue:
            ticket = work(queue, ms=60_000)
            soft.softmetal_remove_device(device.metal)
            with self.assertRaises((gpusync.ExecutionFailed, gpusync.DeviceLost)):
                queue.wait(ticket, timeout=5)
            self.assertTrue(device.lost)
            with self.assertRaises(gpusync.DeviceLost):  # a moment later than `lost`
                for _ in range(1000):
                    with queue.command_buffer(timeout=5):
                        time.sleep(0.001)
            with self.assertRaises(gpusync.ExecutionFailed) as caught:
                queue.wait(ticket, timeout=5)
            self.assertEqual(caught.exception.failure.failure, CLASS_REMOVED)

    def test_every_object_that_metal_does_not_make(self):
        for number in range(1, 100):
            soft.softmetal_fail_creation(number, False)
            try:
                with gpusync.Device() as device, device.queue() as queue, device.timeline() as timeline:
                    with queue.command_buffer() as buffer:
                        buffer.encode_signal(timeline.at(1))
                        queue.wait(buffer.commit(), timeout=5)
            except (gpusync.MetalNil, gpusync.NoDevice):
                pass
            if soft.softmetal_creations() < number:
                break
        soft.softmetal_fail_creation(0, False)
        self.assertGreater(number, 4)

    def test_a_process_without_descriptors(self):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with self.assertRaises(OSError) as caught:
                gpusync.Device()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(caught.exception.errno, errno.EMFILE)

    def test_every_allocation_that_fails(self):
        libc = ctypes.CDLL(None)
        libc.aligned_alloc.restype = libc.free.restype = c_void_p
        libc.aligned_alloc.argtypes, libc.free.argtypes = [c_size_t, c_size_t], [c_void_p]
        left, held = 0, 0

        @ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_size_t)
        def allocate(user, size, alignment):
            nonlocal left, held
            left -= 1
            if left == 0:
                return None
            held += 1
            return libc.aligned_alloc(max(alignment, 16), (size + 127) & ~127)

        @ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)
        def release(user, memory, size):
            nonlocal held
            held -= 1
            libc.free(memory)

        allocator = (c_void_p * 3)(ctypes.cast(allocate, c_void_p), ctypes.cast(release, c_void_p), None)
        desc_of = gpusync._DeviceDesc
        self.addCleanup(setattr, gpusync, "_DeviceDesc", desc_of)
        gpusync._DeviceDesc = lambda **fields: desc_of(allocator=ctypes.addressof(allocator), **fields)
        failed = 0
        for number in range(1, 100):
            left = number
            try:
                with gpusync.Device() as device, device.queue() as queue:
                    queue.wait(work(queue), timeout=5)
            except gpusync.OutOfMemory:
                failed += 1
            self.assertEqual(held, 0)
            if left > 0:
                break
        self.assertGreater(failed, 1)

    def test_an_uncommitted_buffer_is_given_back(self):
        with gpusync.Device() as device, device.queue(max_command_buffer_count=1) as queue:
            with self.assertRaises(ZeroDivisionError), queue.command_buffer() as buffer:
                1 / 0
            self.assertRaises(ValueError, buffer.commit)
            with queue.command_buffer(timeout=0) as buffer:
                ticket = buffer.commit()
            queue.wait(ticket, timeout=5)
            with queue.command_buffer(timeout=5):
                queue.close()
            self.assertRaisesRegex(ValueError, "closed", queue.wait)

    def test_a_wait_lets_other_threads_run(self):
        with gpusync.Device() as device, device.queue() as queue:
            ticket, ended = work(queue, ms=300), threading.Event()
            waiter = threading.Thread(target=lambda: (queue.wait(ticket), ended.set()))
            waiter.start()
            turns = 0
            while not ended.is_set():
                time.sleep(0.001)
                turns += 1
            waiter.join()
            self.assertGreater(turns, 20)

    def test_a_signal_ends_a_wait(self):
        class Alarm(Exception):
            pass

        def ring(*_):
            raise Alarm

        before = signal.signal(signal.SIGALRM, ring)
        device = gpusync.Device()
        queue = device.queue()
        ticket = work(queue, hanging=True)
        for wait in (queue.wait, queue.close):
            begin = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            self.assertRaises(Alarm, wait)
            self.assertLess(time.monotonic() - begin, 2)
        signal.signal(signal.SIGALRM, before)
        self.assertRaises(gpusync.InUse, device.close)  # the queue is on its way
        soft.softmetal_unhang(ticket.metal)
        while True:
            try:
                device.close()
                break
            except gpusync.InUse:
                time.sleep(0.01)
                device.dispatch()

    def test_close_waits_for_the_calls_of_other_threads(self):
        with gpusync.Device() as device, device.queue() as queue:
            ticket, results = work(queue, hanging=True), []

            def wait():
                try:
                    queue.wait(ticket)
                except gpusync.Error as error:
                    results.append(type(error))
            waiters = [threading.Thread(target=wait) for _ in range(3)]
            for waiter in waiters:
                waiter.start()
            while device.report().count("asleep for") < 3:
                time.sleep(0.001)
            queue.close_now()
            for waiter in waiters:
                waiter.join()
            self.assertEqual(results, [gpusync.Destroyed] * 3)
            soft.softmetal_unhang(ticket.metal)

    def test_close_now_destroys_all_that_has_not_ended(self):
        with gpusync.Device() as device, device.timeline() as steps, device.queue() as queue:
            running, results = work(queue, hanging=True), []
            held = queue.command_buffer()
            held.encode_wait(steps.at(1))
            for ticket in (running, held.commit()):
                queue.on_done(ticket, lambda error: results.append(type(error)))
            queue.close_now()
            self.assertEqual(results, [gpusync.Destroyed] * 2)
            soft.softmetal_unhang(running.metal)

    def test_close_is_punctual_and_gives_up_what_is_held(self):
        with gpusync.Device() as device, device.timeline() as steps, device.queue() as queue:
            work(queue, ms=300)
            held = queue.command_buffer()
            held.encode_wait(steps.at(1))
            results = []
            queue.on_done(held.commit(), lambda error: results.append(type(error)))
            begin = time.monotonic()
            queue.close()
            self.assertEqual(results, [gpusync.Cancelled])
            self.assertGreaterEqual(time.monotonic() - begin, 0.25)
        with gpusync.Device() as device:
            for close in (gpusync.Queue.close, lambda queue: asyncio.run(queue.aclose())):
                late = []
                for _ in range(3):  # the machine may be slow once
                    queue = device.queue()
                    begin, _ = time.monotonic(), work(queue, ms=300)
                    close(queue)
                    late.append(time.monotonic() - begin - 0.3)
                self.assertLess(min(late), 0.15)  # the timer alone would take 0.2 s more

    def test_close_waits_for_a_call_that_has_just_begun(self):
        with gpusync.Device() as device:
            queue, inside, left = device.queue(), threading.Event(), []

            def call():
                with queue._use():
                    inside.set()
                    time.sleep(0.1)  # a close that does not wait would be through by then
                    left.append(True)
            caller = threading.Thread(target=call)
            caller.start()
            inside.wait()
            queue.close()
            self.assertEqual(left, [True])
            caller.join()

    def test_callbacks_by_hand(self):
        with gpusync.Device() as device, device.queue() as queue:
            told, here = [], threading.get_ident()
            queue.on_done(work(queue), lambda error: told.append((error, threading.get_ident())))
            queue.on_done(work(queue, failing=True), lambda error: told.append((type(error), threading.get_ident())))
            gc.collect()
            self.assertTrue(soft.softmetal_settle(5000 * MS))
            while len(told) < 2:
                device.dispatch()
            self.assertEqual(told, [(None, here), (gpusync.ExecutionFailed, here)])

    def test_an_exception_in_a_callback_comes_out_of_dispatch(self):
        def raising(error):
            raise KeyError("on purpose")
        with gpusync.Device() as device, device.queue() as queue:
            queue.on_done(work(queue), raising)
            with self.assertRaises(KeyError):
                dispatch_for_ever(device)
            queue.on_done(work(queue), raising)
            self.assertRaises(KeyError, queue.close)
            self.assertTrue(queue.closed)

    def test_a_callback_cannot_wait_for_itself(self):
        with gpusync.Device() as device, device.queue() as queue, device.queue() as other:
            raised = []

            def callback(error):
                for call in (queue.close, other.close, other.close_now, device.close, device.dispatch):
                    try:
                        call()
                    except gpusync.WouldDeadlock:
                        raised.append(call.__name__)
                queue.wait(work(queue, ms=50), timeout=0)
            queue.on_done(work(queue), callback)
            with self.assertRaises(gpusync.WouldDeadlock):
                dispatch_for_ever(device)
            self.assertEqual(raised, ["close", "close", "close_now", "close", "dispatch"])

    def test_a_device_in_use_stays(self):
        device = gpusync.Device()
        queue = device.queue()
        self.assertRaises(gpusync.InUse, device.close)
        queue.wait(work(queue), timeout=5)
        queue.close()
        device.close()
        device.close()
        self.assertRaises(ValueError, device.queue)

    def test_what_is_not_closed_is_told(self):
        with gpusync.Device() as device:
            queue = device.queue()
            pointer = queue._pointer
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del queue
                gc.collect()
            self.assertEqual([warning.category for warning in caught], [ResourceWarning])
            gpusync._call("gpusync_queue_destroy_now", pointer)

class TestTimelines(Case):
    def test_the_gpu_signals(self):
        with gpusync.Device() as device, device.timeline(label="steps") as steps, device.queue() as queue, \
                device.queue() as other:
            waiting = other.command_buffer()
            waiting.encode_wait(steps.at(1))
            later = waiting.commit()  # before the signal: held
            self.assertRaises(gpusync.Timeout, steps.wait, 1, timeout=0.02)
            buffer = queue.command_buffer()
            buffer.encode_signal(steps.at(1))
            ticket = buffer.commit()
            steps.wait(1, timeout=5)
            other.wait(later, timeout=5)
            queue.wait(ticket, timeout=5)
            self.assertEqual(steps.value, 1)
            self.assertRaises(gpusync.NotRising, steps.signal, 1)
            buffer = other.command_buffer()
            buffer.encode_wait(ticket)
            other.wait(buffer.commit(), timeout=5)
            held = other.command_buffer()
            held.encode_wait(steps.at(9))
            held = held.commit()
            other.cancel_held()
            self.assertRaises(gpusync.Cancelled, other.wait, held, timeout=5)

    def test_a_failure_spreads(self):
        async def waits(steps):
            with self.assertRaises(gpusync.ExecutionFailed) as caught:
                await steps.done(5, timeout=5)
            return caught.exception

        with gpusync.Device() as device, device.timeline() as steps, device.queue(sticky_failure=True) as queue:
            early = queue.command_buffer()  # made before the failure
            buffer = queue.command_buffer(label="first")
            buffer.encode_signal(steps.at(1))
            soft.softmetal_fail_as(buffer.metal, PAGE_FAULT, None)
            ticket = buffer.commit()
            self.assertRaises(gpusync.ExecutionFailed, queue.wait, ticket, timeout=5)
            self.assertRaises(gpusync.ExecutionFailed, steps.wait, 1, timeout=5)
            self.assertEqual(asyncio.run(waits(steps)).failure.label, "first")
            failures = queue.failures()
            self.assertRaises(gpusync.ExecutionFailed, queue.command_buffer)
            self.assertRaises(gpusync.ExecutionFailed, early.commit)
            self.assertRaises(gpusync.ExecutionFailed, queue.wait, timeout=5)
            self.assertRaises(gpusync.ExecutionFailed, queue.wait, timeout=5)  # while it sticks, each wait
            queue.clear_failure()
            self.assertEqual([failure.ticket for failure in failures], [ticket])  # the clear takes it from no reader
            queue.wait(early.commit(), timeout=5)
            queue.wait(work(queue), timeout=5)
            with self.assertRaises(gpusync.ExecutionFailed):
                steps.fail()  # it has
        with gpusync.Device() as device, device.timeline() as steps:
            steps.fail()
            self.assertRaises(gpusync.ExecutionFailed, steps.wait, 1)

class TestAsyncio(Case):
    def run_with_queue(self, function, **options):
        wrong = []

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: wrong.append(context))
            async with gpusync.Device() as device, device.queue(**options) as queue:
                descriptor = device.fileno()
                await function(device, queue)
            self.assertFalse(loop.remove_reader(descriptor))  # it is not there any more
        asyncio.run(main(), debug=True)  # a future that another thread ends is an error then
        self.assertEqual(wrong, [])

    def test_tickets_are_awaited_while_the_loop_goes_on(self):
        async def main(device, queue):
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    await asyncio.sleep(0.001)
                    ticks += 1

            async def job(number):
                await work(queue, ms=5, failing=number == 3)
                return number
            ticking = asyncio.create_task(tick())
            results = await asyncio.gather(*(job(number) for number in range(6)), return_exceptions=True)
            ticking.cancel()
            self.assertIsInstance(results[3], gpusync.ExecutionFailed)
            self.assertEqual(results[3].failure.ticket, 4)
            self.assertEqual(results[:3] + results[4:], [0, 1, 2, 4, 5])
            self.assertGreater(ticks, 3)
        self.run_with_queue(main)

    def test_a_timeout_and_a_cancelled_task(self):
        async def main(device, queue):
            ticket = work(queue, hanging=True)
            with self.assertRaises(gpusync.Timeout):
                await queue.done(ticket, timeout=0.02)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(ticket.queue.done(ticket), 0.02)
            task = asyncio.create_task(queue.done(ticket))
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            soft.softmetal_unhang(ticket.metal)
            await ticket
            with self.assertRaises(gpusync.InvalidTicket):
                await queue.done(99)
        self.run_with_queue(main)

    def test_the_device_goes(self):
        async def main(device, queue):
            ticket = work(queue, ms=60_000)
            soft.softmetal_remove_device(device.metal)
            with self.assertRaises((gpusync.ExecutionFailed, gpusync.DeviceLost)):
                await queue.done(ticket, timeout=5)
            self.assertTrue(device.lost)
        self.run_with_queue(main)

    def test_nothing_is_collected_that_is_still_called(self):
        async def main(device, queue):
            async def forget(number):  # keeps nothing but what it awaits
                await work(queue, ms=1)
                return number
            tasks = [asyncio.create_task(forget(number)) for number in range(40)]
            for _ in range(5):
                await asyncio.sleep(0)
                gc.collect()
            self.assertEqual(await asyncio.gather(*tasks), list(range(40)))
            queue._future(work(queue))  # no task awaits it
            gc.collect()
        self.run_with_queue(main)

    def test_the_loop_goes_on_while_a_queue_closes(self):
        async def main(device, queue):
            ticks = 0
            work(queue, ms=100)
            closing = asyncio.create_task(queue.aclose())
            while not closing.done():
                await asyncio.sleep(0.001)
                ticks += 1
            await closing
            await queue.aclose()
            self.assertGreater(ticks, 10)
        self.run_with_queue(main)

    def test_a_device_serves_one_loop_at_a_time(self):
        with gpusync.Device() as device, device.queue() as queue:
            async def once():
                await work(queue, ms=1)
            for _ in range(3):
                asyncio.run(once())

            async def twice():
                await once()
                with self.assertRaises(RuntimeError):
                    await asyncio.get_running_loop().run_in_executor(None, asyncio.run, once())
                with self.assertRaises(RuntimeError):
                    await asyncio.get_running_loop().run_in_executor(None, device.close)
            asyncio.run(twice())
            self.assertTrue(queue.is_idle() or queue.wait(timeout=5) is None)

    def test_a_queue_that_another_thread_closes(self):
        async def main(device, queue):
            ticket = work(queue, ms=30)
            done = asyncio.create_task(queue.done(ticket))
            await asyncio.sleep(0)
            closing = threading.Thread(target=queue.close)
            closing.start()
            closing.join()  # the loop does nothing meanwhile: the callback runs on the other thread
            await done
        self.run_with_queue(main)

    def test_a_thousand(self):
        async def main(device, queue):
            for _ in range(20):
                await asyncio.gather(*(queue.done(work(queue), timeout=20) for _ in range(50)))
        self.run_with_queue(main)

if __name__ == "__main__":
    faulthandler.dump_traceback_later(120, exit=True)
    unittest.main()
