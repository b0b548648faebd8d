//! Whether this process may do what a command needs.

use super::Failure;
use crate::privileges::{Capabilities, Capability};

/// Changing what is enforced: besides what it is named for, `CAP_SYS_ADMIN` is what it takes to look up the BTF of a module
/// and earlier agents' objects by their ids.
const NEEDED: [Capability; 2] = [Capability::NetAdmin, Capability::SysAdmin];

/// Fails with the names of the capabilities that are missing.
pub(super) fn require(command: &str) -> Result<(), Failure> {
    require_all(command, &NEEDED)
}

/// The same for other capabilities.
pub(super) fn require_all(command: &str, needed: &[Capability]) -> Result<(), Failure> {
    let missing = Capabilities::effective().missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    Err(Failure::unprivileged(format!("{command}: not privileged: {missing} missing (run it as root)")))
}
