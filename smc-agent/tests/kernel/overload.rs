//! More events than anybody can read: each is shown, or counted as what became of it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use smc_agent::trace::{EventStats, NoNames, event::Kind};
use smc_agent_common::{Address, Flow, Role};

use crate::probe::Probe;

/// How many events are made.
const EVENTS: u64 = 1_000_000;
/// In so many runs of the program.
const RUNS: u32 = 20;
/// Clients that they are of.
const CLIENTS: u32 = 64;
/// Bounds a hang.
const PATIENCE: Duration = Duration::from_mins(1);

/// What the stream told.
#[derive(Debug, Default)]
struct Told {
    fallbacks: u64,
    lost: u64,
    suppressed: u64,
}

fn told_and_counted(event_rate: u32) -> Result<(Told, EventStats)> {
    let mut probe = Probe::load_for_events(CLIENTS, event_rate)?;
    let flow = |client: u32| Flow {
        peer: Address::v4(0x0a00_0100 + client),
        local: Address::v4(0x0a00_0001),
        port: 443,
        role: Role::Server,
    };
    probe.set_flows(&(0..CLIENTS).map(flow).collect::<Vec<_>>())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(event_rate != 0)?
    };
    let made = AtomicBool::new(false);
    thread::scope(|scope| {
        let producer = scope.spawn(|| -> Result<()> {
            let runs =
                (0..RUNS).try_for_each(|_| probe.run("probe_event", u32::try_from(EVENTS)? / RUNS).map(drop));
            made.store(true, Ordering::Release);
            runs
        });
        let (mut told, mut names) = (Told::default(), NoNames);
        let consumer = runtime.block_on(async {
            let give_up = Instant::now() + PATIENCE;
            loop {
                let next = source.next(&mut names, |event| match event.kind {
                    Kind::Fallback { .. } => told.fallbacks += 1,
                    Kind::Lost { count } => told.lost += count,
                    Kind::Suppressed { count, .. } => told.suppressed += count,
                    _ => {}
                });
                // Over time: whether all has been told is to be looked at again.
                if let Ok(result) = tokio::time::timeout(Duration::from_millis(20), next).await {
                    result?;
                }
                let stats = source.stats()?;
                let all = told.fallbacks == stats.received
                    && told.lost == stats.lost
                    && told.suppressed == stats.suppressed
                    && (stats.pending, stats.unaccounted) == (0, 0);
                if made.load(Ordering::Acquire) && all && stats.produced == EVENTS {
                    return Ok(stats);
                }
                ensure!(Instant::now() < give_up, "{told:?} is told of {stats:?}");
            }
        });
        producer.join().map_err(|_| anyhow!("the producer panicked"))?.context("make events")?;
        consumer.map(|stats| (told, stats))
    })
}

/// What of events becomes of them that nobody reads: as many wait as there is room for, by the buffer's own word, and the
/// others are lost.
fn nobody_reads() -> Result<()> {
    /// 16 MiB of records of 192 bytes, each with 8 before it.
    const ROOM: u64 = (16 << 20) / 200;
    let mut probe = Probe::load_for_events(CLIENTS, 0)?;
    let client = Flow {
        peer: Address::v4(0x0a00_0100),
        local: Address::v4(0x0a00_0001),
        port: 443,
        role: Role::Server,
    };
    probe.set_flows(&[client])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut source = {
        let _inside = runtime.enter();
        probe.events(false)?
    };
    let mut made = 0;
    for count in [1000, 99_000] {
        probe.run("probe_event", count)?;
        made += u64::from(count);
        let stats = source.stats()?;
        let pending = made.min(ROOM);
        ensure!((stats.produced, stats.received, stats.pending) == (made, 0, pending), "{stats:?}");
        ensure!((stats.lost, stats.unaccounted) == (made - pending, 0), "{stats:?}");
    }
    let mut read = 0;
    while read < ROOM {
        runtime.block_on(source.next(&mut NoNames, |event| {
            read += u64::from(matches!(event.kind, Kind::Fallback { .. }));
        }))?;
        let stats = source.stats()?;
        ensure!((stats.received, stats.pending) == (read, ROOM - read), "{read} were read: {stats:?}");
        ensure!((stats.produced, stats.lost, stats.unaccounted) == (made, made - ROOM, 0), "{stats:?}");
    }
    Ok(())
}

pub(crate) fn test() -> Result<()> {
    nobody_reads()?;
    let (told, stats) = told_and_counted(0)?;
    ensure!(told.suppressed == 0, "without a limit some were held back: {told:?}");
    ensure!(stats.produced == told.fallbacks + told.lost, "{told:?} {stats:?}");
    eprintln!("of {EVENTS} events {} were read and {} counted as lost", told.fallbacks, told.lost);

    let (told, stats) = told_and_counted(50)?;
    ensure!(told.suppressed > 0, "nothing was held back: {told:?}");
    ensure!(stats.produced == told.fallbacks + told.lost + told.suppressed, "{told:?} {stats:?}");
    eprintln!("of {EVENTS} events {} were read and {} held back", told.fallbacks, told.suppressed);
    Ok(())
}
