//! Connections that were accepted and are not authenticated yet. Pure.
//!
//! Invariants: at most [`STRANGERS_MAX`] at a time, and at most [`STRANGERS_OF_ONE_MAX`] from one address. The newest is
//! always let in, and the oldest ends instead: whoever knows the secret greets within moments, so that those who stay
//! long and say nothing never shut it out.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::limits::{STRANGERS_MAX, STRANGERS_OF_ONE_MAX};

#[derive(Default)]
struct Waiting {
    /// The last serial number given.
    serial: u64,
    /// The oldest first: its serial number, where it comes from, and what ends it when dropped.
    all: VecDeque<(u64, IpAddr, oneshot::Sender<()>)>,
}

/// Those that are there.
#[derive(Default)]
pub(super) struct Strangers(Mutex<Waiting>);

/// The place of one of them, given back when dropped.
pub(super) struct Stranger {
    strangers: Arc<Strangers>,
    serial: u64,
    end: oneshot::Receiver<()>,
}

impl Strangers {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one in from `address`; another may have to end for it.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Stranger {
        let address = address.to_canonical();
        let (ended, end) = oneshot::channel();
        let mut waiting = self.lock();
        let (of_one, oldest_of_one) = {
            let mut same = waiting.all.iter().enumerate().filter(|(_, (_, other, _))| *other == address);
            let oldest = same.next().map(|(at, _)| at);
            (oldest.map_or(0, |_| 1 + same.count()), oldest)
        };
        let ends = match oldest_of_one {
            Some(at) if of_one >= STRANGERS_OF_ONE_MAX => Some(at),
            _ => (waiting.all.len() >= STRANGERS_MAX).then_some(0),
        };
        drop(ends.and_then(|at| waiting.all.remove(at)));
        waiting.serial += 1;
        let serial = waiting.serial;
        waiting.all.push_back((serial, address, ended));
        Stranger { strangers: Arc::clone(self), serial, end }
    }
}

impl Stranger {
    /// Resolves when it must end, because others came after it.
    pub(super) async fn ends(&mut self) {
        // Nothing is ever sent: the other end goes.
        let _ = (&mut self.end).await;
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.strangers.lock().all.retain(|(serial, ..)| *serial != self.serial);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from([10, 0, 0, u8::try_from(number).unwrap()])
    }

    fn ended(strangers: &mut [Stranger]) -> Vec<usize> {
        let each = strangers.iter_mut().enumerate();
        each.filter_map(|(at, stranger)| stranger.ends().now_or_never().map(|()| at)).collect()
    }

    #[test]
    fn the_oldest_ends_when_there_are_too_many() {
        let strangers = Arc::new(Strangers::default());
        let mut there: Vec<_> = (0..STRANGERS_MAX).map(|number| strangers.admit(address(number))).collect();
        assert!(ended(&mut there).is_empty());
        there.push(strangers.admit(address(200)));
        there.push(strangers.admit(address(201)));
        assert_eq!(ended(&mut there[..2]).len(), 2);
        assert!(ended(&mut there[2..]).is_empty());
        assert_eq!(strangers.lock().all.len(), STRANGERS_MAX);
        there.truncate(10);
        let mut late = vec![strangers.admit(address(202))];
        assert!(ended(&mut late).is_empty() && ended(&mut there[2..]).is_empty(), "there is room again");
        drop((there, late));
        assert!(strangers.lock().all.is_empty());
    }

    #[test]
    fn many_from_one_address_end_none_from_another() {
        let strangers = Arc::new(Strangers::default());
        let mut other = vec![strangers.admit(address(1))];
        let mut same: Vec<_> = (0..STRANGERS_OF_ONE_MAX).map(|_| strangers.admit(address(2))).collect();
        same.push(strangers.admit("::ffff:10.0.0.2".parse().unwrap()));
        assert!(ended(&mut other).is_empty());
        assert!(ended(&mut same[..1]).len() == 1 && ended(&mut same[1..]).is_empty());
    }
}
