//! The binary: a panic stops the process, everything else is [`tenure::cli`].

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    abort_on_panic();
    tenure::cli::main(std::env::args_os().collect())
}

/// A node of which one task has died answers on, and wrongly: a panic anywhere must end the process. The profile unwinds,
/// so that the tests and the binary share one build; the binary aborts here.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let _no_stderr = writeln!(std::io::stderr(), "tenure: defect, please report: {panic}\n{backtrace}");
        std::process::abort();
    }));
}
