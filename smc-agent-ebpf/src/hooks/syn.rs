//! Traffic control: the backend for kernels without `smc_hs_ctrl`. The SMC option of a SYN that the policy refuses
//! is overwritten with NOPs: on the way out where this host is the client, on the way in where it is the server.
//!
//! A packet is touched only if it is a pure SYN (a SYN-ACK without the option would leave a server waiting for a
//! message that never comes), belongs to a socket of this host (`skb->sk` on the way out, a listener on the way
//! in), and carries the option where a walk of its TCP options finds it. Only the option's bytes and the checksum
//! change.

use aya_ebpf::{
    bindings::{
        BPF_F_CURRENT_NETNS, BPF_FIB_LKUP_RET_FWD_DISABLED, BPF_FIB_LKUP_RET_NOT_FWDED, TC_ACT_UNSPEC,
        bpf_fib_lookup as FibLookup, bpf_hdr_start_off::BPF_HDR_START_NET, bpf_sock_tuple,
    },
    helpers::{
        bpf_csum_diff, bpf_fib_lookup, bpf_l4_csum_replace, bpf_sk_fullsock, bpf_sk_release,
        bpf_skb_load_bytes_relative, bpf_skb_store_bytes, bpf_skc_lookup_tcp,
    },
    macros::classifier,
    programs::TcContext,
};
use smc_agent_common::{Counter, Role, Verdict};

use super::options::{AUTHENTICATED, KIND_NOP, MAX_OPTIONS, SCRATCH, SMC_OPTION, hidden, smc_walk_options};
use crate::{
    diagnose,
    judge::{count_if_refused, judge},
    kernel::{AF_INET, AF_INET6, Endpoints, netns_of_sock, read},
    maps::count,
    offsets::{
        OFF_DEV_NET, OFF_NET_INUM, OFF_RSK_SNT_SYNACK, OFF_SKB_DATA, OFF_SKB_DEV, OFF_SKB_HEAD,
        OFF_SKB_NETWORK_HEADER, OFF_SKB_SK,
    },
};

const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_HOPOPTS: u8 = 0;
const IPPROTO_ROUTING: u8 = 43;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_DSTOPTS: u8 = 60;
const IPPROTO_AH: u8 = 51;
/// `TCP_SYN_SENT`, `TCP_TIME_WAIT`, `TCP_LISTEN` and `TCP_NEW_SYN_RECV` (`include/net/tcp_states.h`).
const TCP_SYN_SENT: u32 = 2;
const TCP_TIME_WAIT: u32 = 6;
const TCP_LISTEN: u32 = 10;
const TCP_NEW_SYN_RECV: u32 = 12;

/// In what [`receiver`] returns: the socket is bound to no address.
const ANY_ADDRESS: u32 = 1 << 31;
/// The packet is for this device's own address (`PACKET_HOST`, `uapi/linux/if_packet.h`): TCP takes no others.
const PACKET_HOST: u32 = 0;

const TCP_HEADER: u32 = 20;
/// TCP header byte 13 (RFC 9293, section 3.1): of FIN, SYN, RST and ACK only SYN is set in a pure SYN.
const FLAGS_OF_INTEREST: u8 = 0x17;
const FLAG_SYN: u8 = 0x02;
const FLAG_ACK: u8 = 0x10;

/// Goes on with the next program, or with the packet's normal way.
const NEXT: i32 = TC_ACT_UNSPEC;

#[classifier]
pub fn smc_egress(ctx: TcContext) -> i32 {
    let _ = outgoing(&ctx);
    NEXT
}

#[classifier]
pub fn smc_ingress(ctx: TcContext) -> i32 {
    let _ = incoming(&ctx);
    NEXT
}

