//! Programs for tests and measurements, which run them with `BPF_PROG_TEST_RUN`. They judge flows from a map by the
//! very functions that the hooks use. Never part of smc-agent itself.
//!
//! Each run takes the next flow of [`FLOWS`]. What is measured is a difference: that to `probe_keys`, which does the
//! same but for the judging.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(unreachable_pub, reason = "the crate is one program: nothing is exported but its sections")]
#![expect(missing_docs, reason = "what the macros make has none")]
#![expect(
    clippy::inline_always,
    reason = "what is not inlined is a call to the verifier: it is chosen where it pays"
)]
#![expect(
    clippy::cast_possible_truncation,
    reason = "registers have 64 bits: a cast takes the part that is meant"
)]

#[path = "../decision.rs"]
#[expect(dead_code, reason = "what only the hooks use")]
mod decision;
#[path = "../emit.rs"]
mod emit;
#[path = "../kernel.rs"]
#[expect(dead_code, reason = "what only the hooks use")]
mod kernel;
#[path = "../maps.rs"]
#[expect(dead_code, reason = "what only the hooks use")]
mod maps;
#[path = "../offsets.rs"]
#[expect(dead_code, reason = "what only the hooks use")]
mod offsets;
#[path = "../table.rs"]
#[expect(dead_code, reason = "what only the hooks use")]
mod table;

use aya_ebpf::{
    Global,
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_HDR_OPT_LEN_CB, BPF_SOCK_OPS_TCP_CONNECT_CB,
        BPF_SOCK_OPS_WRITE_HDR_OPT_CB, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG,
    },
    btf_maps::{Array, LpmTrie, lpm_trie::Key},
    helpers::{bpf_reserve_hdr_opt, bpf_store_hdr_opt},
    macros::{btf_map, classifier, sock_ops},
    programs::{SockOpsContext, TcContext},
};
use smc_agent_common::{
    Address, Decision, EventKind, Flow, OwnerSeen, Role, Verdict,
    table::{PEER_V4, PEER_V6},
};

use crate::{decision::smc_classify, table::KernelTable};

