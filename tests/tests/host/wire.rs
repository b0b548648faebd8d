//! SYNs that come in over an interface, byte by byte: as they were sent, and as a capture behind traffic control has them.
//! What is expected is built anew, checksum and all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::net::{IpAddr, TcpListener};

use anyhow::{Context as _, Result, ensure};
use smc_agent_tests::netns;
use smc_agent_tests::wait::Limit;
use smc_agent_tests::wire::{Capture, Checksum, Layer, Tap};

use crate::packet::{Packet, SYN};
use crate::rewriting::{ALLOWED, DENIED, NOP, POLICY, SMC, rewritten, variants};
use crate::sandbox::{SOON, Sandbox};

const V4: &str = "10.9.0.1";
const V6: &str = "fd00:9::1";
/// A host behind this one.
const BEYOND_V4: &str = "10.10.0.2";
const BEYOND_V6: &str = "fd00:10::2";
/// Ethernet: two addresses and the protocol.
const ADDRESSES: usize = 12;
const ETHERNET: usize = ADDRESSES + 2;
/// `ETH_P_8021Q`, `ETH_P_8021AD` (`include/uapi/linux/if_ether.h`).
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
/// The hardware address of the interface, and one that it has not.
const OURS: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];
const FOREIGN: [u8; 6] = [0x02, 0, 0, 0, 0, 0x77];
const SENDER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x55];

/// An interface of this host with a policy in force, and listeners for any address.
struct Port {
    tap: Tap,
    layer: Layer,
    /// By protocol; each packet that is sent is taken from one of them.
    captures: RefCell<BTreeMap<u16, Capture>>,
    _listeners: Vec<TcpListener>,
}

impl Port {
    fn new(sandbox: &Sandbox, layer: Layer, forwards: bool) -> Result<Self> {
        for (switch, value) in [
            ("ipv4/ip_forward", u8::from(forwards)),
            ("ipv6/conf/all/forwarding", u8::from(forwards)),
            ("ipv4/conf/all/rp_filter", 0),
            ("ipv4/conf/default/rp_filter", 0),
        ] {
            let path = format!("/proc/sys/net/{switch}");
            fs::write(&path, value.to_string()).with_context(|| path.clone())?;
        }
        let tap = interface("p0", layer, &[V4, V6])?;
        let mut listeners = Vec::new();
        for port in [DENIED, ALLOWED] {
            listeners.push(TcpListener::bind(("::", port))?);
        }
        sandbox.start(POLICY)?.kill()?;
        Ok(Self { tap, layer, captures: RefCell::default(), _listeners: listeners })
    }

    /// The packet as it comes in here, with these VLAN tags in front of it.
    fn frame(&self, packet: &Packet, tags: &[u16], to: [u8; 6]) -> Vec<u8> {
        let bytes = packet.bytes();
        if self.layer == Layer::Ip {
            return bytes[ETHERNET..].to_vec();
        }
        let mut frame = [to, SENDER].concat();
        for (place, tag) in tags.iter().enumerate() {
            frame.extend(tag.to_be_bytes());
            // Numbered from the inside, as the outer ones go.
            frame.extend(u16::try_from(tags.len() - place).unwrap_or_default().to_be_bytes());
        }
        frame.extend(&bytes[ADDRESSES..]);
        frame
    }

    /// The packet comes behind traffic control with these options, and otherwise as it was; but the kernel has put its
    /// outermost VLAN tag aside.
    fn expect(&self, what: &str, packet: &Packet, tags: &[u16], options: &[u8]) -> Result<()> {
        self.expect_for(what, packet, tags, options, OURS)
    }

    fn expect_for(
        &self,
        what: &str,
        packet: &Packet,
        tags: &[u16],
        options: &[u8],
        to: [u8; 6],
    ) -> Result<()> {
        let expected = Packet { options: options.to_vec(), ..packet.clone() };
        let expected = self.frame(&expected, tags.get(1..).unwrap_or_default(), to);
        let sent = self.frame(packet, tags, to);
        self.exchange(&sent, Checksum::Unknown, &expected).with_context(|| format!("{what}, {tags:04x?}"))
    }

    fn exchange(&self, sent: &[u8], checksum: Checksum, expected: &[u8]) -> Result<()> {
        let protocol = match self.layer {
            Layer::Ethernet => u16::from_be_bytes([expected[ADDRESSES], expected[ADDRESSES + 1]]),
            Layer::Ip if expected[0] >> 4 == 4 => 0x0800,
            Layer::Ip => 0x86dd,
        };
        let mut captures = self.captures.borrow_mut();
        let capture = match captures.entry(protocol) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Capture::open("p0", protocol)?),
        };
        self.tap.send(sent, checksum)?;
        let received = capture.receive(&Limit::new(SOON), |_| true)?;
        ensure!(
            received == expected,
            "\n  sent     {sent:02x?}\n  received {received:02x?}\n  expected {expected:02x?}"
        );
        Ok(())
    }
}

