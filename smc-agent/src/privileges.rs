//! Capabilities of this process: what it has, what is missing, and letting go of what it does not need.

use std::{fs, io};

/// Those that this program uses (uapi/linux/capability.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// `CAP_DAC_READ_SEARCH`: paths of cgroups by their ids, and files of a policy that others own.
    DacReadSearch = 2,
    /// `CAP_NET_BROADCAST`: hearing of the interfaces of other network namespaces.
    NetBroadcast = 11,
    /// `CAP_NET_ADMIN`: traffic control, `net.smc.*`, programs that see packets.
    NetAdmin = 12,
    /// `CAP_SYS_PTRACE`: namespaces that only processes hold.
    SysPtrace = 19,
    /// `CAP_SYS_ADMIN`: types of modules, objects by their ids, other namespaces, mounting; and all that the next two give.
    SysAdmin = 21,
    /// `CAP_SYS_RESOURCE`: room for BPF maps before 5.11.
    SysResource = 24,
    /// `CAP_PERFMON`: programs that trace.
    Perfmon = 38,
    /// `CAP_BPF`: maps and programs.
    Bpf = 39,
}

impl Capability {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Self::NetBroadcast => "CAP_NET_BROADCAST",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysResource => "CAP_SYS_RESOURCE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// The effective ones of this process. Where there is no /proc to read them from, all: the kernel itself will say no.
    pub fn effective() -> Self {
        let status = fs::read_to_string("/proc/self/status");
        Self(status.ok().and_then(|status| effective(&status)).unwrap_or(u64::MAX))
    }

    /// Whether this one is there. What `CAP_SYS_ADMIN` gives is there with it (`bpf_capable()` and `perfmon_capable()`,
    /// include/linux/capability.h).
    pub fn has(self, capability: Capability) -> bool {
        let by_another = match capability {
            Capability::Bpf | Capability::Perfmon => Capability::SysAdmin.bit(),
            _ => 0,
        };
        self.0 & (capability.bit() | by_another) != 0
    }

    /// The names of those of `needed` that are not there.
    pub fn missing(self, needed: &[Capability]) -> Vec<&'static str> {
        needed.iter().filter(|needed| !self.has(**needed)).map(|missing| missing.name()).collect()
    }
}

/// Whether probes need `CAP_SYS_ADMIN`: kernels of some distributions (Debian, Android) know a level of
/// `kernel.perf_event_paranoid` above Linux' own, at which `CAP_PERFMON` opens no probe.
pub fn probes_need_more() -> bool {
    let level = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    level.ok().and_then(|level| level.trim().parse::<i32>().ok()).is_some_and(|level| level > 2)
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Lets go of all capabilities but those of `kept` that are there, of this thread and of all that it starts from now on; to
/// be called while there is no other. What a program that it executes could gain goes too, as far as this process may.
pub fn keep_only(kept: &[Capability]) -> io::Result<()> {
    /// `_LINUX_CAPABILITY_VERSION_3` (uapi/linux/capability.h): two words a set.
    const VERSION: u32 = 0x2008_0522;
    /// More than any kernel knows: unknown ones are refused, which ends the search.
    const LAST: u8 = 63;
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    struct Sets {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    let kept = kept.iter().fold(0, |bits, capability| bits | capability.bit());
    for number in 0..=LAST {
        if kept >> number & 1 == 0 {
            // SAFETY: plain numbers.
            let result = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(number), 0, 0, 0) };
            // Unknown, or this process may not: then its parent has bounded it, or nobody has.
            if result != 0 {
                break;
            }
        }
    }
    let mut header = Header { version: VERSION, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: the header and two sets are what this version of the call reads and writes.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    #[expect(clippy::cast_possible_truncation, reason = "the halves are wanted")]
    let words = [kept as u32, (kept >> 32) as u32];
    for (set, word) in sets.iter_mut().zip(words) {
        set.effective &= word;
        set.permitted &= word;
        set.inheritable &= word;
    }
    // SAFETY: as above.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        let needed = [Capability::NetAdmin, Capability::SysAdmin, Capability::Bpf];
        assert!(Capabilities(0x1ff_ffff_ffff).missing(&needed).is_empty());
        assert_eq!(Capabilities(1 << 12).missing(&needed), ["CAP_SYS_ADMIN", "CAP_BPF"]);
        assert_eq!(Capabilities(1 << 21).missing(&needed), ["CAP_NET_ADMIN"]);
        assert_eq!(Capabilities(1 << 39).missing(&needed), ["CAP_NET_ADMIN", "CAP_SYS_ADMIN"]);
    }

    #[test]
    fn what_is_not_kept_is_gone_in_this_thread() {
        let after = std::thread::spawn(|| {
            keep_only(&[Capability::NetAdmin]).unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            effective(&status).unwrap()
        });
        let after = after.join().unwrap();
        assert_eq!(after & !Capability::NetAdmin.bit(), 0, "{after:x}");
    }
}
