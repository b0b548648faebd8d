//! `cgroup_mkdir` and `cgroup_rmdir` (include/trace/events/cgroup.h): rules name cgroups by their paths, and a service's cgroup
//! comes and goes with it. The id of a new one is entered before anybody can move a process there, whether an agent runs
//! or not; that of one that goes is taken out.

use aya_ebpf::{
    EbpfContext as _, Global,
    bindings::BPF_ANY,
    helpers::{bpf_probe_read_kernel, bpf_probe_read_kernel_str_bytes},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use smc_agent_common::convert::{ConvertCounter, Dimension, SelectorKey};

use crate::{
    maps::{EXEC_GROUPS, GROUPS, PATH_SCRATCH, Path, SELECTORS, SLOTS, count},
    offsets::{OFF_CGROUP_KN, OFF_CGROUP_ROOT, OFF_KN_ID, OFF_ROOT_HIERARCHY},
};

/// `hierarchy_id` of the unified hierarchy, cgroup v2 (kernel/cgroup/cgroup.c): the first that the kernel makes.
const UNIFIED: i32 = 0;

#[raw_tracepoint(tracepoint = "cgroup_mkdir")]
pub fn smc_cgroup_made(ctx: RawTracePointContext) -> i32 {
    let _ = made(&ctx);
    0
}

#[raw_tracepoint(tracepoint = "cgroup_rmdir")]
pub fn smc_cgroup_gone(ctx: RawTracePointContext) -> i32 {
    let _ = gone(&ctx);
    0
}

#[inline(always)]
fn made(ctx: &RawTracePointContext) -> Option<()> {
    let id = unified_id(argument(ctx, 0))?;
    let path = PATH_SCRATCH.get_ptr_mut(0)?;
    // SAFETY: this CPU's element; the tracepoint is called with a spin lock held, so that none interrupts another.
    let path = unsafe { &mut *path };
    path.fill(0);
    // SAFETY: the tracepoint's second argument is a text that ends with a zero.
    let _ = unsafe { bpf_probe_read_kernel_str_bytes(argument(ctx, 1), path) }.ok()?;
    let path: &Path = path;
    for slot in 0..SLOTS {
        // Both: the next generation may be in the making.
        let (Some(groups), Some(selectors)) = (GROUPS.get(slot), SELECTORS.get(slot)) else { continue };
        // SAFETY: elements are not changed once they are there.
        if let Some(rules) = unsafe { groups.get(path) }.copied()
            && selectors
                .insert(SelectorKey::new(Dimension::Cgroup, id, 0), rules, u64::from(BPF_ANY))
                .is_err()
        {
            count(ConvertCounter::GroupsMissed);
        }
    }
    Some(())
}

#[inline(always)]
fn gone(ctx: &RawTracePointContext) -> Option<()> {
    let id = unified_id(argument(ctx, 0))?;
    for slot in 0..SLOTS {
        if let Some(selectors) = SELECTORS.get(slot) {
            // Mostly there was none.
            let _ = selectors.remove(SelectorKey::new(Dimension::Cgroup, id, 0));
        }
    }
    let _ = EXEC_GROUPS.remove(id);
    Some(())
}

/// An argument of the tracepoint, a pointer.
#[inline(always)]
fn argument(ctx: &RawTracePointContext, number: usize) -> *const u8 {
    // SAFETY: struct bpf_raw_tracepoint_args has the tracepoint's two arguments as 64-bit words.
    unsafe { *ctx.as_ptr().cast::<u64>().cast_const().add(number) as *const u8 }
}

/// Id of a cgroup of the unified hierarchy; `None` for those of others.
#[inline(always)]
fn unified_id(cgroup: *const u8) -> Option<u64> {
    let root: *const u8 = read(cgroup, &OFF_CGROUP_ROOT)?;
    if read::<i32>(root, &OFF_ROOT_HIERARCHY)? != UNIFIED {
        return None;
    }
    read(read(cgroup, &OFF_CGROUP_KN)?, &OFF_KN_ID)
}

/// Reads a `T` with a helper that tolerates any address.
#[inline(always)]
fn read<T>(base: *const u8, offset: &Global<u32>) -> Option<T> {
    // SAFETY: the helper fails on an address that is not mapped; every T that is used here is valid for any bytes.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(offset.load() as usize).cast::<T>()) }.ok()
}
