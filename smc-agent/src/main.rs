//! The smc-agent command.
fn main() {}
