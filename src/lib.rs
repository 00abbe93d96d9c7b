//! tenure: a Raft-replicated, strongly consistent lease store.
//!
//! # Layout
//! - [`keyspace`]: the pure machine of leases

pub mod keyspace;
