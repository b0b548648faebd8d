//! The network interfaces of a network namespace (rtnetlink): a list, and a stream of changes.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use nix::errno::Errno;

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Message, Messages, Request, array_at, u16_at, u32_at};

// Message types of `include/uapi/linux/rtnetlink.h`.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
// Numbers of network namespaces that are given and taken.
const NEW_NSID: u16 = 88;
const DELETE_NSID: u16 = 89;
/// `RTMGRP_LINK` (`include/uapi/linux/rtnetlink.h`).
const GROUP_LINK: u32 = 1;
/// `RTNLGRP_NSID` (`include/uapi/linux/rtnetlink.h`), as a bit.
const GROUP_NSID: u32 = 1 << (28 - 1);
/// Length of `struct ifinfomsg`: u8 family, u8 padding, u16 type, i32 index, u32 flags, u32 change.
const HEADER_LEN: usize = 16;
/// `AF_UNSPEC`: messages of other families (`AF_BRIDGE`) speak of ports, not of the life of the interface.
const FAMILY_UNSPECIFIED: u8 = 0;

// Attributes of `include/uapi/linux/if_link.h`.
const NAME: u16 = 3;
const MTU: u16 = 4;
const LOWER: u16 = 5;
const MASTER: u16 = 10;
const LINK_INFO: u16 = 18;
const LOWER_NETNS: u16 = 37;
const NETNS_IMMUTABLE: u16 = 67;
/// `IFLA_INFO_KIND` within `IFLA_LINKINFO`, text.
const INFO_KIND: u16 = 1;

/// `IFF_UP` (`include/uapi/linux/if.h`).
const FLAG_UP: u32 = 1;
/// `IFF_LOOPBACK`.
const FLAG_LOOPBACK: u32 = 1 << 3;
/// `IFF_LOWER_UP`: there is a carrier.
const FLAG_LOWER_UP: u32 = 1 << 16;

/// `ARPHRD_ETHER` (`include/uapi/linux/if_arp.h`): frames begin with an Ethernet header.
pub const HARDWARE_ETHERNET: u16 = 1;
/// `ARPHRD_LOOPBACK`: Ethernet headers too.
pub const HARDWARE_LOOPBACK: u16 = 772;

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number in this network namespace.
    pub index: u32,
    /// Its name; empty if the kernel sent none.
    pub name: String,
    /// `ARPHRD_*` (`include/uapi/linux/if_arp.h`): the kind of its link layer header.
    pub hardware: u16,
    /// The kind of a virtual interface: `veth`, `bridge`, `wireguard`, …; `None` for hardware and loopback.
    pub kind: Option<String>,
    /// `IFF_*` (`include/uapi/linux/if.h`).
    pub flags: u32,
    /// Its largest packet, in bytes.
    pub mtu: Option<u32>,
    /// The interface below it (a VLAN's, a macvlan's) or the peer (a veth's).
    pub lower: Option<u32>,
    /// The id of the network namespace that `lower` is in, if it is another one.
    pub lower_netns: Option<i32>,
    /// The bridge, bond or VRF that it belongs to.
    pub master: Option<u32>,
    /// Whether it cannot be moved to another network namespace; `None` before 6.14.
    pub netns_immutable: Option<bool>,
}

impl Link {
    /// Whether it is switched on.
    pub fn is_up(&self) -> bool {
        self.flags & FLAG_UP != 0
    }

    /// Whether it has a carrier.
    pub fn has_carrier(&self) -> bool {
        self.flags & FLAG_LOWER_UP != 0
    }

    /// Whether it is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.flags & FLAG_LOOPBACK != 0
    }

    /// Reads a message; `None` if it does not speak of an interface as a whole.
    fn parse(message: &Message<'_>) -> Result<Option<Self>> {
        let malformed = || Error::Malformed { what: "an interface message without its header" };
        let payload = message.payload;
        if *payload.first().ok_or_else(malformed)? != FAMILY_UNSPECIFIED {
            return Ok(None);
        }
        let mut link = Self {
            hardware: u16_at(payload, 2).ok_or_else(malformed)?,
            index: u32_at(payload, 4).ok_or_else(malformed)?,
            flags: u32_at(payload, 8).ok_or_else(malformed)?,
            ..Self::default()
        };
        for attribute in message.attributes(HEADER_LEN) {
            let attribute = attribute?;
            match attribute.kind {
                NAME => link.name = attribute.text(),
                MTU => link.mtu = Some(attribute.u32()?),
                LOWER => link.lower = Some(attribute.u32()?),
                MASTER => link.master = Some(attribute.u32()?),
                LOWER_NETNS => link.lower_netns = array_at(attribute.payload, 0).map(i32::from_ne_bytes),
                NETNS_IMMUTABLE => link.netns_immutable = Some(attribute.u8()? != 0),
                LINK_INFO => link.kind = attribute.nested().find(INFO_KIND)?.map(|kind| kind.text()),
                _ => {}
            }
        }
        Ok(Some(link))
    }
}

/// The interfaces of the current network namespace.
pub fn list() -> Result<Vec<Link>> {
    list_on(&mut Socket::open(Protocol::Route)?)
}

fn list_on(socket: &mut Socket) -> Result<Vec<Link>> {
    let request = Request::new(GET_LINK, "list network interfaces").fixed(&[0; HEADER_LEN]);
    socket.list(&request, Link::parse)
}

