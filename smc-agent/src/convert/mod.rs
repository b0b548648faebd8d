//! Turns TCP sockets of chosen processes into SMC ones: rules from policies and switches, compiled for the kernel.

pub mod resolve;
pub mod table;
#[cfg(test)]
mod tests;
