//! What rules mean, seen from outside.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};

use crate::lab::{Flow, Lab, Port, V4, V6, has_hs_ctrl, hits, refused};

pub(crate) fn order(lab: &mut Lab) -> Result<()> {
    lab.start(
        "
version: 1
default: allow
rules:
  - { name: one, action: allow, port: 7001, role: client }
  - { name: many, action: deny, port: 7000-7999, role: client }
  - { name: late, action: allow, port: 7002, role: client }
",
    )?;
    let port = |port| Flow { to: SocketAddr::new(V4, port), ..Flow::smc(Port::Open) };
    port(7001).run_allowed()?;
    let second = port(7002).run_denied()?;
    let third = port(7999).run_denied()?;
    port(6999).run_allowed()?;
    let counted = hits()?;
    let expected = [("one".into(), 1), ("many".into(), 2), ("late".into(), 0)];
    ensure!(counted.starts_with(&expected), "hits: {counted:?}");
    lab.expect_events([refused(&second, "client", "many"), refused(&third, "client", "many")].concat())
}

pub(crate) fn default_deny(lab: &mut Lab) -> Result<()> {
    lab.start(
        "
version: 1
default: deny
rules:
  - { name: storage, action: allow, port: 9000-9999 }
",
    )?;
    Flow::smc(Port::Open).run_allowed()?;
    let ends = Flow::smc(Port::NoClient).run_denied()?;
    Flow::to(V6, Port::NoClient).run_denied()?;
    let events = lab.events()?;
    for expected in refused(&ends, "client", "(default)") {
        ensure!(events.contains(&expected), "no event {expected} among {events:#?}");
    }
    ensure!(events.len() == 4, "events: {events:#?}");
    Ok(())
}

pub(crate) fn peer_prefixes(lab: &mut Lab) -> Result<()> {
    lab.start(
        "
version: 1
default: allow
rules:
  - { name: far, action: deny, role: client, peer: [127.0.0.16/28, \"::1\"] }
",
    )?;
    let to = |last: u8| Flow::to(IpAddr::from([127, 0, 0, last]), Port::Open);
    let mut expected = Vec::new();
    for last in [16, 31] {
        expected.extend(refused(&to(last).run_denied()?, "client", "far"));
    }
    let ends = Flow::to(V6, Port::Open).run_denied()?;
    expected.extend(refused(&ends, "client", "far"));
    to(1).run_allowed()?;
    if has_hs_ctrl() {
        // The neighbours of the prefix; Soft-RoCE knows the address of its device only.
        to(15).run_allowed()?;
        to(32).run_allowed()?;
    }
    lab.expect_events(expected)
}

pub(crate) fn role_any(lab: &mut Lab) -> Result<()> {
    lab.start("{ version: 1, default: allow, rules: [{ name: both, action: deny, port: 7000-7999 }] }")?;
    // The client is refused first, and then there is nothing left to ask the server about.
    let ends = Flow::smc(Port::NoClient).run_denied()?;
    let counted = hits()?;
    ensure!(counted.first() == Some(&("both".into(), 1)), "hits: {counted:?}");
    lab.expect_events(refused(&ends, "client", "both").into())
}
