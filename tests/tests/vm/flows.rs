//! Which flows run over SMC, for all kinds of sockets, addresses and ways to connect.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use smc_agent_tests::pair::{Kind, Mode};

use crate::lab::{
    ALLOW_ALL, Backend, Flow, Lab, PEER_NO_SMC, POLICY, Port, V4, V6, expect_denied, refused, smc_addresses,
    smc_kinds,
};

/// Every kind of SMC socket with every way to connect.
fn variants(port: Port) -> Vec<Flow> {
    let mut flows = Vec::new();
    for address in [V4, V6] {
        for kind in smc_kinds().iter().copied() {
            for non_blocking in [false, true] {
                flows.push(Flow { non_blocking, ..Flow::to(address, port).kinds(kind, kind) });
            }
        }
    }
    flows
}

fn denied(port: Port) -> Result<()> {
    for flow in variants(port) {
        flow.run_denied()?;
    }
    Ok(())
}

/// Flows that may negotiate: SMC where the kernel can, else a fallback for another reason than a refusal.
fn allowed(port: Port) -> Result<()> {
    for flow in variants(port) {
        if smc_addresses().contains(&flow.to.ip()) {
            flow.run_allowed()?;
            continue;
        }
        let ends = flow.run()?;
        for end in [&ends.client, &ends.server] {
            ensure!(
                end.mode == Mode::FallbackTcp && end.reason != PEER_NO_SMC,
                "{flow:?}: mode {} and reason {:#010x} although SMC was offered",
                end.mode,
                end.reason
            );
        }
    }
    Ok(())
}

pub(crate) fn client_rule(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    denied(Port::NoClient)?;
    allowed(Port::Open)
}

pub(crate) fn server_rule(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    denied(Port::NoServer)?;
    // Kinds that mix, in both directions.
    for client in smc_kinds() {
        for server in smc_kinds() {
            Flow::smc(Port::NoServer).kinds(*client, *server).run_denied()?;
            Flow::smc(Port::Open).kinds(*client, *server).run_allowed()?;
        }
    }
    Ok(())
}

pub(crate) fn nothing_denied(lab: &mut Lab) -> Result<()> {
    lab.start(ALLOW_ALL)?;
    allowed(Port::NoClient)?;
    let plain = Flow::smc(Port::NoClient).kinds(Kind::Tcp, Kind::Tcp).run()?;
    expect_denied(&plain).context("plain TCP has no mode")?;
    ensure!(plain.client.mode == Mode::Tcp, "a TCP socket has mode {}", plain.client.mode);
    Ok(())
}

/// A sysctl that gets its former value back when dropped.
pub(crate) struct Sysctl {
    path: &'static str,
    before: String,
}

impl Sysctl {
    pub(crate) fn set(path: &'static str, value: &str) -> Result<Self> {
        let before = fs::read_to_string(path).with_context(|| path.to_owned())?;
        fs::write(path, value).with_context(|| path.to_owned())?;
        Ok(Self { path, before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        // It was written before.
        let _ = fs::write(self.path, &self.before);
    }
}

/// With SYN cookies a server keeps nothing of a SYN, and so negotiates SMC with nobody: whatever the policy says, flows are
/// plain TCP, and only what it refused is its doing.
pub(crate) fn syn_cookies(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let cookies = Sysctl::set("/proc/sys/net/ipv4/tcp_syncookies", "2")?;
    let mut expected = Vec::new();
    for address in [V4, V6] {
        for (port, refuser, rule) in [
            (Port::NoClient, "client", "no-client"),
            (Port::NoServer, "server", "no-server"),
            (Port::Open, "nobody", ""),
        ] {
            let ends = Flow::to(address, port).run_denied()?;
            // hs-ctrl is not asked for an answer that has no option anyway.
            let refuser =
                if lab.backend == Backend::HsCtrl && refuser == "server" { "nobody" } else { refuser };
            expected.extend(refused(&ends, refuser, rule));
        }
    }
    lab.expect_events(expected)?;
    drop(cookies);
    Flow::smc(Port::Open).run_allowed().context("without cookies again")?;
    Ok(())
}
