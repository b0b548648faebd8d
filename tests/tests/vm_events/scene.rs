//! An agent, connections, and the events that have to come of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::errno::Errno;
use serde_json::{Value, json};
use smc_agent_tests::agent::{self, Agent};
use smc_agent_tests::netns::NetNs;
use smc_agent_tests::pair::{End, Ends, Kind, Pair, run};
use smc_agent_tests::setup;
use smc_agent_tests::wait::wait_until;
use tempfile::TempDir;

use crate::provoke::PEER_DECLINED;

/// Bounds a hang under emulation.
pub(crate) const SOON: Duration = Duration::from_mins(1);

pub(crate) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Whether there is SMC-D within one host.
pub(crate) fn has_dibs() -> bool {
    Path::new("/proc/sys/net/smc/hs_ctrl").exists()
}

/// The release of this kernel, as far as tests ask for it.
pub(crate) fn kernel() -> Result<(u32, u32)> {
    setup::version_of(&setup::kernel_release()?)
}

/// Whether connections within this host can use SMC.
pub(crate) fn can_use_smc() -> Result<bool> {
    Ok(kernel()? >= (6, 12))
}

/// The kinds of SMC sockets that this kernel has, each connecting with and without blocking.
pub(crate) fn forms() -> Result<Vec<(Kind, bool)>> {
    let kinds = if can_use_smc()? { &[Kind::Smc, Kind::SmcInet][..] } else { &[Kind::Smc] };
    Ok(kinds.iter().flat_map(|kind| [(*kind, false), (*kind, true)]).collect())
}

/// What an event has to say of the reason, and of what was being set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) code: u32,
    pub(crate) peer_code: Option<u32>,
    pub(crate) device: Option<&'static str>,
    pub(crate) smc_version: Option<u8>,
}

impl Expected {
    pub(crate) fn code(code: u32) -> Self {
        Self { code, peer_code: None, device: None, smc_version: None }
    }

    /// The peer declined.
    pub(crate) fn declined(peer_code: u32) -> Self {
        Self { peer_code: Some(peer_code), ..Self::code(PEER_DECLINED) }
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) role: &'static str,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Place {
    pub(crate) fn client(local: SocketAddr, peer: SocketAddr) -> Self {
        Self { role: "client", local, peer }
    }

    pub(crate) fn server(local: SocketAddr, peer: SocketAddr) -> Self {
        Self { role: "server", local, peer }
    }
}

