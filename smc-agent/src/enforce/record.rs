//! What is enforced, in words: the rules of each generation, written before the generation comes into force, so that
//! events and `status` can name them, also without a running agent and after a restart.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common::RULE_DEFAULT;

use super::places::{Places, at};
use crate::{
    files,
    policy::{Action, Policy},
};

const VERSION: u32 = 1;

/// The rules of one generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyRecord {
    /// Version of this form.
    pub version: u32,
    /// The generation.
    pub generation: u64,
    /// The files or folders that the policy was read from, as they were named.
    pub sources: Vec<PathBuf>,
    /// What happens to flows that no rule matches: `allow` or `deny`.
    pub default: String,
    /// The rules, in order.
    pub rules: Vec<RuleRecord>,
}

/// A rule of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleRecord {
    /// Its name.
    pub name: String,
    /// `allow` or `deny`.
    pub action: String,
    /// The file that it stands in.
    pub file: PathBuf,
    /// The line of that file, from 1.
    pub line: u32,
}

impl PolicyRecord {
    /// Describes `policy`, read from `sources`, as `generation`.
    pub fn new(policy: &Policy, sources: &[PathBuf], generation: u64) -> Self {
        let word = |action: Action| match action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        Self {
            version: VERSION,
            generation,
            sources: sources.to_vec(),
            default: word(policy.default_action()).to_owned(),
            rules: policy
                .rules()
                .iter()
                .map(|rule| RuleRecord {
                    name: rule.name.clone(),
                    action: word(rule.action).to_owned(),
                    file: rule.place.file.clone(),
                    line: rule.place.line,
                })
                .collect(),
        }
    }

    /// The name of a rule by its number: `None` for the default, and for numbers that this generation has not.
    pub fn rule_name(&self, rule: u16) -> Option<&str> {
        if rule == RULE_DEFAULT {
            return None;
        }
        self.rules.get(usize::from(rule)).map(|rule| rule.name.as_str())
    }

    /// Writes the record to its place; nothing is there half written.
    pub fn write(&self, places: &Places) -> io::Result<()> {
        files::write_json(&places.policy(self.generation), self)
    }

    /// Reads the record of a generation.
    pub fn read(places: &Places, generation: u64) -> io::Result<Self> {
        let path = places.policy(generation);
        let read = || Ok(serde_json::from_slice(&fs::read(&path)?)?);
        read().map_err(at("read", &path))
    }

    /// Removes the records of all generations before `oldest`.
    pub fn remove_before(places: &Places, oldest: u64) -> io::Result<()> {
        for (generation, path) in all(&places.state)? {
            if generation < oldest {
                fs::remove_file(&path).map_err(at("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Removes the records of all generations.
    pub fn remove_all(places: &Places) -> io::Result<()> {
        Self::remove_before(places, u64::MAX)
    }
}

fn all(state: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(state).map_err(at("read", state))? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("policy-")?.strip_suffix(".json"));
        if let Some(generation) = number.and_then(|number| number.parse().ok()) {
            found.push((generation, entry.path()));
        }
    }
    Ok(found)
}
