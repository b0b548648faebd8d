//! Exactly which events come, with which contents.

use anyhow::Result;
use smc_agent_tests::pair::Kind;

use crate::lab::{Flow, Lab, POLICY, Port, fallback, hits, refused, smc_addresses, smc_kinds};

pub(crate) fn exact_events(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let mut expected = Vec::new();
    for address in smc_addresses() {
        for kind in smc_kinds().iter().copied() {
            let flow = |port: Port| Flow::to(*address, port).kinds(kind, kind);
            expected.extend(refused(&flow(Port::NoClient).run_denied()?, "client", "no-client"));
            expected.extend(refused(&flow(Port::NoServer).run_denied()?, "server", "no-server"));
            // Of what runs over SMC there is nothing to tell.
            flow(Port::Open).run_allowed()?;
        }
    }
    lab.expect_events(expected)
}

pub(crate) fn plain_tcp_peers(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let mut expected = Vec::new();
    for address in smc_addresses() {
        let to_tcp = Flow::to(*address, Port::Open).kinds(Kind::Smc, Kind::Tcp).run_denied()?;
        expected.push(fallback("client", to_tcp.client.local, to_tcp.client.peer, ""));
        // The rule of the server's role is not that of the client's.
        let to_tcp = Flow::to(*address, Port::NoServer).kinds(Kind::Smc, Kind::Tcp).run_denied()?;
        expected.push(fallback("client", to_tcp.client.local, to_tcp.client.peer, ""));
        // A client that never offered SMC was not refused it, though the rule would have.
        for port in [Port::Open, Port::NoServer] {
            let from_tcp = Flow::to(*address, port).kinds(Kind::Tcp, Kind::Smc).run_denied()?;
            expected.push(fallback("server", from_tcp.server.local, from_tcp.server.peer, ""));
        }
        // Whatever the other end is: this client's option was refused.
        let refused = Flow::to(*address, Port::NoClient).kinds(Kind::Smc, Kind::Tcp).run_denied()?;
        expected.push(fallback("client", refused.client.local, refused.client.peer, " by no-client"));
        Flow::to(*address, Port::NoClient).kinds(Kind::Tcp, Kind::Tcp).run()?;
    }
    lab.expect_events(expected)
}

pub(crate) fn logged_verdicts(lab: &mut Lab) -> Result<()> {
    lab.start(
        "
version: 1
default: allow
rules:
  - { name: no-client, action: deny, role: client, port: 7000-7999, log: true }
  - { name: no-server, action: deny, role: server, port: 8000-8999, log: true }
  - { name: fine, action: allow, port: 9000-9999, log: true }
",
    )?;
    let verdict = |role: &str, local, peer, what: &str| format!("verdict {role} {local} {peer} {what}");
    let mut expected = Vec::new();

    let ends = Flow::smc(Port::NoClient).run_denied()?;
    expected.push(verdict("client", ends.client.local, ends.client.peer, "deny by no-client"));
    expected.extend(refused(&ends, "client", "no-client"));

    let ends = Flow::smc(Port::NoServer).run_denied()?;
    expected.push(verdict("server", ends.server.local, ends.server.peer, "deny by no-server"));
    expected.extend(refused(&ends, "server", "no-server"));

    // Both of its ends are judged on one host.
    let ends = Flow::smc(Port::Open).run_allowed()?;
    expected.push(verdict("client", ends.client.local, ends.client.peer, "allow by fine"));
    expected.push(verdict("server", ends.server.local, ends.server.peer, "allow by fine"));
    lab.expect_events(expected)
}

pub(crate) fn shadow_rules(lab: &mut Lab) -> Result<()> {
    lab.start(
        "
version: 1
default: allow
rules:
  - { name: trial, action: deny, role: client, port: 7000-7999, mode: shadow, log: true }
  - { name: quiet, action: deny, role: server, port: 7000-7999, mode: shadow }
",
    )?;
    let ends = Flow::smc(Port::NoClient).run_allowed()?;
    let again = Flow::smc(Port::NoClient).run_allowed()?;
    let mut expected = Vec::new();
    for ends in [&ends, &again] {
        let (local, peer) = (ends.client.local, ends.client.peer);
        expected.push(format!("verdict client {local} {peer} deny shadow by trial"));
    }
    // Counted before the marker of the next call makes one more flow.
    let of_rules = hits()?;
    anyhow::ensure!(
        of_rules == [("trial".into(), 2), ("quiet".into(), 2), ("(default)".into(), 4)],
        "hits: {of_rules:?}"
    );
    lab.expect_events(expected)
}
