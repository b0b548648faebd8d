//! Reads the kernel's log of a run: did it start, how did it end, did it complain.

/// The text that the guest's init puts before each of its own messages.
pub(crate) const MARK: &str = "smc-vm: ";

/// What a console log tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The init process ran.
    pub(crate) started: bool,
    /// Set-up was over and the command was about to start.
    pub(crate) ready: bool,
    /// What init said about a set-up that failed.
    pub(crate) setup_failed: Option<String>,
    /// The exit code of the command, when it ended.
    pub(crate) exit: Option<i32>,
    /// Warnings, oopses, stalls and panics, as the kernel wrote them.
    pub(crate) complaints: Vec<String>,
}

/// The message of a line: without `[   12.345678]`, a caller field `[    T1]` and a carriage return.
fn message(line: &str) -> &str {
    let mut rest = line.trim_end_matches('\r');
    while let Some((stamp, tail)) = rest.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        if !stamp.trim().starts_with(|c: char| c.is_ascii_digit() || c == 'T' || c == 'C') {
            break;
        }
        rest = tail.trim_start_matches(' ');
    }
    rest
}

/// Whether a message of the kernel means that something went wrong inside of it.
fn is_complaint(message: &str) -> bool {
    const STARTS: [&str; 11] = [
        "WARNING:",
        "BUG:",
        "Oops:",
        "Call Trace:",
        "Kernel panic",
        "kernel BUG at",
        "general protection fault",
        "UBSAN:",
        "refcount_t:",
        "unregister_netdevice: waiting",
        "Unable to handle kernel",
    ];
    const PARTS: [&str; 5] =
        ["detected stall", "self-detected stall", "Oops: ", "BUG: soft lockup", "BUG: unable to handle"];
    STARTS.iter().any(|start| message.starts_with(start))
        || PARTS.iter().any(|part| message.contains(part))
        || (message.starts_with("INFO: task ") && message.contains("blocked for more than"))
}

/// Reads a whole log, or what there is of it so far.
pub(crate) fn read(log: &str) -> Verdict {
    let mut verdict = Verdict::default();
    for line in log.lines() {
        let message = message(line);
        if let Some(own) = message.strip_prefix(MARK) {
            match own.split_once(' ').unwrap_or((own, "")) {
                ("init", _) => verdict.started = true,
                ("ready", _) => verdict.ready = true,
                ("setup-failed", why) => verdict.setup_failed = Some(why.to_owned()),
                ("exit", code) => verdict.exit = code.trim().parse().ok(),
                _ => {}
            }
        } else if is_complaint(message) {
            verdict.complaints.push(line.trim_end_matches('\r').to_owned());
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_run() {
        let log = "[    0.1] Linux version 6.12\r\n[    4.2] smc-vm: init 4.1\r\n[    5.0] smc-vm: ready\r\n\
                   [    5.1] Spectre V2 : WARNING: Unprivileged eBPF is enabled\r\n[    6.0][    T1] smc-vm: exit 7\r\n";
        let verdict = read(log);
        assert!(verdict.started && verdict.ready);
        assert_eq!(verdict.exit, Some(7));
        assert_eq!(verdict.complaints, Vec::<String>::new());
    }

    #[test]
    fn complaints_are_seen() {
        for line in [
            "[   12.345678] WARNING: CPU: 1 PID: 77 at net/smc/af_smc.c:1 f+0x1/0x2 [smc]",
            "[ 1.0][  T42] WARNING: net/smc/af_smc.c:12 at f+0x1, CPU#0: a/1",
            "[ 1.0] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[ 1.0] Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "[ 1.0] Call Trace:",
            "[ 1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[ 1.0] rcu: INFO: rcu_sched self-detected stall on CPU",
            "[ 1.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [x:1]",
            "[ 1.0] INFO: task kworker/0:1:12 blocked for more than 120 seconds.",
            "[ 1.0] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0",
        ] {
            assert_eq!(read(line).complaints, [line], "{line}");
        }
    }

    #[test]
    fn a_set_up_that_failed_says_why() {
        assert_eq!(
            read("smc-vm: setup-failed smctest setup gave 3").setup_failed.as_deref(),
            Some("smctest setup gave 3")
        );
    }
}
