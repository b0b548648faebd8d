//! Messages for whoever debugs the programs, through aya-log: compiled in, and off unless `smc-agent run --bpf-log` asks.
//! The level is a constant to the verifier, which drops what it turns off.
//!
//! Functions of their own, because a message takes more of the stack than its caller has left.

use aya_log_ebpf::{debug, warn};

/// A handshake was judged.
#[inline(never)]
pub fn judged(role: u32, port: u32, decider: u32, verdict: u32) {
    debug!((), "judged: role {} port {} rule {} verdict {}", role, port, decider, verdict);
}

/// A handshake could not be judged.
#[inline(never)]
pub fn undecided(role: u32, port: u32) {
    warn!((), "undecided, so allowed: role {} port {}", role, port);
}

/// A SYN could not be rewritten.
#[inline(never)]
pub fn not_rewritten(tcp: u32, options: u32) {
    warn!((), "not rewritten: a SYN with TCP at {} and {} bytes of options", tcp, options);
}
