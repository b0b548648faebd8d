//! Connections and bulk data over a veth pair: with a policy of many prefixes in force, with the same list in an ipset and
//! iptables, and without anything. One thread has both ends, so that the scheduler has nothing to decide; what is compared
//! runs in turn, and figures are medians of the ratios of each turn.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader,
    programs::{CgroupAttachMode, SockOps},
};
use nix::sched::sched_setaffinity;
use smc_agent::policy::Prefix;

use crate::{
    Effort,
    lab::{Hosts, SERVER},
    list::{self, Random},
    report::{Report, median},
};

/// The port that is connected to.
const PORT: u16 = 7000;
/// Peers that are connected to in turn; every second one is in the list.
const PEERS: usize = 4096;
const CGROUP: &str = "/sys/fs/cgroup";

/// Writes the SMC option into the SYNs of all TCP sockets of this machine, for as long as it lives.
struct WrittenOption {
    _ebpf: Ebpf,
}

impl WrittenOption {
    fn write() -> Result<Self> {
        let object = fs::read(env!("SMC_AGENT_PROBE"))?;
        let mut loader = EbpfLoader::new();
        let mut ebpf = loader.btf(None).load(&object)?;
        let program: &mut SockOps = ebpf.program_mut("probe_smc_option").context("no probe")?.try_into()?;
        program.load()?;
        let group = own_group()?;
        // By a link, which lets others be there too.
        program.attach(File::open(group)?, CgroupAttachMode::Single)?;
        Ok(Self { _ebpf: ebpf })
    }
}

/// The cgroup (v2) of this process; the whole hierarchy's where there is none of its own.
fn own_group() -> Result<std::path::PathBuf> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    for mount in [CGROUP, "/sys/fs/cgroup/unified"] {
        let group = std::path::Path::new(mount).join(own);
        if group.join("cgroup.procs").exists()
            && std::path::Path::new(mount).join("cgroup.controllers").exists()
        {
            return Ok(group);
        }
    }
    anyhow::bail!("no cgroup v2 hierarchy is mounted")
}

/// One of the ways that are compared, with a listener and a socket for bulk data.
struct Way {
    name: &'static str,
    hosts: Hosts,
    listener: TcpListener,
    bulk: (TcpStream, TcpStream),
}

impl Way {
    fn new(name: &'static str, hosts: Hosts) -> Result<Self> {
        let listener = hosts.at_server(|| Ok(TcpListener::bind(("0.0.0.0", PORT))?))?;
        let address: SocketAddr = format!("{SERVER}:{PORT}").parse()?;
        let client = hosts.at_client(|| Ok(TcpStream::connect(address)?))?;
        let (server, _) = listener.accept()?;
        Ok(Self { name, hosts, listener, bulk: (client, server) })
    }

    /// Makes connections from the first host, and takes and closes each; gives nanoseconds for one.
    fn connections(&self, peers: &[Ipv4Addr]) -> Result<f64> {
        let listener = &self.listener;
        self.hosts.at_client(|| {
            pin()?;
            // The first ones are for the caches.
            connect_all(listener, peers.get(..peers.len() / 10).unwrap_or_default())?;
            let start = Instant::now();
            connect_all(listener, peers)?;
            Ok(start.elapsed().as_nanos() as f64 / peers.len() as f64)
        })
    }

    /// Sends bulk data; gives nanoseconds for all.
    fn bulk(&mut self, bytes: usize) -> Result<f64> {
        let (client, server) = &mut self.bulk;
        // Less than either buffer holds: nobody waits for the other end.
        let mut out = vec![0_u8; 1 << 15];
        let start = Instant::now();
        let mut sent = 0;
        while sent < bytes {
            client.write_all(&out)?;
            sent += out.len();
            server.read_exact(&mut out)?;
        }
        Ok(start.elapsed().as_nanos() as f64)
    }
}

/// Keeps the calling thread on one processor.
fn pin() -> Result<()> {
    let mut set = nix::sched::CpuSet::new();
    set.set(0)?;
    Ok(sched_setaffinity(nix::unistd::Pid::from_raw(0), &set)?)
}

fn connect_all(listener: &TcpListener, peers: &[Ipv4Addr]) -> Result<()> {
    for peer in peers {
        let client = TcpStream::connect((*peer, PORT))?;
        let (server, _) = listener.accept()?;
        // Reset, so that no port is kept for a time.
        for end in [&client, &server] {
            let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
            nix::sys::socket::setsockopt(end, nix::sys::socket::sockopt::Linger, &linger)?;
        }
    }
    Ok(())
}

