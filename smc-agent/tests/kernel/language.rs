//! Random policies as text, and the language's meaning written down a second time: from the text's own parts, without
//! anything of smc-agent.

use std::{fmt::Write as _, net::IpAddr};

use proptest::prelude::*;
use smc_agent_common::{Address, Flow, Role};

/// An address and how many of its leading bits count, as written.
pub(crate) type Written = (IpAddr, u8);

#[derive(Clone, Debug)]
pub(crate) struct Rule {
    deny: bool,
    role: Option<bool>,
    peer: Vec<Written>,
    local: Vec<Written>,
    ports: Vec<(u16, u16)>,
    log: bool,
    shadow: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    deny: bool,
    rules: Vec<Rule>,
}

fn v4() -> impl Strategy<Value = Written> {
    let base = prop_oneof![
        Just(0u32),
        Just(u32::MAX),
        Just(0x0a00_0000),
        0x0a00_0000u32..0x0a00_0400,
        0xc0a8_0000u32..0xc0a8_2000,
        any::<u32>(),
    ];
    let length = prop_oneof![Just(0u8), Just(32u8), Just(31u8), Just(24u8), 0u8..=32];
    (base, length).prop_map(|(bits, length)| (IpAddr::V4(bits.into()), length))
}

fn v6() -> impl Strategy<Value = Written> {
    let base = prop_oneof![
        Just(0u128),
        Just(u128::MAX),
        (0u128..64).prop_map(|low| (0x2001_0db8_u128 << 96) | low),
        (0u128..64).prop_map(|low| (0x2001_0db8_u128 << 96) | (low << 60)),
        any::<u128>(),
    ];
    let length = prop_oneof![Just(0u8), Just(128u8), Just(127u8), Just(64u8), Just(65u8), 0u8..=128];
    (base, length).prop_map(|(bits, length)| (IpAddr::V6(bits.into()), length))
}

fn mapped() -> impl Strategy<Value = Written> {
    (v4(), 96u8..=128).prop_map(|((address, _), length)| match address {
        IpAddr::V4(address) => (IpAddr::V6(address.to_ipv6_mapped()), length),
        IpAddr::V6(_) => (address, length),
    })
}

fn addresses() -> impl Strategy<Value = Vec<Written>> {
    let one = prop_oneof![3 => v4(), 2 => v6(), 1 => mapped()];
    prop_oneof![1 => Just(Vec::new()), 2 => prop::collection::vec(one, 1..10)]
}

fn ports() -> impl Strategy<Value = Vec<(u16, u16)>> {
    let edge = || prop_oneof![Just(1u16), Just(65535u16), Just(443u16), Just(444u16), 1u16..=65535];
    let range = (edge(), edge()).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![1 => Just(Vec::new()), 1 => prop::collection::vec(range, 1..4)]
}

fn rule() -> impl Strategy<Value = Rule> {
    let parts =
        (any::<bool>(), any::<Option<bool>>(), addresses(), addresses(), ports(), any::<bool>(), any::<u8>());
    parts.prop_map(|(deny, role, peer, local, ports, log, shadow)| Rule {
        deny,
        role,
        peer,
        local,
        ports,
        log,
        shadow: shadow < 50,
    })
}

pub(crate) fn policy(rules: usize) -> impl Strategy<Value = Policy> {
    (any::<bool>(), prop::collection::vec(rule(), 0..rules)).prop_map(|(deny, rules)| Policy { deny, rules })
}

fn list<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn action(deny: bool) -> &'static str {
    if deny { "deny" } else { "allow" }
}

