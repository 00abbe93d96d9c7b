//! Whole clusters in one thread and in virtual time, decided by a seed.
//!
//! ```text
//! plan (what will go wrong, and when)  ->  run  ->  world (nodes, network, disks, clocks)   <- clients (calls, claims)
//!                                            \->  judge (after every apply)  ->  outcome
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

pub mod clients;
pub mod coverage;
pub mod judge;
pub mod plan;
pub mod run;
pub mod runtime;
pub mod world;
