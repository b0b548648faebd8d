//! `smc-agent convert on|off|reset`.

use std::{
    io::{self, IsTerminal as _, Write as _},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use clap::{ArgGroup, Args};
use jiff::Timestamp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Failure, print, privileges};
use crate::{
    convert::{
        self, ConvertRecord, Mechanism, Switch, SwitchRecord, Target,
        resolve::{Host, System as _},
    },
    enforce::Places,
    kernel::maps::monotonic_now,
    policy::{read_cgroup, read_netns},
};

/// How long a switch at a terminal lasts unless it is confirmed: who has locked himself out cannot.
const TO_CONFIRM: Duration = Duration::from_mins(1);

#[derive(Debug, Args)]
#[group(id = "target", required = true, multiple = false)]
struct TargetArguments {
    /// A cgroup v2 and all below it, by its path in the hierarchy: /system.slice/redis.service
    #[arg(long, value_name = "PATH", value_parser = parse_cgroup)]
    cgroup: Option<String>,
    /// A network namespace: a name under /run/netns, or a path (/proc/self/ns/net is this one)
    #[arg(long, value_name = "NAME", value_parser = parse_netns)]
    netns: Option<String>,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OnArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Undo it after this time, whether the agent runs or not: 90s, 10m, 2h, 1d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
    /// Do not ask for confirmation at a terminal
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct OffArguments {
    #[command(flatten)]
    target: TargetArguments,
    /// Undo it after this time, whether the agent runs or not: 90s, 10m, 2h, 1d
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    time: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["cgroup", "netns", "all"])))]
pub(in crate::cli) struct ResetArguments {
    /// The switch of this cgroup
    #[arg(long, value_name = "PATH", value_parser = parse_cgroup)]
    cgroup: Option<String>,
    /// The switch of this network namespace
    #[arg(long, value_name = "NAME", value_parser = parse_netns)]
    netns: Option<String>,
    /// All switches
    #[arg(long)]
    all: bool,
}

fn parse_cgroup(text: &str) -> Result<String, String> {
    read_cgroup(text).map_err(|(message, help)| format!("{message}: {help}"))
}

fn parse_netns(text: &str) -> Result<String, String> {
    read_netns(text).map_err(|(message, help)| format!("{message}: {help}"))
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: write 90s, 10m, 2h or 1d");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    // A century is more than a host runs, and what the kernel's clock can hold.
    let limit = 100 * 365 * 86_400;
    match number.checked_mul(seconds) {
        Some(time) if time > 0 && time <= limit => Ok(Duration::from_secs(time)),
        _ => Err(wrong()),
    }
}

fn target(cgroup: Option<&String>, netns: Option<&String>) -> Option<Target> {
    cgroup.cloned().map(Target::Cgroup).or_else(|| netns.cloned().map(Target::Netns))
}

impl TargetArguments {
    fn target(&self) -> Result<Target, Failure> {
        let target = target(self.cgroup.as_ref(), self.netns.as_ref());
        target.ok_or_else(|| Failure::usage("one of --cgroup and --netns is needed"))
    }
}

fn switch(action: Switch, target: &Target, time: Option<Duration>) -> SwitchRecord {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    SwitchRecord {
        action,
        target: target.clone(),
        until: time.and_then(|time| Timestamp::now().checked_add(time).ok()),
        deadline: time.map_or(0, |time| monotonic_now().saturating_add(nanoseconds(time))),
    }
}

fn set(places: &Places, switch: SwitchRecord) -> Result<ConvertRecord, Failure> {
    Ok(convert::change(places, |record| convert::set_switch(record, switch))?)
}

