//! `smc-agent exec`: what `smc_run` is for.

use std::{
    env,
    ffi::OsString,
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use clap::{Args, ValueEnum};

use super::{Failure, privileges, run::parse_size};
use crate::{
    convert::exec::{self, LIBRARY},
    enforce::Places,
};

/// Exit codes of shells for a command that cannot be started, and one that is not there.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

#[derive(Debug, Args)]
pub(super) struct ExecArguments {
    /// How to convert
    #[arg(long = "mech", value_enum, default_value_t = Mech::Auto)]
    mechanism: Mech,
    /// Size of the receive buffers (bytes; K, M and G are understood); needs the library, and a dynamic program
    #[arg(short = 'r', long, value_name = "SIZE", value_parser = parse_size)]
    receive: Option<usize>,
    /// Size of the send buffers, likewise
    #[arg(short = 't', long, value_name = "SIZE", value_parser = parse_size)]
    transmit: Option<usize>,
    /// Have the library say on standard error what it does
    #[arg(short, long)]
    debug: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mech {
    /// bpf where the kernel and the privileges allow it, else preload
    Auto,
    /// By the kernel, in a cgroup of its own: all programs; root, 6.11 and later
    Bpf,
    /// By a library that dynamic programs are started with: no privileges, any kernel with SMC
    Preload,
}

pub(super) fn exec(places: &Places, arguments: &ExecArguments) -> Result<ExitCode, Failure> {
    let [command, rest @ ..] = arguments.command.as_slice() else {
        return Err(Failure::usage("a command is needed"));
    };
    let Some(program) = exec::find(command, env::var_os("PATH").as_deref()) else {
        remark(&format!("{}: there is no such command", command.display()));
        return Ok(ExitCode::from(NOT_FOUND));
    };
    let by_kernel = match arguments.mechanism {
        Mech::Preload => false,
        Mech::Bpf => {
            privileges::require("exec --mech bpf")?;
            exec::enter_group(places)?;
            true
        }
        Mech::Auto if privileges::require("exec").is_err() => false,
        Mech::Auto => match exec::enter_group(places) {
            Ok(()) => true,
            Err(error) => {
                remark(&format!("by preload, because {error}"));
                false
            }
        },
    };
    let mut child = Command::new(&program);
    child.arg0(command).args(rest);
    let sizes = arguments.receive.is_some() || arguments.transmit.is_some();
    if !by_kernel || sizes || arguments.debug {
        let library = exec::library().ok_or_else(|| {
            Failure::unsupported(format!(
                "{LIBRARY} is not installed: neither next to smc-agent nor in /usr/lib/smc-agent"
            ))
        })?;
        if let Some(why) = exec::unfit_for_preload(&program) {
            let what =
                if by_kernel { "sizes and --debug do nothing" } else { "it stays on TCP (use --mech bpf)" };
            remark(&format!("warning: {} {why}: {what}", program.display()));
        }
        child.env("LD_PRELOAD", exec::preload(&library, env::var_os("LD_PRELOAD").as_deref()));
        child.env("SMC_AGENT_CONVERT", if by_kernel { "kernel" } else { "library" });
        for (name, size) in
            [("SMC_AGENT_RCVBUF", arguments.receive), ("SMC_AGENT_SNDBUF", arguments.transmit)]
        {
            if let Some(size) = size {
                child.env(name, size.to_string());
            }
        }
        if arguments.debug {
            child.env("SMC_AGENT_DEBUG", "1");
        }
    }
    // In the place of this process: its exit code and signals are the command's own.
    let error = child.exec();
    remark(&format!("{}: {error}", program.display()));
    Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }))
}

fn remark(text: &str) {
    // Whoever closed standard error does not want to know.
    let _ = writeln!(io::stderr(), "{}", super::printable(&format!("smc-agent: {text}")));
}
