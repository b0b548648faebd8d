//! What rules ask of the process that makes a socket.
//!
//! Fields are read through pointers that the verifier knows the types of: the kernel makes such loads safe, and they cost
//! an instruction each where a helper would cost a call.

use aya_ebpf::{
    Global,
    helpers::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_task_btf, bpf_get_current_uid_gid,
        bpf_ktime_get_ns,
    },
};
use smc_agent_common::convert::{ConvertRules, Name, Owner, SelectorKey};

use crate::{
    maps::Selectors,
    offsets::{
        OFF_FILE_INODE, OFF_INODE_INO, OFF_INODE_SB, OFF_MM_EXE, OFF_NET_COOKIE, OFF_NSPROXY_NET, OFF_SB_DEV,
        OFF_TASK_COMM, OFF_TASK_LEADER, OFF_TASK_MM, OFF_TASK_NSPROXY,
    },
};

/// The process that runs, and the selectors of one generation.
pub struct Current<'a> {
    selectors: &'a Selectors,
    task: *const u8,
}

impl<'a> Current<'a> {
    #[inline(always)]
    pub fn new(selectors: &'a Selectors) -> Self {
        // SAFETY: the helper takes nothing and gives the running task.
        let task = unsafe { bpf_get_current_task_btf() }.cast_const().cast();
        Self { selectors, task }
    }
}

/// Loads a field of the structure at `base`, which is not null.
#[inline(always)]
fn load<T>(base: *const u8, offset: &Global<u32>) -> T {
    // SAFETY: `base` is a pointer whose type the verifier knows, and it checks that the field is one; a page that is not
    // there reads as zero. Every T that is used here is valid for any bytes.
    unsafe { core::ptr::read_volatile(base.wrapping_add(offset.load() as usize).cast::<T>()) }
}

/// Follows a pointer field; `None` if it is null.
#[inline(always)]
fn follow(base: *const u8, offset: &Global<u32>) -> Option<*const u8> {
    let pointer: *const u8 = load(base, offset);
    (!pointer.is_null()).then_some(pointer)
}

impl Owner for Current<'_> {
    #[inline(always)]
    fn rules(&self, key: &SelectorKey) -> Option<ConvertRules> {
        // SAFETY: elements are not changed while their generation is in force, but for those of cgroups that have gone,
        // which are freed only after this program has ended.
        unsafe { self.selectors.get(key) }.copied()
    }

    #[inline(always)]
    fn cgroup(&self, level: u32) -> u64 {
        // SAFETY: the helper takes a number.
        unsafe { bpf_get_current_ancestor_cgroup_id(level.cast_signed()) }
    }

    #[inline(always)]
    fn uid(&self) -> u32 {
        bpf_get_current_uid_gid() as u32
    }

    #[inline(always)]
    fn gid(&self) -> u32 {
        (bpf_get_current_uid_gid() >> 32) as u32
    }

    #[inline(always)]
    fn comm(&self) -> Name {
        // The kernel fills the name up with zeros (strscpy_pad() in __set_task_comm(), fs/exec.c).
        match follow(self.task, &OFF_TASK_LEADER) {
            Some(leader) => {
                let at = OFF_TASK_COMM.load() as usize;
                // SAFETY: as in `load`; the name has 16 bytes.
                unsafe {
                    Name([
                        core::ptr::read_volatile(leader.wrapping_add(at).cast()),
                        core::ptr::read_volatile(leader.wrapping_add(at + 8).cast()),
                    ])
                }
            }
            None => Name([0; 2]),
        }
    }

    #[inline(always)]
    fn exe(&self) -> Option<(u64, u64)> {
        let mm = follow(self.task, &OFF_TASK_MM)?;
        let file = follow(mm, &OFF_MM_EXE)?;
        let inode = follow(file, &OFF_FILE_INODE)?;
        let super_block = follow(inode, &OFF_INODE_SB)?;
        Some((u64::from(load::<u32>(super_block, &OFF_SB_DEV)), load(inode, &OFF_INODE_INO)))
    }

    #[inline(always)]
    fn netns(&self) -> Option<u64> {
        let namespaces = follow(self.task, &OFF_TASK_NSPROXY)?;
        let net = follow(namespaces, &OFF_NSPROXY_NET)?;
        Some(load(net, &OFF_NET_COOKIE))
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        // SAFETY: the helper takes nothing and only reads the clock.
        unsafe { bpf_ktime_get_ns() }
    }
}
