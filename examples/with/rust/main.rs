//! Device and queue as values. Drop destroys them, in order: the queue borrows its device.
mod gpusync;
use gpusync::*;
use std::{ffi::CStr, mem::zeroed, os::raw::c_int, ptr::null, ptr::null_mut, time::Duration};

fn check(call: &str, result: c_int) -> Result<(), String> {
    let text = unsafe { CStr::from_ptr(gpusync_result_string(result)) };
    if result == 0 { Ok(()) } else { Err(format!("{call}: {}", text.to_string_lossy())) }
}

struct Device(*mut RawDevice);
struct Queue<'a>(*mut RawQueue, #[allow(dead_code)] &'a Device);
impl Drop for Device {
    fn drop(&mut self) { check("gpusync_device_destroy", unsafe { gpusync_device_destroy(self.0) }).unwrap() }
}
impl Drop for Queue<'_> {
    fn drop(&mut self) { check("gpusync_queue_destroy", unsafe { gpusync_queue_destroy(self.0) }).unwrap() }
}
impl Queue<'_> {
    fn wait(&self, ticket: u64, limit: Duration) -> Result<(), String> {
        let (mut cursor, mut error): (u64, Error) = (0, unsafe { zeroed() });
        let result = unsafe { gpusync_wait(self.0, ticket, limit.as_nanos() as u64) };
        while unsafe { gpusync_next_error(self.0, &mut cursor, &mut error) } == 0 {
            println!("ticket {}: {:?}", error.ticket, unsafe { CStr::from_ptr(error.message.as_ptr()) });
        }
        check("gpusync_wait", result)
    }
}

fn main() -> Result<(), String> {
    assert!(fits(), "the library is of another gpusync.h than gpusync.rs");
    let (mut device, mut queue, mut buffer, mut ticket) = (null_mut(), null_mut(), null_mut(), 0);
    check("gpusync_device_create", unsafe { gpusync_device_create(null(), &mut device) })?;
    let device = Device(device);
    check("gpusync_queue_create", unsafe { gpusync_queue_create(device.0, null(), &mut queue) })?;
    let queue = Queue(queue, &device);
    check("gpusync_command_buffer", unsafe { gpusync_command_buffer(queue.0, null(), &mut buffer) })?;
    check("gpusync_commit", unsafe { gpusync_commit(queue.0, buffer, &mut ticket) })?; // encode work into it before
    queue.wait(ticket, Duration::from_secs(1)).map(|()| println!("ticket {ticket}: done"))
}
