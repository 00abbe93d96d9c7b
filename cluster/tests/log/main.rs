//! The durable log: openraft's own suite, crashes at every disk operation, damage, full and failing disks, random
//! histories against a naive model, the real file system.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod crash;
mod damage;
mod harness;
mod random;
mod real;
mod space;
mod suite;
