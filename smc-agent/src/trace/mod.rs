//! What happens to connections: from the kernel's ring buffer to events, and those to text or JSON.

mod builder;
mod cgroups;
pub mod codes;
pub mod event;
pub mod history;
mod namespaces;
mod reader;
mod render;
mod source;
mod writer;

#[cfg(test)]
pub(crate) use builder::event_of;
pub use builder::{NoNames, RuleNames};
pub use event::Event;
pub(crate) use event::address;
pub use history::{History, HistoryQuery, HistorySize};
pub use source::{EventSource, EventStats, FallbackCounts, SourceError};
pub use writer::{EventWriter, Format};
