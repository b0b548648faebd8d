//! How many SMC sockets there are of each kind.

use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use crate::netlink::diag::{self, Mode, State};

/// The numbers of SMC sockets in a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SocketCounts {
    /// All.
    pub sockets: usize,
    /// Those that listen.
    pub listening: usize,
    /// Those that are not yet connected.
    pub unconnected: usize,
    /// Those whose data travels over RDMA.
    pub smcr: usize,
    /// Those whose data travels over ISM or dibs.
    pub smcd: usize,
    /// Those that fell back to TCP.
    pub fallback: usize,
}

impl SocketCounts {
    /// Counts them.
    pub fn read() -> Result<Self> {
        let mut counts = Self::default();
        for socket in diag::sockets()? {
            counts.sockets += 1;
            let place = match (socket.mode, socket.state) {
                (_, State::Listen) => &mut counts.listening,
                (Mode::FallbackTcp, _) => &mut counts.fallback,
                (Mode::SmcD, _) => &mut counts.smcd,
                (Mode::SmcR, State::Init) => &mut counts.unconnected,
                (Mode::SmcR, _) => &mut counts.smcr,
                (Mode::Unknown(_), _) => continue,
            };
            *place += 1;
        }
        Ok(counts)
    }
}
