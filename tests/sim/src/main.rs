//! `cargo run -p sim --release --locked -- --seeds 10000`: what is run, and how it ended, in `cli`.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that people and CI read")]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking"))]

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