impl Policy {
    /// The policy as users write it.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("version: 1\ndefault: {}\nrules:\n", action(self.deny));
        if self.rules.is_empty() {
            text.push_str("  []\n");
        }
        for (number, rule) in self.rules.iter().enumerate() {
            let _ = write!(text, "  - {{name: r{number}, action: {}", action(rule.deny));
            if let Some(client) = rule.role {
                let _ = write!(text, ", role: {}", if client { "client" } else { "server" });
            }
            for (name, addresses) in [("peer", &rule.peer), ("local", &rule.local)] {
                if !addresses.is_empty() {
                    let _ = write!(
                        text,
                        ", {name}: [{}]",
                        list(addresses, |(a, length)| format!("'{a}/{length}'"))
                    );
                }
            }
            if !rule.ports.is_empty() {
                let _ = write!(text, ", port: [{}]", list(&rule.ports, |(a, b)| format!("{a}-{b}")));
            }
            let mode = if rule.shadow { ", mode: shadow" } else { "" };
            let _ = writeln!(text, ", log: {}{mode}}}", rule.log);
        }
        text
    }

    /// Whether a flow is denied, the rule that says so, and whether that rule reports.
    pub(crate) fn judge(&self, flow: &Flow) -> (bool, Option<u16>, bool) {
        let (peer, local) = (IpAddr::from(flow.peer), IpAddr::from(flow.local));
        for (number, rule) in (0..).zip(&self.rules) {
            let any_or =
                |list: &[Written], address| list.is_empty() || list.iter().any(|w| within(*w, address));
            if !rule.shadow
                && rule.role.is_none_or(|client| client == (flow.role == Role::Client))
                && any_or(&rule.peer, peer)
                && any_or(&rule.local, local)
                && (rule.ports.is_empty() || rule.ports.iter().any(|(a, b)| (*a..=*b).contains(&flow.port)))
            {
                return (rule.deny, Some(number), rule.log);
            }
        }
        (self.deny, None, false)
    }

    /// Flows at the edges of what the policy names, and some at random.
    pub(crate) fn flows(&self, mut seed: u64, count: usize) -> Vec<Flow> {
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut edges = vec![IpAddr::V4(0.into()), IpAddr::V6(0.into()), IpAddr::V6(u128::MAX.into())];
        let mut ports = vec![1, 2, 443, 65534, 65535];
        for rule in &self.rules {
            for written in rule.peer.iter().chain(&rule.local) {
                edges.extend(around(*written));
            }
            for (first, last) in &rule.ports {
                ports.extend([*first, *last, (*first - 1).max(1), last.saturating_add(1)]);
            }
        }
        let pick = |number: u64| {
            let index = usize::try_from(number >> 8).unwrap_or(0);
            match number % 8 {
                0 => IpAddr::V4(u32::try_from(number >> 32).unwrap_or(0).into()),
                1 => IpAddr::V6((u128::from(number) << 64 | u128::from(number.rotate_left(17))).into()),
                _ => edges[index % edges.len()],
            }
        };
        (0..count)
            .map(|_| Flow {
                peer: Address::from(pick(random())),
                local: Address::from(pick(random())),
                port: ports[usize::try_from(random() >> 8).unwrap_or(0) % ports.len()],
                role: if random() >> 20 & 1 == 0 { Role::Client } else { Role::Server },
            })
            .collect()
    }
}

/// The first and the last address of a prefix, and those next to them.
fn around((address, length): Written) -> [IpAddr; 4] {
    match address {
        IpAddr::V4(address) => {
            let rest = u32::MAX.checked_shr(length.into()).unwrap_or(0);
            let (first, last) = (address.to_bits() & !rest, address.to_bits() | rest);
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|bits| IpAddr::V4(bits.into()))
        }
        IpAddr::V6(address) => {
            let rest = u128::MAX.checked_shr(length.into()).unwrap_or(0);
            let (first, last) = (address.to_bits() & !rest, address.to_bits() | rest);
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)].map(|bits| IpAddr::V6(bits.into()))
        }
    }
}

/// Whether an address is within a prefix, by the words of the language: a prefix of `::ffff:0:0/96` or within it is IPv4,
/// every other IPv6 prefix matches IPv6 only.
fn within((base, length): Written, address: IpAddr) -> bool {
    let (base, length) = match base {
        IpAddr::V6(v6) if length >= 96 => match v6.to_ipv4_mapped() {
            Some(v4) => (IpAddr::V4(v4), length - 96),
            None => (base, length),
        },
        _ => (base, length),
    };
    match (base, address.to_canonical()) {
        (IpAddr::V4(base), IpAddr::V4(address)) => {
            length == 0 || (base.to_bits() ^ address.to_bits()) >> (32 - length) == 0
        }
        (IpAddr::V6(base), IpAddr::V6(address)) => {
            length == 0 || (base.to_bits() ^ address.to_bits()) >> (128 - length) == 0
        }
        _ => false,
    }
}
