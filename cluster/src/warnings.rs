//! A warning that whoever causes it could have repeated without end: at most one line in [`EVERY`]; the next that appears
//! says how many did not.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use openraft::async_runtime::Instant;
use openraft::type_config::TypeConfigExt;
use openraft::type_config::alias::InstantOf;

use crate::raft::{AsyncRuntime, TypeConfig};

/// At most one line in this time.
const EVERY: Duration = Duration::from_secs(30);

/// When the last line appeared, and how many did not since.
type Last<RT> = (Option<InstantOf<TypeConfig<RT>>>, u64);

/// Warnings of one cause.
pub struct Warnings<RT: AsyncRuntime>(Mutex<Last<RT>>);

impl<RT: AsyncRuntime> Default for Warnings<RT> {
    fn default() -> Self {
        Self(Mutex::new((None, 0)))
    }
}

impl<RT: AsyncRuntime> Warnings<RT> {
    /// Logs `line`, unless one appeared lately.
    pub fn warn(&self, line: impl FnOnce() -> String) {
        if let Some(left_out) = self.admit() {
            let more =
                if left_out > 0 { format!(" ({left_out} more such lines were left out)") } else { String::new() };
            tracing::warn!("{}{more}", line());
        }
    }

    /// May a line appear now? Then how many did not since the last.
    fn admit(&self) -> Option<u64> {
        let now = TypeConfig::<RT>::now();
        let (last, left_out) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            *left_out += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Rt, simulated, sleep};

    #[test]
    fn a_flood_of_warnings_is_one_line_in_half_a_minute() {
        simulated(1, async {
            let warnings = Warnings::<Rt>::default();
            assert_eq!(warnings.admit(), Some(0));
            for _ in 0..10 {
                assert_eq!(warnings.admit(), None);
            }
            sleep(29_999).await;
            assert_eq!(warnings.admit(), None);
            sleep(1).await;
            assert_eq!(warnings.admit(), Some(11), "and how many were left out");
        });
    }
}
