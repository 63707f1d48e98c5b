//! gpusync for Rust: `Drop`, `Result`, `Future`. No crate is needed; Rust 1.63 is enough.
//!
//! ```ignore
//! let device = Device::new()?;
//! let queue = device.queue(&QueueOptions::default())?;
//! let buffer = queue.command_buffer(None)?;      // encode into buffer.as_ptr(), an id<MTLCommandBuffer>
//! let ticket = buffer.commit()?;
//! queue.wait(ticket, Some(Duration::from_secs(1)))?;      // or: queue.done(ticket).await?;
//! ```
//!
//! Threads. gpusync allows every call but destroy on any thread, at the same time. Here destroy is `Drop`, which has
//! the object to itself: so `Device`, `Queue` and `Timeline` are `Send` and `Sync`. Metal allows one thread at a time
//! to encode into a command buffer: so `CommandBuffer` is `Send`, and not `Sync`.
//!
//! Callbacks. With `Device::new` gpusync calls wakers on a dispatch queue of its own, one at a time: any executor will
//! do. With `Device::with_descriptor` it calls them in `Device::dispatch`, on the thread of an event loop, which waits
//! for `Device::descriptor`. It never calls them on a thread of Metal's.
//!
//! Drop. The drop of a queue waits for the GPU, without limit: see `Queue::close` and `Queue::destroy_now`. In a
//! callback nothing may wait: there the drop leaves the queue to gpusync, which destroys it when its work has ended.
//!
//! fork. A forked child must not use what its parent made.
#![allow(dead_code)] // a program uses a part
use std::ffi::{CStr, CString};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::{size_of, zeroed};
use std::os::raw::{c_char, c_int, c_short, c_ulong, c_void};
use std::os::unix::io::RawFd;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

// -- the structs and calls of gpusync.h ------------------------------------------------------------------------------

#[repr(C)]
struct RawError {
    result: c_int,
    failure: c_int,
    ticket: u64,
    code: i64,
    dropped: u64,
    domain: [c_char; 64],
    message: [c_char; 256],
    label: [c_char; 64],
    queue_label: [c_char; 64],
}

/// gpusync_device_desc, for `Device::with_desc`.
#[repr(C)]
pub struct DeviceDesc {
    pub metal_device: *mut c_void,
    pub hooks: *const c_void,
    pub allocator: *const c_void,
    pub spin: *const c_void,
    pub log: *const c_void,
    pub log_user: *mut c_void,
    pub callback_mode: c_int, // with a descriptor this one and notify are set here
    pub callback_queue: *mut c_void,
    pub notify: Option<unsafe extern "C" fn(*mut c_void)>,
    pub notify_user: *mut c_void,
}

impl Default for DeviceDesc {
    fn default() -> Self { unsafe { zeroed() } }
}

#[repr(C)]
struct QueueDesc {
    metal_queue: *mut c_void,
    label: *const c_char,
    max_command_buffer_count: u32,
    error_log_count: u32,
    spin: *const c_void,
    metal4: bool,
    sticky_failure: bool,
}

#[repr(C)]
struct CommandBufferDesc {
    timeout_ns: *const u64,
    label: *const c_char,
    unretained_references: bool,
    descriptor: *mut c_void,
}

