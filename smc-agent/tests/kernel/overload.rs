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
                    && stats.pending == 0;
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

pub(crate) fn test() -> Result<()> {
    let (told, stats) = told_and_counted(0)?;
    ensure!(told.lost > 0 && told.suppressed == 0, "nothing was lost: {told:?}");
    ensure!(stats.produced == told.fallbacks + told.lost, "{told:?} {stats:?}");
    eprintln!("of {EVENTS} events {} were read and {} counted as lost", told.fallbacks, told.lost);

    let (told, stats) = told_and_counted(50)?;
    ensure!(told.suppressed > 0, "nothing was held back: {told:?}");
    ensure!(stats.produced == told.fallbacks + told.lost + told.suppressed, "{told:?} {stats:?}");
    eprintln!("of {EVENTS} events {} were read and {} held back", told.fallbacks, told.suppressed);
    Ok(())
}
