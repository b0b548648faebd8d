//! Policies that take each other's place while decisions are made.

use std::{
    collections::HashSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use smc_agent::policy::{Limits, compile, load_text};
use smc_agent_common::{Address, Flow, Role, Verdict};

use crate::probe::{Decided, Probe, Sizes};

const FLOWS: u32 = 512;
/// How often the policy changes: each change waits for the kernel; `SMC_AGENT_FLIPS=2000` runs long.
const FLIPS: u64 = 300;

/// Up to this generation, the kernel waits for grace periods as it does in life.
const UNHURRIED: u64 = 50;

/// Odd generations: rule 0 allows what the default of the others denies, and the other way round.
const ODD: &str = "version: 1\ndefault: allow\nrules:\n  - {name: a, action: deny, peer: [10.0.0.0/8]}\n";
const EVEN: &str = "version: 1\ndefault: deny\nrules:\n  - {name: none, action: deny, peer: 203.0.113.1}\n  \
    - {name: b, action: allow, peer: [10.0.0.0/9, 10.128.0.0/9]}\n";

/// What a generation says of a flow to 10.0.0.0/8 (`inside`) or to elsewhere.
fn expected(generation: u32, inside: bool) -> (Verdict, Option<u16>) {
    match (generation % 2, inside) {
        (1, true) => (Verdict::Deny, Some(0)),
        (1, false) => (Verdict::Allow, None),
        (_, true) => (Verdict::Allow, Some(1)),
        (_, false) => (Verdict::Deny, None),
    }
}

fn flow(number: u32) -> Flow {
    let inside = number.is_multiple_of(2);
    let base = if inside { 0x0a00_0000 } else { 0xc000_0200 };
    Flow { peer: Address::v4(base + number), local: Address::v4(0x7f00_0001), port: 443, role: Role::Client }
}

pub(crate) fn test() -> Result<()> {
    let before = maps_of_tables();
    let mut probe = Probe::load(Sizes { flows: FLOWS, loads: 1, trie: 1 }, true)?;
    let flips = std::env::var("SMC_AGENT_FLIPS").ok().map_or(Ok(FLIPS), |flips| flips.parse())?;
    let limits = Limits::default();
    let policies = [EVEN, ODD].map(|text| load_text(Path::new("p.yaml"), text, &limits));
    let [even, odd] = policies;
    let mut tables = [compile(&even?.policy, 0, &limits)?, compile(&odd?.policy, 1, &limits)?];
    let mut maps = probe.maps()?;
    // The first swaps at the kernel's own pace.
    let mut hurry = None;
    maps.install(&mut tables[1])?;
    probe.set_flows(&(0..FLOWS).map(flow).collect::<Vec<_>>())?;

    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let (hammered, slowest) = std::thread::scope(|scope| -> Result<_> {
        let hammer = scope.spawn(|| hammer(&mut probe, &stop));
        let mut flip = || -> Result<Duration> {
            let mut slowest = Duration::ZERO;
            for generation in 2..flips + 2 {
                if generation == UNHURRIED {
                    hurry = Some(Hurry::new());
                }
                let table = &mut tables[usize::from(generation % 2 == 1)];
                table.fixed.header.generation = generation;
                let start = Instant::now();
                maps.install(table)?;
                slowest = slowest.max(start.elapsed());
                if hammer.is_finished() {
                    break;
                }
            }
            Ok(slowest)
        };
        let slowest = flip();
        stop.store(true, Ordering::Relaxed);
        let hammered = hammer.join().map_err(|_| anyhow::anyhow!("the hammering thread panicked"))??;
        Ok((hammered, slowest?))
    })?;
    let took = start.elapsed();
    drop(hurry);
    eprintln!(
        "{flips} policies in {took:.1?} ({:.1?} each, at most {slowest:.1?}) under {} decisions; most generations in \
         one batch of {FLOWS}: {}",
        took / u32::try_from(flips)?,
        hammered.decisions,
        hammered.mixed
    );
    ensure!(hammered.generations.len() > 1, "no decision fell to a second generation");
    memory_is_free(&probe, before)
}

/// What the other thread saw.
#[derive(Default)]
struct Hammered {
    decisions: u64,
    generations: HashSet<u32>,
    mixed: usize,
}

/// Decides without a pause, and looks at each decision.
fn hammer(probe: &mut Probe, stop: &AtomicBool) -> Result<Hammered> {
    let mut seen = Hammered::default();
    let mut last = 0;
    while !stop.load(Ordering::Relaxed) {
        probe.run("probe_decide", FLOWS)?;
        let mut generations = HashSet::new();
        for (number, decided) in (0..FLOWS).zip(probe.results(FLOWS)?) {
            let Decided { verdict, rule, generation, .. } =
                decided.with_context(|| format!("flow {number} was not decided"))?;
            let expected = expected(generation, number.is_multiple_of(2));
            ensure!(
                (verdict, rule) == expected,
                "flow {number}, generation {generation}: {verdict:?} by {rule:?}"
            );
            ensure!(generation >= last, "generation {generation} after {last}");
            last = generation;
            generations.insert(generation);
            seen.decisions += 1;
        }
        seen.mixed = seen.mixed.max(generations.len());
        seen.generations.extend(generations);
    }
    Ok(seen)
}

/// Of all the tables' lines only those in force are left; `before` is how many maps of lines there were without the test's.
fn memory_is_free(probe: &Probe, before: usize) -> Result<()> {
    let inner: Vec<u32> = probe.inner_maps("TABLE_LINES")?.into_iter().flatten().collect();
    ensure!(inner.len() == 1, "lines of {} tables are held", inner.len());
    // The kernel frees a map some time after nothing uses it.
    let patience = Instant::now() + Duration::from_secs(10);
    let mut count = maps_of_tables();
    while count > before + 1 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(50));
        count = maps_of_tables();
    }
    ensure!(count <= before + 1, "{count} maps of tables are left, {before} were there before");
    Ok(())
}

/// Maps of lines on this machine, by their name.
fn maps_of_tables() -> usize {
    let maps = aya::maps::loaded_maps().filter_map(Result::ok);
    maps.filter(|map| matches!(map.name_as_str(), Some("lines"))).count()
}

/// Has the kernel wait for grace periods in a hurry, as long as this lives: thousands of swaps in seconds.
struct Hurry(Option<String>);

impl Hurry {
    const SWITCH: &str = "/sys/kernel/rcu_expedited";

    fn new() -> Self {
        let former = fs::read_to_string(Self::SWITCH).ok();
        Self(former.filter(|_| fs::write(Self::SWITCH, "1").is_ok()))
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some(former) = &self.0 {
            let _ = fs::write(Self::SWITCH, former.trim());
        }
    }
}
