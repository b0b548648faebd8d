//! Where the rule sets of a table are put.

use super::CompileError;
use smc_agent_common::table::{INDEX_MASK, KIND_SHIFT, RULE_WORDS, RuleBits, SET_WORDS};
use std::collections::HashMap;

/// Puts each distinct rule set in one place.
pub(super) struct SetPool {
    known: HashMap<Box<[u64]>, u32>,
    words: Vec<u64>,
}

impl SetPool {
    /// A pool with the empty set, whose class is 0.
    pub(super) fn new() -> Self {
        Self { known: HashMap::from([(vec![0].into(), 0)]), words: vec![0] }
    }

    /// The class of a rule set.
    pub(super) fn intern(&mut self, bits: &RuleBits) -> Result<u32, CompileError> {
        let mut key = Vec::with_capacity(RULE_WORDS + 1);
        key.push(0);
        for (word, &value) in bits.iter().enumerate() {
            if value != 0 {
                key[0] |= 1 << word;
                key.push(value);
            }
        }
        if let Some(&class) = self.known.get(key.as_slice()) {
            return Ok(class);
        }
        if self.words.len() + key.len() > SET_WORDS {
            return Err(CompileError::RuleSets { sets: self.known.len() });
        }
        let class = index(self.words.len());
        self.words.extend_from_slice(&key);
        self.known.insert(key.into(), class);
        Ok(class)
    }

    /// The rules of a class.
    pub(super) fn rules(&self, class: u32) -> RuleBits {
        let mut bits = [0; RULE_WORDS];
        if let Some([summary, words @ ..]) = self.words.get((class & INDEX_MASK) as usize..) {
            let present = (0..RULE_WORDS).filter(|word| summary >> word & 1 == 1);
            present.zip(words).for_each(|(word, value)| bits[word] = *value);
        }
        bits
    }

    /// Number of distinct sets.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The content of the fixed area.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// An index within the table, all of which are bounded far below 2^29 by the limits on rules and prefixes.
#[expect(clippy::cast_possible_truncation, reason = "bounded by the limits, see above")]
pub(super) fn index(value: usize) -> u32 {
    debug_assert!(value < 1 << KIND_SHIFT);
    value as u32
}
