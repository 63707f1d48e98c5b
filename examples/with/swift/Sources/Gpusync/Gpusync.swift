// A device, a queue, and `await` for its tickets.
//
// Untested: no machine of ours has a Swift compiler. CI parses this file, and compiles tests/with/swift.m, where Clang
// reads the module CGpusync and finds each declaration that is used here, with the type that is assumed here.
import CGpusync
import Metal

public typealias Ticket = gpusync_ticket

/// A call that failed, or work that did.
public struct GpusyncError: Error, CustomStringConvertible {
    public let call: String
    public let result: gpusync_result
    public let failure: gpusync_error? // which work, and why

    public var description: String {
        let reason = failure.map { text($0.message) } ?? ""
        return "\(call): \(String(cString: gpusync_result_string(result)))" + (reason.isEmpty ? "" : ": \(reason)")
    }
}

/// Swift takes an array of char for a tuple.
private func text<Characters>(_ characters: Characters) -> String {
    withUnsafeBytes(of: characters) { String(decoding: $0.prefix(while: { $0 != 0 }), as: UTF8.self) }
}

/// `rawValue` is there whether Swift takes gpusync_result for an enumeration or for a structure.
private func check(_ call: String, _ result: gpusync_result) throws {
    if result.rawValue != 0 { throw GpusyncError(call: call, result: result, failure: nil) }
}

/// Any thread may use it. The last owner may let go anywhere, in a callback, too.
public final class Device: @unchecked Sendable {
    let pointer: OpaquePointer

    public init() throws {
        var made: OpaquePointer?
        try check("gpusync_device_create", gpusync_device_create(nil, &made))
        pointer = made!
    }

    deinit { _ = gpusync_device_destroy_later(pointer, nil, nil) }
}

/// As Device. Its work goes on when the last owner has let go.
public final class Queue: @unchecked Sendable {
    public let device: Device
    let pointer: OpaquePointer

    public init(_ device: Device) throws {
        var made: OpaquePointer?
        try check("gpusync_queue_create", gpusync_queue_create(device.pointer, nil, &made))
        self.device = device
        pointer = made!
    }

    deinit { _ = gpusync_queue_destroy_later(pointer, nil, nil) }

    /// gpusync keeps it until its commit.
    public func commandBuffer() throws -> MTLCommandBuffer {
        var made: UnsafeMutableRawPointer?
        try check("gpusync_command_buffer", gpusync_command_buffer(pointer, nil, &made))
        return Unmanaged<AnyObject>.fromOpaque(made!).takeUnretainedValue() as! MTLCommandBuffer
    }

    /// Instead of `buffer.commit()`.
    public func commit(_ buffer: MTLCommandBuffer) throws -> Ticket {
        var ticket: Ticket = 0
        let object = Unmanaged.passUnretained(buffer as AnyObject).toOpaque()
        try check("gpusync_commit", gpusync_commit(pointer, object, &ticket))
        return ticket
    }

    /// Blocks the thread: not for a task.
    public func wait(_ ticket: Ticket, nanoseconds: UInt64) throws {
        try check("gpusync_wait", gpusync_wait(pointer, ticket, nanoseconds))
    }
}

extension Queue {
    /// Returns when the work of the ticket has ended well, and throws a GpusyncError when it has failed. The thread is free
    /// meanwhile.
    ///
    /// Cancelling the task does not end this wait: a ticket cannot be cancelled, as Metal takes no work back. It ends when
    /// the work does, and `Task.isCancelled` tells afterwards.
    public func ended(_ ticket: Ticket) async throws {
        try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, Error>) in
            let waiting = Unmanaged.passRetained(Waiting(continuation))
            let result = gpusync_on_done(gpusync_at_ticket(self.pointer, ticket), told, waiting.toOpaque())
            if result.rawValue == 0 { return } // `told` is called, once
            waiting.release()
            continuation.resume(throwing: GpusyncError(call: "gpusync_on_done", result: result, failure: nil))
        }
    }
}

private final class Waiting {
    let continuation: CheckedContinuation<Void, Error>
    init(_ continuation: CheckedContinuation<Void, Error>) { self.continuation = continuation }
}

/// On a thread of gpusync's: the task goes on at its executor.
private func told(user: UnsafeMutableRawPointer?, result: gpusync_result, error: UnsafePointer<gpusync_error>?) {
    let continuation = Unmanaged<Waiting>.fromOpaque(user!).takeRetainedValue().continuation
    if result.rawValue == 0 {
        continuation.resume()
    } else {
        continuation.resume(throwing: GpusyncError(call: "the work", result: result, failure: error?.pointee))
    }
}
