//! The kernel's own count of fallbacks, by reason.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

// The attributes of the enumeration that begins with SMC_NLA_FBACK_STATS_PAD.
const TYPE: u16 = 1;
const SERVER_COUNT: u16 = 2;
const CLIENT_COUNT: u16 = 3;
const REASON_CODE: u16 = 4;
const REASON_COUNT: u16 = 5;

/// Which end of a connection this host was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The end that accepted.
    Server,
    /// The end that connected.
    Client,
}

/// How often one end fell back for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallbackCount {
    /// Which end.
    pub side: Side,
    /// The reason (`SMC_CLC_DECL_*`, `net/smc/smc_clc.h`).
    pub code: u32,
    /// How often; the kernel's counter has 16 bits and wraps.
    pub count: u16,
}

/// The answer to `SMC_NETLINK_GET_FBACK_STATS`. The kernel keeps 30 (newer: 36) codes per side and drops others silently,
/// so the totals may exceed the sum of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FallbackStats {
    /// All fallbacks of accepted connections.
    pub server_total: u64,
    /// All fallbacks of connections made.
    pub client_total: u64,
    /// By reason.
    pub reasons: Vec<FallbackCount>,
}

/// One entry of the dump: only the first has the totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    is_server: bool,
    server_total: Option<u64>,
    client_total: Option<u64>,
    code: Option<u32>,
    count: u16,
}

impl Entry {
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut entry = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                TYPE => entry.is_server = attribute.u8()? != 0,
                SERVER_COUNT => entry.server_total = Some(attribute.uint()?),
                CLIENT_COUNT => entry.client_total = Some(attribute.uint()?),
                REASON_CODE => entry.code = Some(attribute.u32()?),
                REASON_COUNT => entry.count = attribute.u16()?,
                _ => {}
            }
        }
        Ok(entry)
    }
}

impl FromIterator<Entry> for FallbackStats {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut stats = Self::default();
        for entry in entries {
            stats.server_total = entry.server_total.unwrap_or(stats.server_total);
            stats.client_total = entry.client_total.unwrap_or(stats.client_total);
            if let Some(code) = entry.code {
                let side = if entry.is_server { Side::Server } else { Side::Client };
                stats.reasons.push(FallbackCount { side, code, count: entry.count });
            }
        }
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::Request;

    #[test]
    fn entries_make_statistics() {
        let first = Request::new(0, "test")
            .attribute(TYPE, &[1])
            .attribute(SERVER_COUNT, &7_u64.to_ne_bytes())
            .attribute(CLIENT_COUNT, &3_u64.to_ne_bytes())
            .attribute(REASON_CODE, &0x0301_0000_u32.to_ne_bytes())
            .attribute(REASON_COUNT, &5_u16.to_ne_bytes());
        let second = Request::new(0, "test")
            .attribute(TYPE, &[0])
            .attribute(77, &[])
            .attribute(REASON_CODE, &0x0303_0000_u32.to_ne_bytes())
            .attribute(REASON_COUNT, &3_u16.to_ne_bytes());
        let parse =
            |request: &Request| Entry::parse(Attributes::new(&request.encode(0, 0).unwrap()[16..])).unwrap();
        let stats: FallbackStats = [parse(&first), parse(&second)].into_iter().collect();
        assert_eq!((stats.server_total, stats.client_total), (7, 3));
        assert_eq!(
            stats.reasons,
            [
                FallbackCount { side: Side::Server, code: 0x0301_0000, count: 5 },
                FallbackCount { side: Side::Client, code: 0x0303_0000, count: 3 },
            ]
        );
    }

    #[test]
    fn a_number_of_another_width_is_malformed() {
        let bytes = Request::new(0, "test").attribute(REASON_CODE, &[1, 2]).encode(0, 0).unwrap();
        assert!(Entry::parse(Attributes::new(&bytes[16..])).is_err());
        assert_eq!([Entry::default()].into_iter().collect::<FallbackStats>(), FallbackStats::default());
    }
}
