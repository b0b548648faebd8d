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

pub use builder::{NoNames, RuleNames};
pub use event::Event;
pub use history::{History, HistoryQuery, HistorySize};
pub use source::{EventSource, EventStats, FallbackCounts, SourceError};