/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`).
const PEER_NO_SMC: u32 = 0x0301_0000;

/// A flow in a map.
#[repr(C)]
pub struct ProbeFlow {
    /// As `Address::words`.
    peer: [u32; 4],
    /// As `Address::words`.
    local: [u32; 4],
    port: u32,
    /// As `Role`.
    role: u32,
}

/// Where a run is.
#[repr(C)]
pub struct Cursor {
    next: u64,
    sum: u64,
    /// Unless 0, each run waits for what the one before came to; the processor would do several at a time.
    wait: u64,
}

/// The flows; user space says how many (a power of 2) by the size that it gives the map and by [`MASK`].
#[btf_map]
static FLOWS: Array<ProbeFlow, 1> = Array::new();
/// What became of each flow: see `result`.
#[btf_map]
static RESULTS: Array<u64, 1> = Array::new();
#[btf_map]
static CURSOR: Array<Cursor, 1> = Array::new();
/// An array of the table's size, for a random load.
#[btf_map]
static LOADS: Array<u64, 1> = Array::new();
#[btf_map]
static TRIE_V4: LpmTrie<[u8; 4], u32, 1> = LpmTrie::new();
#[btf_map]
static TRIE_V6: LpmTrie<[u8; 16], u32, 1> = LpmTrie::new();

/// Number of flows, less 1.
#[unsafe(no_mangle)]
static MASK: Global<u32> = Global::new(0);
/// Number of elements of [`LOADS`].
#[unsafe(no_mangle)]
static LOAD_COUNT: Global<u32> = Global::new(1);
/// Zero, which the compiler does not know.
#[unsafe(no_mangle)]
static ZERO: Global<u32> = Global::new(0);
/// Whether to write [`RESULTS`].
#[unsafe(no_mangle)]
static WRITE: Global<u32> = Global::new(0);

/// Takes the next flow, and keeps what `use_it` makes of it, so that nothing is optimised away.
#[inline(always)]
fn with_next(use_it: impl FnOnce(u32, &ProbeFlow) -> Option<u64>) -> i32 {
    let Some(cursor) = CURSOR.get_ptr_mut(0) else { return -1 };
    // SAFETY: the map has one element, and tests run one program at a time on it.
    let cursor = unsafe { &mut *cursor };
    let mut next = cursor.next as u32;
    if cursor.wait != 0 {
        next = next.wrapping_add(cursor.sum as u32 & ZERO.load());
    }
    let index = next & MASK.load();
    cursor.next += 1;
    let Some(flow) = FLOWS.get(index) else { return -1 };
    let Some(value) = use_it(index, flow) else { return -1 };
    cursor.sum = cursor.sum.wrapping_add(value);
    0
}

#[inline(always)]
fn flow_of(flow: &ProbeFlow) -> Flow {
    Flow {
        peer: Address::v6(flow.peer),
        local: Address::v6(flow.local),
        port: flow.port as u16,
        role: if flow.role == Role::Server as u32 { Role::Server } else { Role::Client },
    }
}

/// A decision as user space reads it: the rule, the verdict (bit 16: deny), log (17), decided (18), and the generation
/// in the upper half.
#[inline(always)]
fn result(decision: Option<Decision>, generation: u64) -> u64 {
    let Some(decision) = decision else { return 0 };
    let deny = u64::from(decision.verdict == Verdict::Deny);
    u64::from(decision.rule) | deny << 16 | u64::from(decision.log) << 17 | 1 << 18 | generation << 32
}

/// Nothing: what a run costs by itself.
#[classifier]
pub fn probe_empty(_: TcContext) -> i32 {
    0
}

/// The flow is read and not judged.
#[classifier]
pub fn probe_keys(_: TcContext) -> i32 {
    with_next(|_, flow| {
        let flow = flow_of(flow);
        Some(flow.peer.high() ^ flow.peer.low() ^ flow.local.high() ^ u64::from(flow.port))
    })
}

/// The whole decision, with its counters.
#[classifier]
pub fn probe_decide(_: TcContext) -> i32 {
    with_next(|index, flow| {
        let table = KernelTable::in_force()?;
        let decision = decision::decide_and_count(&flow_of(flow), &table).map(|judged| judged.decision);
        let result = result(decision, table.generation());
        if WRITE.load() != 0 {
            let place = RESULTS.get_ptr_mut(index)?;
            // SAFETY: the element is there, and user space reads it only after the run.
            unsafe { *place = result };
        }
        Some(result)
    })
}

/// Only the class of the peer.
#[classifier]
pub fn probe_peer(_: TcContext) -> i32 {
    with_next(|_, flow| {
        let table = KernelTable::in_force()?;
        let flow = flow_of(flow);
        let dimension =
            if matches!(flow.peer.family(), smc_agent_common::Family::V6) { PEER_V6 } else { PEER_V4 };
        Some(u64::from(smc_classify(table.slot(), dimension as u32, flow.peer.high(), flow.peer.low())))
    })
}

/// The peer in the kernel's own trie.
#[classifier]
pub fn probe_lpm_v4(_: TcContext) -> i32 {
    with_next(|_, flow| {
        let found = TRIE_V4.get(&Key::new(32, flow.peer[3].to_be_bytes()));
        Some(found.map_or(0, |value| u64::from(*value)))
    })
}

/// The peer in the kernel's own trie.
#[classifier]
pub fn probe_lpm_v6(_: TcContext) -> i32 {
    with_next(|_, flow| {
        let words = flow.peer.map(u32::to_be);
        // SAFETY: both are 16 bytes of plain integers.
        let bytes: [u8; 16] = unsafe { core::mem::transmute(words) };
        let found = TRIE_V6.get(&Key::new(128, bytes));
        Some(found.map_or(0, |value| u64::from(*value)))
    })
}

/// One random load of 8 bytes.
#[classifier]
pub fn probe_load(_: TcContext) -> i32 {
    with_next(|index, flow| {
        let mixed = (flow.peer[3] ^ flow.peer[1] ^ index).wrapping_mul(0x9e37_79b9);
        let place = ((u64::from(mixed) * u64::from(LOAD_COUNT.load())) >> 32) as u32;
        LOADS.get(place).copied()
    })
}

/// An event, as the hooks make one of a fallback: of so many clients in turn as there are flows.
#[classifier]
pub fn probe_event(_: TcContext) -> i32 {
    with_next(|index, flow| {
        let mut ends = kernel::Endpoints {
            family: kernel::AF_INET,
            local: [0; 16],
            peer: [0; 16],
            local_port: 443,
            peer_port: 0,
        };
        ends.local[..4].copy_from_slice(&[10, 0, 0, 1]);
        ends.peer[..4].copy_from_slice(&flow.peer[3].to_be_bytes());
        ends.peer_port = index as u16;
        let role = Role::Server as u32;
        if !emit::too_many(&ends, PEER_NO_SMC, role) {
            emit::emit(EventKind::Fallback, &ends, role, |event| {
                event.netns = 4_026_531_840;
                event.netns_cookie = 1;
                event.code = PEER_NO_SMC;
                event.owner.pid = 1;
                event.owner.seen = OwnerSeen::Listen as u8;
                event.owner.comm[..5].copy_from_slice(b"probe");
            });
        }
        Some(u64::from(index))
    })
}

/// The SMC option (RFC 7609, appendix A): kind, length, "SMCR" in EBCDIC.
static SMC_OPTION: [u8; 6] = [0xfe, 0x06, 0xe2, 0xd4, 0xc3, 0xd9];

/// Puts the SMC option into the SYNs of plain TCP sockets.
#[sock_ops]
#[expect(clippy::needless_pass_by_value, reason = "so the macro calls it")]
pub fn probe_smc_option(ctx: SockOpsContext) -> u32 {
    /// SYN among the flags of TCP (RFC 9293, section 3.1).
    const SYN: u32 = 0x02;
    let flag = BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG.cast_signed();
    // SAFETY: the context is what the kernel gave to this program.
    let flags = unsafe { (*ctx.ops).skb_tcp_flags };
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => drop(ctx.set_cb_flags(ctx.cb_flags().cast_signed() | flag)),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => drop(ctx.set_cb_flags(ctx.cb_flags().cast_signed() & !flag)),
        BPF_SOCK_OPS_HDR_OPT_LEN_CB if flags & SYN != 0 => {
            // SAFETY: the context is the kernel's.
            unsafe { bpf_reserve_hdr_opt(ctx.ops, SMC_OPTION.len() as u32, 0) };
        }
        BPF_SOCK_OPS_WRITE_HDR_OPT_CB if flags & SYN != 0 => {
            // SAFETY: the context is the kernel's, and the option is as long as is said.
            unsafe {
                bpf_store_hdr_opt(ctx.ops, SMC_OPTION.as_ptr().cast(), SMC_OPTION.len() as u32, 0);
            };
        }
        _ => {}
    }
    1
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: code that could panic does not pass the verifier.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
