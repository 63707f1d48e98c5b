mod gpusync;
use std::{process::exit, time::Duration};

fn draw() -> Result<i64, String> {
    let second = Duration::from_secs(1);
    let queue = gpusync::Queue::new()?;
    let ticket = queue.commit(second, |_buffer| { /* encode work into it, for example with the crate objc2-metal */ })?;
    queue.wait(ticket, second)?;
    assert!(queue.is_done(ticket));
    Ok(ticket)
}

fn main() {
    match draw() {
        Ok(ticket) => println!("ticket {ticket}: done"),
        Err(why) => {
            eprintln!("{why}");
            exit(1)
        }
    }
}
