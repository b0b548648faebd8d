//! Decisions in the kernel, by `BPF_PROG_TEST_RUN`.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use aya::maps::lpm_trie::Key;
use smc_agent::policy::{Limits, PolicyTable, Prefix, compile, load};
use smc_agent_common::{Address, Flow, Role};

use crate::{
    list,
    probe::{Probe, Sizes},
    report::{Report, median},
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Prefixes of the large lists.
    pub(crate) prefixes: usize,
    /// Times that each program runs.
    pub(crate) rounds: usize,
    /// Flows of which each round takes every one.
    pub(crate) uniform: u32,
}

/// Peers that are looked up again and again.
const HOT: u32 = 4096;

fn flow(peer: IpAddr) -> Flow {
    let local = match peer {
        IpAddr::V4(_) => Address::v4(0x0a00_0001),
        IpAddr::V6(_) => Address::v6([0x2001_0db8, 0, 0, 1]),
    };
    Flow { peer: Address::from(peer), local, port: 443, role: Role::Client }
}

/// How runs follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Each waits for the one before: how long one takes, as it does in a handshake.
    OneByOne,
    /// As many at a time as the processor likes.
    Together,
}

/// What some programs cost in nanoseconds, without what reading a flow costs: medians of rounds in turn.
fn cost(probe: &mut Probe, programs: &[&str], pace: Pace, repeat: u32, rounds: usize) -> Result<Vec<f64>> {
    probe.start_over(pace == Pace::OneByOne)?;
    let mut samples = vec![Vec::new(); programs.len()];
    for _ in 0..rounds {
        let keys = probe.run("probe_keys", repeat)?.as_nanos() as f64;
        for (program, samples) in programs.iter().zip(&mut samples) {
            samples.push(probe.run(program, repeat)?.as_nanos() as f64 - keys);
        }
    }
    Ok(samples.into_iter().map(|samples| median(samples).max(0.0)).collect())
}

fn table_of(path: PathBuf) -> Result<PolicyTable> {
    let limits = Limits { table_memory: usize::MAX, ..Limits::default() };
    let loaded = load(&[path], &limits)?;
    Ok(compile(&loaded.policy, 1, &limits)?)
}

/// One policy of one set, whose list is at `folder/list.txt`.
pub(crate) fn set_policy(folder: &Path, prefixes: &[Prefix]) -> Result<PathBuf> {
    list::write(&folder.join("list.txt"), prefixes)?;
    let path = folder.join("policy.yaml");
    let text = "version: 1\ndefault: allow\nsets: {list: {file: list.txt}}\nrules: [{name: r, action: deny, peer: '@list'}]\n";
    std::fs::write(&path, text)?;
    Ok(path)
}

fn fill_trie(probe: &mut Probe, prefixes: &[Prefix], v6: bool) -> Result<()> {
    if v6 {
        let mut trie = probe.trie::<[u8; 16]>("TRIE_V6")?;
        for prefix in prefixes {
            if let Prefix::V6(bits, length) = *prefix {
                trie.insert(&Key::new(length.into(), bits.to_be_bytes()), 1, 0)?;
            }
        }
    } else {
        let mut trie = probe.trie::<[u8; 4]>("TRIE_V4")?;
        for prefix in prefixes {
            if let Prefix::V4(bits, length) = *prefix {
                trie.insert(&Key::new(length.into(), bits.to_be_bytes()), 1, 0)?;
            }
        }
    }
    Ok(())
}

