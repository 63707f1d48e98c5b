# Not run: this project has no Julia. Tasks wait for tickets of gpusync, in Julia 1.12 and later. No other thread than
# Julia's runs code of Julia's: notify is uv_async_send, which wakes a task, and that task runs gpusync's callbacks.
const lib, P = joinpath(@__DIR__, "build", "libgpusync.so"), Ptr{Cvoid}
struct DeviceDesc; device::P; hooks::P; spin::P; log::P; log_user::P; mode::Cint; queue::P; notify::P; user::P; end
struct Point; queue::P; ticket::Int64; timeline::P; value::UInt64; end # gpusync_point
struct Failure # the head of gpusync_error
    result::Cint; failure::Cint; ticket::Int64; origin::Int64; code::Int64; dropped::UInt64
    inherited::Bool; ran::Bool; transient::Bool; domain::NTuple{64,UInt8}; message::NTuple{256,UInt8}
end
check(call, result, message="") = iszero(result) ? nothing :
    error(call, ": ", unsafe_string(@ccall lib.gpusync_result_string(result::Cint)::Cstring), "\n", message)
mutable struct Queue; handle::P; end
Base.unsafe_convert(::Type{P}, q::Queue) = q.handle # @ccall keeps q until the call returns
function open_queue(device)
    out = Ref(C_NULL)
    check("gpusync_queue_create", @ccall lib.gpusync_queue_create(device::P, C_NULL::P, out::Ref{P})::Cint)
    finalizer(q -> @ccall(lib.gpusync_queue_destroy_later(q::P, C_NULL::P, C_NULL::P)::Cint), Queue(out[])) # no wait
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
    check("gpusync_wait", @ccall gc_safe=true lib.gpusync_wait(q::P, ticket::Int64, limit_ns::UInt64, C_NULL::P)::Cint)
end
const waiting, waiting_lock, ended = Dict{P,Channel{Tuple{Cint,String}}}(), ReentrantLock(), Tuple{P,Cint,String}[]
message(failure) = failure == C_NULL ? "" : unsafe_string(Ptr{UInt8}(failure) + fieldoffset(Failure, 11)) # 11: message
finished(user::P, result::Cint, failure::P) = (push!(ended, (user, result, message(failure))); nothing) # no task switch
function run_callbacks(_)
    @ccall lib.gpusync_device_run_callbacks(device[]::P, typemax(Csize_t)::Csize_t, C_NULL::P)::Cint
    foreach(e -> put!(@lock(waiting_lock, pop!(waiting, e[1])), (e[2], e[3])), ended)
    empty!(ended)
end
function Base.wait(q::Queue, ticket) # blocks the task alone, without a limit
    answer = Channel{Tuple{Cint,String}}(1)
    user = pointer_from_objref(answer) # waiting keeps the channel
    @lock waiting_lock waiting[user] = answer
    result = GC.@preserve q @ccall lib.gpusync_on_done(Point(q.handle, ticket, C_NULL, 0)::Point,
        @cfunction(finished, Cvoid, (P, Cint, P))::P, user::P)::Cint
    iszero(result) || @lock waiting_lock delete!(waiting, user)
    check("gpusync_on_done", result)
    check("the work", take!(answer)...)
end
const device, wakeup = Ref(C_NULL), Base.AsyncCondition(run_callbacks) # never destroyed. Below 1: MANUAL
desc = Ref(DeviceDesc(C_NULL, C_NULL, C_NULL, C_NULL, C_NULL, 1, C_NULL, cglobal(:uv_async_send), wakeup.handle))
check("gpusync_device_create", @ccall lib.gpusync_device_create(desc::Ref{DeviceDesc}, device::Ref{P})::Cint)
Timer(_ -> isempty(waiting) || @ccall(uv_async_send(wakeup::P)::Cint), 0.5; interval=0.5) # if Metal loses a handler
queue = open_queue(device[])
ticket = commit(buffer -> nothing #= encode into the id<MTLCommandBuffer>, by Metal.jl =#, queue)
wait(queue, ticket)
println("ticket $ticket: done")
