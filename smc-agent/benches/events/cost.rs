//! What tracing adds to a connection, by the kernel's own statistics of run time.
//!
//! Machines that this runs on need not have SMC, so the product's programs are put at functions of TCP that have the same
//! arguments, and told offsets by which a TCP socket is an SMC socket and its own internal socket. What they read and write is
//! the same, and so is what they cost. Fallbacks are had by request, of a connection that there is.

use std::{
    collections::BTreeMap,
    net::{TcpListener, TcpStream},
};

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf,
    maps::HashMap,
    programs::{KProbe, ProgramInfo},
    sys::{Stats, enable_stats},
};
use smc_agent::kernel::{btf::Btf, hooks, object, offsets};

use super::report::Report;

/// A program, and a function of TCP with its arguments.
const PLACES: [(&str, &str); 7] = [
    ("smc_owner_socket", "sock_init_data"),
    ("smc_owner_connect", "inet_stream_connect"),
    ("smc_owner_option", "sock_common_setsockopt"),
    ("smc_owner_release", "inet_release"),
    ("smc_client_failed", "tcp_close"),
    ("smc_server_settled", "tcp_close"),
    ("smc_given_up", "tcp_close"),
];
const FALLBACK: &str = "smc_fallback";
/// What runs for a connection of a client, and of a server: each once.
const CLIENT: [&str; 5] =
    ["smc_owner_socket", "smc_owner_connect", "smc_client_failed", "smc_given_up", "smc_owner_release"];
const SERVER: [&str; 3] = ["smc_server_settled", "smc_given_up", "smc_owner_release"];
/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`).
const PEER_NO_SMC: u32 = 0x0301_0000;

/// Measures over so many connections.
pub(crate) fn measure(connections: u32, report: &mut Report) -> Result<()> {
    let mut ebpf = load()?;
    for (program, function) in PLACES {
        let program: &mut KProbe = ebpf.program_mut(program).context("no such program")?.try_into()?;
        program.load()?;
        program.attach(function, 0).with_context(|| format!("no probe of {function}"))?;
    }
    let _counting = enable_stats(Stats::RunTime)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    for _ in 0..connections {
        let client = TcpStream::connect(address)?;
        // An option, which a server sets on most.
        client.set_nodelay(true)?;
        drop(listener.accept()?);
    }
    let client = TcpStream::connect(address)?;
    let (server, _) = listener.accept()?;
    let socket = socket_of_a_connection(&ebpf)?;
    hooks::run_fallback(&mut ebpf, socket, PEER_NO_SMC, connections).map_err(|why| anyhow!("{why}"))?;
    drop((client, server));
    let mut costs = BTreeMap::new();
    for (name, program) in ebpf.programs() {
        // Those that were not loaded have none.
        let Ok(info) = program.info() else { continue };
        if let Some(cost) = cost(&info) {
            report.figure(&format!("tracing, one run of {name}"), cost, "ns");
            costs.insert(name.to_owned(), cost);
        }
    }
    let sum = |names: &[&str]| -> Result<f64> {
        names.iter().map(|name| costs.get(*name).with_context(|| format!("{name} did not run"))).sum()
    };
    let fallback = sum(&[FALLBACK])?;
    for (what, cost) in [("a client", sum(&CLIENT)?), ("a server", sum(&SERVER)?)] {
        report.at_most(&format!("tracing adds to {what} over SMC"), cost, "ns", Some(2000.0));
        let what = format!("tracing adds to {what} that falls back");
        report.at_most(&what, cost + fallback, "ns", Some(2000.0));
    }
    Ok(())
}

/// Nanoseconds of one run; `None` if it did not run.
fn cost(info: &ProgramInfo) -> Option<f64> {
    (info.run_count() > 0).then(|| info.run_time().as_nanos() as f64 / info.run_count() as f64)
}

/// The programs, for which TCP sockets are SMC sockets.
fn load() -> Result<Ebpf> {
    let btf = Btf::of_kernel()?;
    let mut offsets = offsets::of_kernel(&btf)?;
    let of_sock = |field: &str| btf.offset("sock", field);
    // The internal socket of a socket is the one that it belongs to; it has a listener (any pointer that is not null is one)
    // and no link group.
    for (name, field) in [
        ("OFF_SMC_CLCSOCK", "sk_socket"),
        ("OFF_SMC_LISTEN", "__sk_common.skc_prot"),
        ("OFF_SMC_PEER_DIAGNOSIS", "sk_err"),
        ("OFF_SMC_USE_FALLBACK", "sk_err"),
        ("OFF_SMC_FALLBACK_RSN", "sk_err"),
        ("OFF_SMC_CONN_LGR", "sk_user_data"),
    ] {
        offsets.push((name, of_sock(field)?));
    }
    Ok(object::load(&object::Options {
        maps: None,
        offsets: &offsets,
        enforcing: false,
        log_level: 0,
        event_rate: 0,
        fallback_tracepoint: true,
    })?)
}

/// The address of a socket that is connected: those that were not released have owners.
fn socket_of_a_connection(ebpf: &Ebpf) -> Result<u64> {
    let owners = ebpf.map("OWNERS").context("no map of owners")?;
    let owners: HashMap<_, u64, [u8; size_of::<smc_agent_common::Owner>()]> = owners.try_into()?;
    let connected = smc_agent_common::OwnerSeen::Connect as u8;
    for entry in &owners {
        let (socket, owner) = entry?;
        let owner: smc_agent_common::Owner = bytemuck::pod_read_unaligned(&owner);
        if owner.seen == connected && owner.pid == std::process::id() {
            return Ok(socket);
        }
    }
    anyhow::bail!("no connection has an owner")
}
