//! The only part that loads, attaches and pins BPF: through aya, and through an own loader for what aya has no type
//! for.

pub mod btf;
pub mod clsact;
pub mod convert;
pub mod features;
pub mod hs_ctrl;
pub mod loader;
pub mod maps;
pub mod object;
pub mod offsets;
mod sys;
pub mod tc;
pub mod tracepoint;
