//! Ten thousand sockets at once.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use smc_agent_tests::agent;
use smc_agent_tests::pair::{Connecting, Kind, Listener, Stream};
use smc_agent_tests::wait::Limit;

use super::scene::{LONG, Scene};

const LISTENERS: usize = 6000;
const FALLBACKS: usize = 4000;
/// Set where the agent is optimised and the guest not emulated: only there the time means something.
const STRICT: &str = "SMC_AGENT_STRICT_TIME";
const TIME: Duration = Duration::from_secs(1);
const MEMORY_KIB: i64 = 50 * 1024;

pub(crate) fn ten_thousand(_: &Scene) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: 40_000, rlim_max: 40_000 };
    // SAFETY: the pointer is to a value that lives through the call, which only reads it.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    ensure!(result == 0, "cannot raise the limit of descriptors: {}", std::io::Error::last_os_error());
    let before = super::raw::smc_sockets()?.len();
    let begin = Instant::now();
    let listeners: Vec<_> = (0..LISTENERS)
        .map(|number| Listener::bind(Kind::Smc, (address(number), 7000).into(), 1))
        .collect::<Result<_>>()?;
    let server = Listener::bind(Kind::Tcp, (Ipv4Addr::LOCALHOST, 0).into(), 64)?;
    let (to, limit) = (server.local()?, Limit::new(LONG * 10));
    let mut connections = Vec::new();
    for _ in 0..FALLBACKS {
        let (client, _) = Stream::connect(Kind::Smc, to, &Connecting::default(), &limit)?;
        connections.push((client, server.accept(&limit)?));
    }
    eprintln!("{} sockets made in {:?}", LISTENERS + FALLBACKS, begin.elapsed());
    let expected = before + LISTENERS + FALLBACKS;
    let begin = Instant::now();
    ensure!(super::raw::smc_sockets()?.len() == expected, "not all sockets are there");
    eprintln!("the kernel's own list takes {:?}", begin.elapsed());
    for arguments in [&["--all"][..], &["--all", "--processes"]] {
        let (time, memory, report) = measure(arguments)?;
        // Counted in the text: a tree of it would show in the memory of the next child, which begins as a copy of this.
        let count = |text: &str| report.lines().filter(|line| line.trim().starts_with(text)).count();
        ensure!(count("\"cookie\": ") == expected, "{} of {expected}", count("\"cookie\": "));
        ensure!(count("\"mode\": \"tcp\"") >= FALLBACKS, "not all fallbacks are there");
        eprintln!("show sockets {}: {expected} sockets in {time:?} and {memory} KiB", arguments.join(" "));
        ensure!(memory < MEMORY_KIB, "{memory} KiB");
        let bound = if std::env::var_os(STRICT).is_some() { TIME } else { LONG };
        ensure!(time < bound, "{time:?}");
    }
    drop(listeners);
    Ok(())
}

fn address(number: usize) -> Ipv4Addr {
    let number = u32::try_from(number).unwrap_or_default();
    Ipv4Addr::from(0x7f01_0000 + number)
}

/// How long the agent takes, the most memory that it had, and what it printed.
fn measure(arguments: &[&str]) -> Result<(Duration, i64, String)> {
    let begin = Instant::now();
    let path = std::env::temp_dir().join("vm-show-many.json");
    let file = std::fs::File::create(&path)?;
    let child = Command::new(agent::binary()?)
        .args(["show", "sockets", "-o", "json"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()?;
    let (mut status, id) = (0, i32::try_from(child.id())?);
    // SAFETY: `rusage` is plain data for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to values that live through the call, which writes them.
    let ended = unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) };
    let time = begin.elapsed();
    ensure!(ended == id && status == 0, "the agent failed: {status}");
    Ok((time, usage.ru_maxrss, std::fs::read_to_string(&path)?))
}
