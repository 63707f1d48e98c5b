# Not run: this project has no Julia. Tasks wait for tickets of gpusync, in Julia 1.12 and later. No other thread than
# Julia's runs code of Julia's: gpusync calls uv_async_send, and Julia's event loop wakes the task.
const lib = joinpath(@__DIR__, "build", "libgpusync.so")
const P = Ptr{Cvoid}
struct Point; queue::P; ticket::Int64; timeline::P; value::UInt64; end # gpusync_point
struct WaitOptions; spin::P; error::Ptr{UInt8}; handlers::Bool; end # gpusync_wait_options
struct Failure # gpusync_error
    result::Cint; failure::Cint; ticket::Int64; origin::Int64; code::Int64; dropped::UInt64
    inherited::Bool; ran::Bool; transient::Bool; domain::NTuple{64,UInt8}; message::NTuple{256,UInt8}
    label::NTuple{64,UInt8}; queue_label::NTuple{64,UInt8}; encoder::NTuple{64,UInt8}
end
check(call, result, message="") = iszero(result) ? nothing :
    error(call, ": ", unsafe_string(@ccall lib.gpusync_result_string(result::Cint)::Cstring), "\n", message)
mutable struct Queue; handle::P; end
Base.unsafe_convert(::Type{P}, q::Queue) = q.handle # @ccall keeps q until the call returns
function open_queue(device)
    out = Ref(C_NULL)
    check("gpusync_queue_create", @ccall lib.gpusync_queue_create(device::P, C_NULL::P, out::Ref{P})::Cint)
    later(q) = @ccall lib.gpusync_queue_destroy_later(q::P, C_NULL::P, C_NULL::P)::Cint # a finalizer must not wait
    finalizer(later, Queue(out[]))
end
function commit(encode, q::Queue)
    buffer, ticket = Ref(C_NULL), Ref{Int64}(0)
    result = @ccall lib.gpusync_command_buffer_create(q::P, C_NULL::P, 0::UInt64, buffer::Ref{P})::Cint
    check("gpusync_command_buffer_create", result) # no room: GPUSYNC_TIMEOUT
    try
        encode(buffer[])
        check("gpusync_commit", @ccall lib.gpusync_commit(q::P, buffer[]::P, ticket::Ref{Int64})::Cint)
    catch
        @ccall lib.gpusync_command_buffer_discard(q::P, buffer[]::P)::Cint
        rethrow()
    end
    ticket[]
end
function block(q::Queue, ticket, limit_ns) # blocks the thread; gc_safe: the collector does not wait for the call
    failure = zeros(UInt8, sizeof(Failure))
    GC.@preserve failure begin
        o = Ref(WaitOptions(C_NULL, pointer(failure), false))
        result = @ccall gc_safe=true lib.gpusync_wait(q::P, ticket::Int64, limit_ns::UInt64, o::Ref{WaitOptions})::Cint
        check("gpusync_wait", result, unsafe_string(pointer(failure) + fieldoffset(Failure, 11))) # 11: message
    end
end
function Base.wait(q::Queue, ticket) # blocks the task alone, without a limit
    event = Base.Event()
    condition = Base.AsyncCondition(c -> (notify(event); close(c))) # Julia keeps it until it is closed
    result = GC.@preserve q @ccall lib.gpusync_on_done(Point(q.handle, ticket, C_NULL, 0)::Point,
        cglobal(:uv_async_send)::P, condition::P)::Cint # uv_async_send takes the first of three arguments
    iszero(result) || close(condition)
    check("gpusync_on_done", result)
    look = Timer(_ -> @ccall(lib.gpusync_poll(q::P, ticket::Int64, C_NULL::P)::Cint), 0.5; interval=0.5)
    try wait(event) finally close(look) end
    block(q, ticket, 0) # the ticket has ended: returns at once, or throws
end

device = Ref(C_NULL) # lives as long as the process
check("gpusync_device_create", @ccall lib.gpusync_device_create(C_NULL::P, device::Ref{P})::Cint)
queue = open_queue(device[])
ticket = commit(buffer -> nothing #= encode into the id<MTLCommandBuffer>, by Metal.jl =#, queue)
wait(queue, ticket)
println("ticket $ticket: done")
