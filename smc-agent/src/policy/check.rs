//! What `policy check` says of a policy.

use super::compile::{CompileError, compile};
use super::diagnostic::{Diagnostic, Severity};
use super::load::{LoadError, Loaded, load};
use super::model::{Action, Limits};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// What there is to say of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// Version of this form.
    pub version: u32,
    /// Whether it can be put into force.
    pub valid: bool,
    /// Errors and warnings, by file and line.
    pub diagnostics: Vec<Diagnostic>,
    /// The policy in figures; `None` (null) if it is not valid.
    pub summary: Option<Summary>,
}

/// A policy in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// Every file that was read, set files too.
    pub files: Vec<PathBuf>,
    /// What happens to flows that no rule matches.
    pub default: Action,
    /// Number of rules.
    pub rules: usize,
    /// Number of rules of `convert`; `None` (null) if the policy says nothing of conversion.
    pub convert_rules: Option<usize>,
    /// Number of named sets.
    pub sets: usize,
    /// Number of prefixes as written.
    pub prefixes: usize,
    /// Number of different combinations of rules that addresses and ports satisfy.
    pub rule_sets: usize,
    /// Bytes that the table takes in the kernel; twice that while a new one takes its place.
    pub table_memory: usize,
    /// The most bytes that are allowed.
    pub table_memory_limit: usize,
}

/// Checks the policy that the files make up. Fails only if one that was named cannot be read.
pub fn check(paths: &[PathBuf], limits: &Limits) -> Result<Check, LoadError> {
    let refused = |diagnostics| Check { version: 1, valid: false, diagnostics, summary: None };
    let loaded = match load(paths, limits) {
        Ok(loaded) => loaded,
        Err(LoadError::Invalid(diagnostics)) => return Ok(refused(diagnostics)),
        Err(error @ LoadError::Unreadable { .. }) => return Err(error),
    };
    Ok(match summarize(&loaded, limits) {
        Ok(summary) => {
            Check { version: 1, valid: true, diagnostics: loaded.warnings, summary: Some(summary) }
        }
        Err(error) => {
            let mut diagnostics = loaded.warnings;
            diagnostics.insert(0, whole_policy(loaded.policy.files(), &error));
            refused(diagnostics)
        }
    })
}

/// Compiles a policy to see that it can be, and sums it up.
fn summarize(loaded: &Loaded, limits: &Limits) -> Result<Summary, CompileError> {
    let policy = &loaded.policy;
    let table = compile(policy, 0, limits)?;
    Ok(Summary {
        files: policy.files().to_vec(),
        default: policy.default_action(),
        rules: policy.rules().len(),
        convert_rules: policy.convert().map(|convert| convert.rules.len()),
        sets: policy.sets().len(),
        prefixes: policy.prefixes(),
        rule_sets: table.rule_sets(),
        table_memory: table.memory(),
        table_memory_limit: limits.table_memory,
    })
}

/// What is wrong with the policy as a whole stands at its beginning.
fn whole_policy(files: &[PathBuf], error: &CompileError) -> Diagnostic {
    Diagnostic {
        severity: Severity::Error,
        file: files.first().cloned().unwrap_or_default(),
        line: 1,
        column: 1,
        length: 1,
        message: error.to_string(),
        help: None,
        source: None,
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural =
            |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        write!(
            f,
            "{}, {}, {}, default {}; {}, the table takes {} KiB of at most {} KiB",
            plural(self.rules, "rule"),
            plural(self.sets, "set"),
            if self.prefixes == 1 { "1 prefix".to_owned() } else { format!("{} prefixes", self.prefixes) },
            self.default,
            plural(self.rule_sets, "rule set"),
            self.table_memory.div_ceil(1024),
            self.table_memory_limit / 1024
        )?;
        match self.convert_rules {
            Some(rules) => write!(f, "; conversion by {}", plural(rules, "rule")),
            None => Ok(()),
        }
    }
}