#[repr(C)]
struct WaitOptions {
    spin: *const c_void,
    error: *mut RawError,
    handlers: bool,
    blocking: bool,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawPoint {
    queue: *mut c_void,
    ticket: u64,
    timeline: *mut c_void,
    value: u64,
}

#[repr(C)]
struct TimelineDesc {
    initial_value: u64,
    label: *const c_char,
    shared_event: *mut c_void,
    signalled_by_others: bool,
}

#[repr(C)]
struct PollFd {
    fd: c_int,
    events: c_short,
    revents: c_short,
}

type DoneFn = extern "C" fn(*mut c_void, c_int, *const RawError);
type DestroyedFn = extern "C" fn(*mut c_void);

#[rustfmt::skip]
extern "C" {
    fn gpusync_version() -> u32;
    fn gpusync_struct_sizes(sizes: *mut usize, count: usize) -> usize;
    fn gpusync_result_string(result: c_int) -> *const c_char;
    fn gpusync_failure_string(failure: c_int) -> *const c_char;
    fn gpusync_failure_is_transient(failure: c_int) -> bool;
    fn gpusync_device_create(desc: *const DeviceDesc, out: *mut *mut c_void) -> c_int;
    fn gpusync_device_destroy(device: *mut c_void) -> c_int;
    fn gpusync_device_destroy_later(device: *mut c_void, destroyed: Option<DestroyedFn>, user: *mut c_void) -> c_int;
    fn gpusync_device_is_lost(device: *const c_void) -> bool;
    fn gpusync_device_metal(device: *const c_void) -> *mut c_void;
    fn gpusync_dispatch(device: *mut c_void, max: usize, count: *mut usize) -> c_int;
    fn gpusync_queue_create(device: *mut c_void, desc: *const QueueDesc, out: *mut *mut c_void) -> c_int;
    fn gpusync_queue_destroy(queue: *mut c_void) -> c_int;
    fn gpusync_queue_destroy_now(queue: *mut c_void) -> c_int;
    fn gpusync_queue_destroy_later(queue: *mut c_void, destroyed: Option<DestroyedFn>, user: *mut c_void) -> c_int;
    fn gpusync_queue_metal(queue: *const c_void) -> *mut c_void;
    fn gpusync_command_buffer(queue: *mut c_void, desc: *const CommandBufferDesc, out: *mut *mut c_void) -> c_int;
    fn gpusync_command_buffer_discard(queue: *mut c_void, buffer: *mut c_void) -> c_int;
    fn gpusync_commit(queue: *mut c_void, buffer: *mut c_void, ticket: *mut u64) -> c_int;
    fn gpusync_is_idle(queue: *const c_void) -> bool;
    fn gpusync_is_done(queue: *const c_void, ticket: u64) -> bool;
    fn gpusync_in_flight(queue: *const c_void) -> u64;
    fn gpusync_poll(queue: *mut c_void, ticket: u64) -> c_int;
    fn gpusync_wait_ex(queue: *mut c_void, ticket: u64, timeout_ns: u64, options: *const WaitOptions) -> c_int;
    fn gpusync_next_error(queue: *mut c_void, cursor: *mut u64, error: *mut RawError) -> c_int;
    fn gpusync_queue_clear_failure(queue: *mut c_void) -> c_int;
    fn gpusync_on_done(point: RawPoint, done: DoneFn, user: *mut c_void) -> c_int;
    fn gpusync_encode_wait(queue: *mut c_void, buffer: *mut c_void, point: RawPoint) -> c_int;
    fn gpusync_encode_signal(queue: *mut c_void, buffer: *mut c_void, point: RawPoint) -> c_int;
    fn gpusync_timeline_create(device: *mut c_void, desc: *const TimelineDesc, out: *mut *mut c_void) -> c_int;
    fn gpusync_timeline_destroy(timeline: *mut c_void) -> c_int;
    fn gpusync_timeline_destroy_later(timeline: *mut c_void, told: Option<DestroyedFn>, user: *mut c_void) -> c_int;
    fn gpusync_timeline_query(timeline: *mut c_void, value: *mut u64) -> c_int;
    fn gpusync_timeline_signal(timeline: *mut c_void, value: u64) -> c_int;
    fn gpusync_timeline_fail(timeline: *mut c_void, reason: *const RawError) -> c_int;
    fn gpusync_timeline_wait(timeline: *mut c_void, value: u64, timeout_ns: u64, options: *const WaitOptions) -> c_int;
    fn gpusync_fd_create() -> *mut c_void;
    fn gpusync_fd_get(fd: *const c_void) -> c_int;
    fn gpusync_fd_notify(fd: *mut c_void);
    fn gpusync_fd_clear(fd: *mut c_void);
    fn gpusync_fd_destroy(fd: *mut c_void);
    fn poll(fds: *mut PollFd, count: c_ulong, timeout_ms: c_int) -> c_int;
}

/// The structs above by their places in GPUSYNC_STRUCTS.
pub const STRUCTS: [(usize, &str, usize); 7] = [
    (0, "gpusync_error", size_of::<RawError>()),
    (5, "gpusync_device_desc", size_of::<DeviceDesc>()),
    (6, "gpusync_queue_desc", size_of::<QueueDesc>()),
    (7, "gpusync_command_buffer_desc", size_of::<CommandBufferDesc>()),
    (8, "gpusync_wait_options", size_of::<WaitOptions>()),
    (9, "gpusync_point", size_of::<RawPoint>()),
    (10, "gpusync_timeline_desc", size_of::<TimelineDesc>()),
];

/// The version and the sizes of the linked library.
pub fn library() -> (u32, Vec<usize>) {
    let mut sizes = vec![0; unsafe { gpusync_struct_sizes(null_mut(), 0) }];
    unsafe { gpusync_struct_sizes(sizes.as_mut_ptr(), sizes.len()) };
    (unsafe { gpusync_version() }, sizes)
}

/// Is the library of the header that this file is for: 0.4, whatever its patch? Another one would write behind our
/// structs, or read fields where we have none. `Device` asks.
pub fn check_library(version: u32, sizes: &[usize]) -> Result<(), Error> {
    if version / 100 == 4 && STRUCTS.iter().all(|(place, _, size)| sizes.get(*place) == Some(size)) {
        return Ok(());
    }
    Err(Error { call: "gpusync_struct_sizes", kind: Kind::OtherHeader, failure: None })
}

// -- errors -----------------------------------------------------------------------------------------------------------

/// The results of gpusync that are no success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[rustfmt::skip]
pub enum Kind {
    Timeout, NotReady, InvalidArgument, Unsupported, OutOfMemory, NoDevice, MetalNil, InvalidTicket, WrongQueue,
    AlreadyCommitted, AlreadyTracked, UnknownBuffer, Execution, ResultUnknown, Cancelled, DeviceLost, Destroyed,
    WouldDeadlock, InUse, NotRising, QueueFull, Enqueued, Compile,
    /// A result of a later 0.4.
    Other(i32),
    /// The library is of another gpusync.h than this file.
    OtherHeader,
    /// gpusync_fd_create: the process has no descriptor left, or no memory.
    Descriptor,
}

#[rustfmt::skip]
const KINDS: [Kind; 24] = [
    Kind::NotReady, Kind::Timeout, /* 2, 1; then -1, -2, ... */ Kind::InvalidArgument, Kind::Unsupported,
    Kind::OutOfMemory, Kind::NoDevice, Kind::MetalNil, Kind::InvalidTicket, Kind::WrongQueue, Kind::AlreadyCommitted,
    Kind::Other(-9), /* of 0.3 */ Kind::AlreadyTracked, Kind::UnknownBuffer, Kind::Execution, Kind::ResultUnknown,
    Kind::Cancelled, Kind::DeviceLost, Kind::Destroyed, Kind::WouldDeadlock, Kind::InUse, Kind::NotRising,
    Kind::QueueFull, Kind::Enqueued, Kind::Compile,
];

impl Kind {
    /// Of a result that is not OK.
    pub fn of(result: i32) -> Kind {
        let place = if result > 0 { 2 - result } else { 1 - result };
        usize::try_from(place).ok().and_then(|place| KINDS.get(place).copied()).unwrap_or(Kind::Other(result))
    }

