//! Client of the tenure lease store.
//!
//! # Layout
//! - [`wire`]: the JSON of the command protocol, shared with the server
//! - [`uri`]: where the nodes are, as in `tenure://a:13378,b:13378`
//! - [`client`]: calls with limits, repeated only where that is safe
//! - [`lease`]: a lease, or several, come by at once or in line, that renew themselves and say when they are lost
//! - [`machine_id`]: a number of a pool that no other live process has; [`slot`]: one of a counting semaphore
//! - [`election`]: who holds the lease leads
//! - [`watch`]: what happens to keys, as it happens
//! - [`time`]: the holder's own deadline
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure_client::{Acquire, Acquired, Client, Lease};
//!
//! let client = Client::new(&"tenure://127.0.0.1:13378".parse()?);
//! if let Acquired::Held(lease) = Lease::acquire(&client, "nightly-backup", Acquire::default()).await? {
//!     tokio::select! {
//!         () = work(lease.fence()) => { lease.release().await?; }
//!         lost = lease.lost() => eprintln!("stop now: {lost}"),
//!     }
//! }
//! # Ok(()) }
//! # async fn work(fence: u64) {}
//! ```

mod asking;
pub mod client;
pub mod election;
pub mod lease;
pub mod machine_id;
mod renewal;
pub mod slot;
mod standing;
pub mod time;
pub mod uri;
pub mod watch;
pub mod wire;

#[cfg(test)]
mod fake;

pub use client::{Answered, CallError, Client, Options, Witness};
pub use election::{CampaignError, Election, Leader, Observation};
pub use lease::{Acquire, AcquireError, Acquired, AcquiredAll, Grant, Lease, Leases, Lost, LostBy, NotHeld, State};
pub use machine_id::{MachineId, MachineIds};
pub use renewal::{Outcome, Renewed};
pub use slot::{Slot, Slots};
pub use time::{Boottime, Clock, HostClock, HostWallClock, WallClock};
pub use uri::{Endpoint, Uri, UriError};
pub use watch::{Notice, Selection, Watch, WatchError};
pub use wire::Token;
