//! What the stream of events can carry: `cargo xtask bench events`. Events are made in the kernel by `BPF_PROG_TEST_RUN`, as the
//! hooks make them, on one thread, and read by the product's own reader on another.

#![expect(clippy::cast_precision_loss, reason = "figures are rounded")]

mod cost;
mod idle;
#[path = "../../tests/probe/mod.rs"]
#[expect(dead_code, reason = "what only the tests use")]
mod probe;
#[path = "../policy/report.rs"]
mod report;
mod uprobe;

use std::{
    cell::Cell,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use smc_agent::{
    tail::filter::{Condition, Filter, Term, parse_network},
    trace::{Event, EventSource, EventStats, EventWriter, Format, History, NoNames},
};
use smc_agent_common::{Address, Flow, Role};

use probe::Probe;
use report::{Arguments, Report, median};

const HELP: &str = "Usage: cargo xtask bench events [--quick] [-o text|json]";
/// Events that are made at a time; the next come when their time has.
const BATCH: u32 = 500;
/// Clients that they are of.
const CLIENTS: u32 = 4096;
/// Events a second that are tried, from low to high.
const RATES: [u32; 7] = [100_000, 200_000, 300_000, 500_000, 1_000_000, 1_500_000, 2_000_000];
/// Times that a rate has to be kept.
const ROUNDS: usize = 5;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench events: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(arguments) = Arguments::read(HELP)? else { return Ok(()) };
    let quick = arguments.quick;
    if let Some(why) = probe::missing() {
        bail!("it {why}");
    }
    let time = Duration::from_millis(if quick { 200 } else { 2000 });
    let mut report = Report::new(quick);
    report.figure("one record", size_of::<smc_agent_common::Event>() as f64, "bytes");

    // One client in 4,096: what the filter refuses is most of it.
    let wanted = Condition::Peer(parse_network("10.0.1.7")?);
    let filter = Filter::new(vec![Term { not: false, condition: wanted }]);
    let rounds = if quick { 1 } else { ROUNDS };
    let best = highest(time, rounds, &|made, source| {
        let passed = Cell::new(0_u64);
        let stats = made.consume(
            source,
            |record| filter.may_pass(record),
            |event| {
                passed.set(passed.get() + u64::from(filter.passes(&event)));
                Ok(())
            },
        )?;
        let least = stats.received / u64::from(CLIENTS);
        ensure!((least..=least + 1).contains(&passed.get()), "{} of {stats:?} passed", passed.get());
        Ok(stats)
    })?;
    report.at_least("events a second, counted and filtered, none lost", best, "", Some(1e6));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("events.json");
    let best = highest(time, rounds, &|made, source| {
        let mut writer = EventWriter::new(File::create(&path)?, Format::Json);
        let stats = made.consume(source, |_| true, |event| Ok(writer.put(&event)?))?;
        writer.flush()?;
        let lines = BufReader::new(File::open(&path)?).split(b'\n').count() as u64;
        ensure!(lines == stats.received, "{lines} lines of {} events", stats.received);
        Ok(stats)
    })?;
    report.at_least("events a second, as JSON to a file, none lost", best, "", Some(3e5));

    let times = latency(if quick { 20 } else { 200 })?;
    report.figure("from the event to its line written, median", median(times.clone()), "ms");
    report.at_most(
        "from the event to its line written, most",
        times.into_iter().fold(0.0, f64::max),
        "ms",
        Some(20.0),
    );
    let time = Duration::from_secs(if quick { 2 } else { 10 });
    let wake_ups = idle::wake_ups(time)?;
    report.at_most("wake-ups of the whole agent while nothing happens, in a second", wake_ups, "", Some(0.0));
    cost::measure(if quick { 200 } else { 5000 }, &mut report)?;
    let (events, bytes) = full_history()?;
    report.figure("events of a full history", events, "");
    report.figure("memory of a full history", bytes / 1e6, "MB");
    arguments.print(&report)
}

fn ready() -> Result<(Probe, tokio::runtime::Runtime)> {
    let mut probe = Probe::load_for_events(CLIENTS, 0)?;
    let flow = |client: u32| Flow {
        peer: Address::v4(0x0a00_0100 + client),
        local: Address::v4(0x0a00_0001),
        port: 443,
        role: Role::Server,
    };
    probe.set_flows(&(0..CLIENTS).map(flow).collect::<Vec<_>>())?;
    Ok((probe, tokio::runtime::Builder::new_current_thread().enable_all().build()?))
}

