//! `smc-agent monitor …`: rates, connections and memory, again and again, as `smc_monitor_ex` shows them.

mod lines;

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::show::emit_line;
use super::{Failure, print};
use crate::show::{InNamespace, Meter, Report, Sample, Scope, ShowError, VERSION, netns};

#[derive(Debug, Args)]
pub(super) struct MonitorArguments {
    /// What to show
    #[arg(value_enum)]
    what: What,
    /// How long an interval is, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = super::show::parse_seconds)]
    interval: Duration,
    /// Stop after so many intervals
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Only SMC-R
    #[arg(short = 'R', long)]
    smcr: bool,
    /// Only SMC-D
    #[arg(short = 'D', long)]
    smcd: bool,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    output: Form,
    /// Look into this network namespace: a name, a path, or `all`
    #[arg(long, value_name = "NAME|all")]
    netns: Option<String>,
    /// Exact numbers instead of rounded ones
    #[arg(short, long)]
    raw: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// How fast data moves
    Speed,
    /// How many connections there are, and how many fell back to TCP
    Connections,
    /// How much memory buffers take
    Memory,
    /// All of these
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Text,
    /// For programs: a line for each interval
    Json,
    /// For spreadsheets
    Csv,
}

pub(super) fn monitor(arguments: &MonitorArguments) -> Result<ExitCode, Failure> {
    let scope = arguments.netns.as_deref().map_or(Scope::Current, Scope::from);
    let meters = Meters { scope, count: arguments.counts_connections(), by_inode: Mutex::default() };
    let mut writer = lines::Writer::new(arguments);
    meters.look()?;
    let mut due = Instant::now();
    let mut shown = 0;
    while arguments.count.is_none_or(|count| shown < count) {
        due += arguments.interval;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let report = meters.look()?;
        match arguments.output {
            Form::Json => emit_line(&report)?,
            Form::Text | Form::Csv => {
                let text = writer.write(&report);
                print(format_args!("{text}"))?;
            }
        }
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}

impl MonitorArguments {
    /// Programs get everything, whatever people asked to see.
    fn counts_connections(&self) -> bool {
        self.output == Form::Json || matches!(self.what, What::Connections | What::All)
    }
}

/// The meters of all network namespaces that are looked into.
struct Meters {
    scope: Scope,
    count: bool,
    by_inode: Mutex<HashMap<u64, Meter>>,
}

impl Meters {
    /// Looks into each namespace; one that is new gives its first sample the next time.
    fn look(&self) -> Result<Report<Sample>, ShowError> {
        let samples = netns::visit(&self.scope, || {
            let inode = netns::own()?.inode;
            let mut meters = self.by_inode.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(meter) = meters.get_mut(&inode) {
                return meter.sample().map(Some);
            }
            meters.insert(inode, Meter::begin(self.count)?);
            Ok(None)
        })?;
        let mut meters = self.by_inode.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel gives the inode of a namespace that is gone to others.
        meters.retain(|inode, _| samples.iter().any(|(namespace, _)| namespace.inode == *inode));
        let namespaces = samples
            .into_iter()
            .filter_map(|(netns, sample)| sample.map(|found| InNamespace { netns, found }))
            .collect();
        Ok(Report { version: VERSION, namespaces })
    }
}
