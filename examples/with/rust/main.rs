//! A command buffer is awaited, beside a time limit. Drop destroys queue and device.
mod gpusync;
use gpusync::*;
use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{current, park_timeout, Thread};
use std::time::{Duration, Instant};

struct Unpark(Thread);
impl Wake for Unpark {
    fn wake(self: Arc<Self>) { self.0.unpark() }
}

/// The smallest executor. None: the limit passed first.
fn block_on<F: Future>(future: F, limit: Duration) -> Option<F::Output> {
    let (waker, end) = (Waker::from(Arc::new(Unpark(current()))), Instant::now() + limit);
    let mut future = Box::pin(future);
    while Instant::now() < end {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        park_timeout(end.saturating_duration_since(Instant::now()));
    }
    None
}

fn run() -> Result<Ticket, Error> {
    let device = Device::new()?;
    let queue = device.queue(&QueueOptions::default())?; // dropped first: waits for what is in flight
    let ticket = queue.command_buffer(None)?.commit()?; // encode work into the buffer before
    let timeout = Error { call: "gpusync_on_done", kind: Kind::Timeout, failure: None };
    block_on(queue.done(ticket), Duration::from_secs(1)).unwrap_or(Err(timeout))?;
    Ok(ticket)
}

fn main() {
    match run() {
        Ok(ticket) => println!("ticket {}: done", ticket.0),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}
