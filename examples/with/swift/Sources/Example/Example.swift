// Untested, as Gpusync.swift.
import Gpusync
import Metal

@main
struct Example {
    static func main() async throws {
        let queue = try Queue(Device())
        let buffer = try queue.commandBuffer()
        let blit = buffer.makeBlitCommandEncoder()!
        // ... encode work here ...
        blit.endEncoding()
        let ticket = try queue.commit(buffer)
        try await queue.ended(ticket)
        print("ticket \(ticket): done")
    }
}
