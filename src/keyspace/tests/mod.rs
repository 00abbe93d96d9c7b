//! Tests of the keyspace: golden scripts ([`script`]), random commands against a naive model ([`against_model`],
//! [`waits`]), crowds of waiters ([`crowds`]), equal bytes and bounded loading ([`snapshot`]), and what needs many keys or
//! exact values ([`cases`]). Of pools: a model of their own ([`pools_against_model`]), a random run with a judge
//! ([`storm`]), stories ([`pool_cases`]) and costs ([`pool_cost`]).

#![allow(clippy::unwrap_used, clippy::panic)]

mod against_model;
mod cases;
mod crowds;
mod held;
mod line;
mod model;
#[cfg(feature = "planted")]
mod planted;
mod pool_cases;
mod pool_cost;
mod pool_guards;
mod pool_line;
mod pool_log;
mod pool_model;
mod pool_script;
mod pool_steps;
mod pool_text;
mod pools_against_model;
mod script;
mod snapshot;
mod storm;
mod text;
mod waits;
