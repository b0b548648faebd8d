//! The compiled table against a naive first-match evaluator.

#![expect(clippy::cast_possible_truncation, reason = "random numbers are cut as they are wanted")]

use super::*;
use crate::policy::addresses::Prefix;
use crate::policy::model::Place;
use crate::policy::naive;
use proptest::prelude::*;
use smc_agent_common::decide::SHADOW_REPORTS;
use smc_agent_common::{Address, Flow};
use std::net::IpAddr;
use std::path::Path;

fn v4_bases() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(0),
        Just(u32::MAX),
        Just(0x0a00_0000),
        Just(0x0a00_00ff),
        Just(0x0a01_0000),
        0x0a00_0000u32..0x0a00_0400,
        0xc0a8_0000u32..0xc0a8_2000,
        any::<u32>(),
    ]
}

fn v6_bases() -> impl Strategy<Value = u128> {
    prop_oneof![
        Just(0),
        Just(u128::MAX),
        Just(0x2001_0db8_u128 << 96),
        (0u128..64).prop_map(|low| (0x2001_0db8_u128 << 96) | low),
        (0u128..64).prop_map(|low| (0x2001_0db8_u128 << 96) | (low << 64)),
        (0u128..64).prop_map(|low| (0x2001_0db8_u128 << 96) | (low << 60)),
        (0u128..1024).prop_map(|middle| (0x2a00_u128 << 112) | (middle << 80)),
        any::<u128>(),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let v4_length = prop_oneof![Just(0u8), Just(32u8), Just(31u8), Just(24u8), Just(16u8), 0u8..=32];
    let v6_length =
        prop_oneof![Just(0u8), Just(128u8), Just(127u8), Just(64u8), Just(48u8), Just(65u8), 0u8..=128];
    prop_oneof![
        3 => (v4_bases(), v4_length).prop_map(|(bits, length)| Prefix::new(IpAddr::V4(bits.into()), length)),
        2 => (v6_bases(), v6_length).prop_map(|(bits, length)| Prefix::new(IpAddr::V6(bits.into()), length)),
        1 => (v4_bases(), 96u8..=128).prop_map(|(bits, length)| {
            Prefix::new(IpAddr::V6((0xffff_0000_0000_u128 | u128::from(bits)).into()), length)
        }),
    ]
}

fn set(most: usize) -> impl Strategy<Value = Arc<AddressSet>> {
    prop::collection::vec(prefix(), 0..most).prop_map(|prefixes| Arc::new(prefixes.into_iter().collect()))
}

fn ports() -> impl Strategy<Value = Option<Vec<std::ops::RangeInclusive<u16>>>> {
    let edge = prop_oneof![Just(1u16), Just(65535u16), Just(443u16), Just(444u16), 1u16..=65535];
    let range = (edge.clone(), edge).prop_map(|(a, b)| a.min(b)..=a.max(b));
    prop::option::of(prop::collection::vec(range, 1..4).prop_map(crate::policy::model::join_ports))
}

type RuleParts = (
    bool,
    Option<bool>,
    Option<Vec<usize>>,
    Option<Vec<usize>>,
    Option<Vec<std::ops::RangeInclusive<u16>>>,
    bool,
    bool,
);

fn rule() -> impl Strategy<Value = RuleParts> {
    let which = || prop::option::of(prop::collection::vec(0usize..16, 1..4));
    let shadow = prop::bool::weighted(0.2);
    (any::<bool>(), prop::option::of(any::<bool>()), which(), which(), ports(), any::<bool>(), shadow)
}

fn place() -> Place {
    Place { file: Path::new("test.yaml").into(), line: 1, column: 1 }
}

fn policy(rules: usize, prefixes: usize) -> impl Strategy<Value = Policy> {
    let sets = prop::collection::vec(set(prefixes), 16);
    (sets, prop::collection::vec(rule(), 0..rules), any::<bool>()).prop_map(|(sets, rules, deny)| {
        let addresses = |which: Option<Vec<usize>>| {
            which.map(|which| Addresses { sets: which.into_iter().map(|set| sets[set].clone()).collect() })
        };
        let rules =
            rules.into_iter().enumerate().map(|(number, (deny, client, peer, local, ports, log, shadow))| {
                Rule {
                    name: format!("r{number}"),
                    place: place(),
                    action: if deny { Action::Deny } else { Action::Allow },
                    role: client.map(|client| if client { Role::Client } else { Role::Server }),
                    peer: addresses(peer),
                    local: addresses(local),
                    ports,
                    log,
                    mode: if shadow { Mode::Shadow } else { Mode::Enforce },
                }
            });
        Policy {
            convert: None,
            default: if deny { Action::Deny } else { Action::Allow },
            rules: rules.collect(),
            sets: Vec::new(),
            files: Vec::new(),
        }
    })
}

/// Addresses at and next to the ends of what the policy names, by a cheap generator seeded by the case.
fn flows(policy: &Policy, mut seed: u64, count: usize) -> Vec<Flow> {
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut edges: Vec<IpAddr> = vec![
        IpAddr::V4(0.into()),
        IpAddr::V4(u32::MAX.into()),
        IpAddr::V6(0.into()),
        IpAddr::V6(u128::MAX.into()),
    ];
    let mut ports = vec![1u16, 2, 443, 65534, 65535];
    for rule in &policy.rules {
        for set in rule.peer.iter().chain(&rule.local).flat_map(|addresses| &addresses.sets) {
            for &(first, last) in set.v4() {
                for bits in [first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                    edges.push(IpAddr::V4(bits.into()));
                    edges.push(IpAddr::V6((0xffff_0000_0000_u128 | u128::from(bits)).into()));
                }
            }
            for &(first, last) in set.v6() {
                for bits in [first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                    edges.push(IpAddr::V6(bits.into()));
                }
            }
        }
        for range in rule.ports.iter().flatten() {
            ports.extend([*range.start(), *range.end(), range.start() - 1, range.end().saturating_add(1)]);
        }
    }
    let address = |number: u64| match number % 8 {
        0 => IpAddr::V4((number as u32 >> 3).into()),
        1 => IpAddr::V6(((u128::from(number) << 64) | u128::from(number.rotate_left(17))).into()),
        _ => edges[(number >> 8) as usize % edges.len()],
    };
    (0..count)
        .map(|_| Flow {
            peer: Address::from(address(random())),
            local: Address::from(address(random())),
            port: ports[random() as usize % ports.len()],
            role: if random() & 1 == 0 { Role::Client } else { Role::Server },
        })
        .collect()
}

fn agree(policy: &Policy, seed: u64, count: usize) -> Result<(), TestCaseError> {
    let table = compile(policy, 7, &Limits::default()).unwrap();
    for flow in flows(policy, seed | 1, count) {
        let mut told = Vec::new();
        let decision = table.decide_with(&flow, |rule, shadow| told.push((rule, shadow)));
        let (expected, shadows) = naive::decide(policy, &flow);
        prop_assert_eq!(decision, expected, "{:?}", flow);
        let shadow_told: Vec<u16> = told.iter().filter(|told| told.1).map(|told| told.0).collect();
        prop_assert_eq!(&shadow_told[..], &shadows[..shadow_told.len()], "{:?}", flow);
        prop_assert_eq!(shadow_told.len(), shadows.len().min(SHADOW_REPORTS));
        prop_assert_eq!(told.last(), Some(&(expected.rule, false)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 420, ..ProptestConfig::default() })]

    #[test]
    fn small_policies_decide_as_the_naive_evaluator(policy in policy(12, 8), seed in any::<u64>()) {
        agree(&policy, seed, 256)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 512, ..ProptestConfig::default() })]

    #[test]
    fn large_policies_decide_as_the_naive_evaluator(policy in policy(400, 160), seed in any::<u64>()) {
        agree(&policy, seed, 512)?;
    }
}

