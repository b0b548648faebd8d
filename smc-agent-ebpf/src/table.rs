//! The policy table as the kernel side reads it.

use aya_ebpf::{btf_maps::Array, helpers::bpf_map_lookup_elem};
use smc_agent_common::{Fixed, Line, TableReader};

use crate::maps::{HITS, HITS_PER_SLOT, SLOT_IN_FORCE, SLOTS, TABLE_FIXED, TABLE_LINES};

/// One generation of the policy table. Its slot is read once, so that both of its parts and the hit counters belong
/// together; the slot is not written again before a grace period has passed.
pub struct KernelTable {
    slot: u32,
    fixed: &'static Fixed,
    lines: &'static Array<Line, 1, { 1 << 12 }>,
}

impl KernelTable {
    /// The table in force; `None` before the first.
    #[inline(always)]
    pub fn in_force() -> Option<Self> {
        let slot = *SLOT_IN_FORCE.get(0)?;
        if slot as usize >= SLOTS {
            return None;
        }
        let fixed = TABLE_FIXED.get(slot)?.get(0)?;
        let lines = TABLE_LINES.get(slot)?;
        Some(Self { slot, fixed, lines })
    }

    /// The generation of this table.
    #[inline(always)]
    pub fn generation(&self) -> u64 {
        self.fixed.header.generation
    }

    /// When this table came into force: `CLOCK_MONOTONIC`, nanoseconds.
    #[inline(always)]
    pub fn activated(&self) -> u64 {
        self.fixed.header.activated
    }

    /// Counts a hit of `rule`, or of the default.
    #[inline(always)]
    pub fn hit(&self, rule: u16) {
        let rule = (rule as usize).min(HITS_PER_SLOT - 1);
        let index = self.slot as usize * HITS_PER_SLOT + rule;
        if let Some(value) = HITS.get_ptr_mut(index as u32) {
            // SAFETY: this CPU's element; a nested program could at worst make one hit be lost.
            unsafe { *value += 1 };
        }
    }
}
