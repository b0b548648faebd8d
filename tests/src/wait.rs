//! Waiting for something with a bound: no fixed sleeps, no endless loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The shortest and the longest pause between two looks at a condition.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Looks at a condition until it yields a value; an error once `within` has passed.
///
/// ```
/// # use std::time::Duration;
/// let answer = smc_agent_tests::wait::wait_until("an answer", Duration::from_secs(1), || Ok(Some(42)))?;
/// assert_eq!(answer, 42);
/// # anyhow::Ok(())
/// ```
pub fn wait_until<T>(
    what: &str,
    within: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let limit = Limit::new(within);
    let mut pause = PAUSES.0;
    loop {
        if let Some(value) = condition().with_context(|| format!("waiting for {what}"))? {
            return Ok(value);
        }
        if limit.remaining().is_err() {
            bail!("{what}: not so within {within:?}");
        }
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// A moment after which a group of threads gives up, or earlier when one of them says so.
#[derive(Clone, Debug)]
pub struct Limit {
    end: Instant,
    cancelled: Arc<AtomicBool>,
}

impl Limit {
    /// A limit `within` from now.
    pub fn new(within: Duration) -> Self {
        Self { end: Instant::now() + within, cancelled: Arc::default() }
    }

    /// Makes all who share this limit give up.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// The time that is left; an error when it has passed or was cancelled.
    pub fn remaining(&self) -> Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if self.cancelled.load(Ordering::Relaxed) {
            bail!("given up because the other end failed");
        }
        if left.is_zero() {
            bail!("the time for it has passed");
        }
        Ok(left)
    }

    /// How long to wait before the next look: at most 50 ms, so that a cancellation is noticed.
    pub fn slice(&self) -> Result<Duration> {
        Ok(self.remaining()?.min(PAUSES.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_never_holds_ends_with_an_error_that_names_it() {
        let error =
            wait_until::<()>("godot", Duration::from_millis(20), || Ok(None)).unwrap_err().to_string();
        assert!(error.starts_with("godot: not so within"), "{error}");
    }

    #[test]
    fn cancelling_ends_all_who_share_the_limit() {
        let limit = Limit::new(Duration::from_mins(1));
        let other = limit.clone();
        assert!(limit.slice().unwrap() <= PAUSES.1);
        other.cancel();
        assert!(limit.remaining().is_err());
    }
}
