//! The test of gpusync.rs, with faults that softmetal plants: work that fails, hangs, or ends with the device; no Metal
//! object; no memory; wakers that panic, or drop the last owner of a queue.
mod gpusync;
use gpusync::*;
use std::collections::VecDeque;
use std::ffi::CString;
use std::future::Future;
use std::mem::size_of;
use std::os::raw::{c_char, c_int, c_uint, c_ulong, c_void};
use std::pin::Pin;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, park_timeout, Thread, ThreadId};
use std::time::{Duration, Instant};

#[repr(C)]
struct PollFd(c_int, i16, i16);

extern "C" {
    fn softmetal_reset();
    fn softmetal_settle(ns: u64) -> bool;
    fn softmetal_live(kind: *const c_char) -> i64;
    fn softmetal_set_duration(buffer: *mut c_void, ns: u64);
    fn softmetal_fail_as(buffer: *mut c_void, reason: c_uint, text: *const c_char);
    fn softmetal_hang(buffer: *mut c_void);
    fn softmetal_unhang(buffer: *mut c_void);
    fn softmetal_remove_device(device: *mut c_void);
    fn softmetal_fail_creation(n: c_uint, persistent: bool);
    fn softmetal_creations() -> c_uint;
    fn poll(fds: *mut PollFd, count: c_ulong, timeout_ms: c_int) -> c_int;
    fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
    fn fcntl(fd: c_int, command: c_int) -> c_int;
}
const PAGE_FAULT: c_uint = 11;
const OUT_OF_MEMORY: c_uint = 8;
const LONG: Option<Duration> = Some(Duration::from_secs(5));
fn ms(ms: u64) -> Duration { Duration::from_millis(ms) }

fn descriptors() -> usize { (0..256).filter(|fd| unsafe { fcntl(*fd, 1) } != -1).count() }

/// softmetal is one for the process: a test at a time. Whatever a test meets, nothing is left over.
struct Alone { descriptors: usize, _guard: MutexGuard<'static, ()> }
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> Alone {
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    unsafe { assert!(softmetal_settle(5_000_000_000)) };
    unsafe { softmetal_reset() };
    Alone { descriptors: descriptors(), _guard: guard }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let end = Instant::now() + ms(5000);
        for kind in ["device", "queue", "command_buffer", "shared_event"] {
            let text = CString::new(kind).unwrap();
            unsafe { assert!(softmetal_settle(5_000_000_000)) };
            while unsafe { softmetal_live(text.as_ptr()) } != 0 { // what was dropped in a callback goes a moment later
                assert!(Instant::now() < end, "left over: {kind}");
                thread::sleep(ms(1));
            }
        }
        assert_eq!(descriptors(), self.descriptors);
    }
}

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) { self.0.unpark() }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let (waker, end) = (Waker::from(Arc::new(Unpark(thread::current()))), Instant::now() + ms(10_000));
    let mut future = Box::pin(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        assert!(Instant::now() < end, "no waker was called");
        park_timeout(ms(10_000));
    }
}

enum Fault {
    None,
    Fails,
    Hangs,
    Takes(u64),
}

/// Commits work, and returns its buffer, too: softmetal knows it until its end.
fn work(queue: &Queue, fault: Fault) -> (Ticket, *mut c_void) {
    let buffer = queue.labelled(LONG, Some("shadow")).unwrap();
    let text = CString::new("page fault on purpose").unwrap();
    let pointer = buffer.as_ptr();
    match fault {
        Fault::None => {}
        Fault::Fails => unsafe { softmetal_fail_as(pointer, PAGE_FAULT, text.as_ptr()) },
        Fault::Hangs => unsafe { softmetal_hang(pointer) },
        Fault::Takes(ms) => unsafe { softmetal_set_duration(pointer, ms * 1_000_000) },
    }
    (buffer.commit().unwrap(), pointer)
}

fn kind<T>(result: Result<T, Error>) -> Option<Kind> { result.err().map(|error| error.kind) }