    fn result(self) -> i32 {
        match self {
            Kind::Other(result) => result,
            _ => KINDS.iter().position(|kind| *kind == self).map_or(0, |place| match place as i32 {
                place @ (0 | 1) => 2 - place,
                place => 1 - place,
            }),
        }
    }
}

/// How work failed: gpusync_error. Work that failed for what it waited for has the first failure here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What a wait for the ticket returns.
    pub kind: Kind,
    /// The class: gpusync_failure.
    pub class: i32,
    /// The class in words.
    pub text: String,
    /// Of the queue that was asked.
    pub ticket: Ticket,
    /// Of the NSError, and so is the domain.
    pub code: i64,
    pub domain: String,
    pub message: String,
    /// Of the command buffer.
    pub label: String,
    pub queue_label: String,
    /// Of `Queue::failures`: records that went before this one, unseen.
    pub dropped: u64,
}

impl Failure {
    /// May the same work succeed later?
    pub fn is_transient(&self) -> bool { unsafe { gpusync_failure_is_transient(self.class) } }
}

/// A call of gpusync returned no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The function of gpusync.h.
    pub call: &'static str,
    pub kind: Kind,
    /// Of the work; None where the call itself failed.
    pub failure: Option<Box<Failure>>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            Kind::OtherHeader => "the library is of another gpusync.h than gpusync.rs".into(),
            Kind::Descriptor => "the process has no descriptor left, or no memory".into(),
            kind => text_of(unsafe { gpusync_result_string(kind.result()) }),
        };
        write!(f, "{}: {}", self.call, text)?;
        match &self.failure {
            Some(failure) => write!(f, ": {}: {}", failure.text, failure.message),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

fn text_of(text: *const c_char) -> String { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }

impl RawError {
    fn new() -> RawError { unsafe { zeroed() } }

    fn read(&self) -> Option<Box<Failure>> {
        if self.result == 0 {
            return None;
        }
        Some(Box::new(Failure {
            kind: Kind::of(self.result),
            class: self.failure,
            text: text_of(unsafe { gpusync_failure_string(self.failure) }),
            ticket: Ticket(self.ticket),
            code: self.code,
            domain: text_of(self.domain.as_ptr()),
            message: text_of(self.message.as_ptr()),
            label: text_of(self.label.as_ptr()),
            queue_label: text_of(self.queue_label.as_ptr()),
            dropped: self.dropped,
        }))
    }
}

fn check_with(call: &'static str, result: c_int, failure: Option<Box<Failure>>) -> Result<(), Error> {
    if result == 0 { Ok(()) } else { Err(Error { call, kind: Kind::of(result), failure }) }
}

fn check(call: &'static str, result: c_int) -> Result<(), Error> { check_with(call, result, None) }

// -- callbacks --------------------------------------------------------------------------------------------------------

enum State {
    Waiting(Option<Waker>),
    Ended(Option<Result<(), Error>>),
}

/// A callback of gpusync's keeps this alive until it has run, whatever becomes of the future.
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> { self.0.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A waker, or its drop, may panic: no panic may leave a callback. The lock is free while the waker runs.
fn tell(user: *mut c_void, result: Result<(), Error>) {
    let shared = unsafe { Arc::from_raw(user as *const Shared) };
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let before = std::mem::replace(&mut *shared.lock(), State::Ended(Some(result)));
        if let State::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }));
}

