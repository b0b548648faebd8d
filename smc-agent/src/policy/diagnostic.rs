//! What is wrong with a file, and where.

use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but probably does not do what was meant.
    Warning,
}

/// One finding in a file.
///
/// `Display` renders it as compilers do: place and message on the first line, then the line of the file with the
/// offending text marked, then what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The file, as it was named or found.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: u32,
    /// The column in characters, counted from 1.
    pub column: u32,
    /// How many characters are meant; at least 1.
    pub length: u32,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The line of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The longest part of a line that is shown, in characters.
const SHOWN: usize = 160;

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "{}:{}:{}: {severity}: {}", self.file.display(), self.line, self.column, self.message)?;
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        if let Some(source) = &self.source {
            let before = self.column.saturating_sub(1) as usize;
            // A long line is cut to the part around the offending text.
            let skip = if before + 20 > SHOWN { before - 40 } else { 0 };
            let shown: String = source.chars().skip(skip).take(SHOWN).collect();
            let pad: String = source
                .chars()
                .skip(skip)
                .take(before - skip)
                .map(|c| if c == '\t' { '\t' } else { ' ' })
                .collect();
            let room = shown.chars().count().saturating_sub(before - skip).max(1);
            let marks = "^".repeat((self.length as usize).clamp(1, room));
            write!(f, "\n {number} | {shown}\n {margin} | {pad}{marks}")?;
        }
        if let Some(help) = &self.help {
            write!(f, "\n {margin} = help: {help}")?;
        }
        Ok(())
    }
}

/// A place in a file: line and column count from 1, columns and the length are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) length: u32,
}

impl At {
    /// The beginning of a file.
    pub(super) const START: Self = Self { line: 1, column: 1, length: 1 };
}

/// Collects the findings in one file.
pub(super) struct Findings<'a> {
    file: &'a Path,
    text: &'a str,
    list: Vec<Diagnostic>,
    warnings: usize,
    errors: usize,
}

/// The most errors, and the most warnings, that are listed for one file: more would bury the first.
const LISTED: usize = 50;

impl<'a> Findings<'a> {
    pub(super) fn new(file: &'a Path, text: &'a str) -> Self {
        Self { file, text, list: Vec::new(), warnings: 0, errors: 0 }
    }

    pub(super) fn error(&mut self, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.errors += 1;
        if self.errors <= LISTED {
            self.push(Severity::Error, at, message.into(), help.into());
        }
    }

    pub(super) fn warning(&mut self, at: At, message: impl Into<String>, help: impl Into<String>) {
        self.warnings += 1;
        if self.warnings <= LISTED {
            self.push(Severity::Warning, at, message.into(), help.into());
        }
    }

    fn push(&mut self, severity: Severity, at: At, message: String, help: String) {
        let source = self.text.lines().nth(at.line.saturating_sub(1) as usize);
        self.list.push(Diagnostic {
            severity,
            file: self.file.to_path_buf(),
            line: at.line,
            column: at.column,
            length: at.length.max(1),
            message,
            help: (!help.is_empty()).then_some(help),
            source: source.map(|line| line.trim_end().to_owned()),
        });
    }

    /// The findings in the order of the file, and how many were left out.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
        self.list.sort_by_key(|finding| (finding.line, finding.column));
        for (severity, count, what) in
            [(Severity::Error, self.errors, "errors"), (Severity::Warning, self.warnings, "warnings")]
        {
            if count > LISTED {
                self.list.push(Diagnostic {
                    severity,
                    file: self.file.to_path_buf(),
                    line: 1,
                    column: 1,
                    length: 1,
                    message: format!("{} more {what} of this file are not listed", count - LISTED),
                    help: None,
                    source: None,
                });
            }
        }
        self.list
    }
}
