//! What a reader did not get, told by the numbers of events.

use crate::trace::event::{Event, Kind};

/// Events that were not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// So many of one run of the agent.
    Events(u64),
    /// The agent was started again: what happened while none ran is not known, and of the former run nothing after the
    /// last event that was seen. Of the new run so many are missing.
    Restart(u64),
}

/// Keeps the numbers of the events that were seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gaps {
    last: Option<(u64, u64)>,
}

impl Gaps {
    /// Takes notice of the next event: `Err` if it was seen before; else what is missing before it.
    pub fn take(&mut self, event: &Event) -> Result<Option<Gap>, Seen> {
        if let Kind::Missed { count } = &event.kind {
            // The agent tells itself that this reader missed some: they are not told a second time.
            if let Some((_, seq)) = &mut self.last {
                *seq = seq.saturating_add(*count);
            }
            return Ok(None);
        }
        // Agents without numbers: nothing can be told.
        let Some(seq) = event.seq else { return Ok(None) };
        let now = (event.run, seq);
        let Some((run, last)) = self.last.replace(now) else { return Ok(None) };
        if event.run == run {
            if seq <= last {
                self.last = Some((run, last));
                return Err(Seen);
            }
            let missing = seq - last - 1;
            return Ok((missing > 0).then_some(Gap::Events(missing)));
        }
        Ok(Some(Gap::Restart(seq.saturating_sub(1))))
    }
}

/// The event was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen;

#[cfg(test)]
mod tests {
    use super::*;

    fn event(run: u64, seq: Option<u64>, missed: u64) -> Event {
        let kind = if missed > 0 {
            format!(r#""missed","count":{missed}"#)
        } else {
            r#""lost","count":1"#.to_owned()
        };
        let seq = seq.map_or_else(|| "null".to_owned(), |seq| seq.to_string());
        let time = "2026-01-01T00:00:00Z";
        let line = format!(
            r#"{{"version":1,"time":"{time}","monotonic":0,"run":{run},"seq":{seq},"event":{kind}}}"#
        );
        serde_json::from_str(&line).unwrap()
    }

    #[test]
    fn every_event_that_is_not_seen_is_told_once() {
        let mut gaps = Gaps::default();
        let mut take = |run, seq| gaps.take(&event(run, Some(seq), 0));
        assert_eq!(take(1, 5), Ok(None));
        assert_eq!(take(1, 6), Ok(None));
        assert_eq!(take(1, 9), Ok(Some(Gap::Events(2))));
        assert_eq!(take(1, 9), Err(Seen));
        assert_eq!(take(1, 2), Err(Seen));
        assert_eq!(take(1, 10), Ok(None));
        assert_eq!(take(2, 1), Ok(Some(Gap::Restart(0))));
        assert_eq!(take(2, 2), Ok(None));
        assert_eq!(gaps.take(&event(2, None, 3)), Ok(None));
        assert_eq!(gaps.take(&event(2, Some(6), 0)), Ok(None));
        assert_eq!(gaps.take(&event(2, None, 0)), Ok(None));
        assert_eq!(gaps.take(&event(3, Some(5), 0)), Ok(Some(Gap::Restart(4))));
    }
}
