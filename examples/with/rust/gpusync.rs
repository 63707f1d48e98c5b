//! gpusync without a crate: `Drop` and `Result`, for Rust 1.63 and later. The declarations are those of gpusync 0.6.
use std::{ffi::*, mem::zeroed, os::raw::{c_char, c_int}, ptr::{null, null_mut}, time::Duration};

pub type Object = *mut c_void;
#[repr(C)] // gpusync_error: result, failure; ticket, origin, code; dropped; inherited to transient; queue_user; texts
struct Error([c_int; 2], [i64; 3], u64, [bool; 4], Object, [c_char; 64], [c_char; 256], [[c_char; 64]; 3]);
#[repr(C)] // gpusync_wait_options: spin, error, handlers
struct WaitOptions(*const c_void, *mut Error, bool);
extern "C" {
    fn gpusync_version() -> u32;
    fn gpusync_result_string(result: c_int) -> *const c_char;
    fn gpusync_device_create(desc: *const c_void, out: *mut Object) -> c_int;
    fn gpusync_device_destroy_later(device: Object, destroyed: Option<extern "C" fn(Object)>, user: Object) -> c_int;
    fn gpusync_queue_create(device: Object, desc: *const c_void, out: *mut Object) -> c_int;
    fn gpusync_queue_destroy_later(queue: Object, destroyed: Option<extern "C" fn(Object)>, user: Object) -> c_int;
    fn gpusync_command_buffer_create(queue: Object, desc: *const c_void, timeout_ns: u64, out: *mut Object) -> c_int;
    fn gpusync_command_buffer_discard(queue: Object, command_buffer: Object) -> c_int;
    fn gpusync_commit(queue: Object, command_buffer: Object, ticket: *mut i64) -> c_int;
    fn gpusync_wait(queue: Object, ticket: i64, timeout_ns: u64, options: *const WaitOptions) -> c_int;
    fn gpusync_is_done(queue: Object, ticket: i64) -> bool;
}
fn nanoseconds(limit: Duration) -> u64 { u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX) }
fn check(call: &str, result: c_int) -> Result<(), String> {
    let text = unsafe { CStr::from_ptr(gpusync_result_string(result)) }.to_string_lossy();
    if result == 0 { Ok(()) } else { Err(format!("{call}: {text}")) }
}
/// A device with one queue. Every thread may use it. The drop never waits: work in flight goes on.
pub struct Queue { device: Object, queue: Object }
unsafe impl Send for Queue {}
unsafe impl Sync for Queue {}
impl Drop for Queue {
    fn drop(&mut self) {
        unsafe { gpusync_queue_destroy_later(self.queue, None, null_mut()) };
        unsafe { gpusync_device_destroy_later(self.device, None, null_mut()) };
    }
}
impl Queue {
    pub fn new() -> Result<Queue, String> {
        assert_eq!(unsafe { gpusync_version() } / 100, 6, "the declarations are those of gpusync 0.6");
        let mut new = Queue { device: null_mut(), queue: null_mut() };
        check("gpusync_device_create", unsafe { gpusync_device_create(null(), &mut new.device) })?;
        check("gpusync_queue_create", unsafe { gpusync_queue_create(new.device, null(), &mut new.queue) }).map(|()| new)
    }
    pub fn commit(&self, limit: Duration, encode: impl FnOnce(Object)) -> Result<i64, String> {
        let (mut buffer, mut ticket) = (null_mut(), 0); // an id<MTLCommandBuffer>
        let made = unsafe { gpusync_command_buffer_create(self.queue, null(), nanoseconds(limit), &mut buffer) };
        check("gpusync_command_buffer_create", made).map(|()| encode(buffer))?;
        let result = unsafe { gpusync_commit(self.queue, buffer, &mut ticket) };
        if result != 0 { unsafe { gpusync_command_buffer_discard(self.queue, buffer) }; }
        check("gpusync_commit", result).map(|()| ticket)
    }
    pub fn wait(&self, ticket: i64, limit: Duration) -> Result<(), String> {
        let mut why: Error = unsafe { zeroed() };
        let options = WaitOptions(null(), &mut why, false);
        let result = unsafe { gpusync_wait(self.queue, ticket, nanoseconds(limit), &options) };
        let message = unsafe { CStr::from_ptr(why.6.as_ptr()) }.to_string_lossy();
        check("gpusync_wait", result).map_err(|call| format!("{call}\n{message}"))
    }
    pub fn is_done(&self, ticket: i64) -> bool { unsafe { gpusync_is_done(self.queue, ticket) } }
}
