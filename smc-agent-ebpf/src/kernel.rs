//! Reading the kernel's structures at the offsets that user space resolved.

use aya_ebpf::{Global, helpers::bpf_probe_read_kernel};
use smc_agent_common::{Address, Flow, Role};

use crate::offsets::{
    ABSENT, OFF_NET_COOKIE, OFF_NET_INUM, OFF_SKC_DADDR, OFF_SKC_DPORT, OFF_SKC_FAMILY, OFF_SKC_NET,
    OFF_SKC_NUM, OFF_SKC_RCV_SADDR, OFF_SKC_V6_DADDR, OFF_SKC_V6_RCV_SADDR,
};

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;

/// Reads a `T` at `base + offset` with a helper that tolerates any address: `None` if it cannot be read.
#[inline(always)]
pub fn read<T>(base: *const u8, offset: &Global<u32>) -> Option<T> {
    // SAFETY: the helper checks the address and fails on one that is not mapped; every T that is used here is
    // valid for any bytes.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset.load() as usize).cast::<T>()) }.ok()
}

/// The two ends of a connection as `struct sock_common` (of a socket or of a request) holds them.
#[derive(Clone, Copy)]
pub struct Endpoints {
    pub family: u16,
    /// Network order; IPv4 in the first four bytes.
    pub local: [u8; 16],
    /// Network order; IPv4 in the first four bytes.
    pub peer: [u8; 16],
    /// Host order.
    pub local_port: u16,
    /// Host order.
    pub peer_port: u16,
}

impl Endpoints {
    /// Reads them from the `struct sock_common` at `sk`; `None` for other families than IPv4 and IPv6.
    #[inline(always)]
    pub fn of(sk: *const u8) -> Option<Self> {
        let family = read::<u16>(sk, &OFF_SKC_FAMILY)?;
        let (mut local, mut peer) = ([0; 16], [0; 16]);
        if family == AF_INET {
            local[..4].copy_from_slice(&read::<[u8; 4]>(sk, &OFF_SKC_RCV_SADDR)?);
            peer[..4].copy_from_slice(&read::<[u8; 4]>(sk, &OFF_SKC_DADDR)?);
        } else if family == AF_INET6 {
            local = read(sk, &OFF_SKC_V6_RCV_SADDR)?;
            peer = read(sk, &OFF_SKC_V6_DADDR)?;
        } else {
            return None;
        }
        Some(Self {
            family,
            local,
            peer,
            local_port: read(sk, &OFF_SKC_NUM)?,
            peer_port: u16::from_be(read(sk, &OFF_SKC_DPORT)?),
        })
    }

    /// One of the addresses in the form of IPv6: IPv4 as `::ffff:a.b.c.d`.
    #[inline(always)]
    pub fn as_ipv6(&self, bytes: &[u8; 16]) -> [u8; 16] {
        if self.family == AF_INET {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, bytes[0], bytes[1], bytes[2], bytes[3]]
        } else {
            *bytes
        }
    }

    /// The flow that the policy judges, with this host in `role`.
    #[inline(always)]
    pub fn flow(&self, role: Role) -> Flow {
        let address = |bytes: &[u8; 16]| {
            if self.family == AF_INET {
                Address::v4(word(bytes, 0))
            } else {
                Address::v6([word(bytes, 0), word(bytes, 1), word(bytes, 2), word(bytes, 3)])
            }
        };
        let port = match role {
            Role::Client => self.peer_port,
            Role::Server => self.local_port,
        };
        Flow { peer: address(&self.peer), local: address(&self.local), port, role }
    }
}

/// Word `index` of an address in network order, as a number.
#[inline(always)]
fn word(bytes: &[u8; 16], index: usize) -> u32 {
    let at = index * 4;
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Inode number of the network namespace of the `struct sock_common` at `sk`; 0 if it cannot be read.
#[inline(always)]
pub fn netns_of_sock(sk: *const u8) -> u32 {
    net_of_sock(sk).and_then(|net| read(net, &OFF_NET_INUM)).unwrap_or(0)
}

/// The `struct net` of the `struct sock_common` at `sk`.
#[inline(always)]
pub fn net_of_sock(sk: *const u8) -> Option<*const u8> {
    read(sk, &OFF_SKC_NET)
}

/// Cookie of the network namespace `net`; 0 if it has none, or none yet (before 5.12 one is made when it is asked for).
#[inline(always)]
pub fn cookie_of_net(net: *const u8) -> u64 {
    if OFF_NET_COOKIE.load() == ABSENT { 0 } else { read(net, &OFF_NET_COOKIE).unwrap_or(0) }
}
