//! Figures, not checks: `cargo test --release -p smc-agent --lib policy::measure -- --ignored --nocapture`.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "random numbers are cut as they are wanted, and figures are rounded"
)]

use super::addresses::{AddressSetBuilder, Prefix};
use super::model::{Action, Addresses, Limits, Mode, Place, Policy, Rule};
use super::{PolicyTable, compile};
use smc_agent_common::{Address, Flow, Role};
use std::sync::Arc;
use std::time::Instant;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn v4(random: &mut Random) -> Prefix {
    let length = match random.below(100) {
        0..2 => 16 + random.below(4),
        2..12 => 20 + random.below(2),
        12..30 => 22 + random.below(2),
        30..80 => 24,
        80..85 => 25 + random.below(6),
        _ => 32,
    };
    let bits = (random.next() as u32) % 0xdfff_ffff + 0x0100_0000;
    Prefix::new(std::net::IpAddr::V4(bits.into()), length as u8)
}

fn v6(random: &mut Random) -> Prefix {
    let length = match random.below(1000) {
        0..4 => 29 + random.below(3),
        4..60 => 32,
        60..200 => 36 + random.below(12),
        200..750 => 48,
        750..850 => 56,
        850..970 => 64,
        _ => 128,
    };
    let registry = [0x2001u128, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00][random.below(6) as usize];
    let bits = (registry << 112) | (u128::from(random.next()) << 52 >> 4) | u128::from(random.next() >> 8);
    Prefix::new(std::net::IpAddr::V6(bits.into()), length as u8)
}

fn policy(prefixes: &[Prefix], rules: usize) -> Policy {
    let mut builders: Vec<AddressSetBuilder> = (0..rules).map(|_| AddressSetBuilder::default()).collect();
    for (number, prefix) in prefixes.iter().enumerate() {
        builders[number % rules].push(*prefix);
    }
    let rules = builders.into_iter().enumerate().map(|(number, builder)| Rule {
        name: format!("r{number}"),
        place: Place { file: "measure".into(), line: 1, column: 1 },
        action: Action::Deny,
        role: None,
        peer: Some(Addresses { sets: vec![Arc::new(builder.finish())] }),
        local: None,
        ports: None,
        log: false,
        mode: Mode::Enforce,
    });
    Policy { default: Action::Allow, rules: rules.collect(), sets: Vec::new(), files: Vec::new() }
}

fn time(table: &PolicyTable, peers: &[std::net::IpAddr]) -> f64 {
    let local = Address::v4(0x0a00_0001);
    let peers: Vec<Address> = peers.iter().map(|peer| Address::from(*peer)).collect();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let start = Instant::now();
        let mut rounds = 0u32;
        let mut sum = 0u64;
        while start.elapsed().as_millis() < 300 {
            for peer in &peers {
                let flow = Flow { peer: *peer, local, port: 443, role: Role::Client };
                sum += u64::from(table.decide(&flow).rule);
            }
            rounds += 1;
        }
        std::hint::black_box(sum);
        best = best.min(start.elapsed().as_nanos() as f64 / (f64::from(rounds) * peers.len() as f64));
    }
    best
}

#[test]
#[ignore = "takes seconds and only prints"]
fn figures() {
    let mut random = Random(0x5eed_5eed);
    for (name, rules, count, is_v4) in [
        ("1M IPv4, 1 rule", 1, 1_000_000, true),
        ("1M IPv6, 1 rule", 1, 1_000_000, false),
        ("1M IPv4, 4096 rules", 4096, 1_000_000, true),
        ("1M IPv6, 4096 rules", 4096, 1_000_000, false),
        ("4M IPv4, 4096 rules", 4096, 4_194_304, true),
    ] {
        let prefixes: Vec<Prefix> =
            (0..count).map(|_| if is_v4 { v4(&mut random) } else { v6(&mut random) }).collect();
        let start = Instant::now();
        let policy = policy(&prefixes, rules);
        let sorted = start.elapsed();
        let limits = Limits { table_memory: usize::MAX, ..Limits::default() };
        let table = match compile(&policy, 1, &limits) {
            Ok(table) => table,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let compiled = start.elapsed().saturating_sub(sorted);
        let mut peers: Vec<std::net::IpAddr> = (0..1 << 20)
            .map(|_| {
                let hit = match prefixes[random.below(prefixes.len() as u64) as usize] {
                    Prefix::V4(bits, length) => {
                        let host = (random.next() as u32).checked_shr(length.into()).unwrap_or(0);
                        std::net::IpAddr::V4((bits | host).into())
                    }
                    Prefix::V6(bits, length) => {
                        let host = (u128::from(random.next()) << 64).checked_shr(length.into()).unwrap_or(0);
                        std::net::IpAddr::V6((bits | host).into())
                    }
                };
                match (hit, random.below(2)) {
                    (hit, 0) => hit,
                    (std::net::IpAddr::V4(_), _) => std::net::IpAddr::V4((random.next() as u32).into()),
                    (std::net::IpAddr::V6(_), _) => {
                        let any = (u128::from(random.next()) << 64) >> 3 | (1 << 125);
                        std::net::IpAddr::V6(any.into())
                    }
                }
            })
            .collect();
        let uniform = time(&table, &peers);
        peers.truncate(4096);
        let hot = time(&table, &peers);
        println!(
            "{name}: sort {sorted:?}, compile {compiled:?}, {} bytes ({} lines), {} sets, decide {uniform:.0} ns uniform, {hot:.0} ns hot",
            table.memory(),
            table.lines.len(),
            table.rule_sets()
        );
    }
}

#[test]
#[ignore = "takes seconds and only prints"]
fn text_to_table() {
    let mut random = Random(0x5eed_5eed);
    let folder = tempfile::tempdir().unwrap();
    let list: Vec<String> = (0..1_000_000).map(|_| v4(&mut random).to_string()).collect();
    std::fs::write(folder.path().join("list.txt"), list.join("\n")).unwrap();
    drop(list);
    let file = folder.path().join("p.yaml");
    let text = "version: 1\ndefault: allow\nsets: {list: {file: list.txt}}\nrules: [{name: r, action: deny, peer: '@list'}]\n";
    std::fs::write(&file, text).unwrap();
    let start = Instant::now();
    let loaded = super::load(&[file], &Limits::default()).unwrap();
    let read = start.elapsed();
    let table = compile(&loaded.policy, 1, &Limits::default()).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memory: Vec<_> =
        status.lines().filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS")).collect();
    println!(
        "1M CIDRs: load {read:?}, load and compile {:?}, table {} bytes; with the making of the list: {memory:?}",
        start.elapsed(),
        table.memory()
    );
}
