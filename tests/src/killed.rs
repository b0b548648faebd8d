//! A program that is killed just before one of the calls by which it changes something outside of itself.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Calls that change files, mounts, or, by netlink, interfaces.
const CHANGING: [libc::c_long; 10] = [
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_mount,
    libc::SYS_linkat,
    libc::SYS_sendto,
];
/// Commands of `bpf()` that change nothing that outlives the process (`enum bpf_cmd`, uapi/linux/bpf.h): lookups, opening by pin
/// or id, information, and what makes maps, programs and types that nothing else knows of yet.
const PRIVATE: [u64; 20] = [0, 1, 4, 5, 7, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 22, 23, 24, 30, 31];

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was killed before the call that was asked for.
    Killed,
    /// It ended well by itself, or did all that it was watched for, without that call.
    Finished,
}

/// Runs a program and kills it before the `step`th of its changing calls, from 1; they are counted from when `counting` says so,
/// which is given what the program has printed so far on its standard error. It is killed too when `finished` says that it has
/// done all that it was to be watched for.
pub fn before_step<A: AsRef<OsStr>>(
    program: &Path,
    arguments: &[A],
    step: usize,
    mut counting: impl FnMut(&str) -> bool,
    mut finished: impl FnMut(&str) -> bool,
) -> Result<End> {
    let printed = File::from(memfd_create("printed", MFdFlags::MFD_CLOEXEC)?);
    let mut child = spawn(program, arguments, printed.try_clone()?)?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let mut said = String::new();
    let mut steps = 0;
    let mut decide = |thread: Pid| -> Result<Option<End>> {
        // From its beginning, while the program writes at its end.
        let mut bytes = vec![0; usize::try_from(printed.metadata()?.len())?];
        printed.read_exact_at(&mut bytes, 0)?;
        said = String::from_utf8_lossy(&bytes).into_owned();
        if finished(&said) {
            return Ok(Some(End::Finished));
        }
        if counting(&said) && changes(thread)? {
            steps += 1;
        }
        Ok((steps == step).then_some(End::Killed))
    };
    let end = follow(pid, &mut decide);
    // Whatever came of it, nothing runs on; one that ended was waited for.
    let _ = child.kill();
    let _ = child.wait();
    end.with_context(|| format!("it printed:\n{said}"))
}

fn spawn<A: AsRef<OsStr>>(program: &Path, arguments: &[A], stderr: File) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    // SAFETY: one system call is made between fork and exec.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    command.spawn().with_context(|| format!("cannot run {}", program.display()))
}

/// Lets all threads of a process run until `decide` says how it ends, which is asked at the beginning of each call.
fn follow(pid: Pid, decide: &mut dyn FnMut(Pid) -> Result<Option<End>>) -> Result<End> {
    // No child of another test's thread is waited for.
    let any = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    // The first stop is that of exec.
    waitpid(pid, Some(any))?;
    ptrace::setoptions(
        pid,
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL,
    )?;
    ptrace::syscall(pid, None)?;
    loop {
        let (thread, signal) = match waitpid(None, Some(any))? {
            WaitStatus::Exited(ended, 0) if ended == pid => return Ok(End::Finished),
            failed @ (WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, ..)) if ended == pid => {
                bail!("it failed: {failed:?}");
            }
            WaitStatus::PtraceSyscall(thread) => {
                if let Some(end) = decide(thread)? {
                    return Ok(end);
                }
                (thread, None)
            }
            // The first stop of a thread that was just made, or the stop of the one that made it.
            WaitStatus::Stopped(thread, Signal::SIGSTOP) | WaitStatus::PtraceEvent(thread, ..) => {
                (thread, None)
            }
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => continue,
            other => bail!("an unexpected stop: {other:?}"),
        };
        // A thread that is gone by now is told of by its exit.
        let _ = ptrace::syscall(thread, signal);
    }
}

/// Whether a thread that has stopped is about to make a call that changes something.
fn changes(thread: Pid) -> Result<bool> {
    let info = ptrace::syscall_info(thread)?;
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(false);
    }
    // SAFETY: of an entry the kernel fills in this arm of the union.
    let entry = unsafe { info.u.entry };
    let number = libc::c_long::try_from(entry.nr).unwrap_or(-1);
    Ok(CHANGING.contains(&number) || number == libc::SYS_bpf && !PRIVATE.contains(&entry.args[0]))
}