extern "C" fn told(user: *mut c_void, result: c_int, error: *const RawError) {
    let failure = unsafe { error.as_ref() }.and_then(RawError::read);
    tell(user, check_with("gpusync_on_done", result, failure));
}

extern "C" fn destroyed(user: *mut c_void) { tell(user, Ok(())) }

/// Ends when a ticket or a value has ended. Dropped earlier, nothing happens: the work goes on.
pub struct Done(Arc<Shared>);

impl Done {
    /// begin: the call that gets the callback. After an error gpusync does not call it.
    fn new(call: &'static str, begin: impl FnOnce(*mut c_void) -> c_int) -> Done {
        let shared = Arc::new(Shared(Mutex::new(State::Waiting(None))));
        let user = Arc::into_raw(shared.clone()) as *mut c_void;
        if let Err(error) = check(call, begin(user)) {
            drop(unsafe { Arc::from_raw(user as *const Shared) });
            *shared.lock() = State::Ended(Some(Err(error)));
        }
        Done(shared)
    }
}

impl Future for Done {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        let before = match &mut *state {
            State::Ended(result) => return Poll::Ready(result.take().expect("polled after its end")),
            State::Waiting(Some(waker)) if waker.will_wake(context.waker()) => None,
            State::Waiting(waker) => waker.replace(context.waker().clone()),
        };
        drop(state); // before the old waker goes, which may do anything
        drop(before);
        Poll::Pending
    }
}

// -- device -----------------------------------------------------------------------------------------------------------

