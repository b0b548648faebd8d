//! `smc-agent policy show`.

use std::{fmt::Write as _, path::PathBuf, process::ExitCode};

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Failure, Output, print, print_json, running::Running};
use crate::{
    enforce::Places,
    kernel::maps::TableSize,
    policy::{self, Limits, Outline, RuleOutline, SetOutline},
};

#[derive(Debug, Args)]
pub(in crate::cli) struct Arguments {
    /// Leave out what is in the sets
    #[arg(long)]
    terse: bool,
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// The policy that runs.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RunningPolicy")]
struct Shown {
    /// Version of this form.
    version: u32,
    /// Counts up with every policy that comes into force.
    generation: u64,
    /// The files and folders that it was read from.
    sources: Vec<PathBuf>,
    /// Whether the sources still say what runs; only then is known what each rule asks.
    current: bool,
    /// `allow` or `deny`: what becomes of flows that no rule matches.
    default: String,
    /// How many flows no rule decided.
    default_hits: u64,
    /// What the table takes in the kernel; null where its maps may not be opened.
    table: Option<TableSize>,
    /// The rules, in order.
    rules: Vec<ShownRule>,
    /// Null if the sources say something else by now.
    sets: Option<Vec<SetOutline>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RunningRule")]
struct ShownRule {
    /// Its name.
    name: String,
    /// `allow` or `deny`.
    action: String,
    /// How many flows it decided, or would have in shadow mode.
    hits: u64,
    /// The file that it stands in.
    file: Option<PathBuf>,
    /// The line there, from 1 on.
    line: Option<u32>,
    /// What the rule asks; null if the sources say something else by now.
    asks: Option<RuleOutline>,
}

pub(super) fn show(places: &Places, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let running = Running::find(places, "policy show")?;
    let table = running.size();
    // Files that have changed, or gone, do not keep anyone from seeing what runs.
    let policy = policy::load(&running.status.sources, &Limits::default()).ok().map(|loaded| loaded.policy);
    let outline =
        policy.filter(|policy| running.is(policy)).map(|policy| policy::outline(&policy, !arguments.terse));
    let shown = shown(running, table, outline);
    match arguments.output {
        Output::Json => print_json(&shown)?,
        Output::Text => print(format_args!("{}", text(&shown)))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(running: Running, table: Option<TableSize>, outline: Option<Outline>) -> Shown {
    let current = outline.is_some();
    let (asks, sets) = outline.map_or((Vec::new(), None), |outline| (outline.rules, Some(outline.sets)));
    let mut asks = asks.into_iter();
    let mut records = running.record.map(|record| record.rules).unwrap_or_default().into_iter();
    let rules = running.status.rules.into_iter().map(|rule| {
        let (file, line) = records.next().map(|record| (record.file, record.line)).unzip();
        ShownRule { name: rule.name, action: rule.action, hits: rule.hits, file, line, asks: asks.next() }
    });
    Shown {
        version: 1,
        generation: running.status.generation,
        rules: rules.collect(),
        sources: running.status.sources,
        current,
        default: running.status.default,
        default_hits: running.status.default_hits,
        table,
        sets,
    }
}

fn text(shown: &Shown) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = lines(shown, &mut text);
    text
}

fn lines(shown: &Shown, text: &mut String) -> std::fmt::Result {
    let sources: Vec<_> = shown.sources.iter().map(|source| source.display().to_string()).collect();
    writeln!(text, "generation {} of {}", shown.generation, sources.join(" "))?;
    if let Some(table) = shown.table {
        writeln!(text, "table      {} KiB, {} rules", table.memory.div_ceil(1024), table.rules)?;
    }
    if !shown.current {
        writeln!(text, "changed    the files say something else by now; what each rule asks is not known")?;
    }
    for rule in &shown.rules {
        let name = rule.name.escape_debug();
        write!(text, "{:<5} {:>12} hits  {name}", rule.action, rule.hits)?;
        if let (Some(file), Some(line)) = (&rule.file, rule.line) {
            write!(text, " ({}:{line})", file.display())?;
        }
        if let Some(asks) = &rule.asks {
            write!(text, ": {asks}")?;
        }
        text.push('\n');
    }
    writeln!(text, "{:<5} {:>12} hits  (default)", shown.default, shown.default_hits)?;
    for set in shown.sets.iter().flatten() {
        writeln!(text, "set @{}: {} prefixes", set.name, set.prefixes)?;
        for address in set.addresses.iter().flatten() {
            writeln!(text, "  {address}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        daemon::{PolicyStatus, RuleStatus},
        enforce::{PolicyRecord, RuleRecord},
    };

    const POLICY: &str = "version: 1\ndefault: allow\nsets: {lab: [10.20.0.0/16, '2001:db8::/32']}\nrules:\n  \
        - {name: 'the \"lab\"', action: deny, role: client, peer: ['@lab', 192.0.2.7], port: [443, 8000-8099], log: true}\n  \
        - {name: try, action: deny, local: 10.0.0.0/8, mode: shadow}\n";

    fn example(terse: bool, current: bool) -> Shown {
        let policy = policy::load_text(Path::new("p.yaml"), POLICY, &Limits::default()).unwrap().policy;
        let rule = |name: &str, hits| RuleStatus { name: name.to_owned(), action: "deny".to_owned(), hits };
        let status = PolicyStatus {
            generation: 3,
            sources: vec!["/etc/p.yaml".into()],
            default: "allow".to_owned(),
            default_hits: 5,
            rules: vec![rule("the \"lab\"", 7), rule("try", 0)],
        };
        let record = |name: &str, line| RuleRecord {
            name: name.to_owned(),
            action: "deny".to_owned(),
            file: "/etc/p.yaml".into(),
            line,
        };
        let record = PolicyRecord {
            version: 1,
            generation: 3,
            sources: status.sources.clone(),
            default: status.default.clone(),
            rules: vec![record("the \"lab\"", 5), record("try", 6)],
        };
        let running = Running::for_test(status, record);
        let outline = current.then(|| policy::outline(&policy, !terse));
        shown(running, Some(TableSize { memory: 3_461_120, rules: 2, lines: 1 }), outline)
    }

    #[test]
    fn the_checked_in_schema_is_that_of_the_type() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/policy-show.schema.json");
        let text = serde_json::to_string_pretty(&schemars::schema_for!(Shown)).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(checked_in, text, "run this test with UPDATE_SCHEMA=1");
    }

    #[test]
    fn what_runs_is_shown_with_its_rules_and_sets() {
        insta::assert_snapshot!("show_text", text(&example(false, true)));
        insta::assert_snapshot!("show_terse", text(&example(true, true)));
        insta::assert_snapshot!("show_changed", text(&example(false, false)));
        insta::assert_snapshot!("show_json", serde_json::to_string_pretty(&example(false, true)).unwrap());
    }
}