#[test]
fn another_header_is_refused() {
    let (version, sizes) = library();
    assert_eq!(version / 100, 4);
    check_library(version, &sizes).unwrap();
    for other in [300, 500, 10400] {
        assert_eq!(kind(check_library(other, &sizes)), Some(Kind::OtherHeader));
    }
    for (place, _, _) in STRUCTS {
        let mut wrong = sizes.clone();
        wrong[place] += 8;
        assert!(check_library(version, &wrong).unwrap_err().to_string().contains("of another gpusync.h"));
        assert_eq!(kind(check_library(version, &sizes[..place])), Some(Kind::OtherHeader));
    }
}

#[test]
fn each_result_has_its_kind_and_text() {
    let mut kinds = vec![];
    for result in (-22..-9).chain(-8..0).chain(1..3) {
        let error = Error { call: "gpusync_wait", kind: Kind::of(result), failure: None };
        assert!(!matches!(error.kind, Kind::Other(_)) && !kinds.contains(&error.kind), "{result}");
        assert!(error.to_string().starts_with("gpusync_wait: ") && !error.to_string().contains("unknown"), "{error}");
        kinds.push(error.kind);
    }
    let text = |kind| Error { call: "", kind, failure: None }.to_string();
    assert!(text(Kind::Timeout).contains("limit") && text(Kind::NotReady).contains("not yet"));
    assert!(text(Kind::InvalidArgument).contains("NULL") && text(Kind::Compile).contains("compile"));
    for result in [-23, -9, 3] {
        assert_eq!(Kind::of(result), Kind::Other(result));
        assert!(text(Kind::Other(result)).contains("unknown result"));
    }
}

#[test]
fn what_may_go_to_other_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    fn send<T: Send>() {}
    send_and_sync::<Device>();
    send_and_sync::<Queue>();
    send_and_sync::<Timeline>();
    send_and_sync::<Error>();
    send::<CommandBuffer<'static>>();
    send::<Done>();
    // Does not compile when a CommandBuffer is Sync: both impls would fit.
    trait NotIfSync<A> {
        fn fits() {}
    }
    impl<T> NotIfSync<()> for T {}
    impl<T: Sync> NotIfSync<u8> for T {}
    <CommandBuffer<'static> as NotIfSync<_>>::fits();
}

#[test]
fn futures_end_as_their_work_does() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions { label: Some("frames"), ..QueueOptions::default() }).unwrap();
    let results = block_on(async {
        let fault = |number| if number == 3 { Fault::Fails } else { Fault::Takes(2) };
        let jobs: Vec<Done> = (0..6).map(|number| queue.done(work(&queue, fault(number)).0)).collect();
        let mut results = vec![];
        for job in jobs {
            results.push(job.await);
        }
        results
    });
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.is_ok(), number != 3);
    }
    let failure = results[3].clone().unwrap_err().failure.unwrap();
    assert_eq!((failure.kind, failure.ticket, failure.class), (Kind::Execution, Ticket(4), 3));
    assert_eq!((&failure.message[..], &failure.text[..]), ("page fault on purpose", "page fault"));
    assert_eq!((&failure.label[..], &failure.queue_label[..]), ("shadow", "frames"));
    assert!(!failure.is_transient());
    assert_eq!(queue.failures().collect::<Vec<_>>(), [*failure]);
    assert_eq!(kind(queue.poll(Ticket(4))), Some(Kind::Execution));
    assert_eq!(kind(block_on(queue.done(Ticket(99)))), Some(Kind::InvalidTicket));
    assert!(queue.is_idle() && queue.is_done(Ticket(6)) && queue.in_flight() == 0 && queue.poll(Ticket(1)).unwrap());
}