/// `None` where there is nothing for the policy to decide.
#[inline(always)]
fn outgoing(ctx: &TcContext) -> Option<()> {
    // SAFETY: the context is what the kernel gave to this program.
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    if sk.is_null() {
        return None;
    }
    // The cheap question first: of all packets only the SYNs of a connecting socket matter, and the answers to them.
    // SAFETY: checked against null; every kind of socket has this field.
    let state = unsafe { (*sk).state };
    if state == TCP_NEW_SYN_RECV {
        return answering(ctx);
    }
    if state != TCP_SYN_SENT {
        return None;
    }
    // SAFETY: checked against null; the helper gives null for sockets that are not full ones.
    let sk = unsafe { bpf_sk_fullsock(sk) };
    // SAFETY: checked against null before any field is read.
    let sk = unsafe { sk.as_ref() }?;
    if sk.protocol != u32::from(IPPROTO_TCP) {
        return None;
    }
    let mut tcp = Syn::NONE;
    if locate_tcp(ctx, OUTGOING, &mut tcp) == 0 {
        return None;
    }
    let options = find_option(ctx, &tcp)?;
    // The socket's own addresses, not the packet's: they differ behind NAT on this host.
    let mut ends = Endpoints {
        family: sk.family as u16,
        local: [0; 16],
        peer: [0; 16],
        local_port: sk.src_port as u16,
        peer_port: u16::from_be(sk.dst_port),
    };
    if ends.family == AF_INET {
        put(&mut ends.local, [sk.src_ip4, 0, 0, 0]);
        put(&mut ends.peer, [sk.dst_ip4, 0, 0, 0]);
    } else if ends.family == AF_INET6 {
        put(&mut ends.local, [sk.src_ip6[0], sk.src_ip6[1], sk.src_ip6[2], sk.src_ip6[3]]);
        put(&mut ends.peer, [sk.dst_ip6[0], sk.dst_ip6[1], sk.dst_ip6[2], sk.dst_ip6[3]]);
    } else {
        return None;
    }
    // A bridge passes the SYN of a container on with the container's socket: not this host's own flow.
    let netns = netns_of_packet(ctx);
    let sk: *const u8 = read(ctx.skb.skb.cast::<u8>(), &OFF_SKB_SK)?;
    if netns_of_sock(sk) != netns {
        return None;
    }
    if judge(&ends, Role::Client, sk as u64, 0, netns) == Verdict::Deny {
        strip(ctx, &tcp, &options);
    }
    Some(())
}

/// An answer that goes out with the option although a server rule refuses it: the SYN came by where it could not be told
/// to be for this host's listener. It is too late to refuse now, so that it is counted. Always `None`.
#[inline(always)]
fn answering(ctx: &TcContext) -> Option<()> {
    let mut tcp = Syn::NONE;
    if locate_tcp(ctx, ANSWERING, &mut tcp) == 0 {
        return None;
    }
    smc_options(ctx, &tcp)?;
    let request: *const u8 = read(ctx.skb.skb.cast::<u8>(), &OFF_SKB_SK)?;
    // The listener's side of netfilter, as SYNs are judged where they can be.
    let ends = Endpoints::of(request)?;
    let netns = netns_of_packet(ctx);
    if netns_of_sock(request) == netns {
        let answered = read::<u64>(request, &OFF_RSK_SNT_SYNACK).unwrap_or(0).wrapping_mul(1000);
        count_if_refused(&ends, answered);
    }
    None
}

#[inline(always)]
fn incoming(ctx: &TcContext) -> Option<()> {
    // What a bridge passes on, or a lower device, comes by once more if it is for this host.
    // SAFETY: the context is what the kernel gave to this program.
    if unsafe { (*ctx.skb.skb).pkt_type } != PACKET_HOST {
        return None;
    }
    // SAFETY: the context is what the kernel gave to this program.
    let protocol = u16::from_be(unsafe { (*ctx.skb.skb).protocol } as u16);
    if is_no_syn(ctx, protocol) {
        return None;
    }
    let mut tcp = Syn::NONE;
    if locate_tcp(ctx, u32::from(protocol), &mut tcp) == 0 {
        return None;
    }
    let options = find_option(ctx, &tcp)?;
    let found = receiver(ctx, &tcp.ends, tcp.ends.peer_port);
    // A connection that has just ended gives way to a new one; no connection comes from port 0, so that only a listener
    // is found then.
    let found = if found & !ANY_ADDRESS == TCP_TIME_WAIT { receiver(ctx, &tcp.ends, 0) } else { found };
    if found & !ANY_ADDRESS != TCP_LISTEN {
        return None;
    }
    // A listener for any address is found under the addresses of others too, to whom the packet is forwarded.
    if found & ANY_ADDRESS != 0 && stays_here(ctx, &tcp.ends) == 0 {
        return None;
    }
    let listener = SCRATCH.get(0)?.receiver;
    if judge(&tcp.ends, Role::Server, listener, 0, netns_of_packet(ctx)) == Verdict::Deny {
        strip(ctx, &tcp, &options);
    }
    Some(())
}

