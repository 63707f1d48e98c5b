//! gpusync 0.2 by its symbols: gpusync_device_create_0_2 has the version.
#[repr(C)]
pub struct Spin {
    pub pause_iterations: u32,
    pub yield_iterations: u32,
    pub max_spin_ns: u64, // the size of the struct is 16
}
extern "C" {
    #[link_name = "gpusync_device_create_0_2"]
    pub fn gpusync_device_create(desc: *const u8, out: *mut *mut u8) -> i32;
    pub fn gpusync_version() -> u32;
}
pub fn fits<'a>(name: &'a str) -> Option<&'a str> {
    if unsafe { gpusync_version() } / 100 == 2 { Some(name) } else { None }
}
