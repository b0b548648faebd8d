//! `cargo xtask vm`: boots a kernel with an initramfs, real SMC ready, runs a command and judges the kernel's log.

mod cpio;
mod initramfs;
pub(crate) mod klog;
mod qemu;

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use crate::kernel::{self, Kernel};
use crate::{build, cargo, sys};

/// How QEMU executes the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accel {
    /// KVM where it works, else TCG.
    Auto,
    /// With the processor's help.
    Kvm,
    /// By translation.
    Tcg,
}

impl Accel {
    const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }
}

/// A program of this workspace that the guest gets as `/bin/NAME`.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its name.
    pub(crate) name: String,
    /// The file on this machine; it needs no libraries.
    pub(crate) file: PathBuf,
}

/// What to run in a guest.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The kernel to boot.
    pub(crate) kernel: Kernel,
    /// The command and its arguments.
    pub(crate) command: Vec<OsString>,
    /// An interactive shell instead.
    pub(crate) shell: bool,
    /// How to execute the guest.
    pub(crate) accel: Accel,
    /// Its memory, as QEMU takes it.
    pub(crate) memory: String,
    /// How long it may take altogether.
    pub(crate) timeout: Duration,
    /// Files and folders to add, and where.
    pub(crate) add: Vec<(PathBuf, String)>,
    /// Whether `smctest setup` runs before the command.
    pub(crate) smc: bool,
    /// Additions to the command's environment.
    pub(crate) env: Vec<(String, String)>,
    /// Whether complaints of the kernel are only shown.
    pub(crate) allow_kernel_warnings: bool,
}

impl Request {
    /// A command in a guest, with the usual settings.
    pub(crate) fn new(kernel: Kernel, command: Vec<OsString>) -> Self {
        Self {
            kernel,
            command,
            shell: false,
            accel: Accel::Auto,
            memory: "1G".to_owned(),
            timeout: Duration::from_mins(5),
            add: Vec::new(),
            smc: true,
            env: Vec::new(),
            allow_kernel_warnings: false,
        }
    }
}

/// How a guest ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code to pass on: the command's, or 1 (the kernel complained), 124 (time-out), 125 (no command ran).
    pub(crate) code: i32,
    /// What the command wrote.
    pub(crate) output: String,
    /// What went wrong besides the command's own exit code.
    pub(crate) problem: Option<String>,
}

/// The folder of a run, held until its lock is dropped: a second run at the same time gets another one.
fn folder_of_run(kernel: Kernel) -> Result<(PathBuf, File)> {
    for number in 0..64 {
        let folder = cargo::target_dir()?.join("vm-runs").join(format!("{kernel}-{number}"));
        fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_ok() {
            return Ok((folder, lock));
        }
    }
    bail!("64 guests of kernel {kernel} are running")
}

/// Boots a guest, runs the command and shows its output on standard output.
pub(crate) fn run(request: &Request, programs: &[Program]) -> Result<Outcome> {
    let image = kernel::ensure(request.kernel)?;
    let (folder, _lock) = folder_of_run(request.kernel)?;
    let files = qemu::Files {
        bzimage: image.bzimage.clone(),
        initramfs: folder.join("initramfs.cpio"),
        log: folder.join("console.log"),
    };
    let size = initramfs::write(&files.initramfs, request.kernel, &image, request, programs)?;
    let candidates = qemu::candidates(request.accel)?;
    for (index, accel) in candidates.iter().enumerate() {
        let last = index + 1 == candidates.len();
        let mut run = qemu::run(request, *accel, &files, last)?;
        for _ in 0..BOOTS_AGAIN {
            if !died_while_booting(*accel, &run) {
                break;
            }
            let why = run.verdict.complaints.first().map_or("", String::as_str);
            sys::say(format_args!("the emulated kernel died before the command ran ({why}): once more"));
            run = qemu::run(request, *accel, &files, last)?;
        }
        if *accel == Accel::Kvm && !run.verdict.started && !last {
            sys::say(format_args!("KVM did not start the guest within 10 s {}", run.complaint.trim()));
            sys::say("emulating with TCG, slower; noted until this machine boots again");
            qemu::remember(Accel::Tcg)?;
            continue;
        }
        let time =
            |index: usize| run.times.get(index).copied().flatten().map_or_else(|| "-".into(), sys::human);
        sys::say(format_args!(
            "vm {}: {}, {} MB initramfs, {}: init after {}, command after {}, off after {}",
            request.kernel,
            image.origin,
            size >> 20,
            accel.name(),
            time(0),
            time(1),
            time(2)
        ));
        return Ok(judge(request, run, &files.log));
    }
    bail!("no way to run a guest")
}