/// Every second peer is an address in the list, the others are spread over all addresses.
fn peers(prefixes: &[Prefix]) -> Vec<Ipv4Addr> {
    let mut random = Random(list::SEED ^ 1);
    let mut peers = Vec::new();
    while peers.len() < PEERS {
        let found = if peers.len() % 2 == 0 {
            let at = usize::try_from(random.below(prefixes.len() as u64)).unwrap_or(0);
            prefixes.get(at).and_then(|prefix| prefix.to_string().split('/').next()?.parse().ok())
        } else {
            Some(Ipv4Addr::from(u32::try_from(random.below(0xbf00_0000) + 0x0100_0000).unwrap_or(0)))
        };
        let usable = |peer: &Ipv4Addr| {
            let first = peer.octets()[0];
            first != 127 && first != 192 && (1..192).contains(&first)
        };
        peers.extend(found.filter(usable));
    }
    peers
}

fn set_text(prefixes: &[Prefix]) -> String {
    let mut text = format!("create list hash:net family inet maxelem {}\n", prefixes.len());
    for prefix in prefixes {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "add list {prefix} -exist");
    }
    text
}

/// A policy that refuses SMC to the peers of a list.
fn policy_text(prefixes: &[Prefix]) -> String {
    let mut text = String::new();
    for prefix in prefixes {
        let _ = writeln!(text, "{prefix}");
    }
    text
}

pub(crate) fn compare(report: &mut Report, effort: Effort) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let prefixes = list::list(effort.prefixes, false);
    fs::write(folder.path().join("list.txt"), policy_text(&prefixes))?;
    let policy = folder.path().join("policy.yaml");
    fs::write(
        &policy,
        "version: 1\ndefault: allow\nsets: {list: {file: list.txt}}\nrules: [{name: listed, action: deny, role: client, \
         peer: '@list'}]\n",
    )?;
    let peers = peers(&prefixes);
    let _option = WrittenOption::write()?;
    let mut with_agent = Hosts::new()?;
    with_agent.enforce(folder.path(), &policy)?;
    let with_iptables = Hosts::new()?;
    with_iptables.strip_by_iptables(folder.path(), &set_text(&prefixes))?;
    let mut ways = [
        Way::new("nothing", Hosts::new()?)?,
        Way::new("the agent", with_agent)?,
        Way::new("iptables", with_iptables)?,
    ];
    pin()?;

    let mut times: [Vec<f64>; 3] = Default::default();
    let mut bulk: [Vec<f64>; 3] = Default::default();
    let count = effort.connections as usize;
    for round in 0..effort.rounds {
        let from = round * count % (peers.len() - count);
        let these = peers.get(from..from + count).unwrap_or_default();
        // Each is the first one in turn.
        for step in 0..ways.len() {
            let at = (round + step) % ways.len();
            times[at].push(ways[at].connections(these)?);
        }
        for step in 0..ways.len() {
            let at = (round + step) % ways.len();
            bulk[at].push(ways[at].bulk(effort.bytes)?);
        }
    }
    let denied = ways[1].hosts.counter(folder.path(), "client_denied")?;
    let judged = ways[1].hosts.counter(folder.path(), "client_judged")?;
    let made = (effort.rounds * (count + count / 10)) as u64;
    ensure!(judged >= made, "of {made} SYNs only {judged} carried the option");
    report.figure("SYNs with the option that the policy judged", judged as f64, "");
    report.figure("of them refused", denied as f64 / judged as f64 * 100.0, "%");
    for (way, times) in ways.iter().zip(&times) {
        let each = median(times.clone());
        report.figure(&format!("connections a second, {}", way.name), 1e9 / each, "");
    }
    // How many connections there are with the agent for 100 of the other.
    let ratio = |over: &[f64], agent: &[f64]| {
        median(over.iter().zip(agent).map(|(over, agent)| over / agent * 100.0).collect())
    };
    report.at_least("connections with the agent, against none", ratio(&times[0], &times[1]), "%", Some(98.0));
    report.at_least(
        "connections with the agent, against iptables",
        ratio(&times[2], &times[1]),
        "%",
        Some(100.0),
    );
    report.at_least("bulk data with the agent, against none", ratio(&bulk[0], &bulk[1]), "%", Some(99.0));
    report.figure("bulk data, nothing", effort.bytes as f64 / median(bulk[0].clone()), "GB/s");
    drop(ways);
    Ok(())
}