/// Compares a search with the regions that it was written from, at every key, next to it, and at random. `unit` is the
/// distance of two neighbouring keys, `spare` the room for further roots.
fn search_agrees(
    regions: &[tree::Region],
    root: Root,
    unit: u64,
    spare: usize,
    seed: u64,
) -> Result<(), TestCaseError> {
    let mut fixed: Box<Fixed> = bytemuck::zeroed_box();
    let mut lines = vec![Line { words: [0; 8] }];
    let mut entries = Vec::new();
    let (trie, depth) = tree::write(regions, root, spare, &mut entries, &mut lines);
    prop_assert!(depth <= MAX_DEPTH);
    prop_assert!(entries.len() <= (1 << root.bits) + spare);
    fixed.tries[PEER_V4] = trie;
    fixed.roots[..entries.len()].copy_from_slice(&entries);
    let table = PolicyTable::new(fixed, lines, 0);
    let keys = regions
        .iter()
        .flat_map(|region| [region.0, region.0.wrapping_sub(unit), region.0.wrapping_add(unit)]);
    let random = (0..200u64).map(|n| (n + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for key in keys.chain(random) {
        let key = key & unit.wrapping_neg();
        let found = smc_agent_common::decide::classify(&table, &table.fixed.tries[PEER_V4], key, 0);
        let expected = regions[regions.partition_point(|region| region.0 <= key) - 1].1;
        prop_assert_eq!(found, Some(expected), "{:x} {:?}", key, root);
    }
    Ok(())
}

fn regions_at(keys: impl IntoIterator<Item = u64>) -> Vec<tree::Region> {
    let mut regions = vec![(0, 0)];
    for (number, key) in keys.into_iter().filter(|key| *key != 0).enumerate() {
        regions.push((key, sets::index((number + 1) % 50)));
    }
    regions
}

fn regions_v4(most: usize) -> impl Strategy<Value = Vec<tree::Region>> {
    let key =
        prop_oneof![4 => 0x0a00_0000u32..0x0a00_4000, 2 => 0x0a00_0000u32..0x0a10_0000, 1 => any::<u32>()];
    prop::collection::btree_set(key, 0..most)
        .prop_map(|keys| regions_at(keys.into_iter().map(|key| u64::from(key) << 32)))
}

/// Keys as IPv6 has them: few values of the leading bits, many of those that follow, and stretches that many share.
fn regions_v6(most: usize) -> impl Strategy<Value = Vec<tree::Region>> {
    let block = prop_oneof![Just(0x2001u64), Just(0x2a00), Just(0x2a02), Just(0xfd00)];
    let key = (block, 0u64..4, any::<u64>(), 0u32..64, prop::bool::weighted(0.1)).prop_map(
        |(block, site, random, length, anything)| {
            let cut = u64::MAX << length;
            if anything { random } else { (block << 48 | site << 44 | (random >> 32)) & cut | block << 48 }
        },
    );
    prop::collection::btree_set(key, 0..most).prop_map(regions_at)
}

/// Room for further roots: none, too little, and plenty.
fn spare() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1usize..64, Just(1 << 18)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 512, ..ProptestConfig::default() })]

    #[test]
    fn searches_find_the_region(
        regions in prop_oneof![regions_v4(40), regions_v4(3000)],
        bits in 0u32..=18, spare in spare(), seed in any::<u64>()
    ) {
        let root = Root::choose(&regions, true);
        for root in [root, root.with_bits(bits), root.with_bits(18)] {
            search_agrees(&regions, root, 1 << 32, spare, seed)?;
        }
    }

    #[test]
    fn searches_of_long_keys_find_the_region(
        regions in prop_oneof![regions_v6(40), regions_v6(3000)],
        bits in 0u32..=18, spare in spare(), seed in any::<u64>()
    ) {
        let root = Root::choose(&regions, false);
        for root in [root, root.with_bits(bits)] {
            search_agrees(&regions, root, 1, spare, seed)?;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_diff_names_every_change_that_a_flow_shows(
        old in policy(6, 4), new in policy(6, 4), seed in any::<u64>()
    ) {
        let diff = crate::policy::diff(&old, &new).unwrap();
        prop_assert!(diff.complete);
        let name = |policy: &Policy, rule: u16| policy.rules.get(usize::from(rule)).map(|rule| rule.name.clone());
        let flows = flows(&old, seed | 1, 128).into_iter().chain(flows(&new, seed | 1, 128));
        // No connection has port 0, and a diff does not speak of it.
        for flow in flows.filter(|flow| flow.port != 0) {
            let (from, to) = (naive::decide(&old, &flow).0, naive::decide(&new, &flow).0);
            let told = diff.changes.iter().any(|change| {
                change.from.rule == name(&old, from.rule) && change.to.rule == name(&new, to.rule)
            });
            prop_assert_eq!(from.verdict != to.verdict && !told, false, "{:?}", flow);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_malformed_table_is_read_within_its_bounds(policy in policy(8, 8), seed in 1u64.., lines in 1usize..64) {
        let mut table = compile(&policy, 7, &Limits::default()).unwrap();
        let mut state = seed;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        // All but what is checked first. A read out of bounds, or a mask that is missing, would panic here.
        let header = table.fixed.header;
        bytemuck::cast_slice_mut::<Fixed, u64>(std::slice::from_mut(&mut *table.fixed)).fill_with(&mut random);
        table.fixed.header.magic = header.magic;
        table.fixed.header.layout = header.layout;
        table.lines.resize(lines, Line { words: [0; 8] });
        table.lines.iter_mut().for_each(|line| line.words.fill_with(&mut random));
        for root in &mut table.fixed.roots {
            *root &= 0xe000_007f;
        }
        for trie in &mut table.fixed.tries {
            trie.prefix_mask = 0;
        }
        for flow in flows(&policy, seed, 512) {
            let _ = smc_agent_common::decide(&flow, &table, |_, _| {});
        }
        table.fixed.header.magic = 0;
        let flow = flows(&policy, seed, 1)[0];
        prop_assert_eq!(smc_agent_common::decide(&flow, &table, |_, _| {}), None);
    }
}