/// An interface that is up, with these addresses.
fn interface(name: &str, layer: Layer, addresses: &[&str]) -> Result<Tap> {
    let tap = Tap::open(name, layer)?;
    if layer == Layer::Ethernet {
        let address = OURS.map(|byte| format!("{byte:02x}")).join(":");
        netns::command("ip", &["link", "set", name, "address", &address])?;
    }
    netns::command("ip", &["link", "set", name, "mtu", "9000", "up"])?;
    for address in addresses {
        let (length, more) = if address.contains(':') { (64, &["nodad"][..]) } else { (24, &[][..]) };
        let address = format!("{address}/{length}");
        netns::command("ip", &[&["address", "add", &address, "dev", name], more].concat())?;
    }
    Ok(tap)
}

/// A SYN from a foreign host to this one.
fn syn(v6: bool, port: u16, options: &[u8]) -> Result<Packet> {
    let to: IpAddr = if v6 { V6.parse()? } else { V4.parse()? };
    Ok(Packet { to, ..Packet::syn(v6, port, options) })
}

fn option() -> Vec<u8> {
    [&SMC[..], &[NOP, NOP]].concat()
}

/// Every form of options, over IPv4 and IPv6, plain, with data and with ECN, to a port that is denied and to one that is not.
fn all_variants(port: &Port, tags: &[u16]) -> Result<()> {
    for v6 in [false, true] {
        for (what, options, places) in variants() {
            let packet = syn(v6, DENIED, &options)?;
            let stripped = rewritten(&options, places);
            port.expect(what, &packet, tags, &stripped)?;
            let with_data = Packet { data: b"early".to_vec(), ..packet.clone() };
            port.expect(&format!("{what}, with data"), &with_data, tags, &stripped)?;
            let with_ecn = Packet { flags: SYN | 0xc0, ..packet.clone() };
            port.expect(&format!("{what}, with ECN"), &with_ecn, tags, &stripped)?;
            let allowed = Packet { port: ALLOWED, ..packet };
            port.expect(&format!("{what}, allowed"), &allowed, tags, &options)?;
        }
    }
    Ok(())
}

/// Nothing went wrong, and so many SYNs were refused.
fn expect_denied(sandbox: &Sandbox, denied: u64) -> Result<()> {
    let counters = sandbox.status()?["counters"].clone();
    ensure!(counters["server_denied"] == denied, "{denied} should be denied: {counters:#}");
    ensure!(counters["rewrite_failed"] == 0 && counters["undecided"] == 0, "{counters:#}");
    Ok(())
}

/// How many of [`variants`] have an option that is stripped.
fn stripped() -> u64 {
    variants().iter().map(|(_, _, places)| u64::from(places.contains('x'))).sum()
}

pub(crate) fn ethernet(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ethernet, false)?;
    all_variants(&port, &[])?;
    expect_denied(sandbox, stripped() * 2 * 3)
}

pub(crate) fn vlan_tags(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ethernet, false)?;
    let stacks = [&[VLAN][..], &[SERVICE_VLAN, VLAN], &[SERVICE_VLAN, SERVICE_VLAN, VLAN]];
    for tags in stacks {
        all_variants(&port, tags)?;
    }
    // Of three tags the kernel takes one, and two are looked behind.
    let four = [SERVICE_VLAN, SERVICE_VLAN, SERVICE_VLAN, VLAN];
    port.expect("four tags", &syn(false, DENIED, &option())?, &four, &option())?;
    expect_denied(sandbox, stripped() * 2 * 3 * 3)
}

pub(crate) fn without_a_link_layer(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ip, true)?;
    all_variants(&port, &[])?;
    expect_denied(sandbox, stripped() * 2 * 3)
}

pub(crate) fn headers(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ethernet, true)?;
    let (options, gone) = (option(), [NOP; 8]);
    let (v4, v6) = (syn(false, DENIED, &options)?, syn(true, DENIED, &options)?);
    // Hop-by-hop options, then destination options, 8 bytes each.
    let chain = [[60, 0, 1, 4, 0, 0, 0, 0], [6, 0, 1, 4, 0, 0, 0, 0]].concat();
    let tags: [&[u16]; 3] = [&[], &[VLAN], &[SERVICE_VLAN, VLAN]];
    for tags in tags {
        let with_options = Packet { between: vec![NOP; 40], ..v4.clone() };
        port.expect("IPv4 options", &with_options, tags, &gone)?;
        let with_headers = Packet { next: 0, between: chain.clone(), ..v6.clone() };
        port.expect("extension headers", &with_headers, tags, &gone)?;
        for packet in [&v4, &v6] {
            // Most of such a packet lies outside the kernel's linear buffer.
            let jumbo = Packet { data: (0..=u8::MAX).cycle().take(8900).collect(), ..packet.clone() };
            port.expect("a jumbo frame", &jumbo, tags, &gone)?;
        }
        port.expect("first fragment", &Packet { fragment: 0x2000, ..v4.clone() }, tags, &options)?;
        port.expect("later fragment", &Packet { fragment: 0x0003, ..v4.clone() }, tags, &options)?;
        let fragment = Packet { next: 44, between: vec![6, 0, 0, 1, 1, 2, 3, 4], ..v6.clone() };
        port.expect("fragment header", &fragment, tags, &options)?;
    }
    expect_denied(sandbox, 4 * 3)
}

