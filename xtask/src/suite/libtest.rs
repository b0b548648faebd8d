//! Reads what test programs print: Rust's own harness and those that print like it.

/// Numbers of tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// That succeeded.
    pub(crate) passed: usize,
    /// That failed.
    pub(crate) failed: usize,
    /// That did not run.
    pub(crate) ignored: usize,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// What a test program reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The sum of its result lines.
    pub(crate) counts: Counts,
    /// How many result lines there were.
    pub(crate) results: usize,
    /// The tests that were ignored, with the reason where it is printed.
    pub(crate) ignored: Vec<String>,
}

/// Reads a whole output.
pub(crate) fn read(output: &str) -> Report {
    let mut report = Report::default();
    for line in output.lines().map(|line| line.trim_end_matches('\r')) {
        if let Some(counts) = result(line) {
            report.counts += counts;
            report.results += 1;
        } else if let Some(name) = ignored(line) {
            report.ignored.push(name);
        }
    }
    report
}

/// `test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s`
fn result(line: &str) -> Option<Counts> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    let number = |word: &str| {
        rest.split(';').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some(Counts { passed: number("passed")?, failed: number("failed")?, ignored: number("ignored")? })
}

/// `test name ... ignored`, or `... ignored, reason`.
fn ignored(line: &str) -> Option<String> {
    let (name, state) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let reason = state.strip_prefix("ignored")?;
    let reason = reason.trim_start_matches([',', ' ']);
    let name = name.trim();
    Some(if reason.is_empty() { name.to_owned() } else { format!("{name}: {reason}") })
}

/// The tests that passed or failed, by name. What a test printed itself stands between its name and its outcome, which then has a
/// line of its own.
pub(crate) fn outcomes(output: &str) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    let mut running: Option<String> = None;
    for line in output.lines().map(|line| line.trim_end_matches('\r')) {
        let state = match line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            Some((name, state)) => {
                running = Some(name.trim().to_owned());
                state.trim()
            }
            None => line.trim(),
        };
        let passed = match state {
            "ok" => true,
            "FAILED" => false,
            _ => continue,
        };
        found.extend(running.take().map(|name| (name, passed)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_summed() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... ignored, needs RDMA\ntest c ... ignored\n\n\
            test result: ok. 1 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s\r\n\
            test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let report = read(text);
        assert_eq!(report.counts, Counts { passed: 4, failed: 2, ignored: 2 });
        assert_eq!(report.results, 2);
        assert_eq!(report.ignored, ["b: needs RDMA", "c"]);
    }

    #[test]
    fn outcomes_are_read_by_name() {
        let text =
            "test a::b      ... ok\r\ntest c ... FAILED\ntest d ... ignored, no\ntest result: ok. 1 passed\n";
        assert_eq!(outcomes(text), [("a::b".to_owned(), true), ("c".to_owned(), false)]);
        let noisy = "test a ... 3 sockets\n4 more\nok\ntest b ... x\ntest c ... FAILED\nok\n";
        assert_eq!(outcomes(noisy), [("a".to_owned(), true), ("c".to_owned(), false)]);
    }

    #[test]
    fn no_result_line_is_told_from_zero_tests() {
        assert_eq!(read("test result: garbage").results, 0);
        assert_eq!(read("test result: ok. 0 passed; 0 failed; 0 ignored").results, 1);
    }
}
