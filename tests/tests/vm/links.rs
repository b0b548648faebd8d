//! Kinds of interfaces: what leaves and what arrives over each, as captures on both sides have it.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use smc_agent_tests::netns::{self, NetNs, run_in};
use smc_agent_tests::pair::{Ends, Kind, Mode, Pair, run};
use smc_agent_tests::segment::{Segment, Sum};
use smc_agent_tests::wait::Limit;
use smc_agent_tests::wire::{ALL, Capture, Layer};

use crate::flows::Sysctl;
use crate::interfaces::{self, Veth, kernel_has, wait_covered};
use crate::lab::{Lab, PEER_NO_SMC, POLICY, Port, SOON, expect_denied};
use crate::wireguard;

/// The ends of the veth pair below everything.
const HERE: &str = "10.81.0.1";
const AWAY: &str = "10.81.0.2";
/// The addresses that flows have: this host's and the other's, IPv4 and IPv6.
const V4: [&str; 2] = ["10.82.0.1", "10.82.0.2"];
const V6: [&str; 2] = ["fd00:82::1", "fd00:82::2"];
/// The SMC option (RFC 7609, appendix A), and what becomes of it.
const SMC: [u8; 6] = [0xfe, 0x06, 0xe2, 0xd4, 0xc3, 0xd9];
const NOPS: [u8; 6] = [1; 6];
/// Length of an Ethernet header.
const ETHERNET: usize = 14;
const TIMESTAMPS: &str = "/proc/sys/net/ipv4/tcp_timestamps";

/// What of some modules this kernel lacks.
fn missing(modules: &[&str]) -> Option<String> {
    let missing = modules.iter().find(|module| !kernel_has(module))?;
    Some(format!("needs module {missing}"))
}

pub(crate) fn missing_vlan() -> Option<String> {
    missing(&["8021q"])
}

pub(crate) fn missing_bridge() -> Option<String> {
    missing(&["bridge"])
}

pub(crate) fn missing_tunnels() -> Option<String> {
    missing(&["ipip", "sit"])
}

pub(crate) fn missing_wireguard() -> Option<String> {
    missing(&["wireguard"])
}

/// Two hosts that are connected by a veth pair.
struct Hosts {
    away: NetNs,
    _timestamps: Sysctl,
    _veth: Veth,
}

/// What flows go over: an interface at each end.
struct Link {
    here: &'static str,
    there: &'static str,
    layer: Layer,
    addresses: &'static [[&'static str; 2]],
    /// Whether packets may be handed over with checksums that are not complete yet.
    offload: bool,
}

impl Hosts {
    fn new() -> Result<Self> {
        let away = NetNs::create("smcvm-links")?;
        // A SYN has nothing then that the next does not have.
        let timestamps = Sysctl::set(TIMESTAMPS, "0")?;
        away.run(|| fs::write(TIMESTAMPS, "0"))?.context(TIMESTAMPS)?;
        let veth = interfaces::veth(&away, &format!("{HERE}/24"), &format!("{AWAY}/24"))?;
        Ok(Self { away, _timestamps: timestamps, _veth: veth })
    }

    /// `ip` here and there.
    fn ip(&self, here: &[&str], there: &[&str]) -> Result<()> {
        netns::command("ip", here)?;
        self.away.command("ip", there).map(drop)
    }

    /// `ethtool -K` here and there.
    fn offload(&self, features: &[&str]) -> Result<()> {
        let arguments = |interface| [&["-K", interface], features].concat();
        netns::command("ethtool", &arguments("v0"))?;
        self.away.command("ethtool", &arguments("v1")).map(drop)
    }

    /// Gives the ends of a link their addresses, and switches them on.
    fn set_up(&self, link: &Link) -> Result<()> {
        self.ip(&["link", "set", link.here, "up"], &["link", "set", link.there, "up"])?;
        for [here, there] in link.addresses {
            let (length, more) = if here.contains(':') { (64, &["nodad"][..]) } else { (24, &[][..]) };
            let (here, there) = (format!("{here}/{length}"), format!("{there}/{length}"));
            let add = |address, interface| [&["address", "add", address, "dev", interface], more].concat();
            self.ip(&add(&here, link.here), &add(&there, link.there))?;
        }
        Ok(())
    }