/// Whether a packet that came in is surely no pure SYN of TCP, told without a helper's call: what nearly all packets are.
/// Of a packet that is not plainly IP behind an Ethernet header it says no, and the packet is looked at more closely.
///
/// Where the network header stands is not known here. It is at byte 14 if the Ethernet type there is the skb's and
/// the first byte is none of an IP header, as it is on interfaces without a link layer; with the header of `InfiniBand`, of 4
/// bytes, the type's second byte would be TCP's number, which is neither type's.
#[inline(always)]
fn is_no_syn(ctx: &TcContext, protocol: u16) -> bool {
    const ETHERNET: usize = 14;
    const IPPROTO_UDP: u8 = 17;
    let (start, end) = (ctx.data(), ctx.data_end());
    let byte = |at: usize| {
        // SAFETY: only bytes before `end` are read, as the comparisons below make sure.
        unsafe { *((start + at) as *const u8) }
    };
    let no_syn = |at: usize| byte(at + 13) & FLAGS_OF_INTEREST != FLAG_SYN;
    let (ipv4, ipv6) = (ETHERNET + 20, ETHERNET + 40);
    if start + ipv4 + 14 > end || matches!(byte(0) >> 4, 4 | 6) {
        return false;
    }
    if u16::from_be_bytes([byte(12), byte(13)]) != protocol {
        return false;
    }
    if protocol == ETH_P_IP {
        let without_options = byte(ETHERNET) == 0x45;
        // An authentication header is looked at, to be counted.
        let next = byte(ETHERNET + 9);
        return without_options && next != IPPROTO_AH && (next != IPPROTO_TCP || no_syn(ipv4));
    }
    if protocol == ETH_P_IPV6 {
        let next = byte(ETHERNET + 6);
        return next == IPPROTO_UDP || (next == IPPROTO_TCP && start + ipv6 + 14 <= end && no_syn(ipv6));
    }
    false
}

/// A pure SYN in a packet.
struct Syn {
    /// Where the TCP header begins, from the network header.
    offset: u32,
    /// Length of the TCP options in bytes: 8 to 40, a multiple of 4.
    options: u32,
    /// The ends as the packet has them, this host as its receiver.
    ends: Endpoints,
}

impl Syn {
    const NONE: Self = Self {
        offset: 0,
        options: 0,
        ends: Endpoints { family: 0, local: [0; 16], peer: [0; 16], local_port: 0, peer_port: 0 },
    };
}

/// In the place of a protocol: the packet is on its way out, with its network header set to IP already.
const OUTGOING: u32 = 0;
/// As [`OUTGOING`], and the packet wanted is a SYN-ACK.
const ANSWERING: u32 = 1;

/// Finds the TCP header behind VLAN tags, IP header and IPv6 extension headers; 0 unless it is a pure SYN with room
/// for the option. `protocol` is the link layer's word for a packet that came in, or [`OUTGOING`] or [`ANSWERING`].
///
/// Not inlined, since its stack is free again before the flow is judged; and with the result in an argument, since
/// the verifier lets no function return a pointer to the stack, as one that returns a structure does.
#[inline(never)]
fn locate_tcp(ctx: &TcContext, protocol: u32, syn: &mut Syn) -> u32 {
    match find_tcp(ctx, protocol) {
        Some(found) => {
            *syn = found;
            1
        }
        None => 0,
    }
}

