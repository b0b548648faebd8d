//! Compiled rules decide as the language says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use smc_agent_common::convert::{
    CONVERT_DEFAULT, ConvertRules, Dimension, Name, Owner, SelectorKey, decide_conversion, is_life_line,
    is_tcp,
};

use super::resolve::System;
use super::table::{Entry, compile, present_groups};
use crate::kernel::convert::Compiled;
use crate::policy::{Convert, ConvertRule, Place, Selectors, SocketOwner, explain_socket};

/// A system whose ids follow from the names.
struct Fake;

const GROUPS: [&str; 6] = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/x"];
const PROGRAMS: [&str; 3] = ["/bin/one", "/bin/two", "/bin/three"];
const NAMESPACES: [&str; 3] = ["blue", "red", "/proc/1/ns/net"];
const NAMES: [&str; 4] = ["nginx", "sshd", "systemd-x", "fifteen-letters"];

fn number(list: &[&str], value: &str) -> Option<u64> {
    list.iter().position(|known| *known == value).map(|at| at as u64 + 1)
}

impl System for Fake {
    fn cgroup(&self, path: &str) -> Option<u64> {
        number(&GROUPS, path)
    }

    fn exe(&self, path: &Path) -> Option<(u64, u64)> {
        Some((7, number(&PROGRAMS, path.to_str()?)?))
    }

    fn netns(&self, name: &str) -> Option<u64> {
        number(&NAMESPACES, name)
    }
}

/// A process, and the compiled selectors.
struct Process<'a> {
    owner: &'a SocketOwner,
    selectors: &'a BTreeMap<SelectorKey, ConvertRules>,
    now: u64,
}

impl Owner for Process<'_> {
    fn rules(&self, key: &SelectorKey) -> Option<ConvertRules> {
        self.selectors.get(key).copied()
    }

    fn cgroup(&self, level: u32) -> u64 {
        let path = self.owner.cgroup.as_deref().unwrap();
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        match names.get(..level as usize) {
            Some([]) => 1,
            Some(names) => Fake.cgroup(&format!("/{}", names.join("/"))).unwrap(),
            None => 0,
        }
    }

    fn uid(&self) -> u32 {
        self.owner.uid.unwrap()
    }

    fn gid(&self) -> u32 {
        self.owner.gid.unwrap()
    }

    fn comm(&self) -> Name {
        let mut bytes = [0; 16];
        let text = self.owner.comm.as_deref().unwrap();
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Name::new(bytes)
    }

    fn exe(&self) -> Option<(u64, u64)> {
        Fake.exe(self.owner.exe.as_deref()?)
    }

    fn netns(&self) -> Option<u64> {
        Fake.netns(self.owner.netns.as_deref()?)
    }

    fn now(&self) -> u64 {
        self.now
    }
}

fn all_selectors(compiled: &Compiled) -> BTreeMap<SelectorKey, ConvertRules> {
    let groups = present_groups(compiled, &Fake);
    let groups = groups.into_iter().map(|(id, rules)| (SelectorKey::new(Dimension::Cgroup, id, 0), rules));
    compiled.selectors.clone().into_iter().chain(groups).collect()
}

fn some_of<T: Clone + std::fmt::Debug + 'static>(values: Vec<T>) -> impl Strategy<Value = Option<Vec<T>>> {
    proptest::option::weighted(0.35, proptest::sample::subsequence(values, 1..=2))
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

fn selectors() -> impl Strategy<Value = Selectors> {
    let paths = PROGRAMS.iter().map(PathBuf::from).collect();
    (
        some_of(texts(&GROUPS)),
        some_of(vec![0, 33, u32::MAX - 1]),
        some_of(vec![0, 33]),
        some_of(texts(&NAMES)),
        some_of(paths),
        some_of(texts(&NAMESPACES)),
    )
        .prop_map(|(cgroup, uid, gid, comm, exe, netns)| Selectors {
            cgroup,
            uid,
            gid,
            comm,
            exe,
            netns,
        })
}