pub(crate) fn checksums(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ethernet, true)?;
    for v6 in [false, true] {
        for (what, options, places) in variants() {
            let packet = syn(v6, DENIED, &options)?;
            let expected = Packet { options: rewritten(&options, places), ..packet.clone() };
            let (sent, expected) = (port.frame(&packet, &[], OURS), port.frame(&expected, &[], OURS));
            port.exchange(&sent, Checksum::Checked, &expected).context(what)?;
            // One that whoever sends it on has to complete: only the pseudo header is in it, which does not change.
            let tcp = ETHERNET + if v6 { 40 } else { 20 };
            let half = |mut frame: Vec<u8>| {
                let sum = packet.pseudo_header_sum();
                frame[tcp + 16..tcp + 18].copy_from_slice(&sum);
                frame
            };
            let from = Checksum::Partial { from: u16::try_from(tcp)? };
            port.exchange(&half(sent), from, &half(expected)).with_context(|| format!("{what}, partial"))?;
        }
    }
    expect_denied(sandbox, stripped() * 2 * 2)
}

pub(crate) fn routed(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ip, true)?;
    let beyond = interface("p1", Layer::Ip, &["10.10.0.1", "fd00:10::1"])?;
    // Covered too, as the agent that starts finds it.
    sandbox.start(POLICY)?.kill()?;
    for (v6, to) in [(false, BEYOND_V4), (true, BEYOND_V6)] {
        // A listener for any address is here, too.
        let packet = Packet { to: to.parse()?, ..syn(v6, DENIED, &option())? };
        let mut expected = port.frame(&packet, &[], OURS);
        port.tap.send(&expected, Checksum::Unknown)?;
        let is_tcp = |bytes: &[u8]| bytes.get(if v6 { 6 } else { 9 }) == Some(&6);
        let received = beyond.receive(&Limit::new(SOON), is_tcp)?;
        // One hop further.
        if v6 {
            expected[7] -= 1;
        } else {
            expected[8] -= 1;
            expected[10..12].copy_from_slice(&received[10..12]);
        }
        ensure!(received == expected, "\n  received {received:02x?}\n  expected {expected:02x?}");
    }
    expect_denied(sandbox, 0)
}

pub(crate) fn bridged(sandbox: &Sandbox) -> Result<()> {
    let port = Port::new(sandbox, Layer::Ethernet, false)?;
    // A guest has the other end of this one.
    let guest = interface("p1", Layer::Ethernet, &[])?;
    netns::command("ip", &["link", "set", "p1", "address", "02:00:00:00:00:02"])?;
    netns::command("ip", &["link", "add", "br0", "type", "bridge"])?;
    for interface in ["p0", "p1"] {
        netns::command("ip", &["link", "set", interface, "master", "br0"])?;
    }
    netns::command("ip", &["link", "set", "br0", "address", "02:00:00:00:00:03", "up"])?;
    sandbox.start(POLICY)?.kill()?;
    for v6 in [false, true] {
        // Whatever the address: another hardware address makes it another host's.
        let packet = syn(v6, DENIED, &option())?;
        let sent = port.frame(&packet, &[], FOREIGN);
        port.tap.send(&sent, Checksum::Unknown)?;
        let received =
            guest.receive(&Limit::new(SOON), |bytes| bytes.starts_with(&FOREIGN)).context("the guest")?;
        ensure!(received == sent, "\n  received {received:02x?}\n  sent     {sent:02x?}");
        expect_denied(sandbox, u64::from(v6))?;

        // One for the bridge itself is this host's, and told as such where the bridge takes it in.
        let to = [0x02, 0, 0, 0, 0, 0x03];
        let stripped = Packet { options: vec![NOP; 8], ..packet.clone() };
        let capture = Capture::open("br0", if v6 { 0x86dd } else { 0x0800 })?;
        port.tap.send(&port.frame(&packet, &[], to), Checksum::Unknown)?;
        let received = capture.receive(&Limit::new(SOON), |bytes| bytes.starts_with(&to)).context("br0")?;
        ensure!(received == port.frame(&stripped, &[], to), "received {received:02x?}");
        expect_denied(sandbox, u64::from(v6) + 1)?;
    }
    Ok(())
}
