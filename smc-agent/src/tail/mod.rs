//! What reads events: filters, where they come from, lines of columns, and counts. Nothing here prints.

pub mod counts;
pub mod filter;
mod gaps;
mod lines;
mod pattern;
mod period;
mod raw;
mod stream;

pub use gaps::{Gap, Gaps};
pub use lines::{Columns, Look, advice};
pub use pattern::Pattern;
pub use period::{Period, parse_moment};
pub use stream::{AgentEvents, Lines, Query, is_harmless, printable_json};
