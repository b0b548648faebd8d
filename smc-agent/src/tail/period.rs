//! Since when and until when.

use jiff::{SignedDuration, Timestamp};

use crate::trace::event::Event;

/// A part of time; an end that is not given is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// The first moment.
    pub since: Option<Timestamp>,
    /// The last one.
    pub until: Option<Timestamp>,
}

impl Period {
    /// Whether an event happened in it.
    pub fn contains(&self, event: &Event) -> bool {
        self.since.is_none_or(|since| event.time >= since) && !self.is_over(event.time)
    }

    /// Whether a moment is behind its end.
    pub fn is_over(&self, moment: Timestamp) -> bool {
        self.until.is_some_and(|until| moment > until)
    }
}

/// Reads a moment: RFC 3339 (`2026-01-02T03:04:05Z`), or how long before `now` it was (`10m`, `1h30m`, `2d`).
pub fn parse_moment(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let wanted = || {
        format!(
            "{text:?} is no moment: write it as 2026-01-02T03:04:05Z, or as how long ago it was: 45s, 10m, 1h30m, 2d"
        )
    };
    let text = text.trim();
    if text.contains(['T', 't', ' ']) && text.contains(':') {
        return text.parse().map_err(|_| wanted());
    }
    // Days are not of one length where clocks are changed; here they are.
    let (days, rest) = match text.split_once('d') {
        Some((days, rest)) => (days.parse::<i64>().map_err(|_| wanted())?, rest),
        None => (0, text),
    };
    let rest = if rest.is_empty() && days != 0 {
        SignedDuration::ZERO
    } else {
        rest.parse().map_err(|_| wanted())?
    };
    let hours = days.checked_mul(24).ok_or_else(wanted)?;
    let ago =
        SignedDuration::try_from_hours(hours).and_then(|days| days.checked_add(rest)).ok_or_else(wanted)?;
    if ago.is_negative() {
        return Err(wanted());
    }
    now.checked_sub(ago).map_err(|_| wanted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let moment = |text: &str| parse_moment(text, now).map(|moment| moment.to_string());
        assert_eq!(moment("2026-01-01T00:00:00+01:00"), Ok("2025-12-31T23:00:00Z".to_owned()));
        assert_eq!(moment("45s"), Ok("2026-01-02T03:03:20Z".to_owned()));
        assert_eq!(moment("1h30m"), Ok("2026-01-02T01:34:05Z".to_owned()));
        assert_eq!(moment("2d"), Ok("2025-12-31T03:04:05Z".to_owned()));
        assert_eq!(moment("1d12h"), Ok("2025-12-31T15:04:05Z".to_owned()));
        assert_eq!(moment("0s"), Ok("2026-01-02T03:04:05Z".to_owned()));
        for text in ["", "10", "-5m", "5m ago tomorrow", "d", "2026-01-01", "99999999999999d", "1d-2d"] {
            assert!(moment(text).is_err(), "{text}: {:?}", moment(text));
        }
    }

    #[test]
    fn a_period_has_both_its_ends() {
        let at = |text: &str| Some(text.parse().unwrap());
        let period = Period { since: at("2026-01-01T00:00:01Z"), until: at("2026-01-01T00:00:03Z") };
        let contains = |text: &str| {
            let line = format!(r#"{{"version":1,"time":"{text}","monotonic":0,"event":"lost","count":1}}"#);
            period.contains(&serde_json::from_str::<Event>(&line).unwrap())
        };
        assert!(contains("2026-01-01T00:00:01Z") && contains("2026-01-01T00:00:03Z"));
        assert!(!contains("2026-01-01T00:00:00.9Z") && !contains("2026-01-01T00:00:03.1Z"));
    }
}
