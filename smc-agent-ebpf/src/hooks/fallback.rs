//! The raw tracepoint `smc_switch_to_fallback(const struct smc_sock *smc, int reason)` (`net/smc/smc_tracepoint.h`,
//! 5.16 and later): an SMC socket's connection goes on as plain TCP.

use aya_ebpf::{
    EbpfContext as _, helpers::bpf_ktime_get_ns, macros::raw_tracepoint, programs::RawTracePointContext,
};
use smc_agent_common::{EVENT_DENIED, Event, EventKind, RULE_DEFAULT, Refusal, Role};

use crate::{
    judge::{emit, refusal_of_client, refusal_of_server},
    kernel::{Endpoints, netns_of_sock, read},
    offsets::{OFF_SMC_CLCSOCK, OFF_SMC_LISTEN, OFF_SMC_PEER_DIAGNOSIS, OFF_SOCKET_SK},
};

/// `SMC_CLC_DECL_PEERNOSMC` (`net/smc/smc_clc.h`): what both ends see when the option was refused.
const PEER_NO_SMC: u32 = 0x0301_0000;

#[raw_tracepoint(tracepoint = "smc_switch_to_fallback")]
pub fn smc_fallback(ctx: RawTracePointContext) -> i32 {
    let arguments = ctx.as_ptr().cast::<u64>().cast_const();
    // SAFETY: struct bpf_raw_tracepoint_args has the tracepoint's two arguments as 64-bit words.
    let (smc, reason) = unsafe { (*arguments as *const u8, *arguments.add(1)) };
    let _ = report(smc, reason as u32);
    0
}

#[inline(always)]
fn report(smc: *const u8, code: u32) -> Option<()> {
    let socket: *const u8 = read(smc, &OFF_SMC_CLCSOCK)?;
    let sk: *const u8 = read(socket, &OFF_SOCKET_SK)?;
    let ends = Endpoints::of(sk)?;
    let netns = netns_of_sock(sk);
    let role = if read::<u64>(smc, &OFF_SMC_LISTEN)? == 0 { Role::Client } else { Role::Server };
    let peer_code = read(smc, &OFF_SMC_PEER_DIAGNOSIS).unwrap_or(0);
    let mut refusal = Refusal { generation: 0, rule: RULE_DEFAULT, reserved: [0; 3] };
    let denied = match (code, role) {
        (PEER_NO_SMC, Role::Client) => refusal_of_client(&ends, netns, &mut refusal),
        (PEER_NO_SMC, Role::Server) => refusal_of_server(&ends, netns, &mut refusal),
        _ => 0,
    };
    emit(|event| {
        *event = Event {
            // SAFETY: the helper takes nothing and only reads the clock.
            time: unsafe { bpf_ktime_get_ns() },
            generation: refusal.generation,
            netns,
            kind: EventKind::Fallback as u16,
            family: ends.family,
            local: ends.local,
            peer: ends.peer,
            local_port: ends.local_port,
            peer_port: ends.peer_port,
            code,
            peer_code,
            rule: refusal.rule,
            role: role as u8,
            flags: if denied == 1 { EVENT_DENIED } else { 0 },
        };
    });
    Some(())
}