/// The highest of [`RATES`] of which `consume` got every event in each of `rounds`; 0 if it is none.
fn highest(
    time: Duration,
    rounds: usize,
    consume: &dyn Fn(&Made, &mut EventSource) -> Result<EventStats>,
) -> Result<f64> {
    let mut best = 0.0;
    for rate in RATES {
        for _ in 0..rounds {
            let (stats, reached) = at_rate(rate, time, consume)?;
            eprintln!("{rate} a second: {} read, {} lost", stats.received, stats.lost);
            if stats.lost > 0 {
                return Ok(best);
            }
            // A producer that cannot keep the rate shows nothing of the reader.
            if reached < f64::from(rate) * 0.95 {
                eprintln!("only {reached:.0} events a second could be made: higher rates are not tried");
                return Ok(best);
            }
        }
        best = f64::from(rate);
    }
    Ok(best)
}

/// Where events are read, and whether all have been made.
struct Made {
    runtime: tokio::runtime::Runtime,
    all: AtomicBool,
}

impl Made {
    /// Reads until all events have been made and read; what became of them.
    fn consume(
        &self,
        source: &mut EventSource,
        wanted: impl Fn(&smc_agent_common::Event) -> bool,
        mut use_it: impl FnMut(Event) -> Result<()>,
    ) -> Result<EventStats> {
        self.runtime.block_on(async {
            let (mut failed, mut names) = (None, NoNames);
            loop {
                let all_made = self.all.load(Ordering::Acquire);
                let next = source.next_of(&wanted, &mut names, |event| {
                    if let Err(error) = use_it(event) {
                        failed = Some(error);
                    }
                });
                if let Ok(result) = tokio::time::timeout(Duration::from_millis(20), next).await {
                    result?;
                }
                if let Some(error) = failed.take() {
                    return Err(error);
                }
                if all_made {
                    let stats = source.stats()?;
                    if stats.pending == 0 {
                        ensure!(stats.unaccounted == 0, "the numbers do not add up: {stats:?}");
                        return Ok(stats);
                    }
                }
            }
        })
    }
}

/// Makes events at a rate for a while; what became of them, and how many a second there were.
fn at_rate(
    rate: u32,
    time: Duration,
    consume: &dyn Fn(&Made, &mut EventSource) -> Result<EventStats>,
) -> Result<(EventStats, f64)> {
    let (mut probe, runtime) = ready()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let made = Made { runtime, all: AtomicBool::new(false) };
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<f64> {
            let start = Instant::now();
            let mut count = 0;
            let run = (|| {
                while start.elapsed() < time {
                    let due = Duration::from_secs_f64(f64::from(count) / f64::from(rate));
                    // Within microseconds: a thread that sleeps wakes up too late for that.
                    while start.elapsed() < due {
                        std::hint::spin_loop();
                    }
                    probe.run("probe_event", BATCH)?;
                    count += BATCH;
                }
                Ok(f64::from(count) / start.elapsed().as_secs_f64())
            })();
            made.all.store(true, Ordering::Release);
            run
        });
        let stats = consume(&made, &mut source);
        let reached =
            producer.join().map_err(|_| anyhow!("the producer panicked"))?.context("make events")?;
        Ok((stats?, reached))
    })
}

/// How long single events take until their line is in a file, in milliseconds.
fn latency(count: usize) -> Result<Vec<f64>> {
    let (mut probe, runtime) = ready()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let mut file = tempfile::tempfile()?;
    let mut times = Vec::new();
    for _ in 0..count {
        // A pause that is longer than the reader's own.
        thread::sleep(Duration::from_millis(7));
        let before = Instant::now();
        probe.run("probe_event", 1)?;
        let mut problem = None;
        runtime.block_on(source.next(&mut NoNames, |event| problem = writeln!(file, "{event}").err()))?;
        times.push(before.elapsed().as_secs_f64() * 1e3);
        if let Some(error) = problem {
            return Err(error.into());
        }
    }
    Ok(times)
}

/// Events and bytes of a history that is full.
fn full_history() -> Result<(f64, f64)> {
    let (mut probe, runtime) = ready()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let mut history = History::default();
    while history.size().events < history.size().max_events
        && history.size().bytes < history.size().max_bytes * 9 / 10
    {
        probe.run("probe_event", BATCH)?;
        runtime.block_on(source.next(&mut NoNames, |event| history.keep(event.into())))?;
    }
    Ok((history.size().events as f64, history.size().bytes as f64))
}