    /// Makes flows that are refused and flows that are not, both ways, and compares their SYNs.
    fn expect_exact_syns(&self, link: &Link) -> Result<()> {
        for addresses in link.addresses {
            for (outgoing, port) in [(true, Port::NoClient), (false, Port::NoServer)] {
                let what = || format!("{addresses:?}, outgoing {outgoing}");
                let (ends, refused) =
                    self.flow(link, addresses, outgoing, port.fresh()).with_context(what)?;
                expect_denied(&ends).with_context(what)?;
                let (ends, allowed) =
                    self.flow(link, addresses, outgoing, Port::Open.fresh()).with_context(what)?;
                for end in [&ends.client, &ends.server] {
                    let negotiated =
                        end.mode.is_smc() || end.mode == Mode::FallbackTcp && end.reason != PEER_NO_SMC;
                    ensure!(negotiated, "{}: {ends:?}", what());
                }
                let place = allowed.options.windows(SMC.len()).position(|window| window == SMC);
                let place = place.with_context(|| format!("{}: no option in {allowed:02x?}", what()))?;
                let mut expected = allowed.options.clone();
                expected[place..place + SMC.len()].copy_from_slice(&NOPS);
                ensure!(refused.options == expected, "{}: {refused:02x?}, not {expected:02x?}", what());
                for segment in [&refused, &allowed] {
                    let right = segment.sum == Sum::Right || link.offload && segment.sum == Sum::Partial;
                    ensure!(right, "{}: {segment:02x?}", what());
                }
                // Length, flags, window; urgent pointer.
                let rest = |segment: &Segment| [&segment.header[12..16], &segment.header[18..20]].concat();
                ensure!(rest(&refused) == rest(&allowed), "{}: {refused:02x?} {allowed:02x?}", what());
            }
        }
        Ok(())
    }

    /// One flow, and its SYN: what leaves as it comes there, what comes here behind traffic control.
    fn flow(
        &self,
        link: &Link,
        [here, there]: &[&str; 2],
        outgoing: bool,
        port: u16,
    ) -> Result<(Ends, Segment)> {
        let away = Some(self.away.path().to_owned());
        let to: IpAddr = if outgoing { there } else { here }.parse()?;
        let mut pair = Pair::new(Kind::Smc, Kind::Smc, SocketAddr::new(to, port));
        let protocol = if to.is_ipv4() { 0x0800 } else { 0x86dd };
        let capture = if outgoing {
            pair.server_netns.clone_from(&away);
            run_in(away.as_deref(), || Capture::open(link.there, ALL))??
        } else {
            pair.client_netns = away;
            Capture::open(link.here, protocol)?
        };
        let ends = run(&pair)?;
        ensure!(ends.intact, "{:?}", ends.problems);
        let header = if link.layer == Layer::Ethernet { ETHERNET } else { 0 };
        let segment = |frame: &[u8]| Segment::parse(frame.get(header..)?);
        let is_syn = |frame: &[u8]| segment(frame).is_some_and(|segment| segment.is_syn_to(port));
        let frame = capture.receive(&Limit::new(SOON), is_syn).context("no SYN captured")?;
        Ok((ends, segment(&frame).context("not a segment any more")?))
    }
}

const BOTH: &[[&str; 2]] = &[V4, V6];
const VETH: Link = Link { here: "v0", there: "v1", layer: Layer::Ethernet, addresses: BOTH, offload: true };

pub(crate) fn veth(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let hosts = Hosts::new()?;
    hosts.set_up(&VETH)?;
    wait_covered(&["lo", "v0"])?;
    hosts.expect_exact_syns(&VETH).context("with offload")?;
    hosts.offload(&["tx", "off"])?;
    hosts.expect_exact_syns(&Link { offload: false, ..VETH }).context("without offload")?;
    hosts.ip(&["link", "set", "v0", "mtu", "9000"], &["link", "set", "v1", "mtu", "9000"])?;
    hosts.expect_exact_syns(&Link { offload: false, ..VETH }).context("with jumbo frames")?;
    drop(hosts);
    wait_covered(&["lo"])
}

