//! Durations on the command line and on the screen. Going in they need a unit: nobody can see whether `30` was meant as
//! seconds or milliseconds.

use std::time::Duration;

/// Reads `30s`, `1500ms`, `1h 30m`; whole milliseconds.
///
/// # Errors
/// The rule that was broken.
pub fn parse(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    if !trimmed.is_empty() && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{trimmed} has no unit: write {trimmed}s or {trimmed}ms"));
    }
    let duration =
        humantime::parse_duration(trimmed).map_err(|error| format!("{error}: write it like 30s, 500ms or 2h"))?;
    if duration.subsec_nanos() % 1_000_000 != 0 {
        return Err("a duration is a whole number of milliseconds".to_owned());
    }
    Ok(duration)
}

/// Milliseconds of the wire. More than fit are more than any limit: the node refuses them.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// For people: `29s 120ms`, from an hour on without what is below a second.
pub fn shown(ms: u64) -> String {
    let ms = if ms >= 3_600_000 { ms / 1000 * 1000 } else { ms };
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_unit_is_needed() {
        assert_eq!(parse("30").unwrap_err(), "30 has no unit: write 30s or 30ms");
        assert_eq!(parse("0").unwrap_err(), "0 has no unit: write 0s or 0ms");
        for bad in ["", "s", "-3s", "3 parsecs", "1us", "1.0005s", "99999999999999999999s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("30s").unwrap(), parse("30000ms").unwrap());
        assert_eq!(parse("1.5s").unwrap(), parse("1500ms").unwrap());
        assert_eq!(millis(parse("1h 30m").unwrap()), 5_400_000);
    }

    #[test]
    fn shown_for_people() {
        assert_eq!(shown(29_120), "29s 120ms");
        assert_eq!(shown(3_600_123), "1h");
        assert_eq!(shown(0), "0s");
    }
}
