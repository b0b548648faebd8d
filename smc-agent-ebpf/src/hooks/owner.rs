//! Whose sockets are. Handshakes happen in threads of the kernel, where the current process is nobody's; so the process
//! is recorded where it is sure to be the one: when it makes, connects or listens on a socket.

use aya_ebpf::{
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
    },
    macros::kprobe,
    programs::ProbeContext,
};
use smc_agent_common::{Owner, OwnerSeen, Role};

use super::socket::Socket;
use crate::{kernel::read, maps::OWNERS, offsets::OFF_SOCKET_SK};

/// `smc_create_clcsk(struct net *net, struct sock *sk, int family)` (6.11 and later): an SMC socket is made.
#[kprobe]
pub fn smc_owner_socket(ctx: ProbeContext) -> u32 {
    if let Some(smc) = ctx.arg(1) {
        record(smc, OwnerSeen::Socket);
    }
    0
}

/// `smc_connect(struct socket *sock, …)`
#[kprobe]
pub fn smc_owner_connect(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        record(smc, OwnerSeen::Connect);
    }
    0
}

/// `smc_listen(struct socket *sock, int backlog)`
#[kprobe]
pub fn smc_owner_listen(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        record(smc, OwnerSeen::Listen);
    }
    0
}

/// `smc_release(struct socket *sock)`: the last descriptor of a socket was closed.
#[kprobe]
pub fn smc_owner_release(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        // Most have no owner: connections that were accepted.
        let _ = OWNERS.remove(smc as u64);
    }
    0
}

/// The `struct smc_sock` of the `struct socket` that is the first argument.
#[inline(always)]
fn socket_of(ctx: &ProbeContext) -> Option<*const u8> {
    let smc: *const u8 = read(ctx.arg(0)?, &OFF_SOCKET_SK)?;
    (!smc.is_null()).then_some(smc)
}

#[inline(always)]
fn record(smc: *const u8, seen: OwnerSeen) {
    let owner = Owner {
        // SAFETY: the helper takes nothing.
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        pid: (bpf_get_current_pid_tgid() >> 32) as u32,
        uid: bpf_get_current_uid_gid() as u32,
        comm: bpf_get_current_comm().unwrap_or([0; 16]),
        seen: seen as u8,
        reserved: [0; 7],
    };
    // A full map evicts what was not asked for longest: events of that socket lack an owner then.
    let _ = OWNERS.insert(smc as u64, owner, 0);
}

/// Copies the owner of a connection, if one was recorded: a client's own, a server's listener's.
#[inline(always)]
pub fn owner_of(socket: &Socket, to: &mut Owner) {
    let smc = if matches!(socket.role, Role::Server) { socket.listener } else { socket.smc };
    // SAFETY: the value is copied at once; a concurrent overwrite would be by the owner itself.
    if let Some(owner) = unsafe { OWNERS.get(smc as u64) } {
        *to = *owner;
    }
}
