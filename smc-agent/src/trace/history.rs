//! The last events, for readers that come late.

use std::{collections::VecDeque, sync::Arc};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::Event;

/// Events that are kept.
pub const MAX_EVENTS: usize = 16_384;
/// Bytes that they take at most, all together.
pub const MAX_BYTES: usize = 16 << 20;

/// How much is kept, and how much there is room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistorySize {
    /// Events.
    pub events: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Events that there is room for.
    pub max_events: u64,
    /// Bytes that they may take.
    pub max_bytes: u64,
}

/// What of the history is asked for; both, if both are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The last so many; `None`: all.
    pub last: Option<usize>,
    /// Those from this time on.
    pub since: Option<Timestamp>,
}

/// The last events: as many as there are and as fit.
#[derive(Debug)]
pub struct History {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    max_events: usize,
    max_bytes: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::new(MAX_EVENTS, MAX_BYTES)
    }
}

impl History {
    /// Keeps so many events and bytes.
    pub fn new(max_events: usize, max_bytes: usize) -> Self {
        Self { events: VecDeque::new(), bytes: 0, max_events, max_bytes }
    }

    /// Keeps an event, and lets go of the oldest for which there is no room any more.
    pub fn keep(&mut self, event: Arc<Event>) {
        self.bytes += cost(&event);
        self.events.push_back(event);
        while self.events.len() > self.max_events || self.bytes > self.max_bytes {
            let Some(oldest) = self.events.pop_front() else { break };
            self.bytes -= cost(&oldest);
        }
    }

    /// The events asked for, the oldest first.
    pub fn find(&self, query: HistoryQuery) -> Vec<Arc<Event>> {
        let skip = query.last.map_or(0, |last| self.events.len().saturating_sub(last));
        let is_asked = |event: &&Arc<Event>| query.since.is_none_or(|since| event.time >= since);
        self.events.iter().skip(skip).filter(is_asked).cloned().collect()
    }

    /// How much there is.
    pub fn size(&self) -> HistorySize {
        HistorySize {
            events: self.events.len() as u64,
            bytes: self.bytes as u64,
            max_events: self.max_events as u64,
            max_bytes: self.max_bytes as u64,
        }
    }
}

/// What an event takes: itself, its text, and the pointers and counts that hold it.
fn cost(event: &Event) -> usize {
    const HELD_BY: usize = size_of::<Arc<Event>>() + 2 * size_of::<usize>();
    HELD_BY + size_of::<Event>() + event.text_bytes()
}

#[cfg(test)]
mod tests {
    use super::super::event::{Kind, VERSION};
    use super::*;

    fn event(second: i64) -> Arc<Event> {
        Arc::new(Event {
            version: VERSION,
            time: Timestamp::from_second(second).unwrap(),
            monotonic: 0,
            run: 1,
            seq: None,
            kind: Kind::Lost { count: 1 },
        })
    }

    fn seconds(history: &History, last: Option<usize>, since: Option<i64>) -> Vec<i64> {
        let since = since.map(|since| Timestamp::from_second(since).unwrap());
        history.find(HistoryQuery { last, since }).iter().map(|event| event.time.as_second()).collect()
    }

    #[test]
    fn the_last_events_are_kept_and_found() {
        let mut history = History::new(3, usize::MAX);
        (1..=5).for_each(|second| history.keep(event(second)));
        assert_eq!(seconds(&history, None, None), [3, 4, 5]);
        assert_eq!(seconds(&history, Some(2), None), [4, 5]);
        assert_eq!(seconds(&history, Some(9), Some(5)), [5]);
        assert_eq!(seconds(&history, Some(0), None), [0_i64; 0]);
        assert_eq!(history.size().events, 3);
    }

    #[test]
    fn bytes_are_bounded_too() {
        let each = cost(&event(1));
        let mut history = History::new(100, each * 2 + 1);
        (1..=5).for_each(|second| history.keep(event(second)));
        assert_eq!(seconds(&history, None, None), [4, 5]);
        assert_eq!(history.size().bytes, each as u64 * 2);
        let mut none = History::new(100, each - 1);
        none.keep(event(1));
        assert_eq!((none.size().events, none.size().bytes), (0, 0));
    }
}