#[test]
fn each_reader_finds_every_failure_and_a_new_one_may_begin_at_the_end() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let fail = |reason| {
        let mut buffer = queue.command_buffer(LONG).unwrap();
        unsafe { softmetal_fail_as(buffer.as_ptr(), reason, null()) };
        assert_eq!(kind(queue.wait(buffer.try_commit().unwrap(), LONG)), Some(Kind::Execution));
    };
    fail(PAGE_FAULT);
    let (mut first, mut new) = (queue.failures(), queue.failures_from_now());
    assert_eq!((first.next().unwrap().ticket, new.next()), (Ticket(1), None));
    fail(OUT_OF_MEMORY);
    for reader in [&mut first as &mut dyn Iterator<Item = Failure>, &mut new] {
        let failure = reader.next().unwrap();
        assert!(failure.ticket == Ticket(2) && failure.is_transient());
        assert_eq!(reader.next(), None);
    }
}

#[test]
fn a_wait_has_a_limit() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let (ticket, buffer) = work(&queue, Fault::Hangs);
    for limit in [0, 30] {
        let begin = Instant::now();
        assert_eq!(kind(queue.wait(ticket, Some(ms(limit)))), Some(Kind::Timeout));
        assert!(begin.elapsed() >= ms(limit));
    }
    assert!(!queue.poll(ticket).unwrap());
    drop(queue.done(ticket)); // the callback finds no future
    unsafe { softmetal_unhang(buffer) };
    queue.wait(ticket, Some(Duration::MAX)).unwrap();
    let (ticket, _) = work(&queue, Fault::Takes(30));
    queue.wait(ticket, Some(Duration::from_nanos(u64::MAX) + Duration::from_nanos(5))).unwrap(); // more than 64 bits
    let (ticket, _) = work(&queue, Fault::Fails);
    assert_eq!(queue.wait(ticket, None).unwrap_err().failure.unwrap().message, "page fault on purpose");
}

#[test]
fn the_device_goes() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let (ticket, _) = work(&queue, Fault::Takes(60_000));
    let done = queue.done(ticket);
    unsafe { softmetal_remove_device(device.metal()) };
    assert!(matches!(kind(block_on(done)), Some(Kind::Execution | Kind::DeviceLost)));
    assert!(device.is_lost());
    let mut refused = (0..1000).map(|_| (thread::sleep(ms(1)), kind(queue.command_buffer(LONG))).1);
    assert_eq!(refused.find(Option::is_some), Some(Some(Kind::DeviceLost))); // a moment later than is_lost
}

fn everything(device: Device) -> Result<(), Error> {
    let queue = device.queue(&QueueOptions::default())?;
    let timeline = device.timeline(0, Some("steps"))?;
    let mut buffer = queue.command_buffer(LONG)?;
    buffer.encode_signal(&timeline, 1)?;
    let ticket = buffer.commit()?;
    block_on(queue.done(ticket))?;
    block_on(timeline.done(1))?;
    Ok(())
}

#[test]
fn every_object_that_metal_does_not_make() {
    let _alone = alone();
    let mut number = 1;
    while number < 100 {
        unsafe { softmetal_fail_creation(number, false) };
        let result = Device::with_descriptor().map(drop).and_then(|()| everything(Device::new()?));
        assert!(matches!(kind(result), None | Some(Kind::MetalNil | Kind::NoDevice)));
        if unsafe { softmetal_creations() } < number {
            break;
        }
        number += 1;
    }
    unsafe { softmetal_fail_creation(0, false) };
    assert!(number > 5);
}

static LEFT: AtomicI64 = AtomicI64::new(0);
static HELD: AtomicI64 = AtomicI64::new(0);

extern "C" fn allocate(_: *mut c_void, size: usize, alignment: usize) -> *mut c_void {
    if LEFT.fetch_sub(1, SeqCst) == 1 {
        return null_mut();
    }
    HELD.fetch_add(1, SeqCst);
    unsafe { aligned_alloc(alignment.max(16), (size + 127) & !127) }
}

extern "C" fn release(_: *mut c_void, memory: *mut c_void, _: usize) {
    HELD.fetch_sub(1, SeqCst);
    unsafe { free(memory) }
}

