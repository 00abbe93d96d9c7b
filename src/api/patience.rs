//! How long the sender of a request waits for its answer: the header `Tenure-Timeout-Ms`.
//!
//! A node that knows it answers a little earlier. So a command that nobody can order now is told to be surely not ordered
//! while somebody still listens, rather than left in doubt.

use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderName};

use super::problem::{Code, Problem};

const TIMEOUT_MS: HeaderName = HeaderName::from_static("tenure-timeout-ms");
const NAME: &str = "Tenure-Timeout-Ms";
/// Greatest value: a day, as for other waiting.
const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// For the way of the answer; at most a quarter of the whole.
const MARGIN: Duration = Duration::from_millis(50);

/// Until when the answer must have left this node.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Endless without the header: then the node's own request timeout is all.
    until: Option<Instant>,
}

impl Patience {
    /// What the headers of a request say that came at `now`.
    pub fn of(headers: &HeaderMap, now: Instant) -> Result<Self, Problem> {
        let mut values = headers.get_all(TIMEOUT_MS).iter();
        let Some(value) = values.next() else { return Ok(Self { until: None }) };
        let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let ms = digits.and_then(|text| text.parse().ok()).filter(|ms| (1..=TIMEOUT_MS_MAX).contains(ms));
        match ms {
            Some(ms) if values.next().is_none() => {
                let whole = Duration::from_millis(ms);
                Ok(Self { until: Some(now + whole.saturating_sub(MARGIN.min(whole / 4))) })
            }
            _ => {
                let detail = format!("{NAME} must be one integer in 1..={TIMEOUT_MS_MAX}");
                Err(Problem { field: Some(NAME.to_owned()), ..Problem::new(Code::InvalidArgument, detail) })
            }
        }
    }

    /// What is left of it at `now`.
    pub fn left(self, now: Instant) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (TIMEOUT_MS, value.parse().unwrap())).collect()
    }

    #[test]
    fn the_answer_leaves_before_the_time_is_up() {
        let now = Instant::now();
        assert_eq!(Patience::of(&headers(&[]), now).unwrap().left(now), Duration::MAX);
        for (ms, left_ms) in [("1000", 950), ("200", 150), ("100", 75), ("1", 0), ("86400000", 86_399_950)] {
            let left = Patience::of(&headers(&[ms]), now).unwrap().left(now);
            assert_eq!(left.as_millis(), left_ms, "{ms}");
        }
        let patience = Patience::of(&headers(&["1000"]), now).unwrap();
        assert_eq!(patience.left(now + Duration::from_millis(900)).as_millis(), 50);
        assert!(patience.left(now + Duration::from_millis(1000)).is_zero());
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for values in
            [&["0"][..], &["-1"], &["+1"], &["1.5"], &[""], &["86400001"], &["99999999999999999999"], &["1", "1"]]
        {
            let problem = Patience::of(&headers(values), Instant::now()).unwrap_err();
            assert_eq!((problem.code, problem.field.as_deref()), (Code::InvalidArgument, Some(NAME)), "{values:?}");
        }
    }
}
