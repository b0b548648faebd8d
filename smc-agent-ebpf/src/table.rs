//! The policy table as the kernel side reads it.

use aya_ebpf::btf_maps::Array;
use smc_agent_common::{
    Fixed, Line, TableReader,
    table::{FLAG_LOCAL, RULE_WORDS},
};

use crate::maps::{BPF_F_INNER_MAP, HITS, HITS_PER_SLOT, SLOT_IN_FORCE, TABLE_FIXED, TABLE_LINES};

/// One generation of the policy table. Its slot is read once, so that both of its parts and the hit counters belong
/// together; the slot is not written again before a grace period has passed.
pub struct KernelTable {
    slot: u32,
    fixed: &'static Fixed,
    lines: &'static Array<Line, 1, BPF_F_INNER_MAP>,
}

impl KernelTable {
    /// The table in force; `None` before the first.
    #[inline(always)]
    pub fn in_force() -> Option<Self> {
        Self::in_slot(*SLOT_IN_FORCE.get(0)?)
    }

    /// The table in a slot that was in force when the program began.
    #[inline(always)]
    pub fn in_slot(slot: u32) -> Option<Self> {
        let fixed = Self::fixed_in_slot(slot)?;
        let lines = TABLE_LINES.get(slot)?;
        Some(Self { slot, fixed, lines })
    }

    /// The fixed part of such a table.
    #[inline(always)]
    pub fn fixed_in_slot(slot: u32) -> Option<&'static Fixed> {
        TABLE_FIXED.get(slot)
    }

    /// Whether any rule is in shadow mode.
    #[inline(always)]
    pub fn has_shadow_rules(&self) -> bool {
        self.fixed.header.shadow_summary != 0
    }

    /// Whether any rule asks for an address of this host.
    #[inline(always)]
    pub fn asks_local(&self) -> bool {
        self.fixed.header.flags & FLAG_LOCAL != 0
    }

    /// Where this table is.
    #[inline(always)]
    pub fn slot(&self) -> u32 {
        self.slot
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

    /// Whether the decisions of `rule` are to be reported.
    #[inline(always)]
    pub fn logs(&self, rule: u16) -> bool {
        self.fixed.log[(rule / 64) as usize & (RULE_WORDS - 1)] >> (rule % 64) & 1 == 1
    }
}

impl TableReader for KernelTable {
    #[inline(always)]
    fn fixed(&self) -> &Fixed {
        self.fixed
    }

    #[inline(always)]
    fn line(&self, index: u32) -> Option<&Line> {
        self.lines.get(index)
    }
}
