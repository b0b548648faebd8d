//! Events on their way to user space.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use smc_agent_common::{Counter, Event, EventKind, Rate, RateKey};

use crate::{
    kernel::Endpoints,
    maps::{EVENTS, RATES, add_one, count_exactly},
    offsets::EVENT_RATE,
};

const SECOND: u64 = 1_000_000_000;

/// Has an event written right into the ring buffer, with what all have in common filled in and the rest zero, or counts
/// it as lost.
#[inline(always)]
pub fn emit(kind: EventKind, ends: &Endpoints, role: u32, write: impl FnOnce(&mut Event)) {
    count_exactly(Counter::EventsProduced);
    let Some(mut entry) = EVENTS.reserve_untyped::<Event>(0) else {
        count_exactly(Counter::EventsLost);
        return;
    };
    // SAFETY: all bytes zero are an Event, and the entry is as large and as aligned as one.
    let event = unsafe {
        entry.as_mut_ptr().write_bytes(0, 1);
        entry.assume_init_mut()
    };
    // SAFETY: the helper takes nothing and only reads the clock.
    event.time = unsafe { bpf_ktime_get_ns() };
    event.kind = kind as u16;
    event.family = ends.family;
    event.local = ends.local;
    event.peer = ends.peer;
    event.local_port = ends.local_port;
    event.peer_port = ends.peer_port;
    event.role = role as u8;
    write(event);
    // The kernel wakes the reader only if it has read all that came before: see trace/reader.rs.
    entry.submit(0);
}

/// Whether there were enough events with this code and peer lately: this one is counted then, and not to be reported.
#[inline(always)]
pub fn too_many(ends: &Endpoints, code: u32, role: u32) -> bool {
    EVENT_RATE.load() != 0 && rate_exceeded(ends, code, role) != 0
}

/// 1 if there were enough, else 0.
#[inline(never)]
fn rate_exceeded(ends: &Endpoints, code: u32, role: u32) -> u32 {
    // SAFETY: the helper takes nothing and only reads the clock.
    let now = unsafe { bpf_ktime_get_ns() };
    let key = RateKey { peer: ends.as_ipv6(&ends.peer), code, role };
    let Some(rate) = RATES.get_ptr_mut(key) else {
        // Without room there is no limit.
        let _ = RATES.insert(key, Rate { since: now, count: 1, suppressed: 0 }, 0);
        return 0;
    };
    // SAFETY: the element is valid for as long as this program runs. What others write to the first two numbers at the
    // same time makes the limit a little inexact, nothing else; the third is only added to, in one step.
    unsafe {
        if now.wrapping_sub((*rate).since) >= SECOND {
            (*rate).since = now;
            (*rate).count = 1;
            return 0;
        }
        if (*rate).count < u64::from(EVENT_RATE.load()) {
            (*rate).count += 1;
            return 0;
        }
        add_one(&raw mut (*rate).suppressed);
    }
    count_exactly(Counter::EventsProduced);
    count_exactly(Counter::EventsSuppressed);
    1
}
