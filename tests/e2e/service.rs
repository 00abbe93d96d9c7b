//! As a service of systemd: `Type=notify`, its watchdog, and nothing without them.

use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::harness::{Node, SOON, serve};

/// Reads messages until one has a line that begins so.
fn await_told(socket: &UnixDatagram, begin: &str) -> String {
    let mut bytes = [0; 4096];
    loop {
        let length = socket.recv(&mut bytes).unwrap_or_else(|error| panic!("{begin} was not told: {error}"));
        let message = String::from_utf8(bytes[..length].to_vec()).unwrap();
        if message.lines().any(|line| line.starts_with(begin)) {
            return message;
        }
    }
}

#[test]
fn the_service_manager_is_told_of_readiness_life_and_end() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let serve = serve(&dir.path().join("data"));
    // The watchdog is for one process alone, as systemd names it.
    let mut command = Command::new("sh");
    command.args(["-c", "WATCHDOG_PID=$$ exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    // What `tenure()` keeps from a node.
    for (name, _) in serve.get_envs().filter(|(_, value)| value.is_none()) {
        command.env_remove(name);
    }
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").stdin(Stdio::null());
    let mut node = Node::start_command(command);
    let ready = await_told(&socket, "READY=1");
    assert!(ready.contains(&format!("STATUS=serving on {}", node.addr)), "{ready}");
    await_told(&socket, "WATCHDOG=1");
    await_told(&socket, "WATCHDOG=1");
    node.process.signal(Signal::TERM);
    await_told(&socket, "STOPPING=1");
    assert_eq!(node.process.end().code(), Some(0));
}
