//! Records of the ring buffer to events: with names, numbers and the wall clock.

use std::net::SocketAddr;

use jiff::Timestamp;
use smc_agent_common as common;

use super::{
    cgroups::{self, Cgroups},
    event::{Code, Connection, Decider, Errno, Event, Kind, Link, Owner, Seen, Side, VERSION, address},
    namespaces::Namespaces,
};
use crate::kernel::maps::monotonic_now;

/// Where the names of rules come from: generation and number of the rule to its name, `None` if it is the default.
pub trait RuleNames {
    /// The name of a rule.
    fn rule_name(&mut self, generation: u64, rule: u16) -> Option<String>;
    /// `allow` or `deny` for a rule.
    fn rule_action(&mut self, generation: u64, rule: u16) -> Option<String>;
}

/// Names for where no policy is known: numbers.
#[derive(Clone, Copy, Debug)]
pub struct NoNames;

impl RuleNames for NoNames {
    fn rule_name(&mut self, _generation: u64, rule: u16) -> Option<String> {
        (rule != common::RULE_DEFAULT).then(|| format!("#{rule}"))
    }

    fn rule_action(&mut self, _generation: u64, _rule: u16) -> Option<String> {
        None
    }
}

/// The difference between the two clocks: add it to monotonic nanoseconds for nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
struct ClockOffset(i128);

impl ClockOffset {
    /// As it is now; it changes when the wall clock is set.
    fn now() -> Self {
        Self(Timestamp::now().as_nanosecond() - i128::from(monotonic_now()))
    }
}

impl Event {
    /// Tells one reader that it was too slow for `count` events. It has no number: others do not get it.
    pub fn missed(run: u64, count: u64) -> Self {
        let (time, monotonic) = (Timestamp::now(), monotonic_now());
        Self { version: VERSION, time, monotonic, run, seq: None, kind: Kind::Missed { count } }
    }
}

