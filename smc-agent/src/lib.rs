//! smc-agent as a library: see ARCHITECTURE.md for the map of its modules.

pub mod cli;
pub mod convert;
pub mod daemon;
pub mod enforce;
pub mod features;
mod files;
pub mod kernel;
pub mod netlink;
mod netns;
pub mod policy;
pub mod privileges;
pub mod show;
pub mod tail;
pub mod trace;
