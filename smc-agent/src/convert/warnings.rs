//! What is known beforehand to go wrong with converted sockets.

use std::{fs, net::IpAddr, path::Path};

use crate::{
    kernel::maps,
    netlink::{smc::Smc, tcp},
    show::{Devices, Scope, ShowError, netns},
};

/// Ports that module smc of Alibaba's kernels takes for itself.
const TAKEN_PORTS: std::ops::RangeInclusive<u16> = 65500..=65515;
/// Sysctls by which Alibaba's module is told from others.
const ALIBABA: [&str; 2] = ["/proc/sys/net/smc/vendor_exp_options", "/proc/sys/net/smc/tcp2smc"];
/// Addresses of interfaces: address, index, length, scope, flags, name.
const IPV6_ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// Scope of addresses that are good everywhere (`IPV6_ADDR_ANY` in what the kernel prints).
const GLOBAL: &str = "00";

/// What may keep converted sockets of a network namespace from SMC, or do harm; `None` is the caller's own.
pub fn warnings(name: Option<&str>) -> Vec<String> {
    let scope = name.map_or(Scope::Current, |name| Scope::Named(name.to_owned()));
    let mut found = match netns::visit(&scope, || Ok(of_namespace())) {
        Ok(list) => list.into_iter().flat_map(|(_, warnings)| warnings).collect(),
        Err(error) => vec![format!("the namespace could not be looked into: {error}")],
    };
    if maps::has_sockmaps().unwrap_or(false) {
        found.push(
            "programs on this host put sockets into BPF sockmaps (Cilium and Istio do): SMC sockets and those that \
             fall back cannot be there"
                .to_owned(),
        );
    }
    found
}

fn of_namespace() -> Vec<String> {
    let mut found = Vec::new();
    match devices() {
        Ok(list) => found.extend(list),
        Err(error) => found.push(format!("whether there are devices for SMC is not known: {error}")),
    }
    if ALIBABA.iter().any(|sysctl| Path::new(sysctl).exists())
        && let Ok(sockets) = tcp::sockets()
    {
        let mut ports: Vec<u16> =
            sockets.iter().filter(|socket| socket.listening).map(|socket| socket.local.port()).collect();
        ports.retain(|port| TAKEN_PORTS.contains(port));
        ports.sort_unstable();
        ports.dedup();
        if !ports.is_empty() {
            let ports = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            found.push(format!(
                "services listen on port {ports}: this kernel's module smc takes 65500 to 65515 for itself"
            ));
        }
    }
    found
}

fn devices() -> Result<Vec<String>, ShowError> {
    let mut found = Vec::new();
    let devices = Devices::read()?;
    let rdma = devices.smcr.iter().flat_map(|device| &device.ports).any(|port| port.active);
    let ism = !devices.smcd.is_empty() || !devices.dibs.is_empty();
    if !rdma && !ism {
        found.push(
            "there is no device for SMC in this namespace: every connection would fall back to TCP (0x03030000)"
                .to_owned(),
        );
        return Ok(found);
    }
    let mut smc = Smc::open()?;
    let system_eid = smc.seid()?.is_some_and(|eid| eid.enabled);
    if smc.user_eids()?.is_empty() && !system_eid {
        found.push(
            "there is no user EID, without which SMC version 2 is not possible: connections fall back where a device \
             needs it (`smc-agent set ueid add NAME`)"
                .to_owned(),
        );
    }
    if rdma && !ism && has_ipv6() {
        found.push(
            "the devices are for SMC-R, whose version 2 is IPv4 only: connections over IPv6 fall back (0x03030000)"
                .to_owned(),
        );
    }
    Ok(found)
}

/// Whether an interface has an IPv6 address by which others reach this host.
fn has_ipv6() -> bool {
    let text = fs::read_to_string(IPV6_ADDRESSES).unwrap_or_default();
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&GLOBAL) && words.first().is_some_and(|address| !is_loopback(address))
    })
}

fn is_loopback(address: &str) -> bool {
    u128::from_str_radix(address, 16).is_ok_and(|bits| IpAddr::from(bits.to_be_bytes()).is_loopback())
}
