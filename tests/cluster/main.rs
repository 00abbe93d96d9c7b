//! Clusters of real processes under faults: killed, stopped, cut off, restarted, while clients write down what they do.
//! Each history is judged by `tests/checker`. One test binary, one file per topic; everything ends with its test.
//!
//! A test waits for events, each with a bound; real time passes only where time itself is the input: the length of a
//! fault, the life of a lease, the pace of a client.
//!
//! `TENURE_CLUSTER_ROUNDS=20` for more rounds than the suite's; `TENURE_SEED=…` to repeat a load's choices;
//! `TENURE_HISTORY=FILE` to judge a saved history again (test `replay`).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test says what it measured, and what it skipped")]

#[path = "../e2e/http.rs"]
#[allow(dead_code, reason = "shared with the tests of one node")]
mod http;
#[path = "../e2e/line.rs"]
#[allow(dead_code, reason = "shared with the tests of one node")]
mod line;
#[path = "../e2e/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of one node")]
mod process;
#[path = "../e2e/sse.rs"]
#[allow(dead_code, reason = "shared with the tests of one node")]
mod sse;

mod asker;
mod catching_up;
mod chaos;
mod elections;
mod five;
mod followers_stopped;
mod harness;
mod history;
mod holder_cut_off;
mod identity;
mod leader_killed;
mod leader_stopped;
mod load;
mod network;
mod partition;
mod pools;
mod ports;
mod probe;
mod races;
mod reads;
mod replay;
mod restarts;
mod rolling;
mod run_loops;
mod seat;
mod session;
mod states;
mod storms;
mod tenants;
mod wall_clock;
mod wall_clocks;
mod watch;
