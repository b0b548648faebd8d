//! Judging a handshake by the table in force, and remembering why.
//!
//! The functions that are not inlined are so because of the stack: a program has 512 bytes for a chain of calls.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use smc_agent_common::{
    Counter, EVENT_SHADOW, EVENT_VERDICT_DENY, EventKind, Refusal, RefusalKey, Role, SCOPE_ALL, Verdict,
};

use crate::{
    decision::{Judged, decide, decide_and_count},
    diagnose,
    emit::emit,
    kernel::Endpoints,
    maps::{REFUSALS, SCOPE, copy_owner, count},
    offsets::ENFORCING,
    table::KernelTable,
};

/// Judges the handshake between `ends`, on which this host has `role`, and counts and reports the verdict.
/// `sk` is the address of the socket that connects or listens, 0 if it is not known. `answered` is when the first SYN-ACK was
/// sent (`CLOCK_MONOTONIC`, nanoseconds; 0 if not known): an answer that the table before this one allowed stays allowed.
///
/// Every doubt ends in [`Verdict::Allow`]: the kernel's own default.
#[inline(always)]
pub fn judge(ends: &Endpoints, role: Role, sk: u64, answered: u64, netns: u32) -> Verdict {
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
    let flow = ends.flow(role);
    let port = u32::from(flow.port);
    let Some(Judged { decision, shadow }) = decide_and_count(&flow, &table) else {
        count(Counter::Undecided);
        diagnose::undecided(role as u32, port);
        return Verdict::Allow;
    };
    if let Some(shadow) = shadow {
        let what = what(shadow, role, EVENT_SHADOW);
        report(ends, sk, netns, table.slot(), what);
    }
    diagnose::judged(role as u32, port, u32::from(decision.rule), decision.verdict as u32);
    if decision.log {
        let flags = if decision.verdict == Verdict::Deny { EVENT_VERDICT_DENY } else { 0 };
        report(ends, sk, netns, table.slot(), what(decision.rule, role, flags));
    }
    if decision.verdict == Verdict::Deny {
        match role {
            Role::Client => count(Counter::ClientDenied),
            Role::Server => {
                count(Counter::ServerDenied);
                remember_refusal(ends, netns, table.slot(), u32::from(decision.rule));
            }
        }
    }
    decision.verdict
}

/// Counts an answer with the option that the policy refuses as a server: it was not kept from being given. `answered` is
/// as in [`judge`]: what the table before this one allowed is no failure.
#[inline(never)]
pub fn count_if_refused(ends: &Endpoints, answered: u64) {
    let Some(table) = KernelTable::in_force() else { return };
    if answered != 0 && judged_before(answered, table.activated()) {
        return;
    }
    if let Some(decided) = decide(&ends.flow(Role::Server), &table)
        && decided.1.verdict == Verdict::Deny
    {
        count(Counter::ServerNotEnforced);
    }
}

/// Leaves a record of a server's refusal for the fallback event that it causes.
#[expect(clippy::needless_borrows_for_generic_args, reason = "by value, another copy would lie on the stack")]
#[inline(never)]
fn remember_refusal(ends: &Endpoints, netns: u32, slot: u32, decider: u32) {
    let Some(table) = KernelTable::in_slot(slot) else { return };
    let refusal = Refusal { generation: table.generation(), rule: decider as u16, reserved: [0; 3] };
    // A full map evicts its oldest record: an event then lacks its rule, nothing else.
    let _ = REFUSALS.insert(&key(ends, netns), &refusal, 0);
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
    // SAFETY: only the presence of an entry matters; its value is not read.
    unsafe { SCOPE.get(SCOPE_ALL).or_else(|| SCOPE.get(netns)) }?;
    let table = KernelTable::in_force()?;
    let decision = decide(&ends.flow(Role::Client), &table)?.1;
    (decision.verdict == Verdict::Deny).then(|| Refusal {
        generation: table.generation(),
        rule: decision.rule,
        reserved: [0; 3],
    })
}

/// Which rule refused SMC to this connection of a server, if one did. A flow alone does not tell: a client without
/// SMC matches the rule too, so only a refusal that was recorded counts, once. 1 if `refusal` was written, else 0.
#[expect(clippy::needless_borrows_for_generic_args, reason = "by value, another copy would lie on the stack")]
#[inline(never)]
pub fn refusal_of_server(ends: &Endpoints, netns: u32, refusal: &mut Refusal) -> u32 {
    let key = key(ends, netns);
    // SAFETY: the value is copied at once; a concurrent overwrite would be of the same connection.
    let Some(found) = (unsafe { REFUSALS.get(&key) }) else { return 0 };
    *refusal = *found;
    let _ = REFUSALS.remove(&key);
    1
}

/// Addresses are put in the form of IPv6, since a listener for both has its IPv4 connections in that form.
#[inline(always)]
fn key(ends: &Endpoints, netns: u32) -> RefusalKey {
    RefusalKey {
        local: ends.as_ipv6(&ends.local),
        peer: ends.as_ipv6(&ends.peer),
        local_port: ends.local_port,
        peer_port: ends.peer_port,
        netns,
    }
}

/// A rule, a role and the event's flags in one number: a function takes five arguments at most.
#[inline(always)]
const fn what(decider: u16, role: Role, flags: u8) -> u32 {
    (decider as u32) << 16 | (role as u32) << 8 | flags as u32
}

/// Reports that a rule matched; `what` is as [`what`] makes it.
#[inline(never)]
fn report(ends: &Endpoints, sk: u64, netns: u32, slot: u32, what: u32) {
    let generation = KernelTable::in_slot(slot).map_or(0, |table| table.generation());
    emit(EventKind::Verdict, ends, what >> 8 & 0xff, |event| {
        event.generation = generation;
        event.netns = netns;
        event.rule = (what >> 16) as u16;
        event.flags = what as u8;
        copy_owner(sk, &mut event.owner);
    });
}
