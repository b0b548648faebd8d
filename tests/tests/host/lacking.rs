//! What the machine or the caller lacks is named.

use std::fs;

use anyhow::{Result, ensure};
use nix::mount::{MsFlags, mount};

use crate::sandbox::{Sandbox, check_failure};

const POLICY: &str = "{ version: 1, default: allow, rules: [] }";

pub(crate) fn not_privileged(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    let commands: [&[&str]; 3] = [&["run", "--policy", &file], &["detach"], &["status"]];
    for arguments in commands {
        let command = arguments.first().copied().unwrap_or_default();
        let message = format!(
            "smc-agent: {command}: not privileged: CAP_NET_ADMIN and CAP_SYS_ADMIN missing (run it as root)"
        );
        check_failure(&sandbox.run_as_nobody(arguments)?, 4, &message)?;
    }
    sandbox.expect_nothing_enforced()
}

pub(crate) fn no_smc(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    let message = "smc-agent: this kernel has no SMC: module smc is not loaded and cannot be (modprobe smc tells \
                   why); --backend tc enforces without it";
    sandbox.expect_failure(&["run", "--policy", &file], 3, message)?;
    let message = "smc-agent: no backend works on this kernel: hs-ctrl: this kernel has no SMC (module smc is not \
                   loaded)";
    sandbox.expect_failure(&["run", "--backend", "hs-ctrl", "--policy", &file], 3, message)?;
    let left = [sandbox.pins(), sandbox.path("state")].into_iter().find(|folder| folder.exists());
    ensure!(left.is_none(), "a start in vain leaves {left:?}");
    Ok(())
}

pub(crate) fn no_btf(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    let empty = sandbox.path("empty");
    fs::create_dir(&empty)?;
    mount(Some(&empty), "/sys/kernel/btf", None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let message = "smc-agent: this kernel lacks what the agent needs: cannot read /sys/kernel/btf/vmlinux: No such \
                   file or directory (os error 2)";
    for backend in ["auto", "tc", "hs-ctrl"] {
        sandbox.expect_failure(&["run", "--backend", backend, "--policy", &file], 3, message)?;
    }
    Ok(())
}

pub(crate) fn no_place_for_pins(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    let nowhere = sandbox.path("nowhere");
    let pins = nowhere.join("smc-agent").display().to_string();
    let state = sandbox.path("state").display().to_string();
    let arguments = ["run", "--backend", "tc", "--policy", &file, "--pin-dir", &pins, "--state-dir", &state];
    let message = format!("smc-agent: look at {}: No such file or directory (os error 2)", nowhere.display());
    check_failure(&smc_agent_tests::agent::command(&arguments)?, 1, &message)?;
    // No mount covers what is there.
    fs::create_dir(&nowhere)?;
    let other = nowhere.join("somebody's");
    fs::write(&other, "")?;
    let message = format!(
        "smc-agent: {pins} is not in a bpf file system: mount one there first (mount -t bpf bpf FOLDER)"
    );
    check_failure(&smc_agent_tests::agent::command(&arguments)?, 1, &message)?;
    ensure!(other.exists(), "a mount covers {}", other.display());
    sandbox.expect_nothing_enforced()
}

pub(crate) fn no_place_for_state(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    sandbox.write("state", "a file is in the way")?;
    let state = sandbox.path("state").display().to_string();
    let message = format!("smc-agent: make {state}: File exists (os error 17)");
    sandbox.expect_failure(&["run", "--backend", "tc", "--policy", &file], 1, &message)
}

pub(crate) fn no_place_for_the_socket(sandbox: &Sandbox) -> Result<()> {
    let file = sandbox.write("ok.yaml", POLICY)?;
    let socket = sandbox.path("state/control.sock");
    fs::create_dir_all(socket.join("in the way"))?;
    let message =
        format!("smc-agent: make the control socket {}: Is a directory (os error 21)", socket.display());
    sandbox.expect_failure(&["run", "--backend", "tc", "--policy", &file], 1, &message)
}