pub(super) fn on(places: &Places, arguments: &OnArguments) -> Result<ExitCode, Failure> {
    privileges::require("convert on")?;
    let target = arguments.target.target()?;
    look_at(&target)?;
    let netns = match &target {
        Target::Netns(name) => Some(name.as_str()),
        Target::Cgroup(_) => None,
    };
    for warning in convert::warnings(netns) {
        remark(&format!("warning: {warning}"));
    }
    let ask = !arguments.yes && io::stdin().is_terminal() && io::stdout().is_terminal();
    let first = if ask {
        Some(arguments.time.map_or(TO_CONFIRM, |time| time.min(TO_CONFIRM)))
    } else {
        arguments.time
    };
    undo_sysctl_later(places, &target, first)?;
    let before = ConvertRecord::read(places)?.switches.into_iter().find(|switch| switch.target == target);
    let record = set(places, switch(Switch::On, &target, first))?;
    let mechanism = record.mechanism.map(|mechanism| mechanism.to_string()).unwrap_or_default();
    if ask {
        let question = format!(
            "new sockets of {target} are converted, by {mechanism}, for {} seconds: is this host still reached? Type yes \
             to keep it: ",
            TO_CONFIRM.as_secs()
        );
        if !confirmed(&question)? {
            take_back(places, &target, before)?;
            return Err(Failure::not_so("not confirmed: it is undone"));
        }
        undo_sysctl_later(places, &target, arguments.time)?;
        set(places, switch(Switch::On, &target, arguments.time))?;
    }
    let time = arguments.time.map(|time| format!(" for {} seconds", time.as_secs())).unwrap_or_default();
    print(format_args!(
        "new sockets of {target} are converted{time}, by {mechanism}; those that exist stay as they are\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn off(places: &Places, arguments: &OffArguments) -> Result<ExitCode, Failure> {
    privileges::require("convert off")?;
    let target = arguments.target.target()?;
    look_at(&target)?;
    undo_sysctl_later(places, &target, arguments.time)?;
    set(places, switch(Switch::Off, &target, arguments.time))?;
    print(format_args!("new sockets of {target} stay TCP; those that exist stay as they are\n"))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn reset(places: &Places, arguments: &ResetArguments) -> Result<ExitCode, Failure> {
    privileges::require("convert reset")?;
    let target = target(arguments.cgroup.as_ref(), arguments.netns.as_ref());
    let mut gone = 0;
    // Without a record there is nothing to take away, and nothing is to be made for it.
    if places.convert_record().exists() {
        convert::change(places, |record| {
            let before = record.switches.len();
            record.switches.retain(|switch| target.as_ref().is_some_and(|target| switch.target != *target));
            gone = before - record.switches.len();
            Ok(())
        })?;
    }
    if gone == 0 && !arguments.all {
        return Err(Failure::not_so("there is no such switch"));
    }
    print(format_args!("{gone} switches taken away: the policy's rules decide\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Puts back what was there before.
fn take_back(places: &Places, target: &Target, before: Option<SwitchRecord>) -> Result<(), Failure> {
    convert::change(places, |record| {
        record.switches.retain(|switch| switch.target != *target);
        record.switches.extend(before);
        Ok(())
    })?;
    Ok(())
}

/// A name that leads nowhere is most often misspelt.
fn look_at(target: &Target) -> Result<(), Failure> {
    let host = Host::new();
    match target {
        Target::Netns(name) if host.netns(name).is_none() && !crate::netns::path_of(name).exists() => {
            Err(Failure::not_so(format!("there is no network namespace {name:?}")))
        }
        Target::Cgroup(path) if host.cgroup(path).is_none() => {
            remark(&format!("warning: there is no cgroup {path} at present; it is followed when it is made"));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The kernel itself ends what it does by rules; for a sysctl somebody has to.
fn undo_sysctl_later(places: &Places, target: &Target, time: Option<Duration>) -> Result<(), Failure> {
    let (Some(time), Target::Netns(name)) = (time, target) else { return Ok(()) };
    if convert::mechanism(places) != Ok(Mechanism::Sysctl) {
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let result = Command::new("systemd-run")
        .args(["--collect", "--quiet", &format!("--on-active={}s", time.as_secs())])
        .arg(program)
        .arg("--state-dir")
        .arg(&places.state)
        .arg("--pin-dir")
        .arg(&places.pins)
        .args(["convert", "reset", "--netns", name])
        .output();
    match result {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(cannot_undo(String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(cannot_undo(&error.to_string())),
    }
}

fn cannot_undo(why: &str) -> Failure {
    Failure::unsupported(format!(
        "this kernel converts by net.smc.tcp2smc, which does not undo itself, and systemd-run cannot do it later: {why}; \
         leave out --for (and give --yes at a terminal)"
    ))
}

/// Asks at the terminal, for as long as the switch lasts.
fn confirmed(question: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    write!(out, "{}", super::super::printable(question))?;
    out.flush()?;
    let end = Instant::now() + TO_CONFIRM;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let stdin = io::stdin();
        let mut fds = [PollFd::new(std::os::fd::AsFd::as_fd(&stdin), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) => {
                writeln!(out)?;
                return Ok(false);
            }
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(line.trim() == "yes")
}

fn remark(text: &str) {
    // Whoever closed standard error does not want to know.
    let _ = writeln!(io::stderr(), "{}", super::super::printable(&format!("smc-agent: {text}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(parse_time("10m"), Ok(Duration::from_mins(10)));
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "m", "10", "0s", "-1s", "1w", "99999999999999999999s", "9999999999d", "1ß"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
