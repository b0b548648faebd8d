//! Filters over records as the kernel wrote them, before events are made of those that may pass.

use smc_agent_common as common;

use super::filter::{Condition, Filter, contains};
use crate::trace::{address, event::Side};

impl Filter {
    /// False if no event of this record [`passes`](Filter::passes); true also where the record does not tell.
    pub fn may_pass(&self, record: &common::Event) -> bool {
        self.terms().iter().all(|term| {
            if term.not {
                holds(&term.condition, record) != Some(true)
            } else {
                // Of one flag any value will do.
                self.terms().iter().any(|other| {
                    !other.not
                        && other.condition.is_like(&term.condition)
                        && holds(&other.condition, record) != Some(false)
                })
            }
        })
    }
}

fn is(record: &common::Event, kind: common::EventKind) -> bool {
    record.kind == kind as u16
}

/// Whether the event of a record has a property; `None` if the record does not tell.
fn holds(condition: &Condition, record: &common::Event) -> Option<bool> {
    const KNOWN: std::ops::RangeInclusive<u8> =
        common::OwnerSeen::Socket as u8..=common::OwnerSeen::FastOpen as u8;
    let fallback = is(record, common::EventKind::Fallback);
    let verdict = is(record, common::EventKind::Verdict);
    let failed = is(record, common::EventKind::HandshakeError);
    let link = is(record, common::EventKind::LinkDown);
    let of_connection = fallback || verdict || failed;
    if !of_connection && !link {
        return None;
    }
    let has = |flag: u8| record.flags & flag != 0;
    let is_client = record.role == common::Role::Client as u8;
    let owned = of_connection && KNOWN.contains(&record.owner.seen);
    match condition {
        Condition::Code(filter) => {
            let peer = (record.peer_code != 0).then_some(record.peer_code);
            Some(fallback && filter.matches(record.code, peer))
        }
        Condition::Peer(network) => {
            Some(of_connection && contains(network, address(record.family, record.peer)))
        }
        Condition::Local(network) => {
            Some(of_connection && contains(network, address(record.family, record.local)))
        }
        Condition::Port(first, last) => {
            let (port, other) = if is_client {
                (record.peer_port, record.local_port)
            } else {
                (record.local_port, record.peer_port)
            };
            // An event without a port of the service is looked at more closely.
            if port == 0 && other != 0 && of_connection {
                return None;
            }
            Some(of_connection && (*first..=*last).contains(&port))
        }
        Condition::Role(side) => Some(of_connection && (*side == Side::Client) == is_client),
        Condition::Rule(_) if !(verdict || fallback && has(common::EVENT_DENIED)) => Some(false),
        Condition::Comm(_) | Condition::Cgroup(_) if !owned => Some(false),
        Condition::Comm(pattern) => {
            let end = record.owner.comm.iter().position(|byte| *byte == 0).unwrap_or(record.owner.comm.len());
            std::str::from_utf8(&record.owner.comm[..end]).ok().map(|comm| pattern.matches(comm))
        }
        Condition::Event(name) => Some(match name.as_str() {
            "fallback" => fallback,
            "verdict" => verdict,
            "handshake_error" => failed,
            "link_down" => link,
            _ => false,
        }),
        Condition::Denied if verdict && has(common::EVENT_SHADOW) => Some(false),
        Condition::Denied if verdict => Some(has(common::EVENT_VERDICT_DENY)),
        Condition::Denied => Some(fallback && has(common::EVENT_DENIED)),
        // These take names that the record does not have.
        Condition::Rule(_) | Condition::Cgroup(_) | Condition::Netns(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Pattern;
    use super::super::filter::{CodeFilter, Term, parse_network};
    use super::*;
    use crate::trace::{self, NoNames};

    fn conditions() -> impl Strategy<Value = Condition> {
        let pattern = "[ab#1*]{0,2}".prop_map(Pattern::new);
        let port = (0_u16..4, 0_u16..4).prop_map(|(a, b)| Condition::Port(a.min(b), a.max(b)));
        let network =
            prop::sample::select(vec!["10.0.0.0/31", "10.0.0.1", "::ffff:10.0.0.0/127", "::/0", "0.0.0.0/0"]);
        let network = network.prop_map(|text| parse_network(text).unwrap());
        let code = prop::sample::select(vec!["0x03/", "PEERNOSMC", "0x05000000/0x03030000", "5"]);
        let event = prop::sample::select(super::super::filter::KINDS.to_vec());
        prop_oneof![
            code.prop_map(|text| Condition::Code(CodeFilter::parse(text).unwrap())),
            network.clone().prop_map(Condition::Peer),
            network.prop_map(Condition::Local),
            port,
            any::<bool>().prop_map(|client| Condition::Role(if client {
                Side::Client
            } else {
                Side::Server
            })),
            pattern.clone().prop_map(Condition::Rule),
            pattern.clone().prop_map(Condition::Netns),
            pattern.clone().prop_map(Condition::Comm),
            pattern.prop_map(Condition::Cgroup),
            event.prop_map(|name| Condition::Event(name.to_owned())),
            Just(Condition::Denied),
        ]
    }

    prop_compose! {
        fn records()(
            kind in 1_u16..5, family in prop::sample::select(vec![2_u16, 10]), mapped in any::<bool>(), last in any::<[u8; 2]>(),
            ports in (0_u16..4, 0_u16..4), code in prop::sample::select(vec![0x0301_0000_u32, 0x0500_0000, 0x0303_0000]),
            peer_code in prop::sample::select(vec![0_u32, 0x0303_0000]), role in 0_u8..4, flags in 0_u8..8, rule in 0_u16..3,
            netns in 0_u32..3, seen in 0_u8..6, comm in prop::sample::select(vec![*b"a\0", *b"ab", *b"\xff1", *b"\0a"]),
        ) -> common::Event {
            let mut record: common::Event = bytemuck::Zeroable::zeroed();
            let address = |last: u8| {
                let mut bytes = [0; 16];
                if family == 2 {
                    bytes[..4].copy_from_slice(&[10, 0, 0, last & 3]);
                } else if mapped {
                    bytes[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, last & 3]);
                } else {
                    bytes[15] = last;
                }
                bytes
            };
            (record.kind, record.family) = (kind, family);
            (record.local, record.peer) = (address(last[0]), address(last[1]));
            (record.local_port, record.peer_port) = ports;
            (record.code, record.peer_code, record.role, record.flags) = (code, peer_code, role, flags);
            (record.rule, record.netns, record.owner.seen) = (rule, netns, seen);
            record.owner.comm[..2].copy_from_slice(&comm);
            record
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// What is passed over would not have been shown.
        #[test]
        fn no_event_that_passes_is_passed_over(
            record in records(), terms in prop::collection::vec((conditions(), any::<bool>()), 0..4),
        ) {
            let terms = terms.into_iter().map(|(condition, not)| Term { condition, not });
            let filter = Filter::new(terms.collect());
            let event = trace::event_of(&record, &mut NoNames).unwrap();
            prop_assert!(!filter.passes(&event) || filter.may_pass(&record), "{event:?} passes {filter:?}");
            // Where no names are asked for, the record tells all.
            let tells_all = filter.terms().iter().all(|term| {
                !matches!(term.condition, Condition::Rule(_) | Condition::Netns(_) | Condition::Cgroup(_))
            });
            if tells_all && record.owner.comm[0] != 0xff && !(record.local_port == 0 || record.peer_port == 0) {
                prop_assert_eq!(filter.passes(&event), filter.may_pass(&record));
            }
        }
    }
}
