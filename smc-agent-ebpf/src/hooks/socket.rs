//! An SMC socket, as the hooks see it.

use smc_agent_common::Role;

use crate::{
    kernel::{Endpoints, read},
    maps::OWNERS,
    offsets::{
        OFF_INET_SPORT, OFF_SK_ERR, OFF_SKC_STATE, OFF_SMC_CLCSOCK, OFF_SMC_LISTEN, OFF_SMC_PEER_DIAGNOSIS,
        OFF_SOCKET_SK,
    },
};

/// `SMC_INIT` (`net/smc/smc.h`): neither connected nor listening yet.
pub const SMC_INIT: u8 = 2;
/// `SMC_CLOSED` (`net/smc/smc.h`), the number of `TCP_CLOSE`.
pub const TCP_CLOSE: u8 = 7;

/// A `struct smc_sock` and the connection of its internal TCP socket.
pub struct Socket {
    /// The `struct smc_sock`, which begins with its `struct sock`.
    pub smc: *const u8,
    /// The internal TCP socket's `struct sock`.
    pub sk: *const u8,
    /// The listening `struct smc_sock`, of a server's connection; else null.
    pub listener: *const u8,
    pub role: Role,
    pub ends: Endpoints,
}

impl Socket {
    /// Reads the `struct smc_sock` at `smc`; `None` if it has no internal socket (any more), or none of IP.
    #[inline(always)]
    pub fn of(smc: *const u8) -> Option<Self> {
        let socket: *const u8 = read(smc, &OFF_SMC_CLCSOCK)?;
        let sk: *const u8 = read(socket, &OFF_SOCKET_SK)?;
        let mut ends = Endpoints::of(sk)?;
        if ends.local_port == 0 {
            // A connection that was reset has given its port back, and still knows which it was.
            ends.local_port = u16::from_be(read(sk, &OFF_INET_SPORT)?);
        }
        let listener: *const u8 = read(smc, &OFF_SMC_LISTEN)?;
        let role = if listener.is_null() { Role::Client } else { Role::Server };
        Some(Self { smc, sk, listener, role, ends })
    }

    /// What the peer gave as its reason in a DECLINE message; 0 if it sent none.
    #[inline(always)]
    pub fn peer_code(&self) -> u32 {
        read(self.smc, &OFF_SMC_PEER_DIAGNOSIS).unwrap_or(0)
    }

    /// Whether it is neither a connection nor about to be one.
    #[inline(always)]
    pub fn is_unconnected(&self) -> bool {
        self.ends.peer_port == 0 && self.listener.is_null()
    }

    /// Whether a process was recorded as its owner.
    #[inline(always)]
    pub fn has_owner(&self) -> bool {
        // SAFETY: only the presence of the entry matters; its value is not read.
        unsafe { OWNERS.get(self.smc as u64) }.is_some()
    }

    /// Which side falls back: without a connection, that which the option is for by which it does.
    #[inline(always)]
    pub fn role_of_fallback(&self) -> Role {
        if self.is_unconnected() {
            // SAFETY: one byte is read at once.
            let listens = unsafe { OWNERS.get(self.smc as u64) }.is_some_and(|owner| owner.listens != 0);
            if listens {
                return Role::Server;
            }
        }
        self.role
    }

    /// State of the SMC socket: `enum smc_state`.
    #[inline(always)]
    pub fn state(&self) -> Option<u8> {
        read(self.smc, &OFF_SKC_STATE)
    }

    /// The error that waits at the SMC socket; 0 if there is none.
    #[inline(always)]
    pub fn error(&self) -> u32 {
        read(self.smc, &OFF_SK_ERR).unwrap_or(0)
    }
}
