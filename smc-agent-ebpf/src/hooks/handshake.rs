//! SMC handshakes that fail with no connection left. (A server's are seen at `smc_listen_out`: see `fallback`.)

use aya_ebpf::{macros::kprobe, programs::ProbeContext};
use smc_agent_common::EventKind;

use super::{owner::owner_of, setup::take_setup, socket::Socket};
use crate::{
    emit::{emit, too_many},
    kernel::{cookie_of_net, net_of_sock, netns_of_sock},
};

/// `smc_connect_decline_fallback(struct smc_sock *smc, int reason_code, …)`: a negative reason is an error, after which
/// there is no falling back.
#[kprobe]
pub fn smc_client_failed(ctx: ProbeContext) -> u32 {
    let Some(reason) = ctx.arg::<i32>(1) else { return 0 };
    if reason < 0
        && let Some(socket) = ctx.arg(0).and_then(Socket::of)
    {
        report(&socket, reason.unsigned_abs());
    }
    0
}

/// Reports that there is no connection; `error` is the error number, 0 if it is not known.
#[inline(always)]
pub fn report(socket: &Socket, error: u32) {
    let role = socket.role as u32;
    // No code has the number of an error.
    if too_many(&socket.ends, error, role) {
        return;
    }
    emit(EventKind::HandshakeError, &socket.ends, role, |event| {
        event.netns = netns_of_sock(socket.sk);
        event.netns_cookie = net_of_sock(socket.sk).map_or(0, cookie_of_net);
        event.error = error;
        event.peer_code = socket.peer_code();
        owner_of(socket, &mut event.owner);
        take_setup(socket, event);
    });
}
