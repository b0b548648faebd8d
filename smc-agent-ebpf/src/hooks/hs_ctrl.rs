//! The members of `struct smc_hs_ctrl` (`include/net/smc.h`, kernel 6.19 and later): they say whether a SYN and a
//! SYN-ACK carry the SMC option. The kernel calls them for retransmissions too, and a refusal is final there
//! (`tp->syn_smc` and `ireq->smc_ok` are overwritten). What must not happen is that an allowed handshake is refused
//! half way, because the ends would then disagree: both members keep an allowing verdict for a retransmission.

use aya_ebpf::{cty::c_void, programs::FEntryContext};
use smc_agent_common::{Counter, Role, Verdict};

use crate::{
    judge::judge,
    kernel::{Endpoints, netns_of_sock, read},
    maps::count,
    offsets::{OFF_RSK_SNT_SYNACK, OFF_TP_SEGS_OUT},
};

const WITHOUT_OPTION: i32 = 0;
const WITH_OPTION: i32 = 1;

#[inline(always)]
fn answer(verdict: Verdict) -> i32 {
    match verdict {
        Verdict::Allow => WITH_OPTION,
        Verdict::Deny => WITHOUT_OPTION,
    }
}

/// `syn_option(struct tcp_sock *tp)`. The section's name is one that the object parser knows; the agent's own
/// loader loads it as what it is.
#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/struct_ops/smc_hs_ctrl/syn_option")]
pub extern "C" fn hs_syn_option(ctx: *mut c_void) -> i32 {
    let tp: *const u8 = FEntryContext::new(ctx).arg(0);
    // Called only while the option is still on: a SYN that went out before had it, so this one keeps it
    // (net/ipv4/tcp_output.c counts segs_out after the options are written).
    if read::<u32>(tp, &OFF_TP_SEGS_OUT).unwrap_or(0) != 0 {
        count(Counter::VerdictKept);
        return WITH_OPTION;
    }
    let Some(ends) = Endpoints::of(tp) else {
        count(Counter::Undecided);
        return WITH_OPTION;
    };
    answer(judge(&ends, Role::Client, tp as u64, 0, netns_of_sock(tp)))
}

/// `synack_option(const struct tcp_sock *tp, struct inet_request_sock *ireq)`: both the listener and the client's
/// SYN have the option.
#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/struct_ops/smc_hs_ctrl/synack_option")]
pub extern "C" fn hs_synack_option(ctx: *mut c_void) -> i32 {
    let context = FEntryContext::new(ctx);
    let (listener, request): (*const u8, *const u8) = (context.arg(0), context.arg(1));
    let Some(ends) = Endpoints::of(request) else {
        count(Counter::Undecided);
        return WITH_OPTION;
    };
    // tcp_make_synack() stamps the first SYN-ACK before it asks for the option: a stamp from before the table
    // was put in force means that the request was judged by the table before. With SYN cookies there is no
    // request to stamp (0), and no SMC either.
    let first_sent = read::<u64>(request, &OFF_RSK_SNT_SYNACK).unwrap_or(0).wrapping_mul(1000);
    answer(judge(&ends, Role::Server, listener as u64, first_sent, netns_of_sock(request)))
}
