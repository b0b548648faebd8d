//! The agent under test, as a child process.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::wait_until;

/// The variable that names the agent's binary.
pub const BINARY_VARIABLE: &str = "SMC_AGENT_BIN";
/// How long a command other than `run` may take.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the agent may take to die from SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// How long output may take to be read after the end of the process.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(2);

/// The agent's binary: what [`BINARY_VARIABLE`] names, else next to the running program (or one folder up, where cargo
/// puts it for tests), else the one in `PATH`.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = env::var_os(BINARY_VARIABLE) {
        return Ok(path.into());
    }
    let program = env::current_exe().context("cannot find the running program")?;
    let near = program.ancestors().skip(1).take(2).map(|folder| folder.join("smc-agent"));
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join("smc-agent"));
    near.chain(in_path).find(|path| path.is_file()).with_context(|| {
        format!("no smc-agent: build it (cargo build -p smc-agent) or set {BINARY_VARIABLE}")
    })
}

type Lines = Arc<Mutex<Vec<String>>>;

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    lines: Lines,
    readers: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Starts the agent with these arguments, in the calling thread's network namespace.
    pub fn start<A: AsRef<OsStr>>(arguments: &[A]) -> Result<Self> {
        Self::start_program(&binary()?, arguments)
    }

    /// The same with these capabilities only and with more variables in its environment.
    pub fn start_limited<A: AsRef<OsStr>>(
        arguments: &[A],
        capabilities: &[u8],
        variables: &[(&str, &str)],
    ) -> Result<Self> {
        let mut command = prepare(&binary()?, arguments);
        command.envs(variables.iter().copied());
        limit(&mut command, capabilities);
        Self::from_command(&mut command)
    }

    fn start_program<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Result<Self> {
        Self::from_command(&mut prepare(program, arguments))
    }

    fn from_command(command: &mut Command) -> Result<Self> {
        let mut child = spawn(command)?;
        let lines = Lines::default();
        let mut readers = Vec::new();
        readers.extend(child.stdout.take().map(|stream| collect(stream, Arc::clone(&lines))));
        readers.extend(child.stderr.take().map(|stream| collect(stream, Arc::clone(&lines))));
        Ok(Self { child, lines, readers })
    }

    /// Starts the agent and waits until it enforces.
    pub fn start_enforcing<A: AsRef<OsStr>>(arguments: &[A], within: Duration) -> Result<Self> {
        let mut agent = Self::start(arguments)?;
        agent.wait_enforcing(within)?;
        Ok(agent)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far, on both streams, a line each.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line that `wanted` accepts, also among those already printed. An agent that exits ends the wait.
    pub fn wait_for_line(
        &mut self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String> {
        let found = wait_until(what, within, || {
            // Looked at before the lines: what was printed before the end counts.
            let ended = self.try_wait()?;
            let line = self.lines().into_iter().find(|line| wanted(line));
            match (line, ended) {
                (Some(line), _) => Ok(Some(line)),
                (None, Some(status)) => Err(anyhow::anyhow!("the agent ended: {status}")),
                (None, None) => Ok(None),
            }
        });
        found.with_context(|| format!("the agent printed:\n{}", self.lines().join("\n")))
    }

    /// Waits until the agent prints that it enforces.
    pub fn wait_enforcing(&mut self, within: Duration) -> Result<String> {
        self.wait_for_line("the agent enforces", within, |line| line.to_lowercase().contains("enforcing"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let id = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(id, signal).with_context(|| format!("cannot send {signal} to the agent"))
    }

    /// Kills it as `kill -9` does: nothing of its own runs any more.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill().context("cannot kill the agent")?;
        self.wait(KILL_TIMEOUT).map(drop)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    pub fn terminate(mut self, within: Duration) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(within)
    }

    /// Waits for its end.
    pub fn wait(&mut self, within: Duration) -> Result<ExitStatus> {
        let status = wait_until("the agent ends", within, || Ok(self.child.try_wait()?))?;
        self.join_readers();
        Ok(status)
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        if status.is_some() {
            self.join_readers();
        }
        Ok(status)
    }

    /// After the end: until the last line has been read.
    fn join_readers(&mut self) {
        finish(&mut self.readers);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.child.kill().is_ok() {
            // Nobody is left to tell about an error.
            let _ = self.wait(KILL_TIMEOUT);
        }
    }
}

fn prepare<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawn(command: &mut Command) -> Result<Child> {
    command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// Leaves a command, which root runs, these capabilities (by their numbers) and no others, and the usual room for locked
/// memory.
fn limit(command: &mut Command, capabilities: &[u8]) {
    /// What Linux gave a process before 5.16, and Debian before that version.
    const LOCKED_MEMORY: libc::rlim_t = 64 << 10;
    /// More than any kernel knows.
    const LAST: u8 = 63;
    let dropped: Vec<libc::c_ulong> =
        (0..=LAST).filter(|number| !capabilities.contains(number)).map(libc::c_ulong::from).collect();
    let before_exec = move || {
        let limit = libc::rlimit { rlim_cur: LOCKED_MEMORY, rlim_max: LOCKED_MEMORY };
        // SAFETY: `limit` outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        for number in &dropped {
            // SAFETY: plain numbers. The kernel does not know all of them.
            if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *number, 0, 0, 0) } != 0
                && io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL)
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe { command.pre_exec(before_exec) };
}

fn collect(stream: impl Read + Send + 'static, lines: Lines) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).into_owned();
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}

/// Waits until the readers have seen the end of their streams; not for ever, since a grandchild may hold one open.
fn finish(readers: &mut Vec<JoinHandle<()>>) {
    let all_finished = || Ok(readers.iter().all(JoinHandle::is_finished).then_some(()));
    // Late output is lost then, but what was read stays.
    let _ = wait_until("the end of the output", OUTPUT_TIMEOUT, all_finished);
    readers.clear();
}

/// What a command of the agent did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

/// Runs one of the agent's commands to its end, in the calling thread's network namespace.
pub fn command<A: AsRef<OsStr>>(arguments: &[A]) -> Result<Finished> {
    run_command(&mut prepare(&binary()?, arguments))
}

/// The same with these capabilities only.
pub fn command_limited<A: AsRef<OsStr>>(arguments: &[A], capabilities: &[u8]) -> Result<Finished> {
    let mut command = prepare(&binary()?, arguments);
    limit(&mut command, capabilities);
    run_command(&mut command)
}

fn run_command(command: &mut Command) -> Result<Finished> {
    let mut child = spawn(command)?;
    let streams = [Lines::default(), Lines::default()];
    let [stdout, stderr] = &streams;
    let mut readers: Vec<_> = [
        child.stdout.take().map(|stream| collect(stream, Arc::clone(stdout))),
        child.stderr.take().map(|stream| collect(stream, Arc::clone(stderr))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let ended = wait_until("the command ends", COMMAND_TIMEOUT, || Ok(child.try_wait()?));
    if ended.is_err() {
        child.kill().context("cannot kill the command")?;
        child.wait()?;
    }
    finish(&mut readers);
    let [stdout, stderr] =
        streams.map(|lines| lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n"));
    Ok(Finished { code: ended?.code(), stdout, stderr })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Agent {
        Agent::start_program(Path::new("/bin/sh"), &["-c", script]).unwrap()
    }

    #[test]
    fn an_agent_is_waited_for_and_ended() {
        let mut agent = shell("echo loading; echo 'enforcing by tc' >&2; exec sleep 60");
        assert_eq!(agent.wait_enforcing(SOON).unwrap(), "enforcing by tc");
        let status = agent.terminate(SOON).unwrap();
        assert_eq!(status.signal(), Some(libc::SIGTERM));
        shell("exec sleep 60").kill().unwrap();
    }

    #[test]
    fn an_agent_that_ends_early_is_reported_with_what_it_printed() {
        let error = format!("{:#}", shell("echo no kernel; exit 3").wait_enforcing(SOON).unwrap_err());
        assert!(error.contains("no kernel") && error.contains("exit status: 3"), "{error}");
    }
}
