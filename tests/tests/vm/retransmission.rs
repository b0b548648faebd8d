//! Handshakes of which a packet is lost while the policy changes. Both ends have to agree on what became of them, whichever
//! packet it was and whichever way the verdict went: data stays whole.
//!
//! A packet is lost by a neighbour's wrong hardware address: it leaves this host, and nobody takes it.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use smc_agent_tests::netns::{NetNs, run_in};
use smc_agent_tests::pair::{Ends, Kind, Pair, run};
use smc_agent_tests::wait::wait_until;

use crate::interfaces::{self, wait_covered};
use crate::lab::{Backend, Lab, SOON, expect_denied, expect_negotiated, status};

/// This host, and the one at the other end of a veth pair.
const HERE: &str = "10.78.0.1";
const AWAY: &str = "10.78.0.2";
/// Retransmissions double their distance: a slow reload may cost some of them.
const PATIENCE: Duration = Duration::from_mins(3);
/// A hardware address that no interface has.
const NOBODY: &str = "02:00:00:00:00:99";

/// What comes first, and what comes into force before the lost packet is sent again.
const BEFORE: &str = "
version: 1
default: allow
rules:
  - { name: no-client, action: deny, role: client, port: 7100-7199 }
  - { name: no-server, action: deny, role: server, port: 8100-8199 }
";
const AFTER: &str = "
version: 1
default: allow
rules:
  - { name: no-client, action: deny, role: client, port: 7200-7299 }
  - { name: no-server, action: deny, role: server, port: 8200-8299 }
";

/// The role of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// How the reload changes the verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    AllowToDeny,
    DenyToAllow,
}

/// What is lost until the policy has changed. A direction loses everything: the SYNs of one role of this host and the
/// SYN-ACKs of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Outgoing,
    Incoming,
}

const FLOWS: [(Role, Change); 4] = [
    (Role::Client, Change::AllowToDeny),
    (Role::Client, Change::DenyToAllow),
    (Role::Server, Change::AllowToDeny),
    (Role::Server, Change::DenyToAllow),
];

/// Whether the flow has to have negotiated SMC in the end.
fn negotiates(backend: Backend, lost: Lost, (role, change): (Role, Change)) -> bool {
    let syn_lost = (role == Role::Client) == (lost == Lost::Outgoing);
    // The first verdict stays wherever the peer may have seen it, which is: except where the SYN never came to the one who
    // judges. hs-ctrl keeps a client's too, since the kernel asks it only once; tc judges each SYN that leaves.
    let first_verdict_stays = match (backend, role) {
        (Backend::HsCtrl, Role::Client) => true,
        _ => !syn_lost,
    };
    (change == Change::AllowToDeny) == first_verdict_stays
}

pub(crate) fn keep_the_verdict(lab: &mut Lab) -> Result<()> {
    let away = NetNs::create("smcvm-lossy")?;
    let _veth = interfaces::veth(&away, &format!("{HERE}/24"), &format!("{AWAY}/24"))?;
    lab.start(BEFORE)?;
    if lab.backend == Backend::Tc {
        wait_covered(&["lo", "v0"])?;
    }
    for (number, lost) in (0..).zip([Lost::Outgoing, Lost::Incoming]) {
        lab.reload(BEFORE)?;
        let kept = kept()?;
        let ends = over_a_reload(lab, &away, lost, number)?;
        for (flow, ends) in FLOWS.into_iter().zip(ends) {
            let what = || format!("{lost:?} packets lost, {flow:?}");
            let ends = ends.with_context(what)?;
            ensure!(ends.intact, "{}: {:?}", what(), ends.problems);
            let as_expected = if negotiates(lab.backend, lost, flow) {
                expect_negotiated(&ends, interfaces::smc_over_veth())
            } else {
                expect_denied(&ends)
            };
            as_expected.with_context(what)?;
        }
        let kept = self::kept()? - kept;
        // One of each role whose packet was lost and has to be sent again. A client whose SYN arrived sends it again only if the
        // repeated answer does not come first.
        let least = match (lab.backend, lost) {
            (Backend::HsCtrl, Lost::Outgoing) => 2,
            _ => 0,
        };
        ensure!(
            kept >= least && (lab.backend == Backend::HsCtrl || kept == 0),
            "{lost:?}: {kept} verdicts kept"
        );
        ensure!(status()?["counters"]["server_not_enforced"] == 0, "{lost:?}: {:#}", status()?);
    }
    Ok(())
}

