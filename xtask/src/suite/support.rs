//! The support table of the README, against what the tests proved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::kernel::Kernel;
use crate::{cargo, sys};

/// What stands around the table in the README.
const BEGIN: &str = "<!-- support table: written by `UPDATE_DOCS=1 cargo xtask test` -->\n";
const END: &str = "<!-- end of the support table -->\n";
/// What a cell says of something that no test proved.
const NOT_PROVED: &str = "–";
/// The variable that has the table written instead of checked.
const UPDATE: &str = "UPDATE_DOCS";

/// A column: its heading, the tests (target and name) that all have to pass, and what a cell says then.
struct Ability {
    heading: &'static str,
    tests: &'static [(&'static str, &'static str)],
    says: fn(Kernel) -> &'static str,
}

const fn yes(_: Kernel) -> &'static str {
    "yes"
}

/// The way that `vm_kernel` expects on a kernel.
const fn way(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::V5_10 | Kernel::V6_1 => "through clsact",
        Kernel::V6_12 | Kernel::V7_3 => "through tcx",
    }
}

const ABILITIES: [Ability; 7] = [
    Ability {
        heading: "Enforce by `hs-ctrl`",
        tests: &[("vm", "hs_ctrl::a_client_rule"), ("vm", "hs_ctrl::a_server_rule")],
        says: yes,
    },
    Ability {
        heading: "Enforce by `tc`",
        tests: &[
            ("vm", "tc::a_client_rule"),
            ("vm", "tc::a_server_rule"),
            ("vm_kernel", "features::each_line_is_right"),
        ],
        says: way,
    },
    Ability {
        heading: "Fallback events, with the rule",
        tests: &[("vm", "tc::events_name_the_rule")],
        says: yes,
    },
    Ability { heading: "Owners", tests: &[("vm_events", "events::a_peer_without_smc")], says: yes },
    Ability {
        heading: "Convert by bpf",
        tests: &[("vm_convert", "convert::redis"), ("vm_convert", "convert::exec_by_bpf")],
        says: yes,
    },
    Ability {
        heading: "Convert by preload",
        tests: &[("vm_convert", "convert::exec_by_preload")],
        says: yes,
    },
    Ability {
        heading: "`show`, `monitor`",
        tests: &[
            ("vm_show", "show::sockets_of_all_kinds_are_told_as_the_kernel_has_them"),
            ("vm_show", "show::statistics_and_fallbacks"),
            ("vm_show", "show::rates_of_a_known_transfer"),
        ],
        says: yes,
    },
];

/// What tests showed in guests: by kernel, target and name, whether it passed.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    tests: BTreeMap<(String, String, String), bool>,
}

impl Proofs {
    /// Notes the tests of a guest. `well` is whether the guest as a whole was well; if not, nothing that it said counts.
    pub(super) fn add(&mut self, kernel: Kernel, target: &str, tests: &[(String, bool)], well: bool) {
        for (test, passed) in tests {
            let key = (kernel.name().to_owned(), target.to_owned(), test.clone());
            self.tests.insert(key, *passed && well);
        }
    }

    fn cell(&self, kernel: Kernel, ability: &Ability) -> Cell {
        let found: Vec<Option<bool>> = ability
            .tests
            .iter()
            .map(|(target, test)| {
                let key = (kernel.name().to_owned(), (*target).to_owned(), (*test).to_owned());
                self.tests.get(&key).copied()
            })
            .collect();
        if found.contains(&Some(false)) {
            Cell::Refuted
        } else if found.contains(&None) {
            Cell::NotRun
        } else {
            Cell::Proved
        }
    }

