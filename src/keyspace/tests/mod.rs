//! Tests of the keyspace: golden scripts ([`script`]), random commands against a naive model ([`against_model`],
//! [`waits`]), crowds of waiters ([`crowds`]), equal bytes and bounded loading ([`snapshot`]), and what needs many keys or
//! exact values ([`cases`]).

#![allow(clippy::unwrap_used, clippy::panic)]

mod against_model;
mod cases;
mod crowds;
mod held;
mod line;
mod model;
#[cfg(feature = "planted")]
mod planted;
mod script;
mod snapshot;
mod text;
mod waits;