/// Makes events and numbers them.
#[derive(Debug)]
pub(super) struct Builder {
    run: u64,
    seq: u64,
    clock: ClockOffset,
    /// Owners in verdicts from before (monotonic nanoseconds) are not believed.
    owners_from: u64,
    pub(super) namespaces: Namespaces,
    cgroups: Cgroups,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            run: u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0),
            seq: 0,
            clock: ClockOffset::now(),
            owners_from: 0,
            namespaces: Namespaces::new(),
            cgroups: Cgroups::default(),
        }
    }

    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// Events made so far.
    pub(super) fn made(&self) -> u64 {
        self.seq
    }

    /// Looks at the clock: once for all that is read at a time.
    pub(super) fn look_at_the_clock(&mut self) {
        self.clock = ClockOffset::now();
    }

    /// Owners in verdicts from before now are not to be believed: the programs that judge run without an agent too, and took
    /// them from what one before this one had recorded.
    pub(super) fn believe_owners_from_now(&mut self) {
        self.owners_from = monotonic_now();
    }

    /// An event that happens now, in this program.
    pub(super) fn now(&mut self, kind: Kind) -> Event {
        self.seq += 1;
        let (time, monotonic) = (Timestamp::now(), monotonic_now());
        Event { version: VERSION, time, monotonic, run: self.run, seq: Some(self.seq), kind }
    }

    /// Counts a record of which no event is made.
    pub(super) fn pass_over(&mut self, record: &common::Event) {
        const KINDS: std::ops::RangeInclusive<u16> =
            common::EventKind::Fallback as u16..=common::EventKind::LinkDown as u16;
        self.seq += u64::from(KINDS.contains(&record.kind));
    }

    /// The event that a record is of; `None` for a kind that this program does not know.
    pub(super) fn event(&mut self, record: &common::Event, names: &mut dyn RuleNames) -> Option<Event> {
        let kind = self.kind(record, names)?;
        self.seq += 1;
        let time = self.clock.0 + i128::from(record.time);
        Some(Event {
            version: VERSION,
            time: Timestamp::from_nanosecond(time).unwrap_or(Timestamp::UNIX_EPOCH),
            monotonic: record.time,
            run: self.run,
            seq: Some(self.seq),
            kind,
        })
    }

    fn kind(&mut self, record: &common::Event, names: &mut dyn RuleNames) -> Option<Kind> {
        let has = |flag: u8| record.flags & flag != 0;
        let mut decider = || Decider {
            rule: names.rule_name(record.generation, record.rule),
            generation: record.generation,
        };
        let peer_code = (record.peer_code != 0).then(|| Code::new(record.peer_code));
        Some(if record.kind == common::EventKind::Fallback as u16 {
            Kind::Fallback {
                denied_by: has(common::EVENT_DENIED).then(decider),
                connection: self.connection(record),
                code: Code::new(record.code),
                peer_code,
            }
        } else if record.kind == common::EventKind::Verdict as u16 {
            let by = decider();
            let shadow = has(common::EVENT_SHADOW);
            let verdict = if shadow {
                names.rule_action(record.generation, record.rule).unwrap_or_else(|| "unknown".to_owned())
            } else if has(common::EVENT_VERDICT_DENY) {
                "deny".to_owned()
            } else {
                "allow".to_owned()
            };
            Kind::Verdict { connection: self.connection(record), verdict, shadow, by }
        } else if record.kind == common::EventKind::HandshakeError as u16 {
            let error = (record.error != 0).then(|| Errno::new(record.error));
            Kind::HandshakeError { connection: self.connection(record), error, peer_code }
        } else if record.kind == common::EventKind::LinkDown as u16 {
            Kind::LinkDown { link: self.link(record) }
        } else {
            return None;
        })
    }

    fn connection(&mut self, record: &common::Event) -> Connection {
        let role = if record.role == common::Role::Client as u8 { Side::Client } else { Side::Server };
        Connection {
            netns: record.netns,
            netns_cookie: self.cookie(record),
            netns_name: self.namespaces.name(record.netns).map(str::to_owned),
            role,
            local: SocketAddr::new(address(record.family, record.local), record.local_port),
            peer: SocketAddr::new(address(record.family, record.peer), record.peer_port),
            service_port: if role == Side::Client { record.peer_port } else { record.local_port },
            smc_version: version(record.smc_version),
            device: text(&record.device),
            owner: self.owner(record),
        }
    }

    fn link(&mut self, record: &common::Event) -> Link {
        Link {
            netns: record.netns,
            netns_cookie: self.cookie(record),
            netns_name: self.namespaces.name(record.netns).map(str::to_owned),
            device: text(&record.device),
            port: record.device_port,
            link_group: format!("{:08x}", record.link_group),
            link: record.link,
            smc_version: version(record.smc_version),
            local_gid: address(record.family, record.local),
            peer_gid: address(record.family, record.peer),
            connections: record.connections,
        }
    }

    fn cookie(&self, record: &common::Event) -> Option<u64> {
        match record.netns_cookie {
            0 => self.namespaces.cookie(record.netns),
            cookie => Some(cookie),
        }
    }

    fn owner(&mut self, record: &common::Event) -> Option<Owner> {
        if record.kind == common::EventKind::Verdict as u16 && record.time < self.owners_from {
            return None;
        }
        let owner = &record.owner;
        let seen = [
            (common::OwnerSeen::Socket, Seen::Socket),
            (common::OwnerSeen::Listen, Seen::Listen),
            (common::OwnerSeen::Connect, Seen::Connect),
            (common::OwnerSeen::FastOpen, Seen::FastOpen),
        ];
        let (_, seen) = seen.into_iter().find(|(number, _)| *number as u8 == owner.seen)?;
        let cgroup = self.cgroups.path(owner.cgroup);
        Some(Owner {
            pid: owner.pid,
            comm: text(&owner.comm).unwrap_or_default(),
            uid: owner.uid,
            container: cgroup.as_deref().and_then(cgroups::container).map(str::to_owned),
            cgroup,
            seen,
        })
    }
}

/// The event that a record is of, by itself.
#[cfg(test)]
pub(crate) fn event_of(record: &common::Event, names: &mut dyn RuleNames) -> Option<Event> {
    Builder::new().event(record, names)
}

fn version(number: u8) -> Option<u8> {
    (number != 0).then_some(number)
}