struct RawDevice {
    pointer: *mut c_void,
    fd: *mut c_void, // NULL: callbacks run on gpusync's dispatch queue
}

// Any call but destroy on any thread, at the same time; destroy is in Drop, which has the last reference.
unsafe impl Send for RawDevice {}
unsafe impl Sync for RawDevice {}

impl RawDevice {
    fn dispatch(&self) -> Result<(), Error> {
        unsafe { gpusync_fd_clear(self.fd) }; // before the dispatch: see gpusync_fd.h
        check("gpusync_dispatch", unsafe { gpusync_dispatch(self.pointer, usize::MAX, null_mut()) })
    }
}

impl Drop for RawDevice {
    /// It is in use still where a queue was dropped in a callback, and is on its way. Without a descriptor gpusync
    /// finishes that by itself. With one this goes on dispatching.
    fn drop(&mut self) {
        let mut result = unsafe { gpusync_device_destroy(self.pointer) };
        while !self.fd.is_null() && result != 0 && Kind::of(result) == Kind::InUse {
            let mut wanted = PollFd { fd: unsafe { gpusync_fd_get(self.fd) }, events: 1, revents: 0 };
            unsafe { poll(&mut wanted, 1, 10) };
            let _ = self.dispatch();
            result = unsafe { gpusync_device_destroy(self.pointer) };
        }
        if result == 0 {
            unsafe { gpusync_fd_destroy(self.fd) }; // now that no thread of Metal's notifies any more
        } else {
            unsafe { gpusync_device_destroy_later(self.pointer, None, null_mut()) };
        }
    }
}

/// Stands for an MTLDevice. A clone is the same device. Its queues and timelines keep it: the last of all destroys it.
#[derive(Clone)]
pub struct Device(Arc<RawDevice>);

impl Device {
    /// The system's default device. Wakers are called on a dispatch queue of gpusync's.
    pub fn new() -> Result<Device, Error> { unsafe { Device::with_desc(DeviceDesc::default(), false) } }

    /// The same for an event loop: wakers are called in `dispatch`.
    pub fn with_descriptor() -> Result<Device, Error> { unsafe { Device::with_desc(DeviceDesc::default(), true) } }

    /// # Safety
    /// Each pointer of the desc is NULL, or as gpusync.h says.
    pub unsafe fn with_desc(mut desc: DeviceDesc, descriptor: bool) -> Result<Device, Error> {
        let (version, sizes) = library();
        check_library(version, &sizes)?;
        let mut device = RawDevice { pointer: null_mut(), fd: null_mut() }; // dropped where a call below fails
        if descriptor {
            device.fd = gpusync_fd_create();
            if device.fd.is_null() {
                return Err(Error { call: "gpusync_fd_create", kind: Kind::Descriptor, failure: None });
            }
            desc.callback_mode = 1; // GPUSYNC_CALLBACKS_MANUAL
            desc.notify = Some(gpusync_fd_notify);
            desc.notify_user = device.fd;
        }
        check("gpusync_device_create", gpusync_device_create(&desc, &mut device.pointer))?;
        Ok(Device(Arc::new(device)))
    }

    /// Readable when callbacks are due. Wait for it with mio, or with the AsyncFd of tokio, and then call `dispatch`.
    /// Do not read it, and do not close it. None: of `Device::new`.
    pub fn descriptor(&self) -> Option<RawFd> {
        if self.0.fd.is_null() { None } else { Some(unsafe { gpusync_fd_get(self.0.fd) }) }
    }

    /// Calls the wakers that are due. Of `Device::new`: does nothing.
    pub fn dispatch(&self) -> Result<(), Error> {
        if self.0.fd.is_null() { Ok(()) } else { self.0.dispatch() }
    }

    pub fn is_lost(&self) -> bool { unsafe { gpusync_device_is_lost(self.0.pointer) } }

    /// The id<MTLDevice>, borrowed.
    pub fn metal(&self) -> *mut c_void { unsafe { gpusync_device_metal(self.0.pointer) } }

    /// The gpusync_device, for the calls that this file does not have.
    pub fn as_ptr(&self) -> *mut c_void { self.0.pointer }

