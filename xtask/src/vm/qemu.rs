//! Starts QEMU, follows the guest's log and its command's output, and ends it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::klog::{self, Verdict};
use super::{Accel, Request};
use crate::{cache, sys};

/// How long a guest may take to reach its init where the processor helps: it takes about one second.
const KVM_DEADLINE: Duration = Duration::from_secs(10);
/// How long a guest may take to power off after it said that it would.
const OFF_DEADLINE: Duration = Duration::from_secs(10);

/// How QEMU ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself.
    Off,
    /// It was killed: the guest's init did not start in time.
    NeverStarted,
    /// It was killed: the command took too long.
    TimedOut,
}

/// One finished run.
pub(super) struct Run {
    /// How it ended.
    pub(super) end: End,
    /// What the kernel's log says.
    pub(super) verdict: Verdict,
    /// What the command wrote; empty for a shell.
    pub(super) output: String,
    /// From the start of QEMU to the guest's init, to the command, and to the end.
    pub(super) times: [Option<Duration>; 3],
    /// What QEMU itself said on standard error.
    pub(super) complaint: String,
}

/// What a run needs.
pub(super) struct Files {
    /// The kernel.
    pub(super) bzimage: PathBuf,
    /// The first root file system.
    pub(super) initramfs: PathBuf,
    /// Where the kernel's log goes.
    pub(super) log: PathBuf,
}

/// Chooses the accelerator for `auto`: KVM unless it is known not to work here.
pub(super) fn candidates(accel: Accel) -> Result<Vec<Accel>> {
    if accel != Accel::Auto {
        return Ok(vec![accel]);
    }
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
        sys::say(format_args!("no KVM (/dev/kvm: {error}): emulating with TCG, slower"));
        return Ok(vec![Accel::Tcg]);
    }
    match remembered()?.as_deref() {
        Some("tcg") => {
            sys::say("KVM did not work on this machine since it booted: emulating with TCG, slower");
            Ok(vec![Accel::Tcg])
        }
        _ => Ok(vec![Accel::Kvm, Accel::Tcg]),
    }
}

fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).context(path)?.trim().to_owned())
}

fn remembered() -> Result<Option<String>> {
    let text = fs::read_to_string(cache::root()?.join("accel")).unwrap_or_default();
    Ok(text
        .trim()
        .split_once(' ')
        .filter(|(id, _)| boot_id().is_ok_and(|now| now == *id))
        .map(|(_, a)| a.to_owned()))
}

/// Notes for this boot of the machine whether KVM works.
pub(super) fn remember(accel: Accel) -> Result<()> {
    cache::write_file(&cache::root()?.join("accel"), format!("{} {}\n", boot_id()?, accel.name()).as_bytes())
}

fn command(request: &Request, accel: Accel, files: &Files) -> Result<Command> {
    let program =
        sys::which("qemu-system-x86_64").context("no qemu-system-x86_64: run `cargo xtask setup`")?;
    let mut command = Command::new(program);
    let (how, cpu) = match accel {
        Accel::Kvm => ("kvm", "host"),
        Accel::Tcg | Accel::Auto => ("tcg,thread=multi", "max"),
    };
    command.args(["-M", "q35", "-accel", how, "-cpu", cpu, "-m", &request.memory, "-smp", "2"]);
    command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    command.arg("-serial").arg(format!("file:{}", files.log.display()));
    command.args(["-serial", if request.shell { "mon:stdio" } else { "stdio" }]);
    command.arg("-kernel").arg(&files.bzimage).arg("-initrd").arg(&files.initramfs);
    command.args([
        "-append",
        "console=ttyS0 rdinit=/init panic=-1 oops=panic mitigations=off nokaslr tsc=reliable \
         printk.devkmsg=on loglevel=6 rcupdate.rcu_cpu_stall_timeout=60 net.ifnames=0",
    ]);
    // SAFETY: between fork and exec the closure makes one system call, prctl, which is async-signal-safe and is given
    // only integers; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| {
            // Whatever ends xtask, Ctrl-C included, ends the guest.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    Ok(command)
}

/// Boots a guest and waits for its end.
pub(super) fn run(request: &Request, accel: Accel, files: &Files, last: bool) -> Result<Run> {
    let mut command = command(request, accel, files)?;
    fs::write(&files.log, "").with_context(|| files.log.display().to_string())?;
    if request.shell {
        command.stdin(Stdio::inherit()).stdout(Stdio::inherit());
    } else {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
    let mut child = command.stderr(Stdio::piped()).spawn().context("cannot start qemu-system-x86_64")?;
    let output = child.stdout.take().map(|stream| copy(stream, true));
    let complaint = child.stderr.take().map(|stream| copy(stream, false));
    let start = Instant::now();
    let (end, mut times) = wait(&mut child, request, accel, &files.log, last, start)?;
    times[2] = Some(start.elapsed());
    Ok(Run {
        end,
        verdict: klog::read(&read_log(&files.log)),
        output: output.map(join).unwrap_or_default(),
        times,
        complaint: complaint.map(join).unwrap_or_default(),
    })
}

fn read_log(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

fn wait(
    child: &mut Child,
    request: &Request,
    accel: Accel,
    log: &Path,
    last: bool,
    start: Instant,
) -> Result<(End, [Option<Duration>; 3])> {
    let mut times = [None; 3];
    let (mut size, mut verdict) = (0, Verdict::default());
    let mut off: Option<Instant> = None;
    let end = loop {
        if child.try_wait()?.is_some() {
            break End::Off;
        }
        let now = fs::metadata(log).map_or(0, |data| data.len());
        if now != size {
            size = now;
            verdict = klog::read(&read_log(log));
        }
        let elapsed = start.elapsed();
        if verdict.started && times[0].is_none() {
            times[0] = Some(elapsed);
        }
        if verdict.ready && times[1].is_none() {
            times[1] = Some(elapsed);
        }
        if verdict.exit.is_some() && off.get_or_insert_with(Instant::now).elapsed() > OFF_DEADLINE {
            break End::Off;
        }
        if accel == Accel::Kvm && !last && !verdict.started && elapsed > KVM_DEADLINE {
            break End::NeverStarted;
        }
        if !request.shell && elapsed > request.timeout {
            break End::TimedOut;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Both fail when it has ended by itself, which is what is wanted.
    let _ = child.kill();
    child.wait()?;
    Ok((end, times))
}

/// Collects a stream, and shows it as it comes.
fn copy(mut stream: impl Read + Send + 'static, show: bool) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 14]);
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(n) => {
                    let part = buffer.get(..n).unwrap_or_default();
                    all.extend_from_slice(part);
                    if show {
                        let mut out = std::io::stdout().lock();
                        // A reader that went away does not stop the guest.
                        let _ = out.write_all(part).and_then(|()| out.flush());
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return all,
            }
        }
    })
}

fn join(thread: JoinHandle<Vec<u8>>) -> String {
    thread.join().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