/// A large list of one family.
pub(crate) fn large(report: &mut Report, effort: Effort, v6: bool) -> Result<()> {
    let (family, lpm) = if v6 { ("IPv6", "probe_lpm_v6") } else { ("IPv4", "probe_lpm_v4") };
    let (hot_target, load_target) = if v6 { (180.0, 3.5) } else { (120.0, 2.5) };
    let folder = tempfile::tempdir()?;
    let prefixes = list::list(effort.prefixes, v6);
    let peers = list::peers(&prefixes, effort.uniform as usize);
    let mut table = table_of(set_policy(folder.path(), &prefixes)?)?;
    let loads = u32::try_from(table.memory() / 8)?;
    let name = |what: &str| format!("{family}, {} prefixes: {what}", effort.prefixes);
    let memory = table.memory() as f64 / 1e6;
    report.at_most(&name("table memory"), memory, "MB", if v6 { None } else { Some(24.0) });

    let mut probe = Probe::load(Sizes { flows: HOT, loads: 1, trie: 1 }, false)?;
    probe.maps()?.install(&mut table)?;
    probe.set_flows(&peers.iter().take(HOT as usize).map(|peer| flow(*peer)).collect::<Vec<_>>())?;
    // More runs than flows: the flows are to be in the cache, as the parts of the table that they need are.
    let hot = cost(&mut probe, &["probe_decide", "probe_peer"], Pace::OneByOne, 1 << 20, effort.rounds)?;
    report.at_most(&name("whole decision, 4,096 hot peers"), hot[0], "ns", Some(hot_target));
    report.figure(&name("peer alone, 4,096 hot peers"), hot[1], "ns");
    drop(probe);

    let mut probe =
        Probe::load(Sizes { flows: effort.uniform, loads, trie: u32::try_from(effort.prefixes)? }, false)?;
    probe.maps()?.install(&mut table)?;
    probe.set_flows(&peers.into_iter().map(flow).collect::<Vec<_>>())?;
    fill_trie(&mut probe, &prefixes, v6).context("fill the kernel's trie")?;
    let programs = ["probe_decide", "probe_peer", "probe_load", lpm];
    for (pace, how) in [(Pace::OneByOne, "one by one"), (Pace::Together, "together")] {
        let costs = cost(&mut probe, &programs, pace, effort.uniform, effort.rounds)?;
        let [decide, peer, load, trie] = costs[..] else { anyhow::bail!("four programs were measured") };
        let name = |what: &str| name(&format!("uniform, {how}: {what}"));
        let target = |of: Pace, target: f64| (of == pace).then_some(target);
        report.figure(&name("one random 8-byte load"), load, "ns");
        report.figure(&name("whole decision"), decide, "ns");
        let in_loads = decide / load;
        report.at_most(
            &name("whole decision in random loads"),
            in_loads,
            "x",
            target(Pace::OneByOne, load_target),
        );
        report.figure(&name("peer alone"), peer, "ns");
        report.figure(&name("LPM_TRIE"), trie, "ns");
        report.at_least(
            &name("peer alone faster than LPM_TRIE"),
            trie / peer,
            "x",
            target(Pace::Together, 8.0),
        );
    }
    Ok(())
}

/// 4,096 rules such that each dimension of a flow satisfies rules of every word, and no rule is satisfied.
fn mixed_rules() -> String {
    use std::fmt::Write as _;
    let mut text = "version: 1\ndefault: allow\nrules:\n".to_owned();
    for number in 0..4096 {
        let (high, low) = (number / 256, number % 256);
        let asks = match number % 4 {
            0 => "peer: 10.0.0.0/8, port: 1".to_owned(),
            1 => format!("peer: [198.{high}.{low}.0/24, '2001:db8:{number:x}::/48'], port: 443"),
            2 => "peer: 10.0.0.0/8, local: 10.0.0.1, port: [2, 1000-2000], role: client".to_owned(),
            _ => format!("local: 172.{high}.{low}.1, port: 400-500"),
        };
        let _ = writeln!(text, "  - {{name: r{number}, action: deny, {asks}}}");
    }
    text
}

/// Small tables: no rules, and as many as there can be.
pub(crate) fn rules(report: &mut Report, effort: Effort) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let cases = [
        ("empty policy", "version: 1\ndefault: allow\nrules: []\n".to_owned(), 40.0),
        ("4,096 mixed rules, worst case", mixed_rules(), 350.0),
    ];
    for (name, text, target) in cases {
        let path = folder.path().join("p.yaml");
        std::fs::write(&path, text)?;
        let mut table = table_of(path)?;
        let mut probe = Probe::load(Sizes { flows: HOT, loads: 1, trie: 1 }, false)?;
        probe.maps()?.install(&mut table)?;
        let peers = (0..HOT).map(|number| flow(IpAddr::V4((0x0a00_0000 + number * 4099).into())));
        probe.set_flows(&peers.collect::<Vec<_>>())?;
        let costs = cost(&mut probe, &["probe_decide"], Pace::OneByOne, 1 << 20, effort.rounds)?;
        report.at_most(&format!("whole decision, {name}"), costs[0], "ns", Some(target));
        if let Some(count) = probe.verified_instructions("probe_decide")? {
            report.figure("instructions followed by the verifier, decision alone", f64::from(count), "");
        }
    }
    Ok(())
}
