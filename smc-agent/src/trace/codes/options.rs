//! What of TCP's socket options SMC does not carry (`smc_setsockopt` and `smc_sendmsg` in `net/smc/af_smc.c`).

use schemars::JsonSchema;
use serde::Serialize;

/// What becomes of an option on an SMC socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The connection falls back to TCP, if it is not made yet; else the call fails.
    FallsBack,
    /// The call fails, and SMC goes on.
    Refused,
    /// The call succeeds and changes nothing of what travels over SMC.
    NoEffect,
    /// SMC does it itself.
    Carried,
}

/// A socket option, or several of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SocketOption {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub effect: Effect,
    /// The same in words.
    pub detail: &'static str,
}

/// The options that behave otherwise than on a TCP socket, and some that are asked for often.
pub const OPTIONS: &[SocketOption] = &[
    SocketOption {
        name: "TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY, TCP_FASTOPEN_NO_COOKIE",
        effect: Effect::FallsBack,
        detail: "with 0x03060000 before connect() or listen(); later the call fails with EINVAL",
    },
    SocketOption {
        name: "MSG_FASTOPEN (sendto, sendmsg)",
        effect: Effect::FallsBack,
        detail: "with 0x03060000 on a socket that is not connected; later the call fails with EINVAL",
    },
    SocketOption {
        name: "TCP_ULP (kernel TLS and others)",
        effect: Effect::Refused,
        detail: "with EOPNOTSUPP, and SMC goes on; some of Alibaba's kernels fall back instead, as for TCP_FASTOPEN",
    },
    SocketOption {
        name: "TCP_NODELAY, TCP_CORK, TCP_DEFER_ACCEPT",
        effect: Effect::Carried,
        detail: "SMC does the same for its own data",
    },
    SocketOption {
        name: "other options of SOL_TCP: TCP_CONGESTION, TCP_USER_TIMEOUT, TCP_QUICKACK, TCP_MAXSEG, …",
        effect: Effect::NoEffect,
        detail: "set on the TCP connection that SMC keeps beside it, on which no data travels; they count again after a \
                 fallback",
    },
    SocketOption {
        name: "TCP_INFO (getsockopt)",
        effect: Effect::NoEffect,
        detail: "tells of the TCP connection that SMC keeps beside it, not of the data; `smc-agent show sockets --details` does",
    },
];