pub(crate) fn vlan(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    for tags_in_band in [false, true] {
        let hosts = Hosts::new()?;
        if tags_in_band {
            hosts.offload(&["txvlan", "off", "rxvlan", "off", "tx-vlan-stag-hw-insert", "off"])?;
        }
        // Room for the tags.
        hosts.ip(&["link", "set", "v0", "mtu", "1600"], &["link", "set", "v1", "mtu", "1600"])?;
        let add = |lower, name, protocol, id| {
            ["link", "add", "link", lower, "name", name, "type", "vlan", "protocol", protocol, "id", id]
        };
        hosts.ip(&add("v0", "vlan0", "802.1Q", "5"), &add("v1", "vlan1", "802.1Q", "5"))?;
        hosts.ip(&["link", "set", "vlan0", "mtu", "1500"], &["link", "set", "vlan1", "mtu", "1500"])?;
        let link = Link { here: "vlan0", there: "vlan1", ..VETH };
        hosts.set_up(&link)?;
        wait_covered(&["lo", "v0", "vlan0"])?;
        hosts.expect_exact_syns(&link).with_context(|| format!("tags in band: {tags_in_band}"))?;
        hosts.ip(&["link", "del", "vlan0"], &["link", "del", "vlan1"])?;

        hosts.ip(&add("v0", "outer0", "802.1ad", "6"), &add("v1", "outer1", "802.1ad", "6"))?;
        hosts.ip(&["link", "set", "outer0", "up"], &["link", "set", "outer1", "up"])?;
        hosts.ip(&add("outer0", "inner0", "802.1Q", "7"), &add("outer1", "inner1", "802.1Q", "7"))?;
        hosts.ip(&["link", "set", "inner0", "mtu", "1500"], &["link", "set", "inner1", "mtu", "1500"])?;
        let link = Link { here: "inner0", there: "inner1", ..VETH };
        hosts.set_up(&link)?;
        wait_covered(&["lo", "v0", "outer0", "inner0"])?;
        hosts.expect_exact_syns(&link).with_context(|| format!("two tags, in band: {tags_in_band}"))?;
        drop(hosts);
        wait_covered(&["lo"])?;
    }
    Ok(())
}

pub(crate) fn bridge(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let hosts = Hosts::new()?;
    netns::command("ip", &["link", "add", "br0", "type", "bridge"])?;
    let _bridge = Device("br0");
    netns::command("ip", &["link", "set", "v0", "master", "br0"])?;
    let link = Link { here: "br0", ..VETH };
    hosts.set_up(&link)?;
    wait_covered(&["lo", "v0", "br0"])?;
    hosts.expect_exact_syns(&link)?;
    netns::command("ip", &["link", "del", "br0"])?;
    drop(hosts);
    wait_covered(&["lo"])
}

pub(crate) fn tunnels(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let hosts = Hosts::new()?;
    for (kind, addresses) in [("ipip", &[V4]), ("sit", &[V6])] {
        let add = |name, local, remote| ["link", "add", name, "type", kind, "local", local, "remote", remote];
        hosts.ip(&add("tunnel0", HERE, AWAY), &add("tunnel1", AWAY, HERE))?;
        let _tunnel = Device("tunnel0");
        let link = Link { here: "tunnel0", there: "tunnel1", layer: Layer::Ip, addresses, offload: true };
        hosts.set_up(&link)?;
        wait_covered(&["lo", "v0", "tunnel0"])?;
        hosts.expect_exact_syns(&link).context(kind)?;
        hosts.away.command("ip", &["link", "del", "tunnel1"])?;
    }
    drop(hosts);
    // The kernel's own (tunl0, sit0) stay, and stay covered.
    wait_covered(&["lo"])
}

pub(crate) fn wireguard(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let hosts = Hosts::new()?;
    hosts.ip(&["link", "add", "wg0", "type", "wireguard"], &["link", "add", "wg1", "type", "wireguard"])?;
    let _wireguard = Device("wg0");
    wireguard::configure("wg0", &wireguard::FIRST, &wireguard::SECOND, AWAY.parse()?)?;
    hosts
        .away
        .run(|| wireguard::configure("wg1", &wireguard::SECOND, &wireguard::FIRST, HERE.parse()?))??;
    let link = Link { here: "wg0", there: "wg1", layer: Layer::Ip, addresses: BOTH, offload: true };
    hosts.set_up(&link)?;
    wait_covered(&["lo", "v0", "wg0"])?;
    hosts.expect_exact_syns(&link)?;
    netns::command("ip", &["link", "del", "wg0"])?;
    drop(hosts);
    wait_covered(&["lo"])
}

/// An interface that goes when dropped, whatever became of the test.
struct Device(&'static str);

impl Drop for Device {
    fn drop(&mut self) {
        // Gone by itself where the test came so far.
        let _ = netns::command("ip", &["link", "del", self.0]);
    }
}