    /// Reads what [`Self::text`] wrote.
    fn read(text: &str) -> Self {
        let mut tests = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split('\t').map(str::to_owned);
            if let (Some(kernel), Some(target), Some(test), Some(outcome)) =
                (words.next(), words.next(), words.next(), words.next())
            {
                tests.insert((kernel, target, test), outcome == "passed");
            }
        }
        Self { tests }
    }

    /// A line for each test: kernel, target, name, outcome.
    fn text(&self) -> String {
        self.tests.iter().fold(String::new(), |mut text, ((kernel, target, test), passed)| {
            // Writing to a string cannot fail.
            let _ =
                writeln!(text, "{kernel}\t{target}\t{test}\t{}", if *passed { "passed" } else { "failed" });
            text
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Proved,
    Refuted,
    NotRun,
}

/// The table that follows from the proofs. Where the tests of a cell did not run, a partial run leaves what is there.
fn table(proofs: &Proofs, present: &BTreeMap<(String, String), String>, whole: bool) -> String {
    let mut text = "| Kernel |".to_owned();
    for ability in &ABILITIES {
        let _ = write!(text, " {} |", ability.heading);
    }
    text += "\n|---|";
    text += &"---|".repeat(ABILITIES.len());
    text.push('\n');
    for kernel in Kernel::ALL {
        let _ = write!(text, "| {} |", kernel.name());
        for ability in &ABILITIES {
            let key = (kernel.name().to_owned(), ability.heading.to_owned());
            let says = match proofs.cell(kernel, ability) {
                Cell::Proved => (ability.says)(kernel),
                Cell::NotRun if !whole => present.get(&key).map_or(NOT_PROVED, String::as_str),
                Cell::Refuted | Cell::NotRun => NOT_PROVED,
            };
            let _ = write!(text, " {says} |");
        }
        text.push('\n');
    }
    text
}

/// The cells of a table, by kernel and heading.
fn cells(table: &str) -> BTreeMap<(String, String), String> {
    let mut rows = table.lines().filter(|line| line.starts_with('|')).map(|line| {
        line.trim().trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    });
    let headings = rows.next().unwrap_or_default();
    let mut cells = BTreeMap::new();
    for row in rows.skip(1) {
        let mut row = row.into_iter();
        let kernel = row.next().unwrap_or_default();
        for (heading, cell) in headings.iter().skip(1).zip(row) {
            cells.insert((kernel.clone(), heading.clone()), cell);
        }
    }
    cells
}

/// What stands before the table, the table, and what stands behind it.
fn parts(readme: &str) -> Result<(&str, &str, &str)> {
    let (before, rest) =
        readme.split_once(BEGIN).context("README.md has no beginning of the support table")?;
    let (table, after) = rest.split_once(END).context("README.md has no end of the support table")?;
    Ok((before, table, after))
}

/// What the README claims and these proofs do not bear out.
fn unproved(proofs: &Proofs, present: &str, whole: bool) -> Vec<String> {
    let claimed = cells(present);
    let borne_out = cells(&table(proofs, &claimed, whole));
    let mut wrong: Vec<String> = claimed
        .iter()
        .filter(|(key, cell)| *cell != NOT_PROVED && borne_out.get(key) != Some(cell))
        .map(|((kernel, heading), cell)| format!("{kernel}: {heading}: {cell}"))
        .collect();
    wrong.sort();
    wrong
}

/// Holds the README's table against what a run proved, or writes it if [`UPDATE`] is set. `whole`: all tests on all kernels ran;
/// else only the cells are looked at whose tests ran. That more is proved than claimed is only told.
pub(super) fn check(proofs: &Proofs, whole: bool) -> Result<()> {
    let update = std::env::var_os(UPDATE).is_some();
    let record = cargo::target_dir()?.join("proved.tsv");
    let mut all = Proofs::read(&fs::read_to_string(&record).unwrap_or_default());
    if whole {
        all.tests.clear();
    }
    all.tests.extend(proofs.tests.clone());
    fs::write(&record, all.text())?;
    // What several partial runs proved together may be written. A check takes this run's word alone.
    let proofs = if update { &all } else { proofs };
    check_file(&cargo::workspace()?.join("README.md"), proofs, whole, update)
}

fn check_file(path: &Path, proofs: &Proofs, whole: bool, update: bool) -> Result<()> {
    let readme = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let (before, present, after) = parts(&readme)?;
    ensure!(!proofs.tests.is_empty(), "no test ran in a guest");
    let new = table(proofs, &cells(present), whole);
    if update {
        if new.trim() != present.trim() {
            fs::write(path, format!("{before}{BEGIN}\n{new}\n{END}{after}"))?;
            sys::say(format_args!("{}: the support table was written anew", path.display()));
        }
        return Ok(());
    }
    let wrong = unproved(proofs, present, whole);
    if !wrong.is_empty() {
        bail!("README.md claims what no test proved:\n{}", wrong.join("\n"));
    }
    if new.trim() != present.trim() {
        sys::say(format_args!("more is proved than README.md claims: {UPDATE}=1 writes it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proofs(tests: &[(Kernel, &str, &str, bool)]) -> Proofs {
        let mut proofs = Proofs::default();
        for (kernel, target, test, passed) in tests {
            proofs.add(*kernel, target, &[((*test).to_owned(), *passed)], true);
        }
        proofs
    }

    const NAMED: (Kernel, &str, &str, bool) = (Kernel::V6_12, "vm", "tc::events_name_the_rule", true);

    fn of(table: &str, kernel: &str, heading: &str) -> String {
        cells(table).get(&(kernel.to_owned(), heading.to_owned())).cloned().unwrap_or_default()
    }

    #[test]
    fn only_what_passed_is_claimed() {
        let heading = "Fallback events, with the rule";
        let written = table(&proofs(&[NAMED]), &BTreeMap::new(), true);
        assert_eq!(of(&written, "6.12", heading), "yes");
        assert_eq!(of(&written, "7.3", heading), NOT_PROVED);
        // One of several is not enough.
        let one = proofs(&[(Kernel::V7_3, "vm", "hs_ctrl::a_client_rule", true)]);
        assert_eq!(of(&table(&one, &BTreeMap::new(), true), "7.3", "Enforce by `hs-ctrl`"), NOT_PROVED);
    }

    #[test]
    fn the_record_is_read_as_it_is_written() {
        let proofs = proofs(&[NAMED, (Kernel::V7_3, "vm", "x", false)]);
        assert_eq!(Proofs::read(&proofs.text()).tests, proofs.tests);
    }

    #[test]
    fn a_guest_that_was_not_well_proves_nothing() {
        let mut proofs = Proofs::default();
        proofs.add(NAMED.0, NAMED.1, &[(NAMED.2.to_owned(), true)], false);
        assert_eq!(proofs.cell(NAMED.0, &ABILITIES[2]), Cell::Refuted);
    }

    #[test]
    fn a_partial_run_judges_only_what_it_ran() {
        let all = table(&proofs(&[NAMED]), &BTreeMap::new(), true);
        let other = proofs(&[(Kernel::V6_1, "vm", "tc::a_client_rule", true)]);
        assert!(unproved(&other, &all, false).is_empty());
        assert_eq!(unproved(&other, &all, true).len(), 1);
        let failed = proofs(&[(NAMED.0, NAMED.1, NAMED.2, false)]);
        assert_eq!(unproved(&failed, &all, false), ["6.12: Fallback events, with the rule: yes"]);
        assert_eq!(of(&table(&other, &cells(&all), false), "6.12", "Fallback events, with the rule"), "yes");
    }

    #[test]
    fn the_table_in_a_file_is_written_and_then_holds() {
        let path = std::env::temp_dir().join(format!("support-{}.md", std::process::id()));
        fs::write(&path, format!("before\n{BEGIN}{END}after\n")).unwrap();
        check_file(&path, &proofs(&[NAMED]), true, true).unwrap();
        check_file(&path, &proofs(&[NAMED]), true, false).unwrap();
        assert!(check_file(&path, &proofs(&[(NAMED.0, NAMED.1, NAMED.2, false)]), false, false).is_err());
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(text.starts_with("before\n") && text.ends_with("after\n") && text.contains("| 6.12 |"));
    }
}
