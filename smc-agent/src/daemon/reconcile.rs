//! The stream of events against the kernel's own count of fallbacks.

use tracing::debug;

use crate::{netlink::smc::Smc, trace::FallbackCounts};

/// The kernel's count when the agent started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reconciliation {
    before: u64,
}

impl Reconciliation {
    /// Notes the kernel's count; `None` if it has none. To be called before events are asked for, so that none is told
    /// twice. Asked without SMC there, the kernel would load it: to answer.
    pub(super) fn start(smc_is_there: bool) -> Option<Self> {
        if smc_is_there { total().map(|before| Self { before }) } else { None }
    }

    /// How the stream compares, which had `shown` fallbacks of this namespace and has `pending` events still to read.
    pub(super) fn counts(self, shown: u64, pending: u64) -> Option<FallbackCounts> {
        let total = total()?;
        // The module was loaded anew: it counts from 0 again.
        let before_start = if total < self.before { 0 } else { self.before };
        let since_start = total - before_start;
        Some(FallbackCounts {
            before_start,
            since_start,
            shown,
            not_shown: since_start.saturating_sub(shown + pending),
        })
    }
}

/// All fallbacks of this network namespace since SMC was loaded.
fn total() -> Option<u64> {
    let stats = Smc::open().and_then(|mut smc| smc.fallback_stats());
    match stats {
        Ok(stats) => Some(stats.server_total + stats.client_total),
        Err(error) => {
            debug!("the kernel's count of fallbacks: {error}");
            None
        }
    }
}
