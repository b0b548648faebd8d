//! What the end-to-end tests share: connections of every kind with checked data, network namespaces, the agent as a child
//! process, packets on the wire, and the preparation of real SMC. The program `smctest` offers the same to shell scripts.

pub mod agent;
pub mod killed;
pub mod netns;
pub mod objects;
pub mod pair;
pub mod peer;
pub mod segment;
pub mod setup;
pub mod wait;
pub mod wire;
