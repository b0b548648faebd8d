//! Address translation on this host: a verdict is on the addresses of this host's socket, where traffic control can know
//! them.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use smc_agent_tests::netns::{self, NetNs};
use smc_agent_tests::pair::{Ends, Kind, Pair, run};

use crate::interfaces::{self, kernel_has, wait_covered};
use crate::lab::{Lab, expect_denied, expect_negotiated, status};

/// This host, and the one at the other end of a veth pair.
const HERE: &str = "10.80.0.1";
const AWAY: &str = "10.80.0.2";
/// What this host's connections seem to come from, and a service as Kubernetes has them: an address that no host has.
const MASQUERADE: &str = "10.80.0.9";
const SERVICE: &str = "10.96.0.1";

/// Ports 7xxx are for flows that this host's client rules are about, 8xxx for those of its server rules.
const POLICY: &str = "
version: 1
default: allow
rules:
  - { name: service, action: deny, role: client, peer: 10.96.0.1, port: 7000 }
  - { name: backend, action: deny, role: client, peer: 10.80.0.2, port: 7101 }
  - { name: own, action: deny, role: client, local: 10.80.0.1, port: 7200 }
  - { name: masqueraded, action: deny, role: client, local: 10.80.0.9, port: 7201 }
  - { name: listener, action: deny, role: server, port: [8000, 8100] }
  - { name: published, action: deny, role: server, port: 8001 }
";
const RULES: &str = "
table ip smcvm {
    chain output {
        type nat hook output priority -100;
        ip daddr 10.96.0.1 tcp dport 7000 dnat to 10.80.0.2:7100
        ip daddr 10.96.0.1 tcp dport 7001 dnat to 10.80.0.2:7101
        ip daddr 10.96.0.1 tcp dport 8000 dnat to 10.80.0.1:8100
    }
    chain prerouting {
        type nat hook prerouting priority -100;
        ip daddr 10.80.0.1 tcp dport 8001 redirect to :8000
    }
    chain postrouting {
        type nat hook postrouting priority 100;
        tcp dport { 7200, 7201 } snat to 10.80.0.9
    }
}
";

/// What this guest lacks.
pub(crate) fn missing() -> Option<String> {
    let modules = ["nf_tables", "nft_nat", "nft_redir", "nft_chain_nat"];
    if let Some(module) = modules.into_iter().find(|module| !kernel_has(module)) {
        return Some(format!("needs module {module}"));
    }
    netns::command("nft", &["--version"]).is_err().then(|| "needs nft (package nftables)".to_owned())
}

/// The translation; goes when dropped.
struct Table;

impl Drop for Table {
    fn drop(&mut self) {
        // Nothing to do about it: the test that finds it there fails.
        let _ = netns::command("nft", &["delete", "table", "ip", "smcvm"]);
    }
}

struct Hosts {
    away: NetNs,
}

impl Hosts {
    /// From here to `through`, which is translated to `port` of the other host.
    fn out(&self, port: u16, through: Option<(&str, u16)>) -> Result<Ends> {
        let server_netns = Some(self.away.path().to_owned());
        Self::connect(Pair { server_netns, ..pair(AWAY, port)? }, through)
    }

    /// From the other host to `through` of this one, which is translated to `port`.
    fn back(&self, port: u16, through: Option<(&str, u16)>) -> Result<Ends> {
        let client_netns = Some(self.away.path().to_owned());
        Self::connect(Pair { client_netns, ..pair(HERE, port)? }, through)
    }

    fn connect(pair: Pair, through: Option<(&str, u16)>) -> Result<Ends> {
        let through = through.map(|(address, port)| format!("{address}:{port}").parse()).transpose()?;
        let pair = Pair { through, ..pair };
        let ends = run(&pair).with_context(|| format!("{pair:?}"))?;
        ensure!(ends.intact, "{pair:?}: {:?}", ends.problems);
        Ok(ends)
    }
}

fn pair(address: &str, port: u16) -> Result<Pair> {
    Ok(Pair::new(Kind::Smc, Kind::Smc, SocketAddr::new(address.parse()?, port)))
}

fn allowed(ends: &Ends) -> Result<()> {
    expect_negotiated(ends, interfaces::smc_over_veth())
}

fn not_enforced() -> Result<u64> {
    status()?["counters"]["server_not_enforced"].as_u64().context("no counter server_not_enforced")
}

pub(crate) fn flows(lab: &mut Lab) -> Result<()> {
    let hosts = Hosts { away: NetNs::create("smcvm-nat")? };
    let veth = interfaces::veth(&hosts.away, &format!("{HERE}/24"), &format!("{AWAY}/24"))?;
    netns::command("ip", &["route", "add", SERVICE, "via", AWAY])?;
    netns::command("ip", &["address", "add", &format!("{MASQUERADE}/32"), "dev", "v0"])?;
    let table = Table;
    netns::command("nft", &[RULES])?;
    lab.start(POLICY)?;
    wait_covered(&["lo", "v0"])?;

    let unenforced = not_enforced()?;
    // A service address: the client's socket knows nothing but it.
    let ends = hosts.out(7100, Some((SERVICE, 7000)))?;
    ensure!(ends.client.peer.ip().to_string() == SERVICE && ends.server.local.port() == 7100, "{ends:?}");
    expect_denied(&ends).context("by the service's address")?;
    allowed(&hosts.out(7101, Some((SERVICE, 7001)))?).context("by the address behind the service's")?;
    // Its own address, whatever the peer sees.
    let ends = hosts.out(7200, None)?;
    ensure!(ends.server.peer.ip().to_string() == MASQUERADE, "{ends:?}");
    expect_denied(&ends).context("by the socket's own address")?;
    allowed(&hosts.out(7201, None)?).context("by the address that the peer sees")?;
    // A server without translation, and one of this host's own service address: translated before the packet comes in.
    expect_denied(&hosts.back(8000, None)?).context("by the listener's port")?;
    expect_denied(&Hosts::connect(pair(HERE, 8100)?, Some((SERVICE, 8000)))?)
        .context("by the port behind this host's service")?;

    // Translated after traffic control has seen the packet: neither rule is enforced, nothing breaks, and it shows.
    ensure!(not_enforced()? == unenforced, "{:#}", status()?);
    let ends = hosts.back(8000, Some((HERE, 8001)))?;
    ensure!(ends.client.peer.port() == 8001 && ends.server.local.port() == 8000, "{ends:?}");
    allowed(&ends).context("translated on the way in")?;
    ensure!(not_enforced()? == unenforced + 1, "{:#}", status()?);
    drop(table);
    drop(veth);
    wait_covered(&["lo"])
}
