//! The functions of gpusync.h that main.rs calls.
use std::os::raw::{c_char, c_int, c_void};

/// gpusync_error. The functions write all of it: its size has to be right.
#[repr(C)]
pub struct Error {
    pub result: c_int,
    pub failure: c_int,
    pub ticket: u64,
    pub code: i64,
    pub dropped: u64,
    pub domain: [c_char; 64],
    pub message: [c_char; 256],
    pub label: [c_char; 64],
    pub queue_label: [c_char; 64],
}

pub enum RawDevice {}
pub enum RawQueue {}

extern "C" {
    pub fn gpusync_version() -> u32;
    pub fn gpusync_struct_sizes(sizes: *mut usize, count: usize) -> usize;
    pub fn gpusync_device_create(desc: *const c_void, out: *mut *mut RawDevice) -> c_int;
    pub fn gpusync_device_destroy(device: *mut RawDevice) -> c_int;
    pub fn gpusync_queue_create(device: *mut RawDevice, desc: *const c_void, out: *mut *mut RawQueue) -> c_int;
    pub fn gpusync_queue_destroy(queue: *mut RawQueue) -> c_int;
    pub fn gpusync_command_buffer(queue: *mut RawQueue, desc: *const c_void, out: *mut *mut c_void) -> c_int;
    pub fn gpusync_commit(queue: *mut RawQueue, buffer: *mut c_void, ticket: *mut u64) -> c_int;
    pub fn gpusync_wait(queue: *mut RawQueue, ticket: u64, timeout_ns: u64) -> c_int;
    pub fn gpusync_next_error(queue: *mut RawQueue, cursor: *mut u64, error: *mut Error) -> c_int;
    pub fn gpusync_result_string(result: c_int) -> *const c_char;
}

/// Is the library of the header that this file is for: 0.3, whatever its patch? Error is the first of GPUSYNC_STRUCTS.
pub fn fits() -> bool {
    let mut size = 0;
    unsafe { gpusync_struct_sizes(&mut size, 1) };
    size == std::mem::size_of::<Error>() && unsafe { gpusync_version() } / 100 == 3
}
