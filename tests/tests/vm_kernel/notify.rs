//! What systemd is told of an agent: a datagram socket in `NOTIFY_SOCKET`.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use smc_agent_tests::agent::{self, Agent};

/// Bounds a hang.
const SOON: Duration = Duration::from_mins(2);

/// The next thing that the manager is told.
fn told(socket: &UnixDatagram) -> Result<String> {
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).context("nothing is told")?;
    Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
}

pub(crate) fn systemd_is_told(_: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path)?;
    socket.set_read_timeout(Some(SOON))?;
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, "{ version: 1, default: deny, rules: [] }")?;
    let (policy_text, path_text) = (policy.display().to_string(), path.display().to_string());
    let arguments = ["run", "--backend", "tc", "--policy", &policy_text];
    // All capabilities there are.
    let all: Vec<u8> = (0..64).collect();
    let mut running = Agent::start_limited(&arguments, &all, &[("NOTIFY_SOCKET", &path_text)])?;
    let ready = told(&socket)?;
    ensure!(ready == "READY=1\nSTATUS=generation 1 by tc", "{ready}");
    // It is true then: who asks at once is told so.
    let finished = agent::command(&["status"])?;
    ensure!(finished.code == Some(0), "{finished:?}");
    running.signal(Signal::SIGHUP)?;
    let reloading = told(&socket)?;
    ensure!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    let ready = told(&socket)?;
    ensure!(ready == "READY=1\nSTATUS=generation 2 by tc", "{ready}");
    // A policy that is refused ends the reload, too.
    fs::write(&policy, "{ version: 1 }")?;
    running.signal(Signal::SIGHUP)?;
    ensure!(told(&socket)?.starts_with("RELOADING=1\n"));
    let ready = told(&socket)?;
    ensure!(ready.starts_with("READY=1\nSTATUS=generation 2 by tc; refused: "), "{ready}");
    running.signal(Signal::SIGTERM)?;
    ensure!(told(&socket)? == "STOPPING=1");
    running.wait(SOON)?;
    let finished = agent::command(&["detach"])?;
    ensure!(finished.code == Some(0), "{finished:?}");
    Ok(())
}