#[inline(always)]
fn find_tcp(ctx: &TcContext, protocol: u32) -> Option<Syn> {
    let mut offset = 0;
    if protocol != OUTGOING && protocol != ANSWERING {
        let mut protocol = protocol as u16;
        // The outermost tag is in the skb's metadata by now; inner ones stand before the IP header.
        for _ in 0..2 {
            if protocol == ETH_P_8021Q || protocol == ETH_P_8021AD {
                let tag: [u8; 4] = load(ctx, offset)?;
                protocol = u16::from_be_bytes([tag[2], tag[3]]);
                offset += 4;
            }
        }
        if protocol != ETH_P_IP && protocol != ETH_P_IPV6 {
            return None;
        }
    }
    let first: [u8; 20] = load(ctx, offset)?;
    let mut ends = Endpoints { family: 0, local: [0; 16], peer: [0; 16], local_port: 0, peer_port: 0 };
    match first[0] >> 4 {
        4 => {
            let header = u32::from(first[0] & 0x0f) * 4;
            // Only a first fragment has a TCP header, and a SYN is never fragmented in earnest.
            let fragment = u16::from_be_bytes([first[6], first[7]]) & 0x3fff;
            if first[9] == IPPROTO_AH {
                count(Counter::AuthenticationHeader);
            }
            if first[9] != IPPROTO_TCP || header < 20 || fragment != 0 {
                return None;
            }
            ends.family = AF_INET;
            ends.peer[..4].copy_from_slice(&[first[12], first[13], first[14], first[15]]);
            ends.local[..4].copy_from_slice(&[first[16], first[17], first[18], first[19]]);
            offset += header;
        }
        6 => {
            ends.family = AF_INET6;
            ends.peer = load(ctx, offset + 8)?;
            ends.local = load(ctx, offset + 24)?;
            let mut next = first[6];
            offset += 40;
            // Extension headers that leave the payload readable (RFC 8200, section 4). AH (51) and ESP (50) are not
            // among them: what they cover is left alone.
            for _ in 0..4 {
                if next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS {
                    let extension: [u8; 2] = load(ctx, offset)?;
                    next = extension[0];
                    offset += (u32::from(extension[1]) + 1) * 8;
                } else if next == IPPROTO_FRAGMENT {
                    let extension: [u8; 8] = load(ctx, offset)?;
                    if extension[2] != 0 || extension[3] & 0xf9 != 0 {
                        return None;
                    }
                    next = extension[0];
                    offset += 8;
                }
            }
            if next == IPPROTO_AH {
                count(Counter::AuthenticationHeader);
            }
            if next != IPPROTO_TCP {
                return None;
            }
        }
        _ => return None,
    }
    let header: [u8; 20] = load(ctx, offset)?;
    let length = u32::from(header[12] >> 4) * 4;
    let flags = if protocol == ANSWERING { FLAG_SYN | FLAG_ACK } else { FLAG_SYN };
    if header[13] & FLAGS_OF_INTEREST != flags || length < TCP_HEADER + SMC_OPTION as u32 {
        return None;
    }
    ends.peer_port = u16::from_be_bytes([header[0], header[1]]);
    ends.local_port = u16::from_be_bytes([header[2], header[3]]);
    Some(Syn { offset, options: length - TCP_HEADER, ends })
}

/// Where the SMC option stands among the TCP options.
struct OptionPlaces {
    /// Bit N is set when byte N of the options belongs to an SMC option.
    mask: u64,
}

/// Finds the SMC option among the TCP options; `None` without an SMC option, or with TCP-AO, whose code covers them.
#[inline(always)]
fn find_option(ctx: &TcContext, syn: &Syn) -> Option<OptionPlaces> {
    let found = smc_options(ctx, syn)?;
    if found & AUTHENTICATED != 0 {
        count(Counter::TcpAo);
        return None;
    }
    Some(OptionPlaces { mask: found })
}

