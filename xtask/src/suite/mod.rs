//! `cargo xtask test`: everything that has to hold, counted.

mod libtest;
mod support;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use lexopt::prelude::*;

use self::libtest::Counts;
use crate::build::{self, Bpf};
use crate::kernel::Kernel;
use crate::{bpf, cargo, module, programs, setup, sys, vm};

/// Whether a test target has something to show on a kernel. Those that cannot run SMC on one host show enforcement; 5.10 events
/// by probes, as 6.1 has the tracepoint of the later ones; and 6.1 conversion by preload.
fn applies(target: &str, kernel: Kernel) -> bool {
    match kernel {
        Kernel::V5_10 => matches!(target, "vm" | "vm_kernel" | EVENTS),
        Kernel::V6_1 => matches!(target, "vm" | "vm_kernel" | CONVERT),
        Kernel::V6_12 | Kernel::V7_3 => true,
    }
}

const TESTS: &str = "smc-agent-tests";
/// The test target of events, which every kernel has.
const EVENTS: &str = "vm_events";
/// The test target whose guests get stock programs.
const CONVERT: &str = "vm_convert";

/// The outcome of one step.
struct Step {
    name: String,
    counts: Counts,
    ignored: Vec<String>,
    time: Duration,
    why: Option<String>,
}

/// A run of the suite.
#[derive(Default)]
struct Suite {
    steps: Vec<Step>,
    proofs: support::Proofs,
}

impl Suite {
    /// A step that is one test.
    fn single(&mut self, name: &str, step: impl FnOnce() -> Result<()>) {
        self.step(name, || step().map(|()| (Counts { passed: 1, ..Counts::default() }, Vec::new(), None)));
    }

    /// A step whose output counts its tests; it gives the output, and what went wrong beside it.
    fn counted(&mut self, name: &str, step: impl FnOnce() -> Result<(String, Option<String>)>) {
        self.step(name, || {
            let (output, mut why) = step()?;
            let report = libtest::read(&output);
            let mut counts = report.counts;
            if report.results == 0 {
                why = why.or_else(|| Some("no result line".to_owned()));
            } else if counts.passed + counts.failed == 0 {
                why = why.or_else(|| Some("no test ran".to_owned()));
            }
            // What failed without a failed test counts as one.
            counts.failed += usize::from(why.is_some() && counts.failed == 0);
            Ok((counts, report.ignored, why))
        });
    }

    fn step(&mut self, name: &str, step: impl FnOnce() -> Result<(Counts, Vec<String>, Option<String>)>) {
        eprintln!();
        sys::say(format_args!("== {name}"));
        let start = Instant::now();
        let (counts, ignored, why) = step().unwrap_or_else(|error| {
            (Counts { failed: 1, ..Counts::default() }, Vec::new(), Some(format!("{error:#}")))
        });
        let time = start.elapsed();
        if let Some(why) = &why {
            sys::say(format_args!("{name}: {why}"));
        }
        sys::say(format_args!(
            "== {name}: {} passed, {} failed, {}",
            counts.passed,
            counts.failed,
            sys::human(time)
        ));
        self.steps.push(Step { name: name.to_owned(), counts, ignored, time, why });
    }

    fn total(&self) -> Counts {
        self.steps.iter().fold(Counts::default(), |mut sum, step| {
            sum += step.counts;
            sum
        })
    }
}

