// Not built: this project has no Swift compiler. Tickets of gpusync with async and await, for Swift 5.5 and later.
import CGpusync
import Metal
struct GpusyncError: Error, CustomStringConvertible {
    let call: String, result: gpusync_result, why: gpusync_error?
    var failure: gpusync_failure? { why?.failure }
    var transient: Bool { why?.transient ?? false } // the same work, encoded again, may succeed
    var message: String { why.map { withUnsafeBytes(of: $0.message, text) } ?? "" }
    var description: String { "\(call): \(String(cString: gpusync_result_string(result)))\n\(message)" }
}
private func check(_ call: String, _ result: gpusync_result, _ why: gpusync_error? = nil) throws {
    if result.rawValue != 0 { throw GpusyncError(call: call, result: result, why: why) }
}
private final class Box<T> { let value: T; init(_ value: T) { self.value = value } } // a callback's user
private func text(_ char: UnsafeRawBufferPointer) -> String { String(decoding: char.prefix { $0 != 0 }, as: UTF8.self) }
private func raw(_ object: Any) -> UnsafeMutableRawPointer { Unmanaged.passUnretained(object as AnyObject).toOpaque() }
private func ended(user: UnsafeMutableRawPointer?, result: gpusync_result, error: UnsafePointer<gpusync_error>?) {
    let waiting = Unmanaged<Box<CheckedContinuation<Void, Error>>>.fromOpaque(user!).takeRetainedValue()
    waiting.value.resume(with: Result { try check("the work", result, error?.pointee) })
}
final class Queue: @unchecked Sendable { // any thread may use it; the last release may come in a callback
    private var device: OpaquePointer?, queue: OpaquePointer?
    init(_ own: MTLCommandQueue? = nil) throws { // made with room for 64 command buffers, as by default
        var device_desc = gpusync_device_desc(), queue_desc = gpusync_queue_desc()
        if let own = own { (device_desc.metal_device, queue_desc.metal_queue) = (raw(own.device), raw(own)) }
        try check("gpusync_device_create", gpusync_device_create(&device_desc, &device))
        try check("gpusync_queue_create", gpusync_queue_create(device!, &queue_desc, &queue))
    }
    deinit { // runs after an error of init, too
        gpusync_queue_destroy_later(queue, nil, nil)
        gpusync_device_destroy_later(device, nil, nil)
    }
    func commit(_ encode: (MTLCommandBuffer) -> Void) throws -> gpusync_ticket { // no room: GPUSYNC_TIMEOUT
        var made: UnsafeMutableRawPointer?, ticket: gpusync_ticket = 0
        try check("gpusync_command_buffer_create", gpusync_command_buffer_create(queue!, nil, 0, &made))
        encode(Unmanaged<AnyObject>.fromOpaque(made!).takeUnretainedValue() as! MTLCommandBuffer)
        let result = gpusync_commit(queue!, made!, &ticket)
        if result.rawValue != 0 { gpusync_command_buffer_discard(queue!, made!) }
        try check("gpusync_commit", result)
        return ticket
    }
    func end(of ticket: gpusync_ticket) async throws { // throws if the work fails; without a limit
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, Error>) in
            let waiting = Unmanaged.passRetained(Box(continuation))
            let result = gpusync_on_done(gpusync_at_ticket(queue!, ticket), ended, waiting.toOpaque())
            if result.rawValue == 0 { return } // gpusync calls ended once
            waiting.release()
            continuation.resume(throwing: GpusyncError(call: "gpusync_on_done", result: result, why: nil))
        }
    }
}
@main struct Example {
    static func main() async throws {
        let queue = try Queue()
        let ticket = try queue.commit { buffer in buffer.label = "frame" /* ... encode work here ... */ }
        try await queue.end(of: ticket)
        print("ticket \(ticket): done")
    }
}
