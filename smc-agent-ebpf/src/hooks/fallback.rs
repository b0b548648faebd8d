//! An SMC socket's connection goes on as plain TCP: the raw tracepoint
//! `smc_switch_to_fallback(const struct smc_sock *smc, int reason)` (`net/smc/smc_tracepoint.h`, 5.16 and later). Where
//! the kernel has none it stores the reason only after the switch, and is caught where it comes by next: a client's
//! connection at `smc_copy_sock_settings_to_clc`, a server's at `smc_listen_out`, both with the socket as first argument.

use aya_ebpf::{
    EbpfContext as _,
    macros::{kprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext},
};
use smc_agent_common::{Counter, EVENT_DENIED, EventKind, OwnerSeen, RULE_DEFAULT, Refusal, Role};

use super::{
    handshake,
    owner::{owner_of, record},
    setup::take_setup,
    socket::{Socket, TCP_CLOSE},
};
use crate::{
    emit::{emit, too_many},
    judge::{refusal_of_client, refusal_of_server},
    kernel::{cookie_of_net, net_of_sock, netns_of_sock, read},
    maps::{SETUPS, count},
    offsets::{FALLBACK_BY_PROBE, OFF_SMC_FALLBACK_RSN, OFF_SMC_USE_FALLBACK},
};

/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`): what both ends see when the option was refused.
const PEER_NO_SMC: u32 = 0x0301_0000;
/// `SMC_CLC_DECL_OPTUNSUPP`: TCP Fast Open was asked for, of a socket without a connection.
const OPTION: u32 = 0x0306_0000;

#[raw_tracepoint(tracepoint = "smc_switch_to_fallback")]
pub fn smc_fallback(ctx: RawTracePointContext) -> i32 {
    let arguments = ctx.as_ptr().cast::<u64>().cast_const();
    // SAFETY: struct bpf_raw_tracepoint_args has the tracepoint's two arguments as 64-bit words.
    let (smc, reason) = unsafe { (*arguments as *const u8, *arguments.add(1)) };
    if let Some(socket) = Socket::of(smc) {
        if socket.is_unconnected() && !socket.has_owner() {
            // Nothing but a system call of a process makes a socket fall back before it has a connection.
            record(smc, OwnerSeen::FastOpen, 0);
        }
        report(&socket, reason as u32);
    }
    0
}

/// Reports at the end of a socket that it fell back before it had a connection: there the kernel comes by nowhere else.
#[inline(always)]
pub fn at_the_end(smc: *const u8) {
    if read::<u32>(smc, &OFF_SMC_FALLBACK_RSN) == Some(OPTION)
        && let Some(socket) = Socket::of(smc)
        && socket.role == Role::Client
    {
        after_the_switch(&socket);
    }
}

/// `smc_copy_sock_settings_to_clc(struct smc_sock *smc)`: also called before a connection is made, and by listeners.
#[kprobe]
pub fn smc_client_settled(ctx: ProbeContext) -> u32 {
    if let Some(socket) = ctx.arg(0).and_then(Socket::of)
        && socket.role == Role::Client
        && socket.ends.peer_port != 0
    {
        after_the_switch(&socket);
    }
    0
}

/// `smc_listen_out(struct smc_sock *new_smc)`: a server is done with a handshake, however it ended.
#[kprobe]
pub fn smc_server_settled(ctx: ProbeContext) -> u32 {
    if let Some(socket) = ctx.arg(0).and_then(Socket::of)
        && socket.role == Role::Server
    {
        if FALLBACK_BY_PROBE.load() != 0 {
            after_the_switch(&socket);
        }
        if socket.state() == Some(TCP_CLOSE) {
            handshake::report(&socket, socket.error());
        }
        // A connection over the second device that was tried has no use for the first, and nothing else may find it here.
        let _ = SETUPS.remove(socket.smc as u64);
    }
    0
}

/// Reports a fallback that has happened before, if one has.
#[inline(always)]
fn after_the_switch(socket: &Socket) {
    /// Classes of the codes that Linux has had: the highest byte.
    const CLASSES: core::ops::RangeInclusive<u32> = 1..=9;
    let fell_back: Option<u8> = read(socket.smc, &OFF_SMC_USE_FALLBACK);
    let code: Option<u32> = read(socket.smc, &OFF_SMC_FALLBACK_RSN);
    match (fell_back, code) {
        (Some(0), _) => {}
        (Some(1), Some(code)) if CLASSES.contains(&(code >> 24)) => report(socket, code),
        // Where the layout is from a table, the kernel may have been built with another one.
        _ => count(Counter::LayoutRefused),
    }
}

#[inline(always)]
fn report(socket: &Socket, code: u32) {
    let (ends, role) = (&socket.ends, socket.role_of_fallback());
    if too_many(ends, code, role as u32) {
        return;
    }
    let netns = netns_of_sock(socket.sk);
    let mut refusal = Refusal { generation: 0, rule: RULE_DEFAULT, reserved: [0; 3] };
    let denied = match (code, role) {
        (PEER_NO_SMC, Role::Client) => refusal_of_client(ends, netns, &mut refusal),
        (PEER_NO_SMC, Role::Server) => refusal_of_server(ends, netns, &mut refusal),
        _ => 0,
    };
    emit(EventKind::Fallback, ends, role as u32, |event| {
        event.generation = refusal.generation;
        event.netns = netns;
        event.netns_cookie = net_of_sock(socket.sk).map_or(0, cookie_of_net);
        event.code = code;
        event.peer_code = socket.peer_code();
        event.rule = refusal.rule;
        event.flags = if denied == 1 { EVENT_DENIED } else { 0 };
        owner_of(socket, &mut event.owner);
        take_setup(socket, event);
    });
}