fn owner() -> impl Strategy<Value = SocketOwner> {
    let one = |values: &'static [&'static str]| proptest::sample::select(values).prop_map(str::to_owned);
    (
        one(&GROUPS),
        proptest::sample::select(vec![0_u32, 33, 1000, u32::MAX - 1]),
        proptest::sample::select(vec![0_u32, 33, 100]),
        one(&NAMES),
        one(&PROGRAMS),
        one(&NAMESPACES),
    )
        .prop_map(|(cgroup, uid, gid, comm, exe, netns)| SocketOwner {
            cgroup: Some(cgroup),
            uid: Some(uid),
            gid: Some(gid),
            comm: Some(comm),
            exe: Some(PathBuf::from(exe)),
            netns: Some(netns),
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn compiled_rules_decide_as_the_language_says(
        rules in proptest::collection::vec((any::<bool>(), selectors(), proptest::option::weighted(0.2, 0_u64..100)), 0..100),
        default_on in any::<bool>(),
        owner in owner(),
    ) {
        const NOW: u64 = 50;
        let mut timed = 0;
        let entries: Vec<Entry> = rules.into_iter().map(|(on, selectors, deadline)| {
            // As many as there are switches.
            timed += usize::from(deadline.is_some());
            let deadline = deadline.filter(|_| timed <= 16).map_or(0, |deadline| deadline + 1);
            Entry { on, selectors, deadline }
        }).collect();
        let compiled = compile(&entries, default_on, None, &Fake).unwrap();
        let selectors = all_selectors(&compiled);
        let process = Process { owner: &owner, selectors: &selectors, now: NOW };
        let decided = decide_conversion(&compiled.table, &process);

        let place = Place { file: PathBuf::from("p"), line: 1, column: 1 };
        let alive = entries.iter().enumerate().filter(|(_, entry)| entry.deadline == 0 || entry.deadline > NOW);
        let convert = Convert {
            default_on,
            default_place: None,
            rules: alive.map(|(number, entry)| ConvertRule {
                name: number.to_string(),
                place: place.clone(),
                on: entry.on,
                selectors: entry.selectors.clone(),
            }).collect(),
        };
        let naive = explain_socket(&convert, &owner);
        let rule = if decided.rule == CONVERT_DEFAULT { None } else { Some(decided.rule.to_string()) };
        prop_assert_eq!(&rule, &naive.rule);
        let converted = decided.on && (decided.named || !is_life_line(&process, process.comm()));
        prop_assert_eq!(converted, naive.converted);
    }
}

#[test]
fn only_streams_of_tcp_are_meant() {
    const CLOEXEC: i32 = 0o200_0000;
    const NONBLOCK: i32 = 0o4000;
    for family in [2, 10] {
        for protocol in [0, 6] {
            assert!(is_tcp(family, 1, protocol) && is_tcp(family, 1 | CLOEXEC | NONBLOCK, protocol));
        }
        // MPTCP, SCTP, SMC.
        assert!([262, 132, 256].iter().all(|protocol| !is_tcp(family, 1, *protocol)));
        // Datagrams, raw sockets, packets in sequence.
        assert!([2, 3, 5].iter().all(|kind| !is_tcp(family, *kind, 0)));
    }
    // Unix, netlink, SMC, vsock.
    assert!([1, 16, 43, 40].iter().all(|family| !is_tcp(*family, 1, 0)));
}

#[test]
fn names_that_lead_nowhere_match_nothing() {
    let selectors = Selectors {
        exe: Some(vec![PathBuf::from("/bin/none")]),
        netns: Some(texts(&["green"])),
        ..Selectors::default()
    };
    let entries = [Entry { on: true, selectors, deadline: 0 }];
    let compiled = compile(&entries, false, None, &Fake).unwrap();
    let selectors = all_selectors(&compiled);
    let owner = "cgroup=/a,uid=0,gid=0,comm=x,exe=/bin/none,netns=green".parse().unwrap();
    let process = Process { owner: &owner, selectors: &selectors, now: 0 };
    assert_eq!(decide_conversion(&compiled.table, &process).rule, CONVERT_DEFAULT);
}

#[test]
fn more_rules_than_fit_are_refused() {
    let entry = Entry { on: true, selectors: Selectors::default(), deadline: 0 };
    let error = compile(&vec![entry; 257], false, None, &Fake).unwrap_err();
    assert!(error.to_string().contains("at most 256"), "{error}");
}
