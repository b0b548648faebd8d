//! `smc-agent exec`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use smc_agent_tests::agent::binary;

use crate::lab::{Lab, Running, command, has_smc_protocol, listener, program, status};

fn exec(arguments: &[&str], inner: &Command) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.arg("exec").args(arguments).arg("--").arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    Ok(command)
}

fn runs_converted(command: &mut Command, port: u16) -> Result<bool> {
    let mut running = Running::start(command)?;
    running.listens(port)?;
    running.has_smc_socket()
}

/// Exit codes and signals are the command's own.
fn passes_through(mechanism: &str) -> Result<()> {
    let run = |script: &str| -> Result<_> {
        Ok(Command::new(binary()?)
            .args(["exec", "--mech", mechanism, "--", "/bin/sh", "-c", script])
            .status()?)
    };
    ensure!(run("exit 7")?.code() == Some(7), "exit code");
    ensure!(run("kill -TERM $$")?.signal() == Some(libc::SIGTERM), "signal");
    let missing = command(&["exec", "--mech", mechanism, "--", "no-such-command"])?;
    ensure!(missing.code == Some(127), "{missing:?}");
    Ok(())
}

fn python(port: u16) -> Command {
    let mut command = program("bin/python3.11");
    command.args(["-m", "http.server", &port.to_string(), "--bind", "127.0.0.1"]);
    command
}

pub(crate) fn by_bpf(lab: &Lab) -> Result<()> {
    passes_through("bpf")?;
    let busybox = Path::new("/bin/busybox");
    ensure!(runs_converted(&mut exec(&[], &listener(busybox, 7201))?, 7201)?, "a static program");
    let mut child = Command::new("/bin/sh");
    child.args(["-c", "/bin/busybox nc -l -p 7202 & echo $! > /tmp/child; wait"]);
    {
        let mut shell = Running::start(&mut exec(&["--mech", "bpf"], &child)?)?;
        shell.listens(7202)?;
        let smc = smc_agent::netlink::diag::sockets()?;
        let id = std::fs::read_to_string("/tmp/child")?;
        let links = std::fs::read_dir(format!("/proc/{}/fd", id.trim()))?;
        let inodes: Vec<String> = links
            .flatten()
            .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
            .collect();
        let is_smc = smc.iter().any(|socket| inodes.contains(&format!("socket:[{}]", socket.inode)));
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(id.trim().parse()?),
            nix::sys::signal::Signal::SIGKILL,
        )?;
        ensure!(is_smc, "a child of the command");
    }
    ensure!(!crate::lab::is_converted(&mut listener(busybox, 7203), 7203)?, "another program meanwhile");
    ensure!(status()?["counters"]["exec"].as_u64() >= Some(2), "{:#}", status()?);
    // With an agent that converts nothing, and after it.
    lab.policy("version: 1\ndefault: allow\n")?;
    ensure!(runs_converted(&mut exec(&["--mech", "bpf"], &python(7204))?, 7204)?, "beside an agent");
    lab.kill()?;
    ensure!(runs_converted(&mut exec(&["--mech", "bpf"], &python(7205))?, 7205)?, "after an agent");
    // Groups of commands that have ended go with the next.
    ensure!(Command::new(binary()?).args(["exec", "--", "/bin/true"]).status()?.success(), "true");
    let groups = std::fs::read_dir(crate::lab::GROUPS)?.flatten();
    let left =
        groups.filter(|group| group.file_name().to_string_lossy().starts_with("smc-agent-exec-")).count();
    ensure!(left <= 1, "{left} groups are left");
    Ok(())
}

pub(crate) fn by_preload(_lab: &Lab) -> Result<()> {
    passes_through("preload")?;
    ensure!(runs_converted(&mut exec(&["--mech", "preload"], &python(7211))?, 7211)?, "a dynamic program");
    ensure!(!runs_converted(&mut python(7212), 7212)?, "without it");
    let busybox = listener(Path::new("/bin/busybox"), 7213);
    ensure!(!runs_converted(&mut exec(&["--mech", "preload"], &busybox)?, 7213)?, "a static program");
    let warned = command(&["exec", "--mech", "preload", "--", "/bin/busybox", "true"])?;
    ensure!(warned.code == Some(0) && warned.stderr.contains("is linked statically"), "{warned:?}");

    let script = "import socket; s = socket.socket(); \
                  print(s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF), s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))";
    let mut sized = program("bin/python3.11");
    sized.args(["-c", script]);
    let mut found = Vec::new();
    for sizes in [&["-r", "128K", "-t", "96K", "--debug"][..], &["-r", "256K", "-t", "192K", "--debug"]] {
        let arguments = [&["--mech", "preload"], sizes].concat();
        let output = exec(&arguments, &sized)?.output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success() && errors.contains("became an SMC one"), "{text}{errors}");
        found.push(text.split_whitespace().map(str::parse).collect::<Result<Vec<u32>, _>>()?);
    }
    ensure!(found[0][0] < found[1][0] && found[0][1] < found[1][1], "sizes make no difference: {found:?}");
    Ok(())
}

/// On kernels that cannot convert.
pub(crate) fn lacking(_lab: &Lab) -> Result<()> {
    ensure!(!has_smc_protocol(), "this kernel can");
    let told = command(&["convert", "status"])?;
    ensure!(told.code == Some(1) && told.stdout.contains("6.11 and later"), "{told:?}");
    let refused = command(&["convert", "on", "--netns", "/proc/self/ns/net"])?;
    ensure!(refused.code == Some(3) && refused.stderr.contains("6.11 and later"), "{refused:?}");
    let by_bpf = command(&["exec", "--mech", "bpf", "--", "/bin/true"])?;
    ensure!(by_bpf.code == Some(3), "{by_bpf:?}");
    // By itself it takes what there is.
    ensure!(runs_converted(&mut exec(&[], &python(7221))?, 7221)?, "auto");
    Ok(())
}