#[test]
fn every_allocation_that_fails() {
    let _alone = alone();
    #[repr(C)]
    struct Allocator(
        extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
        extern "C" fn(*mut c_void, *mut c_void, usize),
        *mut c_void,
    );
    let allocator = Allocator(allocate, release, null_mut());
    let mut failed = 0;
    for number in 1..100 {
        LEFT.store(number, SeqCst);
        let desc = DeviceDesc { allocator: &allocator as *const Allocator as *const c_void, ..DeviceDesc::default() };
        let result = unsafe { Device::with_desc(desc, false) }.and_then(everything);
        assert!(matches!(kind(result), None | Some(Kind::OutOfMemory)));
        assert_eq!(HELD.load(SeqCst), 0);
        if LEFT.load(SeqCst) > 0 {
            break;
        }
        failed += 1;
    }
    assert!(failed > 2);
}

#[test]
fn a_buffer_that_is_dropped_gives_its_room_back() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions { max_command_buffer_count: 1, ..QueueOptions::default() }).unwrap();
    let buffer = queue.command_buffer(Some(ms(0))).unwrap();
    assert_eq!(kind(queue.command_buffer(Some(ms(20)))), Some(Kind::Timeout));
    drop(buffer);
    let mut buffer = queue.command_buffer(Some(ms(0))).unwrap();
    let ticket = buffer.try_commit().unwrap();
    assert_eq!(kind(buffer.try_commit()), Some(Kind::InvalidArgument));
    drop(buffer); // committed: not given back
    queue.wait(ticket, LONG).unwrap();
    assert_eq!(kind(queue.labelled(None, Some("nul\0"))), Some(Kind::InvalidArgument));
}

#[test]
fn many_threads_commit_to_one_queue() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    block_on(queue.done(work(&queue, Fault::None).0)).unwrap();
                }
            });
        }
    });
    assert!(queue.is_done(Ticket(400)));
}

/// Stops being the owner of a queue as it is woken, in the callback.
struct Owner(Mutex<Option<Arc<Queue>>>, AtomicBool);
impl Wake for Owner {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.store(true, SeqCst);
    }
}

fn poll_once(future: &mut Done, waker: &Waker) -> Poll<Result<(), Error>> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_callback_may_drop_the_last_owner_of_a_queue() {
    let _alone = alone();
    for descriptor in [false, true] {
        let device = if descriptor { Device::with_descriptor() } else { Device::new() }.unwrap();
        let queue = Arc::new(device.queue(&QueueOptions::default()).unwrap());
        let mut done = queue.done(work(&queue, Fault::Takes(5)).0);
        let _running = work(&queue, Fault::Takes(30));
        let owner = Arc::new(Owner(Mutex::new(Some(queue)), AtomicBool::new(false)));
        assert!(poll_once(&mut done, &owner.clone().into()).is_pending());
        let end = Instant::now() + ms(5000);
        while !owner.1.load(SeqCst) {
            assert!(Instant::now() < end);
            thread::sleep(ms(1));
            device.dispatch().unwrap();
        }
        drop(device); // the queue still has work
    }
}

struct Panic;
impl Wake for Panic {
    fn wake(self: Arc<Self>) { panic!("on purpose") }
}

#[test]
fn a_waker_may_panic() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let (ticket, buffer) = work(&queue, Fault::Hangs);
    let mut panics = queue.done(ticket);
    assert!(poll_once(&mut panics, &Arc::new(Panic).into()).is_pending());
    let next = queue.done(ticket);
    unsafe { softmetal_unhang(buffer) };
    block_on(next).unwrap(); // its callback comes after the one that panicked
    block_on(panics).unwrap();
}

struct Count(AtomicUsize);
impl Wake for Count {
    fn wake(self: Arc<Self>) { self.0.fetch_add(1, SeqCst); }
}