/// What the walk of the options says; `None` without an SMC option.
#[inline(always)]
fn smc_options(ctx: &TcContext, syn: &Syn) -> Option<u64> {
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's element; programs of this kind do not interrupt each other on a CPU.
    let scratch = unsafe { &mut *scratch };
    let length = bounded(syn.options);
    // SAFETY: at most MAX_OPTIONS bytes are written to an array of 64.
    let loaded = unsafe {
        bpf_skb_load_bytes_relative(
            ctx.skb.skb.cast(),
            syn.offset + TCP_HEADER,
            scratch.before.as_mut_ptr().cast(),
            length,
            BPF_HDR_START_NET,
        )
    };
    if loaded != 0 {
        return None;
    }
    let found = smc_walk_options(length);
    (found & !AUTHENTICATED != 0).then_some(found)
}

/// Overwrites the SMC options with NOPs and mends the checksum.
#[inline(always)]
fn strip(ctx: &TcContext, syn: &Syn, places: &OptionPlaces) {
    if overwrite(ctx, syn, places).is_none() {
        count(Counter::RewriteFailed);
        diagnose::not_rewritten(syn.offset, syn.options);
    }
}

#[inline(always)]
fn overwrite(ctx: &TcContext, syn: &Syn, places: &OptionPlaces) -> Option<()> {
    let scratch = SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's element, filled by find_option() for this packet.
    let scratch = unsafe { &mut *scratch };
    for at in 0..MAX_OPTIONS {
        scratch.after[at] = if places.mask >> at & 1 == 1 { KIND_NOP as u8 } else { scratch.before[at] };
    }
    let length = bounded(syn.options);
    // Stores count from where the packet's data begins, loads here from the network header.
    let skb = ctx.skb.skb.cast::<u8>().cast_const();
    let head: u64 = read(skb, &OFF_SKB_HEAD)?;
    let data: u64 = read(skb, &OFF_SKB_DATA)?;
    let network: u16 = read(skb, &OFF_SKB_NETWORK_HEADER)?;
    let tcp = (head + u64::from(network)).wrapping_sub(data) as u32 + syn.offset;
    // The whole options are summed, so that an option at an odd place needs no care. The length is a multiple of 4,
    // as the helper wants it.
    // SAFETY: both arrays have 64 bytes, and the length is at most 60.
    let difference = unsafe {
        bpf_csum_diff(
            scratch.before.as_mut_ptr().cast(),
            length,
            scratch.after.as_mut_ptr().cast(),
            length,
            0,
        )
    };
    if difference < 0 {
        return None;
    }
    // No flag to recompute a full checksum of the packet: data and checksum field change by amounts that cancel out.
    // SAFETY: the helpers check their offsets against the packet.
    unsafe {
        if bpf_skb_store_bytes(ctx.skb.skb, tcp + TCP_HEADER, scratch.after.as_ptr().cast(), length, 0) != 0 {
            return None;
        }
        if bpf_l4_csum_replace(ctx.skb.skb, tcp + 16, 0, difference.cast_unsigned(), 0) != 0 {
            // Cannot be: the checksum stands before the options that were just written. If it were so, the packet
            // would be dropped by its receiver and sent again.
            return None;
        }
    }
    Some(())
}

/// State of the socket of this namespace that gets packets with these ends, the peer's port aside, and [`ANY_ADDRESS`] if so;
/// 0 if there is none. Its address goes to `Scratch::receiver`.
#[inline(never)]
fn receiver(ctx: &TcContext, ends: &Endpoints, peer_port: u16) -> u32 {
    // SAFETY: all fields are integers.
    let mut tuple: bpf_sock_tuple = unsafe { core::mem::zeroed() };
    let size = if ends.family == AF_INET {
        // SAFETY: any bytes are valid for the union's IPv4 arm.
        let tuple = unsafe { &mut tuple.__bindgen_anon_1.ipv4 };
        tuple.saddr = word(&ends.peer, 0);
        tuple.daddr = word(&ends.local, 0);
        tuple.sport = peer_port.to_be();
        tuple.dport = ends.local_port.to_be();
        size_of_val(tuple)
    } else {
        // SAFETY: any bytes are valid for the union's IPv6 arm.
        let tuple = unsafe { &mut tuple.__bindgen_anon_1.ipv6 };
        for index in 0..4 {
            tuple.saddr[index] = word(&ends.peer, index);
            tuple.daddr[index] = word(&ends.local, index);
        }
        tuple.sport = peer_port.to_be();
        tuple.dport = ends.local_port.to_be();
        size_of_val(tuple)
    };
    // SAFETY: the tuple lives on this stack; a socket that is returned is released below.
    unsafe {
        let sk = bpf_skc_lookup_tcp(
            ctx.skb.skb.cast(),
            &raw mut tuple,
            size as u32,
            i64::from(BPF_F_CURRENT_NETNS).cast_unsigned(),
            0,
        );
        let Some(found) = sk.as_ref() else { return 0 };
        let address = if ends.family == AF_INET {
            found.src_ip4
        } else {
            found.src_ip6[0] | found.src_ip6[1] | found.src_ip6[2] | found.src_ip6[3]
        };
        let state = found.state | if address == 0 { ANY_ADDRESS } else { 0 };
        // Read back from the map it is a number, and no pointer that could not be used after the release.
        if let Some(scratch) = SCRATCH.get_ptr_mut(0) {
            (*scratch).receiver = sk as u64;
        }
        bpf_sk_release(sk.cast());
        state
    }
}

