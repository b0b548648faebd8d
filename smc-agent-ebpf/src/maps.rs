//! The maps, all described by BTF. User space pins them, so that a new agent finds what an old one left.

use aya_ebpf::{
    btf_maps::{Array, ArrayOfMaps, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use smc_agent_common::{
    Counter, DEVICE_NAME, Fixed, Line, MAX_RULES, Owner, Rate, RateKey, Refusal, RefusalKey,
};

/// `BPF_F_INNER_MAP` (uapi/linux/bpf.h, 5.10): inner maps of this outer map may differ in size.
pub const BPF_F_INNER_MAP: usize = 1 << 12;

/// Table slots: one in force, one to prepare the next table in.
pub const SLOTS: usize = 2;

/// Hit counters of a slot: one a rule, and one for the default after them.
pub const HITS_PER_SLOT: usize = MAX_RULES + 1;

/// Which slot is in force. Before the first table is, the slot named here is empty.
#[btf_map]
pub static SLOT_IN_FORCE: Array<u32, 1> = Array::new();

/// The part of a table that one lookup returns whole: of an array whose size is known the kernel makes that lookup a few
/// instructions, of a map within a map a call.
#[btf_map]
pub static TABLE_FIXED: Array<Fixed, SLOTS> = Array::new();

/// The part of a table whose size follows the number of prefixes.
#[btf_map]
pub static TABLE_LINES: ArrayOfMaps<Array<Line, 1, BPF_F_INNER_MAP>, SLOTS> = ArrayOfMaps::new();

#[btf_map]
pub static HITS: PerCpuArray<u64, { SLOTS * HITS_PER_SLOT }> = PerCpuArray::new();

#[btf_map]
pub static COUNTERS: PerCpuArray<u64, { Counter::COUNT }> = PerCpuArray::new();

/// Refusals on the server side that wait for their fallback event.
#[btf_map]
pub static REFUSALS: LruHashMap<RefusalKey, Refusal, 16384> = LruHashMap::new();

/// Inode numbers of the network namespaces in which the policy is enforced, or [`SCOPE_ALL`](smc_agent_common::SCOPE_ALL). Made in one piece: kernels before 6.1 warn of
/// programs that trace and might allocate memory.
#[btf_map]
pub static SCOPE: HashMap<u32, u8, 16384> = HashMap::new();

#[btf_map]
pub static EVENTS: RingBuf<(), { 1 << 24 }> = RingBuf::new();

/// Whose sockets are, by the address of their `struct smc_sock`, and by that of the `struct sock` of their internal socket.
/// What is missed while no agent runs, such as that a socket is closed, makes it wrong: an agent that starts empties it, and
/// believes no owner in an event from before. What is pushed out lacks its owner in events, nothing else.
#[btf_map]
pub static OWNERS: LruHashMap<u64, Owner, 65536> = LruHashMap::new();

/// A connection that was given up while it was set up, for the event that follows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Setup {
    /// Version of SMC.
    pub smc_version: u8,
    /// Always zero.
    pub reserved: [u8; 7],
    /// Name of its device, ended by a zero; empty if it is not known.
    pub device: [u8; DEVICE_NAME],
}

/// What was being set up at the sockets whose connection was given up, by the address of their `struct smc_sock`.
#[btf_map]
pub static SETUPS: LruHashMap<u64, Setup, 4096> = LruHashMap::new();

/// How many equal events there were lately: only where `EVENT_RATE` limits them.
#[btf_map]
pub static RATES: LruHashMap<RateKey, Rate, 8192> = LruHashMap::new();

/// Copies the owner of the socket at this address, if one was recorded.
#[inline(always)]
pub fn copy_owner(socket: u64, to: &mut Owner) {
    // SAFETY: the value is copied at once; a concurrent overwrite would be by the owner itself.
    if let Some(owner) = unsafe { OWNERS.get(socket) } {
        *to = *owner;
    }
}

/// Adds one to `counter` on this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the pointer is this CPU's element, and nothing else on this CPU writes it meanwhile: a nested
        // program could at worst make one increment be lost.
        unsafe { *value += 1 };
    }
}

/// Adds one to `counter`, and never loses one to a program that interrupts this one: what is made of events has to add up.
#[inline(always)]
pub fn count_exactly(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        add_one(value);
    }
}

/// Adds one to a number in a map, in one step.
#[inline(always)]
pub fn add_one(value: *mut u64) {
    // The compiler's own atomics for this target can load and store only.
    // SAFETY: the pointer is into a map's element, 8 bytes aligned and valid for as long as the program runs, and the
    // instruction touches nothing else.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) value, in(reg) 1_u64, options(nostack));
    }
}
