//! What the stream of events can carry: `cargo xtask bench events`. Events are made in the kernel by `BPF_PROG_TEST_RUN`, as the
//! hooks make them, on one thread, and read by the product's own reader on another.

#![expect(clippy::cast_precision_loss, reason = "figures are rounded")]

#[path = "../../tests/probe/mod.rs"]
#[expect(dead_code, reason = "what only the tests use")]
mod probe;
#[path = "../policy/report.rs"]
mod report;

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use smc_agent::{
    tail::filter::{CodeFilter, Condition, Filter, Term},
    trace::{Event, EventStats, History, NoNames},
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

    let filter =
        Filter::new(vec![Term { not: false, condition: Condition::Code(CodeFilter::parse("PEERNOSMC")?) }]);
    let best = highest(time, || |event: Event| Ok(usize::from(filter.passes(&event))))?;
    report.at_least("events a second, counted and filtered, none lost", best, "", Some(1e6));
    let folder = tempfile::tempdir()?;
    let best = highest(time, || {
        let file = File::create(folder.path().join("events.json"));
        let mut file = file.map(BufWriter::new);
        move |event: Event| {
            let file = file.as_mut().map_err(|error| anyhow!("create a file: {error}"))?;
            serde_json::to_writer(&mut *file, &event)?;
            Ok(file.write(b"\n")?)
        }
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
    report.at_most("wake-ups while nothing happens, in a second", idle(time)?, "", Some(0.0));
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

/// The highest of [`RATES`] of which `use_it` gets every event; 0 if it is none.
fn highest<U: FnMut(Event) -> Result<usize>>(time: Duration, make_use: impl Fn() -> U) -> Result<f64> {
    let mut best = 0.0;
    for rate in RATES {
        let stats = at_rate(rate, time, make_use())?;
        if stats.lost > 0 {
            break;
        }
        best = f64::from(rate);
    }
    Ok(best)
}

/// Makes events at a rate for a while; what became of them.
fn at_rate(rate: u32, time: Duration, mut use_it: impl FnMut(Event) -> Result<usize>) -> Result<EventStats> {
    let (mut probe, runtime) = ready()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let made = AtomicBool::new(false);
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<f64> {
            let start = Instant::now();
            let mut count = 0;
            while start.elapsed() < time {
                let due = Duration::from_secs_f64(f64::from(count) / f64::from(rate));
                // Within microseconds: a thread that sleeps wakes up too late for that.
                while start.elapsed() < due {
                    std::hint::spin_loop();
                }
                probe.run("probe_event", BATCH)?;
                count += BATCH;
            }
            let reached = f64::from(count) / start.elapsed().as_secs_f64();
            made.store(true, Ordering::Release);
            Ok(reached)
        });
        let mut names = NoNames;
        let stats = runtime.block_on(async {
            let (mut failed, mut used) = (None, 0_usize);
            loop {
                let next = source.next(&mut names, |event| match use_it(event) {
                    Ok(count) => used += count,
                    Err(error) => failed = Some(error),
                });
                if let Ok(result) = tokio::time::timeout(Duration::from_millis(20), next).await {
                    result?;
                }
                if let Some(error) = failed {
                    return Err(error);
                }
                let stats = source.stats()?;
                if made.load(Ordering::Acquire) && stats.pending == 0 {
                    std::hint::black_box(used);
                    return Ok(stats);
                }
            }
        })?;
        let reached =
            producer.join().map_err(|_| anyhow!("the producer panicked"))?.context("make events")?;
        // A producer that cannot keep the rate shows nothing of the reader.
        ensure!(reached > f64::from(rate) * 0.9, "only {reached:.0} events a second were made, of {rate}");
        eprintln!("{rate} a second: {} read, {} lost", stats.received, stats.lost);
        Ok(stats)
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

/// How often the reader's thread wakes up in a second without events.
fn idle(time: Duration) -> Result<f64> {
    let (mut probe, runtime) = ready()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let switches = || -> Result<f64> {
        let status = std::fs::read_to_string("/proc/thread-self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        Ok(line.context("no count of switches")?.trim().parse()?)
    };
    let before = switches()?;
    runtime.block_on(async {
        let mut names = NoNames;
        let next = source.next(&mut names, |_| {});
        tokio::time::timeout(time, next).await.map_or(Ok(()), |_| Err(anyhow!("an event came of nothing")))
    })?;
    // One that it went to sleep by, and one that ended the time.
    Ok((switches()? - before - 2.0).max(0.0) / time.as_secs_f64())
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
