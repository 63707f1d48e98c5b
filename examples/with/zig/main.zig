//! The header through @cImport. Each call that fails is named, and `defer` destroys in order.
const c = @cImport({
    @cInclude("gpusync.h");
    @cInclude("stdio.h");
});

fn fits() bool { // @cImport takes the plain symbols, without the version: objects of another header link, too
    var size: usize = 0; // of gpusync_error, the first of GPUSYNC_STRUCTS
    _ = c.gpusync_struct_sizes(&size, 1);
    return size == @sizeOf(c.gpusync_error) and c.gpusync_version() == c.GPUSYNC_VERSION;
}

fn check(comptime call: [:0]const u8, result: c.gpusync_result) !void {
    if (result != c.GPUSYNC_OK) _ = c.printf("%s: %s\n", call.ptr, c.gpusync_result_string(result));
    if (result != c.GPUSYNC_OK) return error.Gpusync;
}

fn run() !void {
    if (!fits()) @panic("the library is of another gpusync.h than main.zig was compiled with");
    var device: ?*c.gpusync_device = null;
    var queue: ?*c.gpusync_queue = null;
    var buffer: ?*anyopaque = null; // an id<MTLCommandBuffer>
    var ticket: c.gpusync_ticket = c.GPUSYNC_NO_TICKET;
    var failure: c.gpusync_error, var cursor: u64 = .{ undefined, 0 };
    try check("gpusync_device_create", c.gpusync_device_create(null, &device));
    defer check("gpusync_device_destroy", c.gpusync_device_destroy(device)) catch {};
    try check("gpusync_queue_create", c.gpusync_queue_create(device, null, &queue));
    defer check("gpusync_queue_destroy", c.gpusync_queue_destroy(queue)) catch {}; // waits for what is in flight
    try check("gpusync_command_buffer", c.gpusync_command_buffer(queue, null, &buffer));
    try check("gpusync_commit", c.gpusync_commit(queue, buffer, &ticket)); // encode work into the buffer before
    const result = c.gpusync_wait(queue, ticket, 1_000_000_000);
    while (c.gpusync_next_error(queue, &cursor, &failure) == c.GPUSYNC_OK) _ = c.printf("%s\n", &failure.message);
    try check("gpusync_wait", result);
    _ = c.printf("ticket %d: done\n", @as(c_int, @intCast(ticket)));
}

pub export fn main() c_int {
    run() catch return 1;
    return 0;
}