    pub fn queue(&self, options: &QueueOptions) -> Result<Queue, Error> {
        let label = Label::new("gpusync_queue_create", options.label)?;
        let mut desc: QueueDesc = unsafe { zeroed() };
        desc.label = label.as_ptr();
        desc.max_command_buffer_count = options.max_command_buffer_count;
        desc.sticky_failure = options.sticky_failure;
        let mut pointer = null_mut();
        check("gpusync_queue_create", unsafe { gpusync_queue_create(self.0.pointer, &desc, &mut pointer) })?;
        Ok(Queue { pointer, device: self.clone() })
    }

    pub fn timeline(&self, initial_value: u64, label: Option<&str>) -> Result<Timeline, Error> {
        let label = Label::new("gpusync_timeline_create", label)?;
        let mut desc: TimelineDesc = unsafe { zeroed() };
        desc.initial_value = initial_value;
        desc.label = label.as_ptr();
        let mut pointer = null_mut();
        check("gpusync_timeline_create", unsafe { gpusync_timeline_create(self.0.pointer, &desc, &mut pointer) })?;
        Ok(Timeline { pointer, device: self.clone() })
    }
}

struct Label(Option<CString>);

impl Label {
    fn new(call: &'static str, text: Option<&str>) -> Result<Label, Error> {
        let error = |_| Error { call, kind: Kind::InvalidArgument, failure: None };
        text.map(CString::new).transpose().map(Label).map_err(error)
    }

    fn as_ptr(&self) -> *const c_char { self.0.as_ref().map_or(null(), |text| text.as_ptr()) }
}

/// None: without a limit.
fn ns(limit: Option<Duration>) -> u64 {
    limit.map_or(u64::MAX, |limit| u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX))
}

fn wait(call: &'static str, wait: impl FnOnce(*const WaitOptions) -> c_int) -> Result<(), Error> {
    let mut error = RawError::new();
    let mut options: WaitOptions = unsafe { zeroed() };
    options.error = &mut error;
    let result = wait(&options);
    check_with(call, result, error.read())
}

// -- queue ------------------------------------------------------------------------------------------------------------

/// The number of a commit on its queue. `Ticket(u64::MAX)` is GPUSYNC_EVERYTHING.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// All work that was committed to the queue up to the call.
pub const EVERYTHING: Ticket = Ticket(u64::MAX);

/// Options of a queue: see gpusync_queue_desc.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueOptions<'a> {
    pub label: Option<&'a str>,
    pub max_command_buffer_count: u32,
    pub sticky_failure: bool,
}

/// Stands for an MTLCommandQueue: tickets and failures.
pub struct Queue {
    pointer: *mut c_void,
    device: Device, // goes after the queue
}

// As RawDevice.
unsafe impl Send for Queue {}
unsafe impl Sync for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.pointer.is_null() && unsafe { gpusync_queue_destroy(self.pointer) } != 0 {
            unsafe { gpusync_queue_destroy_later(self.pointer, None, null_mut()) }; // this is a callback
        }
    }
}

