//! A compiled policy in memory.

use smc_agent_common::table::{RULE_DEFAULT, RULE_WORDS};
use smc_agent_common::{Decision, Fixed, Flow, Line, TableReader, Verdict, decide};

/// A compiled policy: what is copied into the kernel, and what user space judges by.
pub struct PolicyTable {
    /// The part of fixed size.
    pub fixed: Box<Fixed>,
    /// The rest; never empty.
    pub lines: Vec<Line>,
    rule_sets: usize,
}

impl PolicyTable {
    pub(super) fn new(fixed: Box<Fixed>, lines: Vec<Line>, rule_sets: usize) -> Self {
        Self { fixed, lines, rule_sets }
    }

    /// Bytes that the table takes, in the kernel and here.
    pub fn memory(&self) -> usize {
        size_of::<Fixed>() + self.lines.len() * size_of::<Line>()
    }

    /// How many different combinations of rules addresses and ports satisfy.
    pub fn rule_sets(&self) -> usize {
        self.rule_sets
    }

    /// The number that the table was compiled with.
    pub fn generation(&self) -> u64 {
        self.fixed.header.generation
    }

    /// Judges a flow.
    pub fn decide(&self, flow: &Flow) -> Decision {
        self.decide_with(flow, |_, _| {})
    }

    /// Judges a flow and tells `sink` what [`smc_agent_common::decide()`] tells.
    pub fn decide_with(&self, flow: &Flow, sink: impl FnMut(u16, bool)) -> Decision {
        // A table that the compiler made can be read; one that cannot be must not break a connection.
        decide(flow, self, sink).unwrap_or(Decision {
            verdict: Verdict::Allow,
            rule: RULE_DEFAULT,
            log: false,
        })
    }

    /// Words of rule bitmaps that are in use, at most [`RULE_WORDS`].
    pub fn words(&self) -> usize {
        (self.fixed.header.words as usize).min(RULE_WORDS)
    }
}

impl TableReader for PolicyTable {
    fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    fn line(&self, index: u32) -> Option<&Line> {
        self.lines.get(index as usize)
    }
}

impl std::fmt::Debug for PolicyTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyTable")
            .field("header", &self.fixed.header)
            .field("lines", &self.lines.len())
            .field("rule_sets", &self.rule_sets)
            .finish_non_exhaustive()
    }
}
