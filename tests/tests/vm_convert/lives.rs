//! Agents come and go, switches expire, rules change.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use smc_agent_tests::agent;
use smc_agent_tests::wait::wait_until;

use crate::lab::{
    GROUPS, Lab, PINS, SOON, command, detach, is_converted, listener, protocol_of_socket, sockets_of, status,
    well,
};

const RULE: &str = "  rules: [{name: nc, action: on, uid: 0}]";

fn converts(port: u16) -> Result<bool> {
    is_converted(&mut listener(Path::new("/bin/busybox"), port), port)
}

pub(crate) fn killed(lab: &Lab) -> Result<()> {
    lab.convert(RULE)?;
    ensure!(converts(7101)?, "with an agent");
    let before = status()?;
    ensure!(before["mechanism"] == "bpf" && before["rules"][0]["name"] == "nc", "{before:#}");
    lab.kill()?;
    ensure!(converts(7102)?, "without an agent");
    ensure!(sockets_of("nc")? == 2, "{:#}", status()?);
    lab.start()?;
    ensure!(converts(7103)?, "with the next agent");
    let text = well(&["status"])?;
    ensure!(text.contains("convert    by bpf"), "{text}");
    Ok(())
}

/// Whether a socket of this process becomes an SMC one.
fn own_socket_converts() -> bool {
    protocol_of_socket(0).is_ok_and(|protocol| protocol == 256)
}

/// As after an upgrade: what is pinned is another object's, and goes when the new one is in force.
pub(crate) fn replaced(lab: &Lab) -> Result<()> {
    lab.convert(RULE)?;
    lab.kill()?;
    let folder = Path::new(PINS).join("convert");
    let names = || -> Result<Vec<_>> {
        let entries = fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        Ok(entries.into_iter().map(|entry| entry.file_name()).collect())
    };
    let mine = names()?;
    ensure!(mine.len() == 1, "{mine:?}");
    fs::rename(folder.join(&mine[0]), folder.join("000000000000"))?;
    ensure!(own_socket_converts() && status()?["mechanism"] == "bpf", "by the other object");
    let over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let asking = scope.spawn(|| {
            let mut asked = 0_u64;
            while !over.load(Ordering::Relaxed) {
                if !own_socket_converts() {
                    return Err(asked);
                }
                asked += 1;
            }
            Ok(asked)
        });
        let started = lab.start();
        over.store(true, Ordering::Relaxed);
        let asked = asking.join().map_err(|_| anyhow!("the sockets panicked"))?;
        started?;
        let asked = asked.map_err(|asked| anyhow!("a gap after {asked} sockets"))?;
        ensure!(asked > 0, "no sockets meanwhile");
        Ok(())
    })?;
    ensure!(names()? == mine, "{:?} are pinned", names()?);
    ensure!(own_socket_converts(), "by the new object");
    Ok(())
}

/// Killed at any moment: what is in force is what was before or what was to be, and the next change puts it right.
pub(crate) fn interrupted(_lab: &Lab) -> Result<()> {
    const TIMES: u64 = 12;
    let own = "/proc/self/ns/net";
    for time in 0..TIMES {
        let action = if time % 2 == 0 { "on" } else { "off" };
        let mut child = Command::new(agent::binary()?)
            .args(["convert", action, "--netns", own])
            .stdout(Stdio::null())
            .spawn()?;
        // From before it has begun to after its end.
        thread::sleep(Duration::from_millis(time * 120));
        child.kill()?;
        child.wait()?;
        let said = status()?;
        ensure!(said["version"] == 1, "{said:#}");
    }
    well(&["convert", "on", "--netns", own])?;
    ensure!(own_socket_converts(), "after a change that was not interrupted");
    let left: Vec<_> = fs::read_dir(Path::new(PINS).join("convert"))?.collect();
    ensure!(left.len() == 1, "{left:?}");
    Ok(())
}

pub(crate) fn detached(lab: &Lab) -> Result<()> {
    lab.convert(RULE)?;
    ensure!(converts(7111)?, "before");
    detach()?;
    // The kernel ends a link some time after its last pin has gone.
    wait_until("the end of conversion", SOON, || Ok((!converts(7112)?).then_some(())))?;
    let finished = command(&["convert", "status"])?;
    ensure!(
        finished.code == Some(1) && finished.stdout.contains("nothing is to be converted"),
        "{finished:?}"
    );
    Ok(())
}

