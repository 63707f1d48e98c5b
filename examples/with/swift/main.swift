// Untested: no machine of ours has a Swift compiler. The module map was read by Clang.
import Metal
import gpusync

struct Failed: Error { let text: String }

func check(_ call: String, _ result: gpusync_result) throws {
    if result.rawValue != 0 { throw Failed(text: "\(call): \(String(cString: gpusync_result_string(result)))") }
}

/// Does the library have the version and the structs of the header that the module map names?
func fits() -> Bool {
    var size = 0 // of gpusync_error, the first of GPUSYNC_STRUCTS
    _ = gpusync_struct_sizes(&size, 1)
    let version = GPUSYNC_VERSION_MAJOR * 10000 + GPUSYNC_VERSION_MINOR * 100 + GPUSYNC_VERSION_PATCH
    return size == MemoryLayout<gpusync_error>.size && gpusync_version() == UInt32(version)
}

func run() throws {
    precondition(fits(), "the library is of another gpusync.h than the module map names")
    var device: OpaquePointer?
    var queue: OpaquePointer?
    var raw: UnsafeMutableRawPointer?
    var ticket: gpusync_ticket = 0
    try check("gpusync_device_create", gpusync_device_create(nil, &device))
    defer { _ = gpusync_device_destroy(device) }
    try check("gpusync_queue_create", gpusync_queue_create(device!, nil, &queue))
    defer { _ = gpusync_queue_destroy(queue) } // waits for what is in flight
    try check("gpusync_command_buffer", gpusync_command_buffer(queue!, nil, &raw))
    let buffer = Unmanaged<AnyObject>.fromOpaque(raw!).takeUnretainedValue() as! MTLCommandBuffer
    let blit = buffer.makeBlitCommandEncoder()!
    // ... encode work here ...
    blit.endEncoding()
    try check("gpusync_commit", gpusync_commit(queue!, raw!, &ticket)) // instead of buffer.commit()
    try check("gpusync_wait", gpusync_wait(queue!, ticket, 1_000_000_000))
    print("ticket \(ticket): done")
}

do { try run() } catch let failed as Failed { fatalError(failed.text) }