/// What happened to an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It appeared or changed.
    Present(Link),
    /// It is gone: deleted, or moved to another network namespace.
    Gone(Link),
    /// Network namespaces may have come or gone.
    Namespaces,
    /// The kernel dropped some messages: [`list`] again to know what is there.
    Lost,
}

/// Changes of the interfaces of the network namespace in which it was opened, and of those that have a number there. The
/// descriptor becomes readable when there are some; it works with `AsyncFd`, since [`changes`](Self::changes) does not block.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: Socket,
}

impl LinkMonitor {
    /// Subscribes to the changes of this thread's network namespace. List the interfaces afterwards, not before: then no change
    /// is missed.
    pub fn open() -> Result<Self> {
        Socket::open_for_groups(Protocol::Route, GROUP_LINK).map(|socket| Self { socket })
    }

    /// Subscribes also to those of all namespaces that have a number here ([`nsid`](super::nsid)); `CAP_NET_BROADCAST` is needed
    /// to hear of them.
    pub fn open_for_all() -> Result<Self> {
        let mut socket = Socket::open_for_groups(Protocol::Route, GROUP_LINK | GROUP_NSID)?;
        socket.listen_to_all_namespaces()?;
        Ok(Self { socket })
    }

    /// The changes in the next datagram, and the number of the namespace that they are of, `None` for this thread's own; `None`
    /// when there is none at present.
    pub fn changes(&mut self) -> Result<Option<(Option<i32>, Vec<LinkChange>)>> {
        match self.socket.receive_with_namespace("watch network interfaces") {
            Ok((length, namespace)) => Ok(Some((namespace, changes_in(self.socket.received(length))?))),
            Err(Error::Io { what, source }) => match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => Ok(None),
                Some(Errno::ENOBUFS) => Ok(Some((None, vec![LinkChange::Lost]))),
                _ => Err(Error::Io { what, source }),
            },
            Err(error) => Err(error),
        }
    }
}

impl AsFd for LinkMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for LinkMonitor {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_fd().as_raw_fd()
    }
}

fn changes_in(datagram: &[u8]) -> Result<Vec<LinkChange>> {
    let mut changes = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        let change = match message.kind {
            NEW_LINK => LinkChange::Present,
            DELETE_LINK => LinkChange::Gone,
            NEW_NSID | DELETE_NSID => {
                changes.push(LinkChange::Namespaces);
                continue;
            }
            _ => continue,
        };
        changes.extend(Link::parse(&message)?.map(change));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(family: u8) -> Vec<u8> {
        let mut header = vec![family, 0];
        header.extend(HARDWARE_ETHERNET.to_ne_bytes());
        header.extend(7_i32.to_ne_bytes());
        header.extend((FLAG_UP | FLAG_LOWER_UP).to_ne_bytes());
        header.extend([0; 4]);
        header
    }

    fn veth(kind: u16, family: u8) -> Vec<u8> {
        let info = Request::new(0, "test").text(INFO_KIND, "veth").attribute(9, &[]).encode(0, 0).unwrap();
        Request::new(kind, "test")
            .fixed(&header(family))
            .text(NAME, "veth0")
            .attribute(200, &[1, 2, 3])
            .attribute(LINK_INFO, &info[16..])
            .attribute(MTU, &1500_u32.to_ne_bytes())
            .attribute(LOWER_NETNS, &3_i32.to_ne_bytes())
            .encode(0, 0)
            .unwrap()
    }

    #[test]
    fn a_link_is_read_whole() {
        let changes = changes_in(&veth(NEW_LINK, 0)).unwrap();
        let [LinkChange::Present(link)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((link.index, link.name.as_str(), link.hardware), (7, "veth0", HARDWARE_ETHERNET));
        assert_eq!((link.kind.as_deref(), link.mtu, link.lower_netns), (Some("veth"), Some(1500), Some(3)));
        assert!(link.is_up() && link.has_carrier() && !link.is_loopback());
        assert_eq!((link.netns_immutable, link.master), (None, None));
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_not_gone() {
        let bridge = u8::try_from(libc::AF_BRIDGE).unwrap();
        assert_eq!(changes_in(&veth(DELETE_LINK, bridge)).unwrap(), []);
        let changes = changes_in(&veth(DELETE_LINK, 0)).unwrap();
        assert!(matches!(&changes[..], [LinkChange::Gone(_)]));
    }

    #[test]
    fn truncations_do_not_panic() {
        let bytes = veth(NEW_LINK, 0);
        for length in 0..bytes.len() {
            let payload = bytes.get(16..length).unwrap_or_default();
            let message = Message { kind: NEW_LINK, flags: 0, sequence: 0, payload };
            let link = Link::parse(&message);
            assert!(payload.len() >= 12 || link.is_err(), "{length}");
            let _ = changes_in(&bytes[..length]);
        }
    }

    #[test]
    fn the_loopback_interface_is_listed_and_a_quiet_monitor_has_nothing() {
        let links = list().unwrap();
        let loopback = links.iter().find(|link| link.is_loopback()).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.hardware), ("lo", HARDWARE_LOOPBACK));
        let mut monitor = LinkMonitor::open().unwrap();
        while monitor.changes().unwrap().is_some() {}
    }
}
