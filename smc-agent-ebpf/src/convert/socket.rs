//! `update_socket_protocol(int family, int type, int protocol)` (net/socket.c, 6.6; net/mptcp/bpf.c lets programs change what
//! it returns): asked once for each socket(2), before the socket is made. What a program returns takes the protocol's
//! place; 0 is "not mine".

use aya_ebpf::cty::c_void;
use smc_agent_common::convert::{
    CONVERT_DEFAULT, ConvertCounter, Dimension, IPPROTO_SMC, MAX_LEVELS, Owner, SelectorKey,
    decide_conversion, is_life_line, is_tcp,
};

use crate::{
    maps::{CONVERT_SLOT, CONVERT_TABLE, EXEC_GROUPS, EXEC_LEVELS, SELECTORS, count, hit},
    task::Current,
};

const NOT_MINE: i32 = 0;

/// The section's name is one that the object parser knows; the agent's own loader loads it as what it is.
#[unsafe(no_mangle)]
#[unsafe(link_section = "fentry/convert/update_socket_protocol")]
pub extern "C" fn smc_convert(ctx: *mut c_void) -> i32 {
    let arguments = ctx.cast::<u64>().cast_const();
    // SAFETY: the context has the function's three arguments as 64-bit words.
    let (family, kind, protocol) =
        unsafe { (*arguments as i32, *arguments.add(1) as i32, *arguments.add(2) as i32) };
    if is_tcp(family, kind, protocol) && convert() == Some(true) { IPPROTO_SMC } else { NOT_MINE }
}

/// Whether the socket is to be converted; `None` if there are no rules yet.
#[inline(always)]
fn convert() -> Option<bool> {
    let slot = *CONVERT_SLOT.get(0)?;
    let table = CONVERT_TABLE.get(slot)?;
    let owner = Current::new(SELECTORS.get(slot)?);
    let levels = *EXEC_LEVELS.get(0)?;
    if levels != 0 && is_under_exec(&owner, levels) {
        count(ConvertCounter::Exec);
        return Some(true);
    }
    let decided = decide_conversion(table, &owner);
    if !decided.on {
        // Sockets that no rule is about pass without a trace.
        if decided.rule != CONVERT_DEFAULT {
            hit(slot, decided.rule);
        }
        return Some(false);
    }
    if let Some((device, inode)) = owner.exe()
        && owner.rules(&SelectorKey::new(Dimension::Own, device, inode)).is_some()
    {
        count(ConvertCounter::Own);
        return Some(false);
    }
    if !decided.named && is_life_line(&owner, owner.comm()) {
        count(ConvertCounter::LifeLine);
        return Some(false);
    }
    hit(slot, decided.rule);
    Some(true)
}

/// Whether the process is in a cgroup of `smc-agent exec`, or below one.
#[inline(always)]
fn is_under_exec(owner: &impl Owner, levels: u64) -> bool {
    for level in 0..MAX_LEVELS {
        let rest = levels >> level;
        if rest == 0 {
            break;
        }
        if rest & 1 != 0 {
            let id = owner.cgroup(level);
            if id == 0 {
                break;
            }
            // SAFETY: only whether there is an element is asked.
            if unsafe { EXEC_GROUPS.get(id) }.is_some() {
                return true;
            }
        }
    }
    false
}