/// How often a guest that the emulator lost is booted again. As seen, it loses up to one in ten of 7.3 and 6.12 on a machine
/// that is busy.
const BOOTS_AGAIN: usize = 3;

/// Whether the emulator lost the guest: QEMU's TCG sometimes runs a breakpoint that the kernel has patched away on the
/// other processor already (an oops by int3 where the code has none), mostly while it boots. Nothing of ours has run
/// until its init has; and until the command begins, only what loads modules and sets SMC up.
fn died_while_booting(accel: Accel, run: &qemu::Run) -> bool {
    let complaints = &run.verdict.complaints;
    let before_init = run.times[0].is_none() && !complaints.is_empty();
    let before_command =
        run.times[1].is_none() && complaints.iter().any(|complaint| complaint.contains("int3"));
    accel == Accel::Tcg && run.verdict.exit.is_none() && (before_init || before_command)
}

/// Turns what was seen into an exit code and a reason.
fn judge(request: &Request, run: qemu::Run, log: &Path) -> Outcome {
    let verdict = &run.verdict;
    let complaints = if verdict.complaints.is_empty() {
        None
    } else {
        Some(format!("the kernel complained:\n  {}", verdict.complaints.join("\n  ")))
    };
    let (code, mut problem) = match (run.end, &verdict.setup_failed, verdict.exit) {
        (qemu::End::TimedOut, ..) => {
            (124, Some(format!("killed after {} s (--timeout)", request.timeout.as_secs())))
        }
        (_, Some(why), _) => (125, Some(format!("the guest's set-up failed: {why}"))),
        (_, None, Some(code)) => (code, None),
        (_, None, None) => {
            (125, Some(format!("the guest ended without an exit code {}", run.complaint.trim())))
        }
    };
    let mut code = code;
    if let Some(text) = complaints {
        if request.allow_kernel_warnings {
            sys::say(format_args!("allowed: {text}"));
        } else {
            code = if code == 0 { 1 } else { code };
            problem = Some(problem.map_or(text.clone(), |first| format!("{first}; {text}")));
        }
    }
    let problem = problem.map(|text| format!("{text}\nthe kernel's log is in {}", log.display()));
    Outcome { code, output: run.output, problem }
}

const HELP: &str = "\
Boots a kernel in QEMU with real SMC and runs a command in it.

Usage: cargo xtask vm --kernel K [OPTIONS] -- COMMAND [ARGUMENT...]
       cargo xtask vm --kernel K [OPTIONS] --shell

The guest's programs: busybox, ip, tc, rdma, ... from this machine, and this workspace's smc-agent and smctest in /bin.
Unless --no-smc is given, `smctest setup` makes real SMC possible before the command starts. The command's output comes
out here as it is written, without the kernel's log; its exit code becomes this command's. The kernel's log is kept in
target/vm-runs, and a WARNING, BUG, oops, stall or panic in it makes the run fail.

Options:
  --kernel K               5.10, 6.1, 6.12 or 7.3; fetched or built when it is not at hand
  --shell                  an interactive shell; leave with `exit`, or with Ctrl-A X when it hangs
  --accel auto|kvm|tcg     auto: KVM where it works (tried once per boot of this machine), else TCG
  --memory M               the guest's memory (default 1G)
  --timeout SECONDS        kill the guest after this time (default 300; none for --shell)
  --add FILE[:GUESTPATH]   also put a file or folder there (default /root/NAME); a program brings its libraries
  --env NAME=VALUE         add to the command's environment
  --no-smc                 do not run `smctest setup`
  --bare                   without this workspace's programs, which are then not built (implies --no-smc)
  --allow-kernel-warnings  show what the kernel complains about, but do not fail
  -h, --help               this text

Exit codes: the command's; 1 the kernel complained; 124 time-out; 125 the command could not be started in a guest.";

/// Runs `cargo xtask vm`; gives the exit code.
pub(crate) fn main(mut args: lexopt::Parser) -> Result<i32> {
    let mut request = Request::new(Kernel::V6_12, Vec::new());
    let (mut kernel, mut bare) = (None, false);
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(0);
            }
            Long("kernel") => kernel = Some(Kernel::parse(&args.value()?.string()?)?),
            Long("shell") => request.shell = true,
            Long("accel") => request.accel = parse_accel(&args.value()?.string()?)?,
            Long("memory") => request.memory = args.value()?.string()?,
            Long("timeout") => request.timeout = Duration::from_secs(args.value()?.parse()?),
            Long("add") => request.add.push(parse_add(&args.value()?.string()?)?),
            Long("env") => {
                let text = args.value()?.string()?;
                let (name, value) = text.split_once('=').context("--env takes NAME=VALUE")?;
                request.env.push((name.to_owned(), value.to_owned()));
            }
            Long("no-smc") => request.smc = false,
            Long("bare") => bare = true,
            Long("allow-kernel-warnings") => request.allow_kernel_warnings = true,
            Value(word) => {
                request.command.push(word);
                request.command.extend(args.raw_args()?);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    request.kernel = kernel.with_context(|| format!("--kernel is missing\n\n{HELP}"))?;
    if request.shell != request.command.is_empty() {
        bail!("give either --shell or a command after --");
    }
    let programs = if bare { Vec::new() } else { build::guest_programs()? };
    request.smc &= !bare;
    let outcome = run(&request, &programs)?;
    if let Some(problem) = &outcome.problem {
        sys::say(problem);
    }
    Ok(outcome.code)
}

