//! The statistics of a network namespace, whole or since a mark.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{Result, ShowError};
use super::monitor::growth;
use crate::netlink::smc::{Smc, Statistics};

/// How many connections fell back to TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FallbackTotals {
    /// Of those accepted.
    pub server: u64,
    /// Of those made.
    pub client: u64,
}

/// The statistics of a network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// Where counting begins: the time of the mark; `null` counts from the creation of the network namespace.
    pub since: Option<String>,
    /// Whether counters were smaller than at the mark: SMC was unloaded meanwhile, and they count from there.
    pub reset: bool,
    /// What SMC counts.
    pub statistics: Statistics,
    /// How many connections fell back to TCP, in either mode.
    pub fallbacks: FallbackTotals,
}

impl Stats {
    /// Reads them.
    pub fn read() -> Result<Self> {
        Self::read_from(&mut Smc::open()?)
    }

    /// Reads them over an open connection.
    pub(super) fn read_from(smc: &mut Smc) -> Result<Self> {
        let statistics = smc.statistics()?;
        let statistics =
            statistics.ok_or_else(|| ShowError::Missing("the kernel sent no statistics".to_owned()))?;
        let totals = smc.fallback_stats()?;
        let fallbacks = FallbackTotals { server: totals.server_total, client: totals.client_total };
        Ok(Self { since: None, reset: false, statistics, fallbacks })
    }

    /// What was counted after `earlier`. Where counters went back to 0 meanwhile, all of `self` is.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut newer = self.clone();
        let mut older = earlier.statistics;
        let mut older = older.counters_mut();
        let mut reset = false;
        let mut subtract = |now: &mut u64, before: u64| match growth(before, *now) {
            Some(growth) => *now = growth,
            None => reset = true,
        };
        for now in newer.statistics.counters_mut() {
            subtract(now, older.next().map_or(0, |before| *before));
        }
        subtract(&mut newer.fallbacks.server, earlier.fallbacks.server);
        subtract(&mut newer.fallbacks.client, earlier.fallbacks.client);
        if reset { Self { reset, ..self.clone() } } else { newer }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(bytes: u64, fallbacks: u64) -> Stats {
        let mut statistics = Statistics::default();
        statistics.smcd.tx.bytes = bytes;
        statistics.smcd.tx.buffer_usage = Some(bytes / 2);
        Stats {
            since: None,
            reset: false,
            statistics,
            fallbacks: FallbackTotals { server: fallbacks, client: 0 },
        }
    }

    #[test]
    fn counters_are_subtracted_and_usages_kept() {
        let since = stats(100, 7).since(&stats(40, 5));
        assert_eq!(since.statistics.smcd.tx.bytes, 60);
        assert_eq!(since.statistics.smcd.tx.buffer_usage, Some(50));
        assert_eq!((since.fallbacks.server, since.reset), (2, false));
    }

    #[test]
    fn a_wrap_goes_on_and_a_reset_begins_anew() {
        let since = stats(5, 7).since(&stats(u64::MAX - 4, 7));
        assert_eq!((since.statistics.smcd.tx.bytes, since.reset), (10, false));
        let since = stats(100, 1).since(&stats(40, 5));
        assert_eq!((since.statistics.smcd.tx.bytes, since.fallbacks.server, since.reset), (100, 1, true));
    }
}
