//! Names of rules by generation, read from the records once and then remembered.

use std::collections::BTreeMap;

use smc_agent_common::RULE_DEFAULT;

use crate::{
    enforce::{Places, PolicyRecord},
    trace::RuleNames,
};

/// Generations that are remembered: events of older ones are not to be expected.
const REMEMBERED: usize = 8;

/// The records of the last generations.
#[derive(Debug)]
pub(super) struct Names {
    places: Places,
    records: BTreeMap<u64, Option<PolicyRecord>>,
}

impl Names {
    pub(super) fn new(places: Places) -> Self {
        Self { places, records: BTreeMap::new() }
    }

    fn record(&mut self, generation: u64) -> Option<&PolicyRecord> {
        if !self.records.contains_key(&generation) && self.records.len() >= REMEMBERED {
            self.records.pop_first();
        }
        let places = &self.places;
        let read = || PolicyRecord::read(places, generation).ok();
        self.records.entry(generation).or_insert_with(read).as_ref()
    }
}

impl RuleNames for Names {
    fn rule_name(&mut self, generation: u64, rule: u16) -> Option<String> {
        if rule == RULE_DEFAULT {
            return None;
        }
        let name = self.record(generation).and_then(|record| record.rule_name(rule));
        // Without a record the number has to do: a missing name would read as the default.
        Some(name.map_or_else(|| format!("#{rule}"), str::to_owned))
    }

    fn rule_action(&mut self, generation: u64, rule: u16) -> Option<String> {
        let record = self.record(generation)?;
        Some(record.rules.get(usize::from(rule)).map_or(&record.default, |rule| &rule.action).clone())
    }
}
