//! End to end: real processes of the real binary, on port 0, killed when the test ends. One test binary, one file per
//! topic. A test awaits events with a bound; real time passes only where time itself is the input.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a failing test shows what its processes said")]

mod all_or_nothing;
mod bounds;
mod cli;
mod contract;
mod crash;
mod elect;
mod field_reports;
mod harness;
mod http;
mod id;
mod id_run;
mod id_state;
mod input;
mod line;
mod machine_id;
mod pools;
#[path = "../cluster/ports.rs"]
mod ports;
mod retry;
mod run;
mod run_hold;
mod run_lost;
mod run_pool;
mod run_several;
mod run_terminal;
mod run_wait;
mod service;
mod several;
mod sse;
mod start;
mod time;
mod waiting;
mod watch;
