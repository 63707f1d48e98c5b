// Not built: this project has no Swift compiler. Tickets of gpusync with async and await, for Swift 5.5 and later.
import CGpusync
import Metal
struct GpusyncError: Error, CustomStringConvertible {
    let call: String, result: gpusync_result, message: String
    var description: String { "\(call): \(String(cString: gpusync_result_string(result)))\n\(message)" }
}
private func check(_ call: String, _ result: gpusync_result, _ message: String = "") throws {
    if result.rawValue != 0 { throw GpusyncError(call: call, result: result, message: message) }
}
private final class Waiting { // the callback's user
    let continuation: CheckedContinuation<Void, Error>
    init(_ continuation: CheckedContinuation<Void, Error>) { self.continuation = continuation }
}
private func text(_ bytes: UnsafeRawBufferPointer) -> String { // of a char[256]: in Swift a tuple
    String(decoding: bytes.prefix(while: { $0 != 0 }), as: UTF8.self)
}
private func ended(user: UnsafeMutableRawPointer?, result: gpusync_result, error: UnsafePointer<gpusync_error>?) {
    let message = error.map { withUnsafeBytes(of: $0.pointee.message, text) }
    let waiting = Unmanaged<Waiting>.fromOpaque(user!).takeRetainedValue()
    waiting.continuation.resume(with: Result { try check("the work", result, message ?? "") })
}

final class Queue: @unchecked Sendable { // any thread may use it; the last release may come in a callback
    private var device: OpaquePointer?, queue: OpaquePointer?
    init() throws {
        try check("gpusync_device_create", gpusync_device_create(nil, &device))
        try check("gpusync_queue_create", gpusync_queue_create(device!, nil, &queue))
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
            let waiting = Unmanaged.passRetained(Waiting(continuation))
            let result = gpusync_on_done(gpusync_at_ticket(queue!, ticket), ended, waiting.toOpaque())
            if result.rawValue == 0 { return } // gpusync calls ended once
            waiting.release()
            continuation.resume(throwing: GpusyncError(call: "gpusync_on_done", result: result, message: ""))
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