fn parse_accel(name: &str) -> Result<Accel> {
    [Accel::Auto, Accel::Kvm, Accel::Tcg]
        .into_iter()
        .find(|accel| accel.name() == name)
        .with_context(|| format!("--accel takes auto, kvm or tcg, not `{name}`"))
}

fn parse_add(text: &str) -> Result<(PathBuf, String)> {
    let (source, target) =
        text.split_once(':').map_or((text, None), |(source, target)| (source, Some(target)));
    let source = fs::canonicalize(source).with_context(|| format!("--add {source}"))?;
    let target = match target {
        Some(target) if target.starts_with('/') => target.to_owned(),
        Some(target) => bail!("--add: `{target}` is no absolute path"),
        None => format!("/root/{}", source.file_name().unwrap_or_default().to_string_lossy()),
    };
    Ok((source, target))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_files_get_a_place() {
        assert_eq!(parse_add("/proc/self/maps:/x/y").unwrap().1, "/x/y");
        assert_eq!(
            parse_add("/etc/passwd").unwrap(),
            (PathBuf::from("/etc/passwd"), "/root/passwd".to_owned())
        );
        assert!(parse_add("/etc/passwd:relative").is_err());
        assert!(parse_add("/no/such/file").is_err());
    }

    fn run(end: qemu::End, verdict: klog::Verdict) -> qemu::Run {
        qemu::Run { end, verdict, output: String::new(), times: [None; 3], complaint: String::new() }
    }

    #[test]
    fn only_what_the_emulator_lost_before_the_command_is_booted_again() {
        let oops = |text: &str| klog::Verdict { complaints: vec![text.into()], ..klog::Verdict::default() };
        let after = |steps: usize, text: &str| {
            let mut run = run(qemu::End::Off, oops(text));
            run.times[..steps].fill(Some(Duration::from_secs(3)));
            run
        };
        assert!(died_while_booting(Accel::Tcg, &after(0, "Oops: int3")));
        assert!(died_while_booting(Accel::Tcg, &after(0, "BUG: anything")));
        assert!(!died_while_booting(Accel::Kvm, &after(0, "Oops: int3")));
        assert!(died_while_booting(Accel::Tcg, &after(1, "Oops: int3")));
        assert!(!died_while_booting(Accel::Tcg, &after(1, "BUG: anything")));
        assert!(!died_while_booting(Accel::Tcg, &after(2, "Oops: int3")));
        assert!(!died_while_booting(Accel::Tcg, &run(qemu::End::TimedOut, klog::Verdict::default())));
    }

    #[test]
    fn complaints_fail_a_run_that_succeeded_and_keep_the_code_of_one_that_did_not() {
        let verdict = |exit, complaint: bool| klog::Verdict {
            exit,
            complaints: if complaint { vec!["WARNING: x".into()] } else { Vec::new() },
            ..klog::Verdict::default()
        };
        let mut request = Request::new(Kernel::V6_12, Vec::new());
        let code = |request: &Request, end, verdict| {
            let outcome = judge(request, run(end, verdict), Path::new("log"));
            (outcome.code, outcome.problem.is_some())
        };
        assert_eq!(code(&request, qemu::End::Off, verdict(Some(0), false)), (0, false));
        assert_eq!(code(&request, qemu::End::Off, verdict(Some(7), false)), (7, false));
        assert_eq!(code(&request, qemu::End::Off, verdict(Some(0), true)), (1, true));
        assert_eq!(code(&request, qemu::End::Off, verdict(Some(7), true)), (7, true));
        assert_eq!(code(&request, qemu::End::Off, verdict(None, false)), (125, true));
        assert_eq!(code(&request, qemu::End::TimedOut, verdict(None, false)), (124, true));
        request.allow_kernel_warnings = true;
        assert_eq!(code(&request, qemu::End::Off, verdict(Some(0), true)), (0, false));
    }
}