fn kept() -> Result<u64> {
    status()?["counters"]["verdict_kept"].as_u64().context("no counter verdict_kept")
}

/// Begins one of each [`FLOWS`] while packets are lost, changes the policy, and lets packets through.
fn over_a_reload(lab: &mut Lab, away: &NetNs, lost: Lost, number: u16) -> Result<Vec<Result<Ends>>> {
    pass(away, Some(lost))?;
    thread::scope(|scope| {
        let flows = FLOWS.map(|flow| {
            let pair = pair(away, flow, number);
            scope.spawn(move || pair.and_then(|pair| run(&pair)))
        });
        let mut change = || -> Result<()> {
            // Where the lost packets come from are both the clients of the lost SYNs and the servers of the lost SYN-ACKs.
            let sender = (lost == Lost::Incoming).then_some(away.path());
            wait_until("two lost SYNs and two lost SYN-ACKs", SOON, || {
                let states = run_in(sender, half_open)??;
                Ok((states == (2, 2)).then_some(()))
            })?;
            lab.reload(AFTER)
        };
        let changed = change();
        // Whatever came of it: the flows are to end.
        let passing = pass(away, None);
        let ends = flows.map(|flow| flow.join().map_err(|_| anyhow!("a flow panicked")).flatten());
        changed.and(passing)?;
        Ok(ends.into())
    })
}

fn pair(away: &NetNs, (role, change): (Role, Change), number: u16) -> Result<Pair> {
    let port = number
        + match (role, change) {
            (Role::Client, Change::DenyToAllow) => 7100,
            (Role::Client, Change::AllowToDeny) => 7200,
            (Role::Server, Change::DenyToAllow) => 8100,
            (Role::Server, Change::AllowToDeny) => 8200,
        };
    let there = Some(away.path().to_owned());
    let (to, server_netns, client_netns) = match role {
        Role::Client => (AWAY, there, None),
        Role::Server => (HERE, None, there),
    };
    let pair = Pair::new(Kind::Smc, Kind::Smc, format!("{to}:{port}").parse()?);
    Ok(Pair { server_netns, client_netns, timeout: PATIENCE, ..pair })
}

/// Tells both ends each other's hardware address: the right one unless packets that way are to be lost.
fn pass(away: &NetNs, lost: Option<Lost>) -> Result<()> {
    let (ours, theirs) = (address_of(None, "v0")?, address_of(Some(away), "v1")?);
    let of = |way: Lost, right: String| if lost == Some(way) { NOBODY.to_owned() } else { right };
    let neighbour = |address: &str, hardware: &str, interface: &str| {
        let arguments =
            ["neigh", "replace", address, "lladdr", hardware, "dev", interface, "nud", "permanent"];
        smc_agent_tests::netns::command("ip", &arguments)
    };
    neighbour(AWAY, &of(Lost::Outgoing, theirs), "v0")?;
    away.run(|| neighbour(HERE, &of(Lost::Incoming, ours), "v1"))??;
    Ok(())
}

fn address_of(namespace: Option<&NetNs>, interface: &str) -> Result<String> {
    // sysfs shows the namespace of whoever mounted it.
    let show = || smc_agent_tests::netns::command("ip", &["-br", "link", "show", "dev", interface]);
    let line = run_in(namespace.map(NetNs::path), show)??;
    line.split_whitespace().nth(2).map(str::to_owned).with_context(|| format!("no address in {line:?}"))
}

/// How many connections of this thread's namespace wait for an answer to their SYN, which has left, and for one to their SYN-ACK.
fn half_open() -> Result<(usize, usize)> {
    /// `TCP_SYN_SENT`, `TCP_SYN_RECV` (`include/net/tcp_states.h`; requests are shown as the latter), and the timer of
    /// retransmissions (`Documentation/networking/proc_net_tcp.rst`).
    const SYN_SENT: &str = "02";
    const SYN_RECV: &str = "03";
    const RETRANSMITS: &str = "01:";
    let table =
        fs::read_to_string("/proc/thread-self/net/tcp").context("cannot read the table of TCP sockets")?;
    let in_state = |state: &str| {
        let is = |line: &&str| {
            let columns: Vec<_> = line.split_whitespace().collect();
            columns.get(3) == Some(&state)
                && columns.get(5).is_some_and(|timer| timer.starts_with(RETRANSMITS))
        };
        table.lines().filter(is).count()
    };
    Ok((in_state(SYN_SENT), in_state(SYN_RECV)))
}
