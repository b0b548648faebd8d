//! Whether this process may do what a command needs.

use super::Failure;
use crate::{
    enforce::{BackendChoice, Scope},
    kernel::object,
    privileges::{self, Capabilities, Capability},
};

/// Changing what is enforced: besides what it is named for, `CAP_SYS_ADMIN` is what it takes to look up the BTF of a module
/// and earlier agents' objects by their ids, and to enter namespaces.
const NEEDED: [Capability; 2] = [Capability::NetAdmin, Capability::SysAdmin];
/// Enforcing by traffic control in one's own namespace.
const NEEDED_FOR_TC: [Capability; 3] = [Capability::NetAdmin, Capability::Bpf, Capability::Perfmon];
/// Enforcing in other namespaces: entering them, and hearing of their interfaces.
const NEEDED_FOR_OTHERS: [Capability; 2] = [Capability::SysAdmin, Capability::NetBroadcast];
/// Seeing events.
const NEEDED_FOR_EVENTS: [Capability; 2] = [Capability::Bpf, Capability::Perfmon];
/// What an agent needs for as long as it runs, as far as it has it: interfaces, namespaces and modules come and go, and policies
/// are read anew.
const KEPT: [Capability; 7] = [
    Capability::NetBroadcast,
    Capability::NetAdmin,
    Capability::SysAdmin,
    Capability::Bpf,
    Capability::Perfmon,
    Capability::SysPtrace,
    Capability::DacReadSearch,
];

/// Fails with the names of the capabilities that are missing.
pub(super) fn require(command: &str) -> Result<(), Failure> {
    require_all(command, &NEEDED)
}

/// The same for what only sees events.
pub(super) fn require_for_events(command: &str) -> Result<(), Failure> {
    let needed: &[_] =
        if privileges::probes_need_more() { &[Capability::SysAdmin] } else { &NEEDED_FOR_EVENTS };
    require_all(command, needed)
}

/// Sees to it that `run` has what it needs for a backend and a scope, and no more than that from now on.
pub(super) fn prepare_run(backend: BackendChoice, scope: &Scope) -> Result<(), Failure> {
    let needed = match backend {
        BackendChoice::Auto | BackendChoice::HsCtrl => &NEEDED[..],
        BackendChoice::Tc | BackendChoice::Observe => &NEEDED_FOR_TC,
    };
    let of_others = if scope.has_others() { &NEEDED_FOR_OTHERS[..] } else { &[] };
    let mut all = needed.to_vec();
    all.extend(of_others.iter().filter(|more| !needed.contains(more)));
    require_all("run", &all)?;
    // What it takes to raise the limit is not kept.
    object::raise_memory_limit();
    privileges::keep_only(&KEPT).map_err(|error| Failure::not_so(format!("let go of capabilities: {error}")))
}

fn require_all(command: &str, needed: &[Capability]) -> Result<(), Failure> {
    let missing = Capabilities::effective().missing(needed);
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join(" and ");
    Err(Failure::unprivileged(format!("{command}: not privileged: {missing} missing (run it as root)")))
}