#[test]
fn the_last_waker_is_woken_and_no_other() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let (ticket, buffer) = work(&queue, Fault::Hangs);
    let mut done = queue.done(ticket);
    let counts = [Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0)))];
    for count in &counts {
        assert!(poll_once(&mut done, &count.clone().into()).is_pending());
    }
    assert_eq!(Arc::strong_count(&counts[0]), 1); // the first waker is gone
    unsafe { softmetal_unhang(buffer) };
    queue.wait(ticket, LONG).unwrap();
    drop(queue); // runs the callback, if it has not run
    assert_eq!((counts[0].0.load(SeqCst), counts[1].0.load(SeqCst)), (0, 1));
    assert_eq!(block_on(done), Ok(()));
}

#[test]
fn a_queue_closes_without_blocking() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let done = queue.done(work(&queue, Fault::Takes(50)).0);
    let begin = Instant::now();
    let close = queue.close();
    assert!(begin.elapsed() < ms(40));
    block_on(done).unwrap();
    block_on(close).unwrap();
    assert!(begin.elapsed() >= ms(50));
}

#[test]
fn a_gpu_that_hangs_keeps_no_queue() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions::default()).unwrap();
    let (ticket, buffer) = work(&queue, Fault::Hangs);
    let done = queue.done(ticket);
    queue.destroy_now().unwrap();
    assert_eq!(kind(block_on(done)), Some(Kind::Destroyed));
    unsafe { softmetal_unhang(buffer) };
}

/// An executor around poll(2): the wakers put tasks into a list, and run on the thread that dispatches.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    ready: Arc<Mutex<VecDeque<Arc<Task>>>>,
    woken_on: Mutex<Vec<ThreadId>>,
}
impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.woken_on.lock().unwrap().push(thread::current().id());
        self.ready.lock().unwrap().push_back(self.clone());
    }
}

#[test]
fn an_event_loop_has_a_descriptor() {
    let _alone = alone();
    let device = Device::with_descriptor().unwrap();
    let queue = Arc::new(device.queue(&QueueOptions::default()).unwrap());
    let ready = Arc::new(Mutex::new(VecDeque::new()));
    let ended = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<Arc<Task>> = (0..20)
        .map(|number| {
            let (queue, ended) = (queue.clone(), ended.clone());
            let future = async move {
                for step in 0..5 {
                    let fails = number == 7 && step == 2;
                    let ticket = work(&queue, if fails { Fault::Fails } else { Fault::None }).0;
                    assert_eq!(queue.done(ticket).await.is_err(), fails);
                }
                ended.fetch_add(1, SeqCst);
            };
            Arc::new(Task {
                future: Mutex::new(Some(Box::pin(future))),
                ready: ready.clone(),
                woken_on: Mutex::default(),
            })
        })
        .collect();
    ready.lock().unwrap().extend(tasks.iter().cloned());
    let mut wanted = PollFd(device.descriptor().unwrap(), 1, 0);
    loop {
        while let Some(task) = { let next = ready.lock().unwrap().pop_front(); next } {
            let mut future = task.future.lock().unwrap();
            if let Some(running) = future.as_mut() {
                if running.as_mut().poll(&mut Context::from_waker(&task.clone().into())).is_ready() {
                    *future = None;
                }
            }
        }
        if ended.load(SeqCst) == tasks.len() {
            break;
        }
        assert_eq!(unsafe { poll(&mut wanted, 1, 5000) }, 1, "no wake-up came");
        device.dispatch().unwrap();
    }
    let here = thread::current().id();
    assert!(tasks.iter().all(|task| task.woken_on.lock().unwrap().iter().all(|thread| *thread == here)));
    assert_eq!(Device::new().unwrap().descriptor(), None);
}

/// Has a callback become due while it is called itself: work that ends before this returns.
struct Again(Arc<Queue>, Mutex<Option<Done>>);
impl Wake for Again {
    fn wake(self: Arc<Self>) {
        let (ticket, _) = work(&self.0, Fault::None);
        *self.1.lock().unwrap() = Some(self.0.done(ticket));
        while !self.0.is_done(ticket) {
            thread::sleep(ms(1));
        }
        thread::sleep(ms(20)); // gpusync notifies meanwhile, mostly; a notify that comes later has to wake, too
    }
}

