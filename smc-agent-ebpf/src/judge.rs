//! Judging a handshake by the table in force, and remembering why.
//!
//! The functions that are not inlined are so because of the stack: a program has 512 bytes for a chain of calls.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use smc_agent_common::{
    Address, Classified, Counter, Decision, EVENT_SHADOW, EVENT_VERDICT_DENY, Event, EventKind, Family,
    RULE_DEFAULT, Refusal, RefusalKey, Role, TableReader as _, Verdict, classify,
    decide::SHADOW_REPORTS,
    first_match, next_shadow,
    table::{LOCAL_V4, PEER_V4},
};

use crate::{
    diagnose,
    kernel::Endpoints,
    maps::{EVENTS, REFUSALS, SCOPE, count},
    offsets::ENFORCING,
    table::KernelTable,
};

/// Judges the handshake between `ends`, on which this host has `role`, and counts and reports the verdict.
/// `answered` is when the first SYN-ACK was sent (`CLOCK_MONOTONIC`, nanoseconds; 0 if not known): an answer that the
/// table before this one allowed stays allowed.
///
/// Every doubt ends in [`Verdict::Allow`]: the kernel's own default.
#[inline(always)]
pub fn judge(ends: &Endpoints, role: Role, answered: u64, netns: u32) -> Verdict {
    let Some(table) = KernelTable::in_force() else {
        count(Counter::Undecided);
        return Verdict::Allow;
    };
    if answered != 0 && judged_before(answered, table.activated()) {
        count(Counter::VerdictKept);
        return Verdict::Allow;
    }
    count(match role {
        Role::Client => Counter::ClientJudged,
        Role::Server => Counter::ServerJudged,
    });
    let port = u32::from(ends.flow(role).port);
    let Some(decision) = decide_in_slot(ends, role, table.slot(), netns, true) else {
        count(Counter::Undecided);
        diagnose::undecided(role as u32, port);
        return Verdict::Allow;
    };
    diagnose::judged(role as u32, port, u32::from(decision.rule), decision.verdict as u32);
    if decision.log {
        let flags = if decision.verdict == Verdict::Deny { EVENT_VERDICT_DENY } else { 0 };
        report(ends, role as u32, netns, table.slot(), u32::from(decision.rule) << 8 | u32::from(flags));
    }
    if decision.verdict == Verdict::Deny {
        match role {
            Role::Client => count(Counter::ClientDenied),
            Role::Server => {
                count(Counter::ServerDenied);
                let refusal =
                    Refusal { generation: table.generation(), rule: decision.rule, reserved: [0; 3] };
                // A full map evicts its oldest record: an event then lacks its rule, nothing else.
                let _ = REFUSALS.insert(key(ends, netns), refusal, 0);
            }
        }
    }
    decision.verdict
}

/// Whether a request was first answered, and so judged, under the table before the one activated at `activated`.
/// Between reading the clock for `activated` and the flip of the slot the old table still judges: for a second from
/// then on an answer also counts as old when it is sent again, which never happens within the shortest
/// retransmission time-out.
#[inline(always)]
fn judged_before(answered: u64, activated: u64) -> bool {
    const SECOND: u64 = 1_000_000_000;
    /// `TCP_RTO_MIN` (include/net/tcp.h).
    const SHORTEST_TIMEOUT: u64 = SECOND / 5;
    if answered < activated {
        return true;
    }
    // SAFETY: the helper takes nothing and only reads the clock.
    answered - activated < SECOND && unsafe { bpf_ktime_get_ns() }.wrapping_sub(answered) > SHORTEST_TIMEOUT
}

/// Which rule refused SMC to this client, if one did: the flow is judged again, since nothing of the first
/// judgement is kept where a flood of SYNs could push it out. 1 if `refusal` was written, else 0.
#[inline(never)]
pub fn refusal_of_client(ends: &Endpoints, netns: u32, refusal: &mut Refusal) -> u32 {
    match judge_again(ends, netns) {
        Some(found) => {
            *refusal = found;
            1
        }
        None => 0,
    }
}

#[inline(always)]
fn judge_again(ends: &Endpoints, netns: u32) -> Option<Refusal> {
    if ENFORCING.load() == 0 {
        return None;
    }
    // SAFETY: only the presence of the entry matters; its value is not read.
    unsafe { SCOPE.get(netns) }?;
    let table = KernelTable::in_force()?;
    let decision = decide_in_slot(ends, Role::Client, table.slot(), netns, false)?;
    (decision.verdict == Verdict::Deny).then(|| Refusal {
        generation: table.generation(),
        rule: decision.rule,
        reserved: [0; 3],
    })
}

/// Which rule refused SMC to this connection of a server, if one did. A flow alone does not tell: a client without
/// SMC matches the rule too, so only a refusal that was recorded counts, once. 1 if `refusal` was written, else 0.
#[inline(never)]
pub fn refusal_of_server(ends: &Endpoints, netns: u32, refusal: &mut Refusal) -> u32 {
    let key = key(ends, netns);
    // SAFETY: the value is copied at once; a concurrent overwrite would be of the same connection.
    let Some(found) = (unsafe { REFUSALS.get(key) }) else { return 0 };
    *refusal = *found;
    let _ = REFUSALS.remove(key);
    1
}

#[inline(always)]
fn key(ends: &Endpoints, netns: u32) -> RefusalKey {
    RefusalKey {
        local: ends.local,
        peer: ends.peer,
        local_port: ends.local_port,
        peer_port: ends.peer_port,
        netns,
    }
}