impl Queue {
    /// A command buffer, when the queue has room. Execution: a failure sticks. In async code pass a limit of zero, and
    /// try again after a ticket.
    pub fn command_buffer(&self, limit: Option<Duration>) -> Result<CommandBuffer<'_>, Error> {
        self.labelled(limit, None)
    }

    pub fn labelled(&self, limit: Option<Duration>, label: Option<&str>) -> Result<CommandBuffer<'_>, Error> {
        let label = Label::new("gpusync_command_buffer", label)?;
        let (limit, mut pointer) = (limit.map(|limit| ns(Some(limit))), null_mut());
        let mut desc: CommandBufferDesc = unsafe { zeroed() };
        desc.timeout_ns = limit.as_ref().map_or(null(), |limit| limit);
        desc.label = label.as_ptr();
        check("gpusync_command_buffer", unsafe { gpusync_command_buffer(self.pointer, &desc, &mut pointer) })?;
        Ok(CommandBuffer { queue: self, pointer, one_thread: PhantomData })
    }

    /// Blocks until the ticket has ended.
    pub fn wait(&self, ticket: Ticket, limit: Option<Duration>) -> Result<(), Error> {
        wait("gpusync_wait", |options| unsafe { gpusync_wait_ex(self.pointer, ticket.0, ns(limit), options) })
    }

    /// Ends when the ticket has ended. The failure of the work is the error.
    pub fn done(&self, ticket: Ticket) -> Done { done(Point::Ticket(self, ticket)) }

    /// Has the ticket ended, by Metal's own status?
    pub fn poll(&self, ticket: Ticket) -> Result<bool, Error> {
        match check("gpusync_poll", unsafe { gpusync_poll(self.pointer, ticket.0) }) {
            Err(error) if error.kind == Kind::NotReady => Ok(false),
            result => result.map(|()| true),
        }
    }

    /// Has the ticket ended, well or badly? One load.
    pub fn is_done(&self, ticket: Ticket) -> bool { unsafe { gpusync_is_done(self.pointer, ticket.0) } }

    pub fn is_idle(&self) -> bool { unsafe { gpusync_is_idle(self.pointer) } }

    pub fn in_flight(&self) -> u64 { unsafe { gpusync_in_flight(self.pointer) } }

    /// All that failed and is on record, the oldest first. The iterator can be asked again later.
    pub fn failures(&self) -> impl Iterator<Item = Failure> + '_ {
        let mut cursor = 0;
        std::iter::from_fn(move || self.next_failure(&mut cursor))
    }

    /// What fails after this call. The iterator can be asked again and again.
    pub fn failures_from_now(&self) -> impl Iterator<Item = Failure> + '_ {
        let mut cursor = u64::MAX; // GPUSYNC_FROM_NOW
        self.next_failure(&mut cursor); // none: goes to the end of the record
        std::iter::from_fn(move || self.next_failure(&mut cursor))
    }

    fn next_failure(&self, cursor: &mut u64) -> Option<Failure> {
        let mut error = RawError::new();
        let result = unsafe { gpusync_next_error(self.pointer, cursor, &mut error) };
        if result == 0 { error.read().map(|failure| *failure) } else { None }
    }

    /// Lets a queue with sticky_failure take new work. Failures of earlier work are recorded, and stick no more.
    pub fn clear_failure(&self) -> Result<(), Error> {
        check("gpusync_queue_clear_failure", unsafe { gpusync_queue_clear_failure(self.pointer) })
    }

    /// The id<MTLCommandQueue>, borrowed.
    pub fn metal(&self) -> *mut c_void { unsafe { gpusync_queue_metal(self.pointer) } }

    /// The gpusync_queue, for the calls that this file does not have.
    pub fn as_ptr(&self) -> *mut c_void { self.pointer }

    /// Drop for async code: ends when the work has ended and the queue is destroyed. Nothing blocks. gpusync looks for
    /// the end by a timer, up to half a second late: await the last ticket first where that matters.
    pub fn close(mut self) -> Done {
        let pointer = std::mem::replace(&mut self.pointer, null_mut());
        Done::new("gpusync_queue_destroy_later", |user| unsafe {
            gpusync_queue_destroy_later(pointer, Some(destroyed), user)
        })
    }

    /// For a GPU that hangs. The GPU goes on with the work in flight, and gpusync does not tell its end:
    /// see gpusync_queue_destroy_now before you use the memory of that work again.
    pub fn destroy_now(mut self) -> Result<(), Error> {
        let result = unsafe { gpusync_queue_destroy_now(self.pointer) };
        if result == 0 {
            self.pointer = null_mut();
        }
        check("gpusync_queue_destroy_now", result) // after an error Drop destroys it
    }
}

/// Not committed yet. It is given back where it is dropped without a commit.
pub struct CommandBuffer<'q> {
    queue: &'q Queue,
    pointer: *mut c_void,
    one_thread: PhantomData<*mut c_void>, // Metal: encoding on one thread at a time
}

unsafe impl Send for CommandBuffer<'_> {}

