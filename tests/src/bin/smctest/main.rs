//! smctest: connections of every kind with checked data, and SMC's own settings, for shell scripts and by hand.

mod arguments;
mod connect;
mod pair;
mod report;
mod serve;
mod tables;

use std::process::ExitCode;

use smc_agent_tests::{netns, setup};

use arguments::Arguments;

const USAGE: &str = "\
smctest: makes SMC and TCP connections with checked data, and shows what the kernel says of them

smctest setup [--smcr]        prepare real SMC on this kernel, prove it, and say what was done
smctest pair                  one connection, both ends in this process
    --server KIND --client KIND         smc (default), smc-inet or tcp
    --address A --port P                where the server listens (127.0.0.1, port 0: any)
    --server-netns NS --client-netns NS name or path of a network namespace
smctest serve                 the listening end: --kind KIND --address A --port P
    --count N                           connections to serve (1; 0: until none comes for --timeout)
smctest connect               the connecting end: --kind KIND --address A --port P
    --count N --parallel M              connections in all and at once (1, 1)
  pair and connect also take
    --bytes N                           bytes each way (65536)
    --local-bind A                      address to bind the client to
    --fastopen-connect                  set TCP_FASTOPEN_CONNECT
    --fastopen-message                  connect by MSG_FASTOPEN
    --ipsec-connect                     with a policy of IPsec that does nothing
    --non-blocking                      connect without blocking
  pair also takes
    --fastopen-listen --ipsec-listen    the same at the listener
  pair, serve and connect also take
    --timeout SECONDS                   how long one connection may take (30)
    --json                              JSON, one object a line
smctest diag [--json]         all SMC sockets
smctest ueid list | add EID | del EID | flush
smctest pnet list | add ID eth INTERFACE | add ID ib DEVICE [PORT] | del ID | flush
smctest fallbacks [--json]    the kernel's own count of fallbacks
smctest info [--json]         what the kernel says of its SMC: version, EIDs, handshake limitation
smctest programs [--json]     BPF programs whose names begin with smc_ or hs_: runs and nanoseconds, while
                              kernel.bpf_stats_enabled is 1
All take --netns NS. Exit codes: 0 well (data intact); 1 not; 2 usage.";

fn main() -> ExitCode {
    let arguments = match Arguments::parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("smctest: {error:#}; see smctest --help");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("smctest: {error:#}");
            ExitCode::from(if error.is::<arguments::Usage>() { 2 } else { 1 })
        }
    }
}

/// Whether all is well.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    if let Some(namespace) = &arguments.netns {
        // No thread has been started yet: all will be in the namespace.
        netns::enter(namespace)?;
    }
    let words: Vec<&str> = arguments.words.iter().map(String::as_str).collect();
    match words[..] {
        ["help"] => println!("{USAGE}"),
        ["setup"] => println!("{}", setup::prepare(arguments.smc_r)?),
        ["pair"] => return pair::run(arguments),
        ["serve"] => return serve::run(arguments),
        ["connect"] => return connect::run(arguments),
        ["diag"] => tables::sockets(arguments.json)?,
        ["fallbacks"] => tables::fallbacks(arguments.json)?,
        ["info"] => tables::info(arguments.json)?,
        ["programs"] => tables::programs(arguments.json)?,
        ["ueid", ref rest @ ..] => tables::user_eids(rest)?,
        ["pnet", ref rest @ ..] => tables::pnet(rest)?,
        _ => return Err(arguments::Usage(format!("unknown command {:?}", words.join(" "))).into()),
    }
    Ok(true)
}
