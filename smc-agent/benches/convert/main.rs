//! What conversion costs a process that no rule is about, by the kernel's own statistics of run time: the program is run for
//! this process without being attached, so that any kernel will do.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result, ensure};
use smc_agent::{
    convert::{
        resolve::Host,
        table::{Entry, compile, present_groups},
    },
    kernel::{
        btf::Btf,
        convert::{ConvertMaps, Probe},
    },
    policy::Selectors,
};

const AF_UNIX: i32 = 1;
const AF_INET: i32 = 2;
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

fn main() -> ExitCode {
    // cargo gives arguments of its own; `-o json` makes lines for programs.
    let arguments: Vec<String> = std::env::args().collect();
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    match measure(if has("--quick") { 2_000 } else { 200_000 }, has("json")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench convert: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A cgroup at the level that services have, which this process is in meanwhile: what rules name is looked up there.
struct Group {
    root: PathBuf,
}

impl Group {
    fn enter(root: &Path) -> Result<Self> {
        let group = Self { root: root.to_owned() };
        fs::create_dir_all(group.folder()).context("make a cgroup")?;
        fs::write(group.folder().join("cgroup.procs"), "0")?;
        Ok(group)
    }

    fn folder(&self) -> PathBuf {
        self.root.join("smc-agent-bench/inner")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty, and of no harm, if they stay.
        let _ = fs::write(self.root.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(self.folder());
        let _ = fs::remove_dir(self.root.join("smc-agent-bench"));
    }
}

fn rules(count: u32, selectors: impl Fn(u32) -> Selectors) -> Vec<Entry> {
    (0..count).map(|number| Entry { on: true, selectors: selectors(number), deadline: 0 }).collect()
}

fn cgroup(number: u32) -> Selectors {
    Selectors { cgroup: Some(vec![format!("/system.slice/s{number}.service")]), ..Selectors::default() }
}

fn uid(number: u32) -> Selectors {
    Selectors { uid: Some(vec![70_000 + number]), ..Selectors::default() }
}

/// One of each kind in turn.
fn mixed(number: u32) -> Selectors {
    let none = Selectors::default();
    match number % 6 {
        0 => cgroup(number),
        1 => uid(number),
        2 => Selectors { gid: Some(vec![70_000 + number]), ..none },
        3 => Selectors { comm: Some(vec![format!("program{number}")]), ..none },
        4 => Selectors { exe: Some(vec!["/bin/true".into()]), uid: Some(vec![70_000 + number]), ..none },
        _ => Selectors {
            netns: Some(vec!["/proc/self/ns/net".to_owned()]),
            comm: Some(vec![format!("p{number}")]),
            ..none
        },
    }
}

fn measure(runs: u64, json: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    nix::mount::mount(Some("bpf"), folder.path(), Some("bpf"), nix::mount::MsFlags::empty(), None::<&str>)
        .context("mount a bpf file system (needs root)")?;
    let result = cases(folder.path(), runs, json);
    // It goes with the process otherwise.
    let _ = nix::mount::umount2(folder.path(), nix::mount::MntFlags::MNT_DETACH);
    result
}

fn cases(folder: &Path, runs: u64, json: bool) -> Result<()> {
    let host = Host::new();
    let _group = host.groups().map(Group::enter).transpose()?;
    let probe = Probe::new(folder, &Btf::of_kernel()?)?;
    let mut maps = ConvertMaps::open(folder)?;
    // What the statistics themselves take is in all figures, and nearly nothing else in the first.
    report("a socket that is not TCP", time(&probe, AF_UNIX, runs)?, json);
    let cases = [
        ("no rules", Vec::new()),
        ("1 rule by cgroup", rules(1, cgroup)),
        ("10 rules by cgroup", rules(10, cgroup)),
        ("100 rules by cgroup", rules(100, cgroup)),
        ("240 rules by cgroup", rules(240, cgroup)),
        ("100 rules by uid", rules(100, uid)),
        ("100 rules of all kinds", rules(100, mixed)),
    ];
    for (what, entries) in cases {
        let mut compiled = compile(&entries, false, None, &host)?;
        let groups = compiled.clone();
        maps.install(&mut compiled, || Ok(present_groups(&groups, &host)))?;
        report(what, time(&probe, AF_INET, runs)?, json);
    }
    Ok(())
}

/// The least of some rounds, in nanoseconds for each run.
fn time(probe: &Probe, family: i32, runs: u64) -> Result<f64> {
    const ROUNDS: usize = 7;
    let mut best = f64::INFINITY;
    fs::write(STATISTICS, "1").with_context(|| format!("write {STATISTICS}"))?;
    for _ in 0..ROUNDS {
        let (count, before) = probe.statistics()?;
        for _ in 0..runs {
            ensure!(probe.ask(family, 1, 0)? == 0, "a process that no rule is about was converted");
        }
        let (now, after) = probe.statistics()?;
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
        let each = (after - before) as f64 / (now - count) as f64;
        best = best.min(each);
    }
    fs::write(STATISTICS, "0")?;
    Ok(best)
}

fn report(what: &str, nanoseconds: f64, json: bool) {
    if json {
        println!("{{\"what\":\"{what}\",\"nanoseconds\":{nanoseconds:.1}}}");
    } else {
        println!("{what:24} {nanoseconds:6.1} ns");
    }
}