impl CommandBuffer<'_> {
    /// The id<MTLCommandBuffer>, borrowed until the commit.
    pub fn as_ptr(&self) -> *mut c_void { self.pointer }

    /// Instead of [buffer commit]. After an error the buffer is given back; `try_commit` keeps it.
    pub fn commit(mut self) -> Result<Ticket, Error> { self.try_commit() }

    /// After an error the buffer is as before. Committed once, another call returns an error.
    pub fn try_commit(&mut self) -> Result<Ticket, Error> {
        let mut ticket = 0;
        check("gpusync_commit", unsafe { gpusync_commit(self.queue.pointer, self.pointer, &mut ticket) })?;
        self.pointer = null_mut();
        Ok(Ticket(ticket))
    }

    /// What comes later in the buffer waits for the value, on the GPU. For a ticket the host waits: gpusync holds the
    /// buffer until the ticket has ended.
    pub fn encode_wait(&mut self, point: Point<'_>) -> Result<(), Error> {
        check("gpusync_encode_wait", unsafe { gpusync_encode_wait(self.queue.pointer, self.pointer, point.raw()) })
    }

    /// The GPU signals the value here.
    pub fn encode_signal(&mut self, timeline: &Timeline, value: u64) -> Result<(), Error> {
        let point = Point::Value(timeline, value).raw();
        check("gpusync_encode_signal", unsafe { gpusync_encode_signal(self.queue.pointer, self.pointer, point) })
    }
}

impl Drop for CommandBuffer<'_> {
    fn drop(&mut self) {
        if !self.pointer.is_null() {
            unsafe { gpusync_command_buffer_discard(self.queue.pointer, self.pointer) };
        }
    }
}

// -- timeline ---------------------------------------------------------------------------------------------------------

/// A ticket of a queue, or a value of a timeline.
#[derive(Clone, Copy)]
pub enum Point<'a> {
    Ticket(&'a Queue, Ticket),
    Value(&'a Timeline, u64),
}

impl Point<'_> {
    fn raw(self) -> RawPoint {
        match self {
            Point::Ticket(queue, ticket) => {
                RawPoint { queue: queue.pointer, ticket: ticket.0, timeline: null_mut(), value: 0 }
            }
            Point::Value(timeline, value) => {
                RawPoint { queue: null_mut(), ticket: 0, timeline: timeline.pointer, value }
            }
        }
    }
}

fn done(point: Point<'_>) -> Done {
    Done::new("gpusync_on_done", |user| unsafe { gpusync_on_done(point.raw(), told, user) })
}

/// A 64-bit number that only rises, over an MTLSharedEvent.
pub struct Timeline {
    pointer: *mut c_void,
    device: Device, // goes after the timeline
}

// As RawDevice.
unsafe impl Send for Timeline {}
unsafe impl Sync for Timeline {}

impl Drop for Timeline {
    fn drop(&mut self) {
        if unsafe { gpusync_timeline_destroy(self.pointer) } != 0 {
            unsafe { gpusync_timeline_destroy_later(self.pointer, None, null_mut()) }; // this is a callback
        }
    }
}

impl Timeline {
    /// Every value up to it is reached.
    pub fn value(&self) -> Result<u64, Error> {
        let mut value = 0;
        check("gpusync_timeline_query", unsafe { gpusync_timeline_query(self.pointer, &mut value) }).map(|()| value)
    }

    pub fn signal(&self, value: u64) -> Result<(), Error> {
        check("gpusync_timeline_signal", unsafe { gpusync_timeline_signal(self.pointer, value) })
    }

    /// Ends every wait for a value with Execution.
    pub fn fail(&self) -> Result<(), Error> {
        check("gpusync_timeline_fail", unsafe { gpusync_timeline_fail(self.pointer, null()) })
    }

    pub fn wait(&self, value: u64, limit: Option<Duration>) -> Result<(), Error> {
        wait("gpusync_timeline_wait", |options| unsafe {
            gpusync_timeline_wait(self.pointer, value, ns(limit), options)
        })
    }

    pub fn done(&self, value: u64) -> Done { done(Point::Value(self, value)) }

    pub fn as_ptr(&self) -> *mut c_void { self.pointer }
}