/// An agent that denies nothing.
pub(crate) struct Scene {
    agent: Agent,
    folder: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("policy.yaml");
        fs::write(&file, "{ version: 1, default: allow, rules: [] }")?;
        let policy = file.display().to_string();
        let agent = Agent::start_enforcing(&["run", "-o", "json", "--policy", &policy], SOON)?;
        Ok(Self { agent, folder })
    }

    pub(crate) fn write_policy(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join("policy.yaml"), text)?)
    }

    /// All events so far.
    fn events(&self) -> Result<Vec<Value>> {
        let lines = self.agent.lines();
        let lines = lines.iter().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
    }

    /// All fallbacks so far.
    pub(crate) fn fallbacks(&self) -> Result<Vec<Value>> {
        Ok(self.events()?.into_iter().filter(|event| event["event"] == "fallback").collect())
    }

    /// Waits until the events are as they should be, and gives them.
    pub(crate) fn wait_for(&self, what: &str, wanted: impl Fn(&[Value]) -> bool) -> Result<Vec<Value>> {
        wait_until(what, SOON, || Ok(Some(self.events()?).filter(|events| wanted(events))))
            .with_context(|| self.agent.lines().join("\n"))
    }

    /// The fallback of the end with this role and address.
    pub(crate) fn event_of(&self, role: &str, local: SocketAddr) -> Result<Value> {
        self.only_event("fallback", role, local)
    }

    /// The one event of this kind, of the end with this role and address.
    pub(crate) fn only_event(&self, kind: &str, role: &str, local: SocketAddr) -> Result<Value> {
        let is_it = |event: &Value| {
            event["event"] == kind && event["role"] == role && event["local"] == local.to_string()
        };
        let what = format!("a {kind} of the {role} {local}");
        let events = self.wait_for(&what, |events| events.iter().any(is_it))?;
        let mut found = events.into_iter().filter(is_it);
        let event = found.next().context("it was there")?;
        ensure!(found.next().is_none(), "more than {what}");
        Ok(event)
    }

    pub(crate) fn expect_client(&self, ends: &Ends, expected: &Expected) -> Result<()> {
        self.expect("client", &ends.client, expected)
    }

    pub(crate) fn expect_server(&self, ends: &Ends, expected: &Expected) -> Result<()> {
        self.expect("server", &ends.server, expected)
    }

    /// There is a fallback event of this end that says what was expected.
    pub(crate) fn expect_fallback(&self, place: Place, expected: &Expected) -> Result<Value> {
        let event = self.event_of(place.role, place.local)?;
        ensure!(event["code"]["value"] == expected.code && event["code"]["name"].is_string(), "{event:#}");
        let peer_code = expected.peer_code.map_or(Value::Null, Value::from);
        ensure!(event["peer_code"].get("value").unwrap_or(&Value::Null) == &peer_code, "{event:#}");
        ensure!(event["denied_by"] == Value::Null, "{event:#}");
        ensure!(event["device"] == expected.device.map_or(Value::Null, Value::from), "{event:#}");
        ensure!(event["smc_version"] == expected.smc_version.map_or(Value::Null, Value::from), "{event:#}");
        expect_place(&event, place)?;
        Ok(event)
    }

    /// There is an event of a failed handshake of this end, with this error.
    pub(crate) fn expect_error(&self, place: Place, error: Errno) -> Result<()> {
        let event = self.only_event("handshake_error", place.role, place.local)?;
        let wanted = json!({"value": error as i32, "name": format!("{error:?}")});
        ensure!(event["error"] == wanted && event["peer_code"] == Value::Null, "{event:#}");
        ensure!(event["device"] == Value::Null && event["smc_version"] == Value::Null, "{event:#}");
        expect_place(&event, place)?;
        expect_owner(&event)
    }

    /// Whatever the kernel side produced is an event that was printed: nothing waits, was lost or held back.
    pub(crate) fn expect_all_accounted(&self) -> Result<()> {
        let mut counts = Value::Null;
        wait_until("all events are read and printed", SOON, || {
            let finished = agent::command(&["status", "-o", "json"])?;
            let status: Value =
                serde_json::from_str(&finished.stdout).with_context(|| format!("{finished:?}"))?;
            counts = status["agent"]["events"].clone();
            let of_kernel = |event: &&Value| event["event"] != "policy";
            let printed = self.events()?.iter().filter(of_kernel).count();
            let as_printed = counts["produced"] == printed && counts["received"] == printed;
            let nothing_else = ["pending", "suppressed", "lost"].iter().all(|name| counts[*name] == 0);
            Ok((as_printed && nothing_else).then_some(()))
        })
        .with_context(|| format!("{counts:#}\n{}", self.agent.lines().join("\n")))
    }

    /// The event of an end says what was expected, and what the kernel says of the socket.
    fn expect(&self, role: &'static str, end: &End, expected: &Expected) -> Result<()> {
        ensure!(end.reason == expected.code, "the kernel has {:#010x} for the {role}: {end:?}", end.reason);
        ensure!(end.peer_diagnosis == expected.peer_code.unwrap_or(0), "{end:?}");
        let event = self.expect_fallback(Place { role, local: end.local, peer: end.peer }, expected)?;
        expect_owner(&event)
    }
}

/// The event is of this end, in this program's network namespace.
fn expect_place(event: &Value, place: Place) -> Result<()> {
    let service = if place.role == "client" { place.peer.port() } else { place.local.port() };
    ensure!(event["role"] == place.role && event["local"] == place.local.to_string(), "{event:#}");
    ensure!(event["peer"] == place.peer.to_string() && event["service_port"] == service, "{event:#}");
    let inode = fs::metadata("/proc/self/ns/net")?.ino();
    ensure!(event["netns"] == inode && event["netns_name"] == Value::Null, "{event:#}");
    ensure!(event["seq"].is_u64() && event["run"].is_u64() && event["version"] == 1, "{event:#}");
    Ok(())
}

/// A port that no earlier connection had.
pub(crate) fn fresh_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(9000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A pair on a port that no earlier one had.
pub(crate) fn fresh(client: Kind, server: Kind, address: IpAddr) -> Pair {
    Pair::new(server, client, SocketAddr::new(address, fresh_port()))
}

pub(crate) fn run_intact(pair: &Pair) -> Result<Ends> {
    let ends = run(pair).with_context(|| format!("{pair:?}"))?;
    ensure!(ends.intact, "{pair:?}: data was damaged: {:?}", ends.problems);
    Ok(ends)
}

pub(crate) fn connect(client: Kind, server: Kind, address: IpAddr, non_blocking: bool) -> Result<Ends> {
    let mut pair = fresh(client, server, address);
    pair.connecting.non_blocking = non_blocking;
    run_intact(&pair)
}

/// With both ends in a namespace.
pub(crate) fn connect_in(namespace: &NetNs, client: Kind, server: Kind) -> Result<Ends> {
    let mut pair = fresh(client, server, V4);
    pair.client_netns = Some(namespace.path().to_owned());
    pair.server_netns = Some(namespace.path().to_owned());
    run_intact(&pair)
}

/// This program is the owner.
pub(crate) fn expect_owner(event: &Value) -> Result<()> {
    let owner = &event["owner"];
    let comm = fs::read_to_string("/proc/self/comm")?;
    ensure!(owner["pid"] == std::process::id() && owner["uid"] == 0, "{event:#}");
    ensure!(owner["comm"] == comm.trim_end(), "{event:#}");
    Ok(())
}
