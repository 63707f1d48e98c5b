//! gpusync 0.3 by its symbols: gpusync_device_create_0_3 has the version.
#[repr(C)]
pub struct WaitOptions {
    pub spin: *const u8,
    pub mode: i32,
    pub error: *mut u8,
    pub handlers: bool,
    pub through_loss: bool, // the size of the struct is 24
}
#[repr(C)]
pub struct CommandBufferDesc {
    pub timeout_ns: *const u64,
    pub label: *const i8,
    pub unretained_references: bool,
    pub error_options: u32,
    pub log_state: *mut u8,
}
extern "C" {
    #[link_name = "gpusync_device_create_0_3"]
    pub fn gpusync_device_create(desc: *const u8, out: *mut *mut u8) -> i32;
    pub fn gpusync_device_wait(device: *mut u8, timeout_ns: u64) -> i32;
    pub fn gpusync_throttle(queue: *mut u8, max: u32, timeout_ns: u64) -> i32;
    pub fn gpusync_version() -> u32;
}
pub fn fits<'a>(name: &'a str) -> Option<&'a str> {
    if unsafe { gpusync_version() } / 100 == 3 { Some(name) } else { None }
}
