//! Rates and numbers over time: what `smc_monitor_ex` shows.

use std::time::Instant;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use super::stats::Stats;
use super::summary::SocketCounts;
use crate::netlink::smc::{Direction, Smc, Technology};

/// A counter that grew by more than this between two looks did not: it began again at 0.
const LARGEST_GROWTH: u64 = 1 << 62;

/// How much a counter of 64 bits grew, also over its end; `None` if it began again at 0.
pub fn growth(before: u64, now: u64) -> Option<u64> {
    let growth = now.wrapping_sub(before);
    (now >= before || growth < LARGEST_GROWTH).then_some(growth)
}

/// How fast data moved in one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Rates {
    /// Bytes received in a second.
    pub rx_bytes: f64,
    /// Requests of applications to receive, in a second.
    pub rx_requests: f64,
    /// Bytes sent in a second.
    pub tx_bytes: f64,
    /// Requests of applications to send, in a second.
    pub tx_requests: f64,
}

/// One mode at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Traffic {
    /// How fast data moved.
    pub rates: Rates,
    /// How many connections became SMC in a second.
    pub new_connections: f64,
    /// Bytes of receive buffers that connections hold; `null` where the kernel does not say (before 6.12).
    pub rx_buffers: Option<u64>,
    /// Bytes of send buffers that connections hold; `null` where the kernel does not say.
    pub tx_buffers: Option<u64>,
}

/// The connections at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Connections {
    /// Those over RDMA.
    pub smcr: usize,
    /// Those over ISM or dibs.
    pub smcd: usize,
    /// Those that fell back to TCP.
    pub fallback: usize,
    /// How many fell back in a second.
    pub new_fallbacks: f64,
    /// How many handshakes failed in a second.
    pub handshake_errors: f64,
}

/// What was seen at the end of an interval.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Sample {
    /// When, in RFC 3339.
    pub time: String,
    /// How long the interval was, in seconds.
    pub seconds: f64,
    /// Whether the kernel's counters began again at 0 in the interval: the rates are then those since.
    pub reset: bool,
    /// SMC over RDMA.
    pub smcr: Traffic,
    /// SMC over ISM or dibs.
    pub smcd: Traffic,
    /// The connections; `null` if they were not asked for.
    pub connections: Option<Connections>,
}

/// Looks at a network namespace again and again. It may be used from any thread: its socket stays in the namespace.
#[derive(Debug)]
pub struct Meter {
    smc: Smc,
    count: bool,
    last: (Instant, Stats),
}

impl Meter {
    /// Takes the first look; `count` asks for connections too.
    pub fn begin(count: bool) -> Result<Self> {
        let mut smc = Smc::open()?;
        let first = Stats::read_from(&mut smc)?;
        Ok(Self { smc, count, last: (Instant::now(), first) })
    }

    /// Takes the next look. The calling thread has to be in the network namespace if connections are counted.
    pub fn sample(&mut self) -> Result<Sample> {
        let stats = Stats::read_from(&mut self.smc)?;
        let now = Instant::now();
        let counts = if self.count { Some(SocketCounts::read()?) } else { None };
        let seconds = now.duration_since(self.last.0).as_secs_f64();
        let sample = sample_of(&stats.since(&self.last.1), seconds, counts);
        self.last = (now, stats);
        Ok(sample)
    }
}

fn sample_of(since: &Stats, seconds: f64, counts: Option<SocketCounts>) -> Sample {
    let per_second = |count: u64| rate(count, seconds);
    let traffic = |technology: &Technology| {
        let Technology { rx, tx, .. } = technology;
        let of = |direction: &Direction| (per_second(direction.bytes), per_second(direction.requests));
        let ((rx_bytes, rx_requests), (tx_bytes, tx_requests)) = (of(rx), of(tx));
        Traffic {
            rates: Rates { rx_bytes, rx_requests, tx_bytes, tx_requests },
            new_connections: per_second(technology.connections()),
            rx_buffers: rx.buffer_usage,
            tx_buffers: tx.buffer_usage,
        }
    };
    let statistics = &since.statistics;
    let errors = statistics.client_handshake_errors.wrapping_add(statistics.server_handshake_errors);
    let connections = counts.map(|counts| Connections {
        smcr: counts.smcr,
        smcd: counts.smcd,
        fallback: counts.fallback,
        new_fallbacks: per_second(since.fallbacks.client.wrapping_add(since.fallbacks.server)),
        handshake_errors: per_second(errors),
    });
    Sample {
        time: Timestamp::now().to_string(),
        seconds,
        reset: since.reset,
        smcr: traffic(&statistics.smcr),
        smcd: traffic(&statistics.smcd),
        connections,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is no exact number; 53 bits are plenty")]
fn rate(count: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::smc::Statistics;

    #[test]
    fn rates_are_per_second() {
        let mut statistics = Statistics::default();
        statistics.smcr.rx.bytes = 3000;
        statistics.smcr.tx.requests = 3;
        let stats = Stats {
            since: None,
            reset: false,
            statistics,
            fallbacks: super::super::FallbackTotals::default(),
        };
        let sample = sample_of(&stats, 1.5, None);
        let rates = sample.smcr.rates;
        assert!((rates.rx_bytes - 2000.0).abs() < 1e-9 && (rates.tx_requests - 2.0).abs() < 1e-9);
        assert!(rate(5, 0.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn growth_is_right_over_the_end(before in any::<u64>(), growth_of in 0_u64..1 << 60) {
            prop_assert_eq!(growth(before, before.wrapping_add(growth_of)), Some(growth_of));
        }

        #[test]
        fn a_counter_that_began_again_is_noticed(before in 1_u64..1 << 60, now in 0_u64..1 << 59) {
            prop_assume!(now < before);
            prop_assert_eq!(growth(before, now), None);
        }
    }
}