#[test]
fn what_becomes_due_during_a_dispatch_wakes_again() {
    let _alone = alone();
    let device = Device::with_descriptor().unwrap();
    let queue = Arc::new(device.queue(&QueueOptions::default()).unwrap());
    let again = Arc::new(Again(queue.clone(), Mutex::new(None)));
    let mut first = queue.done(work(&queue, Fault::None).0);
    assert!(poll_once(&mut first, &again.clone().into()).is_pending());
    let mut wanted = PollFd(device.descriptor().unwrap(), 1, 0);
    for _ in 0..2 {
        assert_eq!(unsafe { poll(&mut wanted, 1, 5000) }, 1, "no wake-up came");
        device.dispatch().unwrap();
    }
    let second = again.1.lock().unwrap().take().unwrap();
    block_on(second).unwrap();
}

#[test]
fn timelines() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let (queue, other) =
        (device.queue(&QueueOptions::default()).unwrap(), device.queue(&QueueOptions::default()).unwrap());
    let steps = device.timeline(0, None).unwrap();
    let mut buffer = other.command_buffer(LONG).unwrap();
    buffer.encode_wait(Point::Value(&steps, 1)).unwrap();
    let later = buffer.commit().unwrap(); // before the signal: held
    assert_eq!(kind(steps.wait(1, Some(ms(10)))), Some(Kind::Timeout));
    let mut buffer = queue.command_buffer(LONG).unwrap();
    buffer.encode_signal(&steps, 1).unwrap();
    let ticket = buffer.commit().unwrap();
    other.wait(later, LONG).unwrap();
    steps.wait(1, LONG).unwrap();
    let mut buffer = other.command_buffer(LONG).unwrap();
    buffer.encode_wait(Point::Ticket(&queue, ticket)).unwrap();
    other.wait(buffer.commit().unwrap(), LONG).unwrap();
    steps.signal(2).unwrap();
    assert_eq!((steps.value(), kind(steps.signal(2))), (Ok(2), Some(Kind::NotRising)));
    let done = steps.done(5);
    let mut buffer = queue.command_buffer(LONG).unwrap();
    buffer.encode_signal(&steps, 5).unwrap();
    unsafe { softmetal_fail_as(buffer.as_ptr(), PAGE_FAULT, null()) };
    let ticket = buffer.commit().unwrap();
    assert_eq!(kind(queue.wait(ticket, LONG)), Some(Kind::Execution));
    assert_eq!(block_on(done).unwrap_err().failure.unwrap().class, 3);
    assert_eq!(kind(steps.fail()), Some(Kind::Execution)); // it has failed before
    let steps = device.timeline(3, None).unwrap();
    steps.fail().unwrap();
    assert_eq!(kind(steps.wait(3, None)), Some(Kind::Execution));
}

#[test]
fn a_failure_sticks_until_it_is_cleared() {
    let _alone = alone();
    let device = Device::new().unwrap();
    let queue = device.queue(&QueueOptions { sticky_failure: true, ..QueueOptions::default() }).unwrap();
    let mut early = queue.command_buffer(LONG).unwrap(); // made before the failure
    let (ticket, _) = work(&queue, Fault::Fails);
    assert_eq!(kind(queue.wait(ticket, LONG)), Some(Kind::Execution));
    assert_eq!(kind(queue.command_buffer(LONG)), Some(Kind::Execution));
    assert_eq!(kind(early.try_commit()), Some(Kind::Execution));
    let mut failures = queue.failures();
    queue.clear_failure().unwrap();
    assert_eq!(failures.next().unwrap().ticket, ticket); // the clear takes it from no reader
    queue.wait(early.try_commit().unwrap(), LONG).unwrap();
    queue.wait(work(&queue, Fault::None).0, LONG).unwrap();
    assert_eq!(size_of::<Ticket>(), 8);
}