/// With and without an agent; by cgroup and by namespace.
pub(crate) fn switches(lab: &Lab) -> Result<()> {
    let own = "/proc/self/ns/net";
    let told = well(&["convert", "on", "--netns", own, "--for", "2s"])?;
    ensure!(told.contains("for 2 seconds, by bpf"), "{told}");
    wait_until("the end of a switch", SOON, || Ok((!converts(7121)?).then_some(())))?;
    ensure!(status()?["switches"].as_array().is_some_and(Vec::is_empty), "{:#}", status()?);

    lab.convert(RULE)?;
    well(&["convert", "off", "--netns", own, "--for", "1h"])?;
    ensure!(!converts(7122)?, "with a switch that is off");
    lab.kill()?;
    ensure!(!converts(7123)?, "with a switch that is off, without an agent");
    lab.start()?;
    ensure!(!converts(7124)?, "with a switch that is off, and the next agent");
    well(&["convert", "reset", "--netns", own])?;
    ensure!(converts(7125)?, "after the switch");
    let none = command(&["convert", "reset", "--netns", own])?;
    ensure!(none.code == Some(1) && none.stderr.contains("no such switch"), "{none:?}");

    fs::create_dir(format!("{GROUPS}/switched"))?;
    well(&["convert", "off", "--cgroup", "/switched"])?;
    let script = format!("echo $$ > {GROUPS}/switched/cgroup.procs && exec /bin/busybox nc -l -p 7126");
    let inside = is_converted(Command::new("/bin/sh").args(["-c", &script]), 7126)?;
    ensure!(!inside && converts(7127)?, "only the cgroup is switched off");
    wait_until("the end of the cgroup", SOON, || Ok(fs::remove_dir(format!("{GROUPS}/switched")).ok()))?;

    let missing = command(&["convert", "on", "--netns", "no-such"])?;
    ensure!(missing.code == Some(1) && missing.stderr.contains("no network namespace"), "{missing:?}");
    let wrong = command(&["convert", "on", "--cgroup", "x", "--for", "1m"])?;
    ensure!(wrong.code == Some(2), "{wrong:?}");
    Ok(())
}

pub(crate) fn reloaded(lab: &Lab) -> Result<()> {
    for round in 0..3_u16 {
        lab.convert(RULE)?;
        ensure!(converts(7131 + 4 * round)?, "on");
        lab.convert("  rules: [{name: nc, action: off, uid: 0}]\n  default: on")?;
        ensure!(!converts(7132 + 4 * round)?, "off");
        // A policy without the section converts nothing, and takes the programs out.
        lab.policy("version: 1\ndefault: allow\n")?;
        wait_until("the end of conversion", SOON, || Ok((!converts(7133 + 4 * round)?).then_some(())))?;
        ensure!(status()?["mechanism"].is_null(), "{:#}", status()?);
    }
    Ok(())
}

pub(crate) fn life_lines(lab: &Lab) -> Result<()> {
    let sshd = lab.static_program("sshd")?;
    let run = |port: u16| {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new(&sshd);
        command.arg0("busybox").args(["nc", "-l", "-p", &port.to_string()]);
        command
    };
    lab.convert("  default: on")?;
    ensure!(!is_converted(&mut run(7151), 7151)? && converts(7152)?, "by default");
    let counted = status()?["counters"]["life_line"].clone();
    ensure!(counted == 1, "{counted}");
    lab.convert("  rules: [{name: all, action: on}]")?;
    ensure!(!is_converted(&mut run(7153), 7153)?, "by a rule that does not name it");
    lab.convert("  rules: [{name: named, action: on, comm: sshd}]")?;
    ensure!(is_converted(&mut run(7154), 7154)?, "by name");
    Ok(())
}

/// Not a test of the time, which means nothing under emulation: that it can be told, and is told.
pub(crate) fn cost(lab: &Lab) -> Result<()> {
    const SOCKETS: u64 = 2000;
    let switch = "/proc/sys/kernel/bpf_stats_enabled";
    for (what, rules) in [("1 cgroup", cgroups(1)), ("100 cgroups", cgroups(100)), ("100 users", users(100))]
    {
        lab.convert(&format!("  rules:\n{rules}"))?;
        let pins =
            smc_agent::convert::pins_in_force(&smc_agent::enforce::Places::default()).context("no pins")?;
        let (count, time, _) = smc_agent::kernel::convert::statistics(&pins)?;
        fs::write(switch, "1")?;
        for _ in 0..SOCKETS {
            // SAFETY: plain numbers; the descriptor is closed at once.
            unsafe { libc::close(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0)) };
        }
        fs::write(switch, "0")?;
        let (count, time) = {
            let (now, then, _) = smc_agent::kernel::convert::statistics(&pins)?;
            (now - count, then - time)
        };
        ensure!(count >= SOCKETS, "{count} runs for {SOCKETS} sockets");
        eprintln!("{what}: {} ns for each socket, under emulation", time / count);
    }
    Ok(())
}

fn cgroups(count: usize) -> String {
    let rule = |n| format!("    - {{name: g{n}, action: on, cgroup: /system.slice/s{n}.service}}\n");
    (0..count).map(rule).collect::<Vec<_>>().concat()
}

fn users(count: usize) -> String {
    let rule = |n| format!("    - {{name: u{n}, action: on, uid: {}}}\n", 5000 + n);
    (0..count).map(rule).collect::<Vec<_>>().concat()
}
