//! `policy test`: flows and what is expected of them, for users' own CI.

use super::compile::{CompileError, compile};
use super::diagnostic::{At, Diagnostic, Findings, Severity};
use super::explain::role_name;
use super::flow::parse_flow;
use super::load::{LoadError, load};
use super::model::{Action, Limits, Place};
use super::parse::Parser;
use super::yaml::{self, Node, Value};
use schemars::JsonSchema;
use serde::Serialize;
use smc_agent_common::{Flow, Role};
use std::fmt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a test file could not be run.
#[derive(Debug, Error)]
pub enum FlowTestError {
    /// The test file, or the policy that it names, cannot be read or is wrong.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The policy cannot become a table.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// What came of a test file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Report {
    /// Version of this form.
    pub version: u32,
    /// The test file.
    pub file: PathBuf,
    /// How many flows were decided as expected.
    pub passed: usize,
    /// The others.
    pub failed: Vec<Failure>,
    /// Warnings of the policy.
    pub warnings: Vec<Diagnostic>,
}

/// A flow that was not decided as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failure {
    /// Where the expectation is.
    pub place: Place,
    /// The flow as it is written there.
    pub flow: String,
    /// `client` or `server`.
    pub role: &'static str,
    /// The verdict that was expected.
    pub expected: Action,
    /// The verdict.
    pub verdict: Action,
    /// What was expected of the rule.
    pub expected_rule: ExpectedRule,
    /// The rule that decided; `None` (null) for the default.
    pub rule: Option<String>,
}

/// What a test expects of the rule that decides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExpectedRule {
    /// Any rule, or the default.
    Any,
    /// The default (`rule: null`).
    Default,
    /// The rule of this name.
    Name(String),
}

impl ExpectedRule {
    fn agrees(&self, rule: Option<&str>) -> bool {
        match self {
            Self::Any => true,
            Self::Default => rule.is_none(),
            Self::Name(name) => rule == Some(name),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}): expected {}", self.place, self.flow, self.role, self.expected)?;
        match &self.expected_rule {
            ExpectedRule::Any => {}
            ExpectedRule::Default => f.write_str(" by default")?,
            ExpectedRule::Name(name) => write!(f, " by `{name}`")?,
        }
        write!(f, ", got {}", self.verdict)?;
        match &self.rule {
            None => f.write_str(" by default"),
            Some(name) => write!(f, " by `{name}`"),
        }
    }
}

struct Expectation {
    at: At,
    text: String,
    flow: Flow,
    verdict: Action,
    rule: ExpectedRule,
}

/// Runs a test file. Policies that it names are looked for relative to it.
pub fn run(file: &Path, limits: &Limits) -> Result<Report, FlowTestError> {
    let unreadable = |source| LoadError::Unreadable { path: file.to_path_buf(), source };
    let text = crate::files::read_to_string(file).map_err(unreadable)?;
    let mut findings = Findings::new(file, &text);
    let (policies, expectations) = parse(&text, &mut findings);
    let wrong = findings.finish();
    if wrong.iter().any(|finding| finding.severity == Severity::Error) {
        return Err(LoadError::Invalid(wrong).into());
    }
    let folder = file.parent().unwrap_or(Path::new(""));
    let paths: Vec<PathBuf> = policies.iter().map(|(policy, _)| folder.join(policy)).collect();
    let loaded = match load(&paths, limits) {
        // The policy was not named on the command line: the test file is wrong.
        Err(LoadError::Unreadable { path, source }) => {
            let mut findings = Findings::new(file, &text);
            let at =
                paths.iter().position(|named| path.starts_with(named)).map_or(At::START, |n| policies[n].1);
            let help = format!("the path is relative to the test file; looked for {}", path.display());
            findings.error(at, format!("the policy cannot be read: {source}"), help);
            return Err(LoadError::Invalid(findings.finish()).into());
        }
        result => result?,
    };
    let table = compile(&loaded.policy, 0, limits)?;
    let mut report = Report {
        version: 1,
        file: file.to_path_buf(),
        passed: 0,
        failed: Vec::new(),
        warnings: loaded.warnings,
    };
    for expectation in expectations {
        let decision = table.decide(&expectation.flow);
        let verdict = Action::from(decision.verdict);
        let rule = loaded.policy.rules().get(usize::from(decision.rule)).map(|rule| rule.name.clone());
        if verdict == expectation.verdict && expectation.rule.agrees(rule.as_deref()) {
            report.passed += 1;
            continue;
        }
        let At { line, column, .. } = expectation.at;
        report.failed.push(Failure {
            place: Place { file: file.to_path_buf(), line, column },
            flow: expectation.text,
            role: role_name(expectation.flow.role),
            expected: expectation.verdict,
            verdict,
            expected_rule: expectation.rule,
            rule,
        });
    }
    Ok(report)
}

