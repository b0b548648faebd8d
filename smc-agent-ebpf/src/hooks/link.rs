//! The raw tracepoint `smcr_link_down(const struct smc_link *lnk, void *location)` (`net/smc/smc_tracepoint.h`, 5.16 and
//! later): a link of an SMC-R link group goes down.

use aya_ebpf::{
    EbpfContext as _, helpers::bpf_probe_read_kernel_str_bytes, macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use smc_agent_common::EventKind;

use crate::{
    emit::emit,
    kernel::{AF_INET6, Endpoints, cookie_of_net, read},
    offsets::{
        ABSENT, OFF_LGR_ID, OFF_LGR_NET, OFF_LGR_SMC_VERSION, OFF_LNK_CONN_CNT, OFF_LNK_GID, OFF_LNK_IBNAME,
        OFF_LNK_IBPORT, OFF_LNK_ID, OFF_LNK_LGR, OFF_LNK_PEER_GID, OFF_NET_INUM,
    },
};

#[raw_tracepoint(tracepoint = "smcr_link_down")]
pub fn smc_link_down(ctx: RawTracePointContext) -> i32 {
    // SAFETY: struct bpf_raw_tracepoint_args has the tracepoint's first argument as its first word.
    let link = unsafe { *ctx.as_ptr().cast::<u64>() } as *const u8;
    let _ = report(link);
    0
}

#[inline(always)]
fn report(link: *const u8) -> Option<()> {
    let group: *const u8 = read(link, &OFF_LNK_LGR)?;
    // A GID has the form of an IPv6 address.
    let ends = Endpoints {
        family: AF_INET6,
        local: read(link, &OFF_LNK_GID)?,
        peer: read(link, &OFF_LNK_PEER_GID)?,
        local_port: 0,
        peer_port: 0,
    };
    emit(EventKind::LinkDown, &ends, 0, |event| {
        if let Some(net) = read::<*const u8>(group, &OFF_LGR_NET) {
            event.netns = read(net, &OFF_NET_INUM).unwrap_or(0);
            event.netns_cookie = cookie_of_net(net);
        }
        event.link_group = read(group, &OFF_LGR_ID).unwrap_or(0);
        event.smc_version = read(group, &OFF_LGR_SMC_VERSION).unwrap_or(0);
        event.link = read(link, &OFF_LNK_ID).unwrap_or(0);
        event.device_port = read(link, &OFF_LNK_IBPORT).unwrap_or(0);
        if OFF_LNK_CONN_CNT.load() != ABSENT {
            event.connections = read(link, &OFF_LNK_CONN_CNT).unwrap_or(0);
        }
        let name = link.wrapping_add(OFF_LNK_IBNAME.load() as usize);
        // SAFETY: the helper checks the address, and writes at most as many bytes as the field has. A name that cannot be
        // read stays empty.
        let _ = unsafe { bpf_probe_read_kernel_str_bytes(name, &mut event.device) };
    });
    Some(())
}
