//! The kernel's own count of fallbacks, by code and side.

use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use super::sockets::Code;
use crate::netlink::smc::{FallbackStats, Side, Smc};

/// How often one side fell back for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FallbackReason {
    /// Which end of the connections this host was.
    pub side: Side,
    /// The reason.
    pub code: Code,
    /// How often; the kernel's counter has 16 bits and begins again at 0.
    pub count: u16,
}

/// The fallbacks of a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Fallbacks {
    /// All fallbacks of accepted connections.
    pub server_total: u64,
    /// All fallbacks of connections made.
    pub client_total: u64,
    /// Those of accepted connections whose reason the kernel did not keep (its table was full, or a counter began again).
    pub server_unlisted: u64,
    /// Those of connections made whose reason the kernel did not keep.
    pub client_unlisted: u64,
    /// By reason, the most frequent first.
    pub reasons: Vec<FallbackReason>,
}

impl Fallbacks {
    /// Reads them.
    pub fn read() -> Result<Self> {
        Ok(Smc::open()?.fallback_stats()?.into())
    }
}

impl From<FallbackStats> for Fallbacks {
    fn from(stats: FallbackStats) -> Self {
        let listed = |side: Side| -> u64 {
            stats
                .reasons
                .iter()
                .filter(|reason| reason.side == side)
                .map(|reason| u64::from(reason.count))
                .sum()
        };
        let (server, client) = (listed(Side::Server), listed(Side::Client));
        let mut reasons: Vec<_> = stats
            .reasons
            .iter()
            .map(|reason| FallbackReason { side: reason.side, code: reason.code.into(), count: reason.count })
            .collect();
        reasons.sort_by_key(|reason| (std::cmp::Reverse(reason.count), reason.side, reason.code.value));
        Self {
            server_total: stats.server_total,
            client_total: stats.client_total,
            server_unlisted: stats.server_total.saturating_sub(server),
            client_unlisted: stats.client_total.saturating_sub(client),
            reasons,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::smc::FallbackCount;

    #[test]
    fn what_the_kernel_lost_is_counted() {
        let reason = |side, code, count| FallbackCount { side, code, count };
        let stats = FallbackStats {
            server_total: 10,
            client_total: 3,
            reasons: vec![reason(Side::Client, 0x0303_0000, 3), reason(Side::Server, 0x0301_0000, 4)],
        };
        let fallbacks = Fallbacks::from(stats);
        assert_eq!((fallbacks.server_unlisted, fallbacks.client_unlisted), (6, 0));
        assert_eq!(fallbacks.reasons[0].code.name.as_deref(), Some("PEERNOSMC"));
        assert_eq!(fallbacks.reasons[1].side, Side::Client);
    }
}