/// Runs a command whose standard output is shown and kept.
fn tee(command: &mut Command) -> Result<(String, Option<String>)> {
    let line = sys::line(command);
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{line}`"))?;
    let mut text = String::new();
    if let Some(stream) = child.stdout.take() {
        let mut reader = BufReader::new(stream);
        let mut part = Vec::new();
        while reader.read_until(b'\n', &mut part)? > 0 {
            std::io::stdout().lock().write_all(&part)?;
            text += &String::from_utf8_lossy(&part);
            part.clear();
        }
    }
    let status = child.wait()?;
    Ok((text, (!status.success()).then(|| format!("`{line}` failed: {status}"))))
}

fn checks(suite: &mut Suite) {
    suite.single("formatting", || sys::run(cargo::cargo()?.args(["fmt", "--all", "--check"])));
    suite.single("clippy", || {
        let mut command = cargo::cargo()?;
        command.args(["clippy", "--locked", "--workspace", "--exclude", "smc-agent-ebpf", "--all-targets"]);
        build::set_bpf_env(&mut command, Bpf::Source)?;
        sys::run(command.args(["--", "-D", "warnings"]))
    });
    suite.single("clippy, BPF side", || bpf_side("clippy", "bpfel-unknown-none", "x86_64"));
    // Nothing big-endian is at hand to run it on, but s390x is where SMC comes from.
    suite.single("BPF side, big endian", || bpf_side("check", "bpfeb-unknown-none", "s390x"));
    suite.counted("unit tests", || {
        let run = |selection: &[&str]| {
            let mut command = cargo::cargo()?;
            command.args(["test", "--locked", "--no-fail-fast"]).args(selection);
            build::set_bpf_env(&mut command, Bpf::Source)?;
            tee(&mut command)
        };
        let (mut output, why) = run(&["--workspace", "--exclude", "smc-agent-ebpf", "--exclude", TESTS])?;
        // Its test targets are for network namespaces and guests: they come later.
        let (more, why_more) = run(&["-p", TESTS, "--lib", "--bins"])?;
        output += &more;
        Ok((output, why.or(why_more)))
    });
    suite.single("checked-in BPF object", bpf::check);
}

/// Runs a command of cargo over the BPF side.
fn bpf_side(command: &str, target: &str, arch: &str) -> Result<()> {
    let mut cargo = cargo::cargo()?;
    cargo.args([command, "--locked", "-p", "smc-agent-ebpf", "--target", target]);
    cargo.args(["-Zbuild-std=core", "--target-dir"]).arg(cargo::target_dir()?.join("bpf-clippy"));
    build::set_bpf_env(&mut cargo, Bpf::Source)?;
    cargo.env("RUSTC_BOOTSTRAP", "1").env("LD_LIBRARY_PATH", cargo::sysroot()?.join("lib"));
    cargo.env("CARGO_ENCODED_RUSTFLAGS", format!("--cfg=bpf_target_arch=\"{arch}\"\x1f-Dwarnings"));
    sys::run(&mut cargo)
}

fn host_tests(suite: &mut Suite) {
    suite.counted("host", || {
        if !cargo::has_target("tests", "test", "host")? {
            bail!("{TESTS} has no test target `host`");
        }
        if !sys::is_root() {
            bail!("the host tests make network namespaces and load BPF programs: run as root");
        }
        // The host tests start the agent's own executable.
        let mut agent = cargo::cargo()?;
        agent.args(["build", "--locked", "-p", "smc-agent", "-p", TESTS, "--bins"]);
        build::set_bpf_env(&mut agent, Bpf::Source)?;
        let built = cargo::build(&mut agent)?;
        let mut command = cargo::cargo()?;
        command.args(["test", "--locked", "-p", TESTS, "--test", "host"]);
        if let Some(file) = built.executable("smc-agent") {
            command.env("SMC_AGENT_BIN", file);
        }
        build::set_bpf_env(&mut command, Bpf::Source)?;
        tee(&mut command)
    });
}

/// Builds the tests that run in guests: the test targets whose names begin with `vm`.
fn vm_test_programs() -> Result<Vec<(String, PathBuf)>> {
    let built = cargo::build(build::guest_cargo("test")?.args(["-p", TESTS, "--test", "vm*", "--no-run"]))?;
    let tests: Vec<_> = built.executables.into_iter().filter(|(name, _)| name.starts_with("vm")).collect();
    if tests.is_empty() {
        bail!("{TESTS} has no test target whose name begins with `vm`");
    }
    Ok(tests)
}

/// What the tests of conversion need besides: stock programs, and the library for `smc-agent exec`.
fn convert_files(kernel: Kernel) -> Result<Vec<(PathBuf, String)>> {
    let library = build::preload_library()?;
    let guest = format!("/bin/{}", library.file_name().unwrap_or_default().to_string_lossy());
    let mut files = vec![(programs::ensure()?, programs::GUEST.to_owned()), (library, guest)];
    if kernel == module::KERNEL {
        files.push((module::tcp2smc()?, module::GUEST.to_owned()));
    }
    Ok(files)
}

fn vm_tests(suite: &mut Suite, options: &Options) {
    let prepared = build::guest_programs().and_then(|programs| Ok((programs, vm_test_programs()?)));
    for kernel in &options.kernels {
        let (programs, tests) = match &prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                suite.single(&format!("vm {kernel}"), || bail!("{error:#}"));
                continue;
            }
        };
        let wanted = |name: &str| options.target.as_ref().is_none_or(|target| target == name);
        for (name, file) in tests.iter().filter(|(name, _)| wanted(name) && applies(name, *kernel)) {
            let mut said = (Vec::new(), false);
            suite.counted(&format!("vm {kernel} {name}"), || {
                let mut programs = programs.clone();
                programs.push(vm::Program { name: "vm-tests".to_owned(), file: file.clone() });
                let mut command =
                    ["vm-tests", "--color", "never", "--test-threads", "1"].map(OsString::from).to_vec();
                command.extend(options.filter.iter().map(OsString::from));
                let mut request = vm::Request::new(*kernel, command);
                request.timeout = options.timeout;
                if name == CONVERT {
                    request.add = convert_files(*kernel)?;
                    "1536M".clone_into(&mut request.memory);
                }
                let outcome = vm::run(&request, &programs)?;
                let code = (outcome.code != 0).then(|| format!("exit code {}", outcome.code));
                // A test that failed makes the code 101, and speaks for itself; what else went wrong speaks against all.
                said = (libtest::outcomes(&outcome.output), outcome.problem.is_none());
                Ok((outcome.output, outcome.problem.or(code)))
            });
            suite.proofs.add(*kernel, name, &said.0, said.1);
        }
    }
}

const HELP: &str = "\
Formatting, clippy, unit tests, the checked-in BPF object, host tests and tests in VMs, with one line of totals at the end.

Usage: cargo xtask test [OPTIONS]

Options:
  --kernel K         only this kernel in VMs; may be repeated (default: all four)
  --host-only        no VMs
  --vm-only          only the VMs
  --no-setup         fail where a tool is missing instead of getting it
  --target NAME      of the test targets in VMs only this one
  --filter TEXT      of the tests in VMs only those whose names have this in them
  --vm-timeout SECS  kill a VM after this time (default 1500)
  -h, --help         this text

Exit code 1 when a test failed, or when a kernel could not run that was not left out by an option.";

struct Options {
    kernels: Vec<Kernel>,
    host: bool,
    setup: bool,
    timeout: Duration,
    target: Option<String>,
    filter: Option<String>,
}

fn parse(mut args: lexopt::Parser) -> Result<Option<Options>> {
    let (mut kernels, mut host_only, mut host, mut setup) = (Vec::new(), false, true, true);
    let mut timeout = Duration::from_mins(25);
    let (mut target, mut filter) = (None, None);
    while let Some(arg) = args.next()? {
        match arg {
            Short('h') | Long("help") => {
                println!("{HELP}");
                return Ok(None);
            }
            Long("kernel") => kernels.push(Kernel::parse(&args.value()?.string()?)?),
            Long("host-only") => host_only = true,
            Long("vm-only") => host = false,
            Long("no-setup") => setup = false,
            Long("target") => target = Some(args.value()?.string()?),
            Long("filter") => filter = Some(args.value()?.string()?),
            Long("vm-timeout") => timeout = Duration::from_secs(args.value()?.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    if host_only && !(kernels.is_empty() && host) {
        bail!("--host-only leaves nothing for --kernel and --vm-only");
    }
    if kernels.is_empty() && !host_only {
        kernels.extend(Kernel::ALL);
    }
    Ok(Some(Options { kernels, host, setup, timeout, target, filter }))
}

/// Runs `cargo xtask test`; true when all went well.
pub(crate) fn main(args: lexopt::Parser) -> Result<bool> {
    let Some(options) = parse(args)? else { return Ok(true) };
    let mut suite = Suite::default();
    if options.setup {
        let start = Instant::now();
        if let Err(error) = setup::ensure_all(&options.kernels) {
            // What can run without it does, and the rest fails by name.
            sys::say(format_args!("setup: {error:#}"));
        }
        sys::say(format_args!("setup: {}", sys::human(start.elapsed())));
    }
    if options.host {
        checks(&mut suite);
        host_tests(&mut suite);
    }
    if !options.kernels.is_empty() {
        vm_tests(&mut suite, &options);
        let proofs = std::mem::take(&mut suite.proofs);
        let whole = options.target.is_none()
            && options.filter.is_none()
            && Kernel::ALL.iter().all(|kernel| options.kernels.contains(kernel));
        suite.single("support table", || support::check(&proofs, whole));
    }
    Ok(report(&suite))
}

/// Prints the closing lines.
fn report(suite: &Suite) -> bool {
    println!();
    for step in &suite.steps {
        let Counts { passed, failed, ignored } = step.counts;
        let time = sys::human(step.time);
        println!("{:30} {passed:5} passed {failed:4} failed {ignored:4} ignored   {time}", step.name);
        if let Some(why) = &step.why {
            println!("{:30} {}", "", why.lines().next().unwrap_or_default());
        }
        for name in &step.ignored {
            println!("{:30} ignored: {name}", "");
        }
    }
    let ran = |kernel: &Kernel| {
        let name = format!("vm {kernel} ");
        suite.steps.iter().any(|step| step.name.starts_with(&name) && step.counts.passed > 0)
    };
    let names = |wanted: bool| {
        let list: Vec<_> =
            Kernel::ALL.iter().filter(|kernel| ran(kernel) == wanted).map(|kernel| kernel.name()).collect();
        if list.is_empty() { "none".to_owned() } else { list.join(", ") }
    };
    println!("kernels that ran: {}; that did not: {}", names(true), names(false));
    let total = suite.total();
    println!("{} passed, {} failed", total.passed, total.failed);
    total.failed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(output: &str, why: Option<&str>) -> Counts {
        let mut suite = Suite::default();
        suite.counted("x", || Ok((output.to_owned(), why.map(str::to_owned))));
        suite.total()
    }

    #[test]
    fn a_step_without_tests_is_a_failure() {
        assert_eq!(counted("", None).failed, 1);
        assert_eq!(counted("test result: ok. 0 passed; 0 failed; 3 ignored", None).failed, 1);
        assert_eq!(counted("test result: ok. 2 passed; 0 failed; 0 ignored", None).failed, 0);
        assert_eq!(counted("test result: ok. 2 passed; 0 failed; 0 ignored", Some("exit code 1")).failed, 1);
        assert_eq!(
            counted("test result: FAILED. 2 passed; 2 failed; 0 ignored", Some("exit code 101")).failed,
            2
        );
    }

    #[test]
    fn an_error_is_one_failure_and_the_rest_goes_on() {
        let mut suite = Suite::default();
        suite.single("bad", || bail!("no"));
        suite.single("good", || Ok(()));
        assert_eq!(suite.total(), Counts { passed: 1, failed: 1, ignored: 0 });
    }
}
