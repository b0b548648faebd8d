//! Events for those who read them from the control socket: the last ones, and those to come.

use std::sync::Arc;

use axum::body::Bytes;
use tokio::sync::broadcast;
use tracing::warn;

use crate::trace::{Event, History, HistoryQuery, HistorySize};

/// Lines of events that a slow reader of the control socket may be behind before it misses some.
const BACKLOG: usize = 4096;

/// What a reader of the control socket asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// What of the history; `None`: nothing.
    pub(super) history: Option<HistoryQuery>,
    /// Whether events to come are wanted, too.
    pub(super) follow: bool,
}

/// What such a reader gets. Nothing lies between the two parts.
#[derive(Debug)]
pub(super) struct Subscription {
    /// Events of the past, the oldest first.
    pub(super) past: Vec<Arc<Event>>,
    /// Lines of those to come.
    pub(super) future: Option<broadcast::Receiver<Bytes>>,
    /// The run that they are of.
    pub(super) run: u64,
}

/// Keeps events and hands them on.
#[derive(Debug)]
pub(super) struct Publisher {
    history: History,
    readers: broadcast::Sender<Bytes>,
}

impl Publisher {
    pub(super) fn new() -> Self {
        Self { history: History::default(), readers: broadcast::Sender::new(BACKLOG) }
    }

    /// Hands an event to all who read, and keeps it for those who will.
    pub(super) fn publish(&mut self, event: Event) {
        if self.readers.receiver_count() > 0 {
            if let Some(line) = line(&event) {
                // Nobody listens any more: fine.
                let _ = self.readers.send(line);
            } else {
                warn!("an event is no JSON");
            }
        }
        self.history.keep(Arc::new(event));
    }

    pub(super) fn subscribe(&self, wanted: Wanted, run: u64) -> Subscription {
        Subscription {
            past: wanted.history.map_or_else(Vec::new, |query| self.history.find(query)),
            future: wanted.follow.then(|| self.readers.subscribe()),
            run,
        }
    }

    pub(super) fn readers(&self) -> u64 {
        self.readers.receiver_count() as u64
    }

    pub(super) fn size(&self) -> HistorySize {
        self.history.size()
    }
}

/// An event as a line of JSON.
pub(super) fn line(event: &Event) -> Option<Bytes> {
    let mut line = serde_json::to_vec(event).ok()?;
    line.push(b'\n');
    Some(line.into())
}