/// 1 unless this host would forward a packet with these ends, or may not take it: then 0.
#[inline(never)]
fn stays_here(ctx: &TcContext, ends: &Endpoints) -> u32 {
    // SAFETY: all fields are integers.
    let mut question: FibLookup = unsafe { core::mem::zeroed() };
    question.family = ends.family as u8;
    question.l4_protocol = IPPROTO_TCP;
    question.sport = ends.peer_port.to_be();
    question.dport = ends.local_port.to_be();
    // SAFETY: the context is what the kernel gave to this program.
    question.ifindex = unsafe { (*ctx.skb.skb).ifindex };
    let words = |bytes: &[u8; 16]| [word(bytes, 0), word(bytes, 1), word(bytes, 2), word(bytes, 3)];
    // An IPv4 address stands in the first word.
    question.__bindgen_anon_3.ipv6_src = words(&ends.peer);
    question.__bindgen_anon_4.ipv6_dst = words(&ends.local);
    let size = (size_of::<FibLookup>() as u32).cast_signed();
    // SAFETY: the helper reads and writes `size` bytes of the structure, which lives on this stack.
    let answer = unsafe { bpf_fib_lookup(ctx.skb.skb.cast(), &raw mut question, size, 0) };
    u32::from(
        answer == i64::from(BPF_FIB_LKUP_RET_NOT_FWDED) || answer == i64::from(BPF_FIB_LKUP_RET_FWD_DISABLED),
    )
}

/// Inode number of the namespace of the packet's device: tc has no helper for it before 6.15.
#[inline(always)]
fn netns_of_packet(ctx: &TcContext) -> u32 {
    read::<*const u8>(ctx.skb.skb.cast::<u8>(), &OFF_SKB_DEV)
        .and_then(|device| read::<*const u8>(device, &OFF_DEV_NET))
        .and_then(|net| read(net, &OFF_NET_INUM))
        .unwrap_or(0)
}

/// Loads from the packet, counted from its network header.
#[inline(always)]
fn load<T: Copy>(ctx: &TcContext, offset: u32) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes all of the value or fails; every T used here is valid for any bytes.
    unsafe {
        let result = bpf_skb_load_bytes_relative(
            ctx.skb.skb.cast(),
            offset,
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            BPF_HDR_START_NET,
        );
        (result == 0).then(|| value.assume_init())
    }
}

/// The same length (a multiple of 4, from 4 to 40), in bounds that the verifier can see: the compiler knows them already and
/// would leave them out. Arithmetic gives both bounds, of which a comparison with 0 gives old kernels none.
#[inline(always)]
fn bounded(length: u32) -> u32 {
    (hidden(u64::from(length).wrapping_sub(4)) & 0x3c) as u32 + 4
}

#[inline(always)]
fn word(bytes: &[u8; 16], index: usize) -> u32 {
    let at = index * 4;
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
fn put(bytes: &mut [u8; 16], words: [u32; 4]) {
    for (index, word) in words.iter().enumerate() {
        bytes[index * 4..index * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
}