/// A decision in one register, which is all that a function that is not inlined can return.
struct Packed;

impl Packed {
    const DECIDED: u32 = 1 << 31;
    const DENY: u32 = 1 << 30;
    const LOG: u32 = 1 << 29;
    const RULE: u32 = 0xffff;

    #[inline(always)]
    fn pack(decision: Decision) -> u32 {
        let mut packed = Self::DECIDED | u32::from(decision.rule);
        if decision.verdict == Verdict::Deny {
            packed |= Self::DENY;
        }
        if decision.log {
            packed |= Self::LOG;
        }
        packed
    }

    #[inline(always)]
    fn unpack(packed: u32) -> Option<Decision> {
        (packed & Self::DECIDED != 0).then_some(Decision {
            verdict: if packed & Self::DENY != 0 { Verdict::Deny } else { Verdict::Allow },
            rule: (packed & Self::RULE) as u16,
            log: packed & Self::LOG != 0,
        })
    }
}

/// Decides by the table in `slot`; with `record`, counts hits and reports shadow rules. `None` if there is no decision.
#[inline(always)]
fn decide_in_slot(ends: &Endpoints, role: Role, slot: u32, netns: u32, record: bool) -> Option<Decision> {
    let flow = ends.flow(role);
    let family = |address: &Address| u32::from(matches!(address.family(), Family::V6));
    let (peer_family, local_family) = (family(&flow.peer), family(&flow.local));
    let peer = smc_classify(slot, PEER_V4 as u32 + peer_family, flow.peer.high(), flow.peer.low());
    let local = smc_classify(slot, LOCAL_V4 as u32 + local_family, flow.local.high(), flow.local.low());
    let server = u32::from(matches!(role, Role::Server));
    let what = u32::from(flow.port) | peer_family << 16 | local_family << 17 | server << 18;
    let decision = Packed::unpack(smc_first_match(slot, what, peer, local))?;
    if record {
        let table = KernelTable::in_slot(slot)?;
        if table.has_shadow_rules() {
            let mut from = 0;
            for _ in 0..SHADOW_REPORTS {
                let found = smc_next_shadow(slot, what, peer, local, from);
                if found >= u32::from(decision.rule) {
                    break;
                }
                table.hit(found as u16);
                if table.logs(found as u16) {
                    report(ends, role as u32, netns, slot, found << 8 | u32::from(EVENT_SHADOW));
                }
                from = found + 1;
            }
        }
        table.hit(decision.rule);
    }
    Some(decision)
}

/// No class: [`smc_first_match`] makes no decision of it.
const NO_CLASS: u32 = u32::MAX;

/// The class of an address in the table in `slot`.
///
/// Global functions are verified once each, by themselves, for all values of their arguments: in one piece with the
/// rest, the verifier would follow every way through here once for every way through there.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_classify(slot: u32, dimension: u32, high: u64, low: u64) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return NO_CLASS };
    let trie = &table.fixed().tries[dimension as usize & 3];
    classify(&table, trie, high, low).unwrap_or(NO_CLASS)
}

/// The first rule of the table in `slot` that a classified flow satisfies, as [`Packed`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_first_match(slot: u32, what: u32, peer: u32, local: u32) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return 0 };
    first_match(&classified(what, peer, local), &table).map_or(0, Packed::pack)
}

/// The first shadow rule from number `from` on that a classified flow satisfies; `RULE_DEFAULT` if there is none.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_next_shadow(slot: u32, what: u32, peer: u32, local: u32, from: u32) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return u32::from(RULE_DEFAULT) };
    let found = next_shadow(&classified(what, peer, local), &table, from as u16);
    u32::from(found.unwrap_or(RULE_DEFAULT))
}

/// What [`decide_in_slot`] packs into `what`, and the classes.
#[inline(always)]
fn classified(what: u32, peer: u32, local: u32) -> Classified {
    Classified {
        peer_family: (what >> 16 & 1) as usize,
        local_family: (what >> 17 & 1) as usize,
        side: (what >> 18 & 1) as usize,
        port: what as u16,
        peer,
        local,
    }
}

/// Reports that a rule matched; `what` is the rule and, in its lowest byte, the event's flags.
#[inline(never)]
fn report(ends: &Endpoints, role: u32, netns: u32, slot: u32, what: u32) {
    let generation = KernelTable::in_slot(slot).map_or(0, |table| table.generation());
    emit(|event| {
        *event = Event {
            // SAFETY: the helper takes nothing and only reads the clock.
            time: unsafe { bpf_ktime_get_ns() },
            generation,
            netns,
            kind: EventKind::Verdict as u16,
            family: ends.family,
            local: ends.local,
            peer: ends.peer,
            local_port: ends.local_port,
            peer_port: ends.peer_port,
            code: 0,
            peer_code: 0,
            rule: (what >> 8) as u16,
            role: role as u8,
            flags: what as u8,
        };
    });
}

/// Has an event written right into the ring buffer, or counts it as lost.
#[inline(always)]
pub fn emit(write: impl FnOnce(&mut Event)) {
    let Some(mut entry) = EVENTS.reserve_untyped::<Event>(0) else {
        count(Counter::EventsLost);
        return;
    };
    // SAFETY: the entry is as large and as aligned as an Event, and any bytes are one.
    write(unsafe { entry.assume_init_mut() });
    entry.submit(0);
    count(Counter::EventsProduced);
}
