//! Ends the process when one read does not end: a hang has no stack to print, so the input is kept first.
//!
//! Not a measure of time: a read that takes a minute is a hang on any machine.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(30);
/// Seen in the same read so many times, it hangs: no read takes so long, on the slowest machine.
const LOOKS: u32 = 4;

#[derive(Default)]
struct Now {
    /// Counts reads begun and ended: odd while one is on.
    count: u64,
    target: &'static str,
    input: Vec<u8>,
    over: bool,
}

/// Watches the reads of one thread.
pub struct Watch {
    now: Arc<(Mutex<Now>, Condvar)>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Watch {
    /// Begins. `keep` writes an input down and says where.
    pub fn begin(keep: fn(&str, &[u8]) -> String) -> Self {
        let now: Arc<(Mutex<Now>, Condvar)> = Arc::default();
        let watched = Arc::clone(&now);
        let thread = thread::spawn(move || watch(&watched, keep));
        Self { now, thread: Some(thread) }
    }

    fn change(&self, change: impl FnOnce(&mut Now)) {
        let mut now = self.now.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut now);
        now.count += 1;
    }

    /// A read begins. Copies the input into room that is there already, mostly.
    pub fn reads(&self, target: &'static str, input: &[u8]) {
        self.change(|now| {
            now.target = target;
            now.input.clear();
            now.input.extend_from_slice(input);
        });
    }

    /// It ended.
    pub fn has_read(&self) {
        self.change(|_| {});
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.change(|now| now.over = true);
        self.now.1.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[expect(clippy::print_stderr, reason = "the last words of a process that hangs")]
fn watch((now, changed): &(Mutex<Now>, Condvar), keep: fn(&str, &[u8]) -> String) {
    let mut guard = now.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut seen, mut looks) = (0, 0);
    while !guard.over {
        let (after, _) =
            changed.wait_timeout_while(guard, LOOK, |now| !now.over).unwrap_or_else(PoisonError::into_inner);
        guard = after;
        looks = if guard.count == seen && guard.count % 2 == 1 { looks + 1 } else { 0 };
        seen = guard.count;
        if looks == LOOKS {
            let file = keep(guard.target, &guard.input);
            eprintln!("{} reads for {} s and does not end: {file}", guard.target, LOOK.as_secs() * u64::from(LOOKS));
            std::process::exit(101);
        }
    }
}