/// Text up to its final zero; `None` if it is empty.
fn text(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (end > 0).then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable as _;
    use proptest::prelude::*;

    use super::*;

    fn record(kind: common::EventKind) -> common::Event {
        let mut record = common::Event::zeroed();
        record.kind = kind as u16;
        record.family = 2;
        record.local[..4].copy_from_slice(&[10, 0, 0, 1]);
        record.peer[..4].copy_from_slice(&[10, 0, 0, 2]);
        (record.local_port, record.peer_port) = (40000, 443);
        record.role = common::Role::Client as u8;
        record
    }

    #[test]
    fn what_is_not_known_is_null_and_what_is_known_is_there() {
        let mut builder = Builder::new();
        let mut plain = record(common::EventKind::Fallback);
        plain.code = 0x0301_0000;
        let event = builder.event(&plain, &mut NoNames).unwrap();
        let connection = event.connection().unwrap();
        assert_eq!((connection.service_port, event.seq), (443, Some(1)));
        assert_eq!((&connection.owner, &connection.device, connection.smc_version), (&None, &None, None));
        plain.owner.seen = common::OwnerSeen::Listen as u8;
        plain.owner.comm[..5].copy_from_slice(b"a\xff\n\x1bb");
        plain.role = common::Role::Server as u8;
        plain.netns_cookie = 9;
        let event = builder.event(&plain, &mut NoNames).unwrap();
        let connection = event.connection().unwrap();
        let owner = connection.owner.as_ref().unwrap();
        assert_eq!((owner.comm.as_str(), owner.seen, owner.pid), ("a\u{fffd}\n\u{1b}b", Seen::Listen, 0));
        assert_eq!((connection.service_port, connection.netns_cookie), (40000, Some(9)));
        assert_eq!((event.seq, builder.made()), (Some(2), 2));
    }

    #[test]
    fn an_owner_is_believed_of_verdicts_since_owners_are_recorded() {
        let mut builder = Builder::new();
        let owner_of = |builder: &mut Builder, kind, time| {
            let mut record = record(kind);
            record.owner.seen = common::OwnerSeen::FastOpen as u8;
            record.time = time;
            builder.event(&record, &mut NoNames).unwrap().connection().unwrap().owner.clone()
        };
        assert!(owner_of(&mut builder, common::EventKind::Verdict, 1).is_some());
        builder.believe_owners_from_now();
        assert_eq!(owner_of(&mut builder, common::EventKind::Verdict, 1), None);
        assert!(owner_of(&mut builder, common::EventKind::Fallback, 1).is_some());
        let later = monotonic_now();
        let owner = owner_of(&mut builder, common::EventKind::Verdict, later).unwrap();
        assert_eq!(owner.seen, Seen::FastOpen);
    }

    #[test]
    fn failures_and_links_have_their_own_fields() {
        let mut builder = Builder::new();
        let mut failed = record(common::EventKind::HandshakeError);
        failed.error = 104;
        let Kind::HandshakeError { error, .. } = builder.event(&failed, &mut NoNames).unwrap().kind else {
            panic!("another kind");
        };
        assert_eq!(error, Some(Errno { value: 104, name: Some("ECONNRESET".to_owned()) }));
        let mut down = record(common::EventKind::LinkDown);
        down.family = 10;
        down.peer = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
        (down.link_group, down.device_port, down.connections) = (0x102, 1, 3);
        down.device[..4].copy_from_slice(b"rxe0");
        let Kind::LinkDown { link } = builder.event(&down, &mut NoNames).unwrap().kind else {
            panic!("another kind");
        };
        assert_eq!((link.link_group.as_str(), link.connections), ("00000102", 3));
        assert_eq!((link.device.as_deref(), link.peer_gid.to_string().as_str()), (Some("rxe0"), "127.0.0.1"));
    }

    proptest! {
        /// Whatever is in a record: an event that is one line, and that can be read back.
        #[test]
        fn any_record_is_an_event_or_none(bytes in proptest::collection::vec(any::<u8>(), 192), kind in 0_u16..6) {
            let mut record: common::Event = bytemuck::pod_read_unaligned(&bytes);
            record.kind = kind;
            let event = Builder::new().event(&record, &mut NoNames);
            prop_assert_eq!(event.is_some(), (1..5).contains(&kind));
            if let Some(event) = event {
                let text = serde_json::to_string(&event).unwrap();
                prop_assert!(!text.contains('\n'));
                prop_assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
            }
        }
    }
}
