//! Addresses for nodes that must come back where they were.
//!
//! Clients and peers know a node by its port over many starts, so port 0 will not do. Ports are taken from below the
//! range in which systems choose ports for outgoing connections (32 768 and up), where only another program's fixed
//! port can be in the way: each is tried by binding it. Who binds it between that and the node's start wins; the node
//! then says so and ends, and the harness begins anew with other ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

use socket2::{Domain, Socket, Type};

const FIRST: u16 = 15_000;
const COUNT: u16 = 15_000;

/// How many this process has taken; another process of this kind begins elsewhere.
static TAKEN: AtomicU16 = AtomicU16::new(0);

/// A free address of this host.
pub fn free() -> SocketAddr {
    let start = u16::try_from(std::process::id().wrapping_mul(101) % u32::from(COUNT)).unwrap();
    for _ in 0..COUNT {
        let next = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + (start + next % COUNT) % COUNT;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if is_free(addr) {
            return addr;
        }
    }
    panic!("no free port in {FIRST}..{}", FIRST + COUNT);
}

/// The socket never listens, and shares its address: a process that another thread is just starting has a copy of it for a
/// moment, which must not be in the node's way.
fn is_free(addr: SocketAddr) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&addr.into()).is_ok()
}
