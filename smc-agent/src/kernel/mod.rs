//! The only part that loads, attaches and pins BPF: through aya, and through an own loader for what aya has no type
//! for.

pub mod btf;
pub mod clsact;
pub mod convert;
pub mod features;
pub mod hooks;
pub mod hs_ctrl;
mod layouts;
pub mod loader;
pub mod maps;
pub mod object;
pub mod offsets;
pub mod ring;
mod sys;
pub mod tc;
pub mod trial;

/// What an error says, and its causes as far as it leaves them out: aya's name the call that failed, not why.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// Why the kernel refused a program, in a line. The verifier's log goes to this program's own, for those who ask for it.
pub(crate) fn why_refused(error: &aya::programs::ProgramError) -> String {
    let aya::programs::ProgramError::LoadError { io_error, verifier_log } = error else {
        return with_causes(error);
    };
    let log = verifier_log.to_string();
    tracing::debug!("verifier log:\n{log}");
    match verdict(&log) {
        Some(verdict) => format!("{io_error}: {verdict} (RUST_LOG=smc_agent=debug shows the verifier's log)"),
        None => io_error.to_string(),
    }
}

/// What the verifier came to: the last line of its log that is no statistics.
fn verdict(log: &str) -> Option<&str> {
    const STATISTICS: [&str; 4] = ["processed ", "verification time ", "stack depth ", "subprog "];
    let says_something =
        |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start));
    log.lines().rev().map(str::trim).find(says_something)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn causes_are_named_once() {
        let io_error = || io::Error::from_raw_os_error(22);
        let call = aya::sys::SyscallError { call: "bpf_map_update_elem", io_error: io_error() };
        let error = aya::maps::MapError::SyscallError(call);
        assert_eq!(with_causes(&error), "`bpf_map_update_elem` failed: Invalid argument (os error 22)");
        assert_eq!(with_causes(&io_error()), "Invalid argument (os error 22)");
    }

    #[test]
    fn of_a_verifier_log_the_verdict_is_told() {
        let log = "0: R1=ctx\n12: (79) r1 = *(u64 *)(r5 +6016)\nR5 unbounded memory access\nverification time 138 usec\n\
                   stack depth 200+0\nprocessed 37382 insns (limit 1000000)\n";
        assert_eq!(verdict(log), Some("R5 unbounded memory access"));
        assert_eq!(verdict("processed 0 insns\n\n"), None);
    }
}
