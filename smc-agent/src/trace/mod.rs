//! What happens to connections: from the kernel's ring buffer to events, and those to text or JSON.

pub mod codes;
pub mod event;
mod reader;
mod render;

pub use event::{Event, RuleNames};
pub use reader::EventReader;
