//! Whether this process may do what a command needs.

use std::fs;

use super::Failure;

/// Capabilities (uapi/linux/capability.h) that changing what is enforced needs, with what for. `CAP_SYS_ADMIN`
/// includes `CAP_BPF` and `CAP_PERFMON`, and is what it takes to look up the BTF of a module and earlier agents'
/// objects by their ids.
const NEEDED: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];

/// Fails with the names of the capabilities that are missing.
pub(super) fn require(command: &str) -> Result<(), Failure> {
    let effective = fs::read_to_string("/proc/self/status").ok().and_then(|status| effective(&status));
    // Where there is no /proc to read it from, the kernel itself will say no.
    let missing = missing(effective.unwrap_or(u64::MAX));
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    Err(Failure::unprivileged(format!("{command}: not privileged: {missing} missing (run it as root)")))
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn missing(effective: u64) -> Vec<&'static str> {
    NEEDED.iter().filter(|(bit, _)| effective >> bit & 1 == 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert!(missing(0x1ff_ffff_ffff).is_empty());
        assert_eq!(missing(1 << 12), ["CAP_SYS_ADMIN"]);
        assert_eq!(missing(0), ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]);
    }
}
