//! What `policy check` says of a policy.

use super::compile::{CompileError, compile};
use super::diagnostic::Diagnostic;
use super::load::Loaded;
use super::model::{Action, Limits};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// A policy in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// Version of this form.
    pub version: u32,
    /// Every file that was read, set files too.
    pub files: Vec<PathBuf>,
    /// What happens to flows that no rule matches.
    pub default: Action,
    /// Number of rules.
    pub rules: usize,
    /// Number of named sets.
    pub sets: usize,
    /// Number of prefixes as written.
    pub prefixes: usize,
    /// Bytes that the table takes in the kernel; twice that while a new one takes its place.
    pub table_memory: usize,
    /// The most bytes that are allowed.
    pub table_memory_limit: usize,
    /// What is odd about the policy.
    pub warnings: Vec<Diagnostic>,
}

/// Compiles a policy to see that it can be, and sums it up.
pub fn check(loaded: &Loaded, limits: &Limits) -> Result<Summary, CompileError> {
    let policy = &loaded.policy;
    let table = compile(policy, 0, limits)?;
    Ok(Summary {
        version: 1,
        files: policy.files().to_vec(),
        default: policy.default_action(),
        rules: policy.rules().len(),
        sets: policy.sets().len(),
        prefixes: policy.prefixes(),
        table_memory: table.memory(),
        table_memory_limit: limits.table_memory,
        warnings: loaded.warnings.clone(),
    })
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        write!(
            f,
            "{}, {}, {}, default {}; the table takes {} KiB of at most {} KiB",
            plural(self.rules, "rule"),
            plural(self.sets, "set"),
            if self.prefixes == 1 { "1 prefix".to_owned() } else { format!("{} prefixes", self.prefixes) },
            self.default,
            self.table_memory.div_ceil(1024),
            self.table_memory_limit / 1024
        )
    }
}
