//! What tracing adds to a connection, by the kernel's own statistics of run time.
//!
//! Machines that this runs on need have neither SMC nor kprobes. So the product's programs are run by a probe of a function of
//! this program, which is called with what the kernel's functions would be called with; and they are told offsets by which a
//! TCP socket is an SMC socket and its own internal socket. What they read and write is the same, and so is what they cost.

use std::{
    collections::BTreeMap,
    net::{TcpListener, TcpStream},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use aya::{
    Ebpf,
    maps::HashMap,
    programs::{KProbe, ProgramInfo, RawTracePoint},
    sys::{Stats, enable_stats},
};
use smc_agent::kernel::{btf::Btf, hooks, object, offsets};
use smc_agent_common::Owner;

use super::{report::Report, uprobe};

const FALLBACK: &str = "smc_fallback";
/// What runs for a connection of a client, and of a server: each once.
const CLIENT: [&str; 5] =
    ["smc_owner_socket", "smc_owner_connect", "smc_client_failed", "smc_given_up", "smc_owner_release"];
const SERVER: [&str; 3] = ["smc_server_settled", "smc_given_up", "smc_owner_release"];
/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`).
const PEER_NO_SMC: u32 = 0x0301_0000;

/// Measures with so many runs of each program.
pub(crate) fn measure(runs: u32, report: &mut Report) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let (_ends, sock) = connection(&listener)?;
    let socket = socket_of(sock)?;
    let mut ebpf = load(&[])?;
    let _counting = enable_stats(Stats::RunTime)?;
    let calls: [(&str, uprobe::Place, [u64; 3]); 6] = [
        ("smc_owner_socket", uprobe::place::<1>, [0, sock, 0]),
        ("smc_owner_connect", uprobe::place::<2>, [socket, 0, 0]),
        ("smc_client_failed", uprobe::place::<3>, [sock, u64::from(PEER_NO_SMC), 0]),
        ("smc_server_settled", uprobe::place::<4>, [sock, 0, 0]),
        ("smc_given_up", uprobe::place::<5>, [sock, 0, 0]),
        ("smc_owner_release", uprobe::place::<6>, [socket, 0, 0]),
    ];
    {
        let mut probes = Vec::new();
        for (program, place, arguments) in calls {
            let program: &mut KProbe = ebpf.program_mut(program).context("no such program")?.try_into()?;
            program.load()?;
            probes.push((uprobe::Probe::prepare(program.fd()?, place)?, arguments));
        }
        // In the order of a connection: an owner is recorded and removed each time.
        for _ in 0..runs {
            for (probe, arguments) in &probes {
                probe.call(*arguments);
            }
        }
    }
    hooks::run_fallback(&mut ebpf, sock, PEER_NO_SMC, runs).map_err(|why| anyhow!("{why}"))?;
    let mut costs = BTreeMap::new();
    for (name, program) in ebpf.programs() {
        // Those that were not loaded have none.
        let Ok(info) = program.info() else { continue };
        if let Some(cost) = cost(&info) {
            ensure!(info.run_count() == u64::from(runs), "{name} ran {} times", info.run_count());
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

/// The programs, for which TCP sockets are SMC sockets; `other` offsets are as they say.
fn load(other: &[offsets::Offset]) -> Result<Ebpf> {
    let btf = Btf::of_kernel()?;
    let mut offsets = offsets::of_kernel(&btf)?;
    // The internal socket of a socket is the one that it belongs to; it has no listener and no link group.
    for (name, field) in [
        ("OFF_SMC_CLCSOCK", "sk_socket"),
        ("OFF_SMC_LISTEN", "sk_user_data"),
        ("OFF_SMC_PEER_DIAGNOSIS", "sk_err"),
        ("OFF_SMC_USE_FALLBACK", "sk_err"),
        ("OFF_SMC_FALLBACK_RSN", "sk_err"),
        ("OFF_SMC_CONN_LGR", "sk_user_data"),
    ] {
        offsets.push((name, btf.offset("sock", field)?));
    }
    for (name, offset) in other {
        offsets.retain(|(known, _)| known != name);
        offsets.push((name, *offset));
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

/// A connection, and the address of the `struct sock` of one of its ends: the program for fallbacks records who makes a
/// socket fall back that has no peer, which all have here.
fn connection(listener: &TcpListener) -> Result<((TcpStream, TcpStream), u64)> {
    let nothing = Btf::of_kernel()?.offset("sock", "sk_user_data")?;
    let mut ebpf = load(&[("OFF_SKC_DPORT", nothing)])?;
    let program: &mut RawTracePoint = ebpf.program_mut(FALLBACK).context("no such program")?.try_into()?;
    program.load()?;
    program.attach("inet_sock_set_state")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    Ok(((client, server), recorded(&ebpf)?))
}

/// The address of the `struct socket` of a `struct sock`: with this offset it is the socket that listens.
fn socket_of(sock: u64) -> Result<u64> {
    let to_socket = Btf::of_kernel()?.offset("sock", "sk_socket")?;
    let mut ebpf = load(&[("OFF_SOCKET_SK", to_socket)])?;
    let program: &mut KProbe = ebpf.program_mut("smc_owner_listen").context("no such program")?.try_into()?;
    program.load()?;
    uprobe::Probe::prepare(program.fd()?, uprobe::place::<0>)?.call([sock, 0, 0]);
    recorded(&ebpf)
}

/// The address of a socket whose owner is this process.
fn recorded(ebpf: &Ebpf) -> Result<u64> {
    let owners = ebpf.map("OWNERS").context("no map of owners")?;
    let owners: HashMap<_, u64, [u8; size_of::<Owner>()]> = owners.try_into()?;
    for entry in &owners {
        let (socket, owner) = entry?;
        let owner: Owner = bytemuck::pod_read_unaligned(&owner);
        if owner.pid == std::process::id() {
            return Ok(socket);
        }
    }
    anyhow::bail!("no socket has an owner")
}