fn parse(text: &str, findings: &mut Findings<'_>) -> (Vec<(String, At)>, Vec<Expectation>) {
    let root = match yaml::parse(text) {
        Ok(root) => root,
        Err((at, message)) => {
            findings.error(at, format!("this is not valid YAML: {message}"), "");
            return (Vec::new(), Vec::new());
        }
    };
    let mut parser = Parser { findings };
    let Some(entries) = parser.entries(&root, "a policy test", &["policy", "flows"]) else {
        return (Vec::new(), Vec::new());
    };
    let mut policies = Vec::new();
    match entries.get("policy") {
        None => parser.findings.error(
            At::START,
            "`policy` is missing",
            "write `policy: FILE`, or a list of files",
        ),
        Some((_, node)) => {
            let list = match &node.value {
                Value::List(list) => list.as_slice(),
                _ => std::slice::from_ref(*node),
            };
            for item in list {
                match item.scalar() {
                    Some(path) if !path.is_empty() => policies.push((path.to_owned(), item.at)),
                    _ => {
                        let message = format!("a path was expected, this is {}", item.kind());
                        parser.findings.error(
                            item.at,
                            message,
                            "write the path of a policy, relative to this file",
                        );
                    }
                }
            }
            if list.is_empty() {
                parser.findings.error(
                    node.at,
                    "`policy` is empty",
                    "write `policy: FILE`, or a list of files",
                );
            }
        }
    }
    let mut expectations = Vec::new();
    match entries.get("flows").map(|(_, node)| (node, &node.value)) {
        Some((_, Value::List(flows))) => {
            expectations.extend(flows.iter().filter_map(|flow| expectation(&mut parser, flow)));
        }
        Some((node, _)) => {
            let message = format!("`flows` must be a list, this is {}", node.kind());
            parser.findings.error(node.at, message, "begin each flow with `- flow: …`");
        }
        None => {
            parser.findings.error(At::START, "`flows` is missing", "write a list of flows under `flows:`");
        }
    }
    (policies, expectations)
}

fn expectation(parser: &mut Parser<'_, '_>, node: &Node) -> Option<Expectation> {
    let entries = parser.entries(node, "a flow", &["flow", "role", "expect", "rule"])?;
    let mut required = |key: &str, help: &str| {
        let found = entries.get(key).map(|(_, node)| *node);
        if found.is_none() {
            parser.findings.error(node.at, format!("`{key}` is missing"), help);
        }
        found
    };
    let flow = required("flow", "write `flow: \"10.0.0.1 -> 192.0.2.7:6379\"`");
    let role = required("role", "write `role: client` or `role: server`: which side this host is");
    let expect = required("expect", "write `expect: allow` or `expect: deny`");
    let role = role
        .and_then(|role| parser.word(role, "role", &[("client", Role::Client), ("server", Role::Server)]));
    let words = [("allow", Action::Allow), ("deny", Action::Deny)];
    let verdict = expect.and_then(|expect| parser.word(expect, "expect", &words));
    let expected_rule = match entries.get("rule").map(|(_, named)| (named, &named.value)) {
        None => ExpectedRule::Any,
        Some((_, Value::Null)) => ExpectedRule::Default,
        Some((_, Value::Scalar(name))) => ExpectedRule::Name(name.clone()),
        Some((named, _)) => {
            let message = format!("`rule` must be a name, this is {}", named.kind());
            parser.findings.error(named.at, message, "write the name of a rule, or null for the default");
            ExpectedRule::Any
        }
    };
    let flow = flow?;
    let text = flow.scalar().unwrap_or_default().to_owned();
    match parse_flow(&text, role.unwrap_or(Role::Client)) {
        Ok(parsed) => {
            role?;
            Some(Expectation { at: flow.at, text, flow: parsed, verdict: verdict?, rule: expected_rule })
        }
        Err(error) => {
            parser.findings.error(flow.at, error.to_string(), "");
            None
        }
    }
}
