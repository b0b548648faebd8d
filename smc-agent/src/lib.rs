//! smc-agent as a library: see ARCHITECTURE.md for the map of its modules.

pub mod policy;
