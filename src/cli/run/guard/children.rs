//! The children of this process, and how to end all that descend from it.
//!
//! A subreaper becomes the parent of every descendant whose own parent has ended, also of those that left the process
//! group or the session. So killing one's children again and again until there is none ends the whole tree, and never
//! hits a stranger: the number of an unreaped child cannot be reused. Not covered: a process that another user owns
//! (set-user-ID programs) where this one may not kill it.

use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait, waitpid};
use tokio::signal::unix::Signal as Deaths;

/// How long to wait for the next death before killing again: a new child can appear without one.
pub const SWEEP: Duration = Duration::from_millis(20);

/// The living and unreaped children of this process.
pub fn children() -> Vec<Pid> {
    listed().unwrap_or_else(scanned)
}

/// What the kernel lists per thread; absent in some small kernels.
fn listed() -> Option<Vec<Pid>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let list = std::fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        children.extend(list.split_ascii_whitespace().filter_map(pid));
    }
    Some(children)
}

/// All processes whose parent is this one, by reading the state of each.
fn scanned() -> Vec<Pid> {
    let own = std::process::id();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|name| {
            let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default();
            parent(&stat) == Some(own)
        })
        .filter_map(|name| pid(&name))
        .collect()
}

/// The parent in a line of `/proc/<pid>/stat`. The command's name, in parentheses, may itself hold any of these signs.
fn parent(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

/// Reaps the children that have ended, but not `kept`. True if others are left.
pub fn reap_all_but(kept: Pid) -> bool {
    let mut left = false;
    for child in children().into_iter().filter(|child| *child != kept) {
        left |= matches!(waitpid(Some(child), WaitOptions::NOHANG), Ok(None));
    }
    left
}

/// Sends a signal to each child but `kept`. Those that are gone or belong to others are passed over.
pub fn signal_all_but(kept: Option<Pid>, signal: Signal) {
    for child in children().into_iter().filter(|child| Some(*child) != kept) {
        let _gone_or_not_ours = kill_process(child, signal);
    }
}

/// Kills and reaps until this process has no child.
pub async fn end_all(deaths: &mut Deaths) {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => continue,
            Ok(None) => signal_all_but(None, Signal::KILL),
            Err(_no_child) => return,
        }
        let _woken_or_not = tokio::time::timeout(SWEEP, deaths.recv()).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parent_is_found_behind_any_name() {
        assert_eq!(parent("12 (sh) S 7 12 1 0 -1"), Some(7));
        assert_eq!(parent("12 (a) S 9 (b) R 8 12 1"), Some(8));
        assert_eq!(parent("12 (sh"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn both_ways_find_a_child() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id() as i32).unwrap();
        assert!(scanned().contains(&pid));
        if let Some(listed) = listed() {
            assert!(listed.contains(&pid));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!scanned().contains(&pid));
    }
}
