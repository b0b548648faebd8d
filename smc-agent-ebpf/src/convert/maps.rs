//! The maps of conversion; user space pins them, and exchanges the rules as one generation.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::{Array, ArrayOfMaps, HashMap, PerCpuArray},
    macros::btf_map,
};
use smc_agent_common::convert::{
    CONVERT_HITS, ConvertCounter, ConvertRules, ConvertTable, MAX_PATH, SelectorKey,
};

/// Slots: one in force, one to prepare the next generation in.
pub const SLOTS: u32 = 2;
const SLOT_COUNT: usize = SLOTS as usize;
const HASHED: usize = BPF_F_NO_PREALLOC as usize;

/// A cgroup's path from the root of the hierarchy, filled up with zeros.
pub type Path = [u8; MAX_PATH];
/// The selectors of a generation; user space chooses the size of each.
pub type Selectors = HashMap<SelectorKey, ConvertRules, 1, HASHED>;
/// The cgroups that the rules of a generation name, whether they exist or not.
pub type Groups = HashMap<Path, ConvertRules, 1, HASHED>;

/// Which slot is in force.
#[btf_map]
pub static CONVERT_SLOT: Array<u32, 1> = Array::new();

#[btf_map]
pub static CONVERT_TABLE: Array<ConvertTable, SLOT_COUNT> = Array::new();

#[btf_map]
pub static SELECTORS: ArrayOfMaps<Selectors, SLOT_COUNT> = ArrayOfMaps::new();

#[btf_map]
pub static GROUPS: ArrayOfMaps<Groups, SLOT_COUNT> = ArrayOfMaps::new();

/// How many sockets each rule decided.
#[btf_map]
pub static CONVERT_HITS_MAP: PerCpuArray<u64, { SLOT_COUNT * CONVERT_HITS }> = PerCpuArray::new();

#[btf_map]
pub static CONVERT_COUNTERS: PerCpuArray<u64, { ConvertCounter::COUNT }> = PerCpuArray::new();

/// Ids of the cgroups of `smc-agent exec`, and the processes that made them.
#[btf_map]
pub static EXEC_GROUPS: HashMap<u64, u32, 4096, HASHED> = HashMap::new();

/// Bit N: a cgroup in [`EXEC_GROUPS`] is at level N.
#[btf_map]
pub static EXEC_LEVELS: Array<u64, 1> = Array::new();

/// Where a new cgroup's path is put together.
#[btf_map]
pub static PATH_SCRATCH: PerCpuArray<Path, 1> = PerCpuArray::new();

/// Adds one to `counter` on this CPU.
#[inline(always)]
pub fn count(counter: ConvertCounter) {
    if let Some(value) = CONVERT_COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: this CPU's element; a program that interrupts this one could at worst make one increment be lost.
        unsafe { *value += 1 };
    }
}

/// Counts a decision of a rule, or of the default, of the generation in `slot`.
#[inline(always)]
pub fn hit(slot: u32, rule: u32) {
    if let Some(value) = CONVERT_HITS_MAP.get_ptr_mut(slot * CONVERT_HITS as u32 + rule) {
        // SAFETY: as above.
        unsafe { *value += 1 };
    }
}
