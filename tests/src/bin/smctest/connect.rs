//! `smctest connect`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::json;
use smc_agent_tests::pair::{Report, Stream, client};
use smc_agent_tests::wait::Limit;

use crate::arguments::{Arguments, Usage};
use crate::report;

/// What became of all connections.
#[derive(Debug, Default)]
struct Total {
    intact: u64,
    failed: u64,
    modes: BTreeMap<String, u64>,
    times: Vec<Duration>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.port == 0 {
        return Err(Usage("connect needs --port".to_owned()).into());
    }
    let (begun, total) = (AtomicU64::new(0), Mutex::new(Total::default()));
    thread::scope(|scope| {
        for _ in 0..arguments.parallel.clamp(1, arguments.count.max(1)) {
            scope.spawn(|| {
                while begun.fetch_add(1, Ordering::Relaxed) < arguments.count {
                    let outcome = once(arguments);
                    total.lock().unwrap_or_else(PoisonError::into_inner).add(outcome, arguments.json);
                }
            });
        }
    });
    let mut total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    if arguments.count > 1 {
        total.print(arguments.json);
    }
    Ok(total.intact == arguments.count)
}

fn once(arguments: &Arguments) -> Result<(Report, Duration)> {
    let limit = Limit::new(arguments.timeout);
    let (stream, connect) =
        Stream::connect(arguments.kind, arguments.address(), &arguments.connecting, &limit)?;
    Ok((client(&stream, arguments.bytes, &limit)?, connect))
}

impl Total {
    fn add(&mut self, outcome: Result<(Report, Duration)>, as_json: bool) {
        match outcome {
            Ok((report, connect)) => {
                report::print("client", &report, Some(connect), as_json);
                self.intact += u64::from(report.problem.is_none());
                *self.modes.entry(report.end.mode.to_string()).or_default() += 1;
                self.times.push(connect);
            }
            Err(error) => {
                eprintln!("smctest: {error:#}");
                self.failed += 1;
            }
        }
    }

    fn print(&mut self, as_json: bool) {
        self.times.sort_unstable();
        let at = |place: usize| self.times.get(place).copied().unwrap_or_default();
        let (least, middle, most) = (at(0), at(self.times.len() / 2), at(self.times.len().saturating_sub(1)));
        let (intact, failed, modes) = (self.intact, self.failed, &self.modes);
        if as_json {
            let times = [least, middle, most].map(report::microseconds);
            let object = json!({"total": {
                "connected": self.times.len(), "intact": intact, "failed": failed, "modes": modes,
                "connect_us": {"min": times[0], "median": times[1], "max": times[2]},
            }});
            println!("{object}");
        } else {
            let modes: Vec<_> = modes.iter().map(|(mode, count)| format!("{mode} {count}")).collect();
            println!(
                "total: {} connected, {intact} intact, {failed} failed; {}; connect min {}us median {}us max {}us",
                self.times.len(),
                modes.join(", "),
                least.as_micros(),
                middle.as_micros(),
                most.as_micros()
            );
        }
    }
}
