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

use super::{fallback, socket::Socket};
use crate::{
    kernel::read,
    maps::{OWNERS, SETUPS, copy_owner},
    offsets::{FALLBACK_BY_PROBE, OFF_SMC_CLCSOCK, OFF_SOCKET_SK},
};

/// Of TCP (`include/uapi/linux/in.h`, `include/uapi/linux/tcp.h`).
const SOL_TCP: i32 = 6;
const TCP_FASTOPEN: i32 = 23;
const TCP_FASTOPEN_CONNECT: i32 = 30;
const TCP_FASTOPEN_KEY: i32 = 33;
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;

/// `smc_create_clcsk(struct net *net, struct sock *sk, int family)` (6.11 and later): an SMC socket is made.
#[kprobe]
pub fn smc_owner_socket(ctx: ProbeContext) -> u32 {
    if let Some(smc) = ctx.arg(1) {
        record(smc, OwnerSeen::Socket, 0);
    }
    0
}

/// `smc_connect(struct socket *sock, …)`
#[kprobe]
pub fn smc_owner_connect(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        record_both(smc, OwnerSeen::Connect);
    }
    0
}

/// `smc_setsockopt(struct socket *sock, int level, int optname, …)`: of interest are the options that make a socket fall back
/// before it connects or listens.
#[kprobe]
pub fn smc_owner_option(ctx: ProbeContext) -> u32 {
    let (Some(level), Some(option)) = (ctx.arg::<i32>(1), ctx.arg::<i32>(2)) else { return 0 };
    let listens = option == TCP_FASTOPEN || option == TCP_FASTOPEN_KEY;
    let may_connect = option == TCP_FASTOPEN_CONNECT || option == TCP_FASTOPEN_NO_COOKIE;
    if level == SOL_TCP
        && (listens || may_connect)
        && let Some(smc) = socket_of(&ctx)
    {
        record(smc, OwnerSeen::FastOpen, u8::from(listens));
    }
    0
}

/// `smc_listen(struct socket *sock, int backlog)`
#[kprobe]
pub fn smc_owner_listen(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        record_both(smc, OwnerSeen::Listen);
    }
    0
}

/// `smc_release(struct socket *sock)`: the last descriptor of a socket was closed.
#[kprobe]
pub fn smc_owner_release(ctx: ProbeContext) -> u32 {
    if let Some(smc) = socket_of(&ctx) {
        if FALLBACK_BY_PROBE.load() != 0 {
            fallback::at_the_end(smc);
        }
        // Most have none of these: connections that were accepted.
        let _ = OWNERS.remove(smc as u64);
        let _ = SETUPS.remove(smc as u64);
        if let Some(sk) = internal(smc) {
            let _ = OWNERS.remove(sk as u64);
        }
    }
    0
}

/// The `struct smc_sock` of the `struct socket` that is the first argument.
#[inline(always)]
fn socket_of(ctx: &ProbeContext) -> Option<*const u8> {
    let smc: *const u8 = read(ctx.arg(0)?, &OFF_SOCKET_SK)?;
    (!smc.is_null()).then_some(smc)
}

/// The `struct sock` of a socket's internal socket, by which the programs that judge know it.
#[inline(always)]
fn internal(smc: *const u8) -> Option<*const u8> {
    let socket: *const u8 = read(smc, &OFF_SMC_CLCSOCK)?;
    read(socket, &OFF_SOCKET_SK)
}

/// Records the current process as the owner of a socket and of its internal socket.
#[inline(always)]
fn record_both(smc: *const u8, seen: OwnerSeen) {
    record(smc, seen, 0);
    if let Some(sk) = internal(smc) {
        record(sk, seen, 0);
    }
}

/// Records the current process as the owner of the socket at this address.
#[inline(never)]
pub fn record(socket: *const u8, seen: OwnerSeen, listens: u8) {
    let owner = Owner {
        // SAFETY: the helper takes nothing.
        cgroup: unsafe { bpf_get_current_cgroup_id() },
        pid: (bpf_get_current_pid_tgid() >> 32) as u32,
        uid: bpf_get_current_uid_gid() as u32,
        comm: bpf_get_current_comm().unwrap_or([0; 16]),
        seen: seen as u8,
        listens,
        reserved: [0; 6],
    };
    // A full map evicts what was not asked for longest: events of that socket lack an owner then.
    let _ = OWNERS.insert(socket as u64, owner, 0);
}

/// Copies the owner of a connection, if one was recorded: a client's own, a server's listener's.
#[inline(always)]
pub fn owner_of(socket: &Socket, to: &mut Owner) {
    let smc = if matches!(socket.role, Role::Server) { socket.listener } else { socket.smc };
    copy_owner(smc as u64, to);
}
