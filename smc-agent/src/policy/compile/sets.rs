//! Where the rule sets of a table are put.

use super::CompileError;
use smc_agent_common::Line;
use smc_agent_common::table::{INDEX_MASK, KIND_LINE_SET, KIND_SHIFT, RULE_WORDS, RuleBits, SET_WORDS};
use std::collections::HashMap;

/// The most words besides the summary that fit a line.
const LINE_WORDS: usize = 7;
/// Sets that would fit a line as well leave the rest of the fixed area to larger ones, which have no other place.
const SMALL_AREA: usize = SET_WORDS / 2;

/// Up to here in the fixed area, sets of local addresses and ports have all words: where each has, a decision reads them
/// without looking at their summaries.
const WHOLE_AREA: usize = SET_WORDS / 4;

/// Puts each distinct rule set in one place.
pub(super) struct SetPool {
    /// Classes by summary and words that are not 0.
    known: HashMap<Box<[u64]>, u32>,
    words: Vec<u64>,
    /// Words of rule bitmaps that are in use.
    in_use: usize,
    open: Option<(u32, usize)>,
    lines_allowed: bool,
}

impl SetPool {
    /// A pool with the empty set, whose class is 0, for so many rules.
    pub(super) fn new(rules: usize) -> Self {
        Self {
            known: HashMap::from([(vec![0].into(), 0)]),
            words: vec![0; 1 + RULE_WORDS],
            in_use: rules.div_ceil(64).min(RULE_WORDS),
            open: None,
            lines_allowed: false,
        }
    }

    /// From now on sets that do not fit the fixed area take part of a line. Only classes of peers may be such, so that all
    /// others come first.
    pub(super) fn allow_lines(&mut self) {
        self.lines_allowed = true;
    }

    /// The class of a rule set.
    pub(super) fn intern(&mut self, bits: &RuleBits, lines: &mut Vec<Line>) -> Result<u32, CompileError> {
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
        let small = self.lines_allowed && key.len() <= LINE_WORDS + 1;
        let limit = if small { SMALL_AREA } else { SET_WORDS };
        let whole_limit = if self.lines_allowed { 0 } else { WHOLE_AREA };
        let class = if self.words.len() + 1 + self.in_use <= whole_limit {
            let class = index(self.words.len());
            self.words.push(all_words(self.in_use));
            self.words.extend_from_slice(&bits[..self.in_use]);
            class
        } else if self.words.len() + key.len() <= limit {
            let class = index(self.words.len());
            self.words.extend_from_slice(&key);
            class
        } else if small {
            self.in_line(&key, lines)
        } else {
            return Err(CompileError::RuleSets { sets: self.known.len() });
        };
        self.known.insert(key.into(), class);
        Ok(class)
    }

    fn in_line(&mut self, key: &[u64], lines: &mut Vec<Line>) -> u32 {
        let (line, slot) = match self.open {
            Some((line, used)) if used + key.len() <= 8 => (line, used),
            _ => {
                lines.push(Line { words: [0; 8] });
                (index(lines.len() - 1), 0)
            }
        };
        lines[line as usize].words[slot..slot + key.len()].copy_from_slice(key);
        self.open = Some((line, slot + key.len()));
        (KIND_LINE_SET << KIND_SHIFT) | (line * 8 + index(slot))
    }

    /// The rules of a class.
    pub(super) fn rules(&self, class: u32, lines: &[Line]) -> RuleBits {
        let at = (class & INDEX_MASK) as usize;
        let words = match class >> KIND_SHIFT {
            KIND_LINE_SET => lines.get(at / 8).and_then(|line| line.words.get(at % 8..)),
            _ => self.words.get(at..),
        };
        let mut bits = [0; RULE_WORDS];
        if let Some([summary, words @ ..]) = words {
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

/// The lowest `words` bits.
pub(super) fn all_words(words: usize) -> u64 {
    1u64.checked_shl(index(words)).map_or(u64::MAX, |above| above - 1)
}

/// An index within the table, all of which are bounded far below 2^29 by the limits on rules and prefixes.
#[expect(clippy::cast_possible_truncation, reason = "bounded by the limits, see above")]
pub(super) fn index(value: usize) -> u32 {
    debug_assert!(value < 1 << KIND_SHIFT);
    value as u32
}
