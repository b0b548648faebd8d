//! One end of a connection: its part of the conversation and what the kernel says of it.

use std::fmt;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use smc_agent::netlink::diag;

use super::exchange;
use super::socket::{Kind, Stream};
use crate::wait::Limit;

/// How the data of an end travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A plain TCP socket: the kernel was not asked.
    Tcp,
    /// An SMC socket that fell back to TCP.
    FallbackTcp,
    /// SMC over RDMA.
    SmcR,
    /// SMC over ISM or dibs.
    SmcD,
    /// A number that this version does not know.
    Unknown(u8),
}

impl Mode {
    /// Whether the data travels by SMC.
    pub fn is_smc(self) -> bool {
        matches!(self, Self::SmcR | Self::SmcD)
    }
}

impl From<diag::Mode> for Mode {
    fn from(mode: diag::Mode) -> Self {
        match mode {
            diag::Mode::FallbackTcp => Self::FallbackTcp,
            diag::Mode::SmcR => Self::SmcR,
            diag::Mode::SmcD => Self::SmcD,
            diag::Mode::Unknown(number) => Self::Unknown(number),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "TCP",
            Self::FallbackTcp => "FALLBACK_TCP",
            Self::SmcR => "SMCR",
            Self::SmcD => "SMCD",
            Self::Unknown(number) => return write!(formatter, "MODE_{number}"),
        })
    }
}

/// What the kernel says of an end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// How its data travels.
    pub mode: Mode,
    /// Why it fell back (`SMC_CLC_DECL_*`, `net/smc/smc_clc.h`); 0 is none.
    pub reason: u32,
    /// The other end's reason, if that end declined; 0 is none.
    pub peer_diagnosis: u32,
    /// Its own address.
    pub local: SocketAddr,
    /// The other end's address.
    pub peer: SocketAddr,
}

/// What one end reports when it is done.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the kernel says of it.
    pub end: End,
    /// What went wrong with the data.
    pub problem: Option<String>,
}

/// The client's part in a conversation of `bytes` each way.
pub fn client(stream: &Stream, bytes: u64, limit: &Limit) -> Result<Report> {
    converse(stream, limit, || exchange::as_client(stream, bytes, limit))
}

/// The server's part.
pub fn server(stream: &Stream, limit: &Limit) -> Result<Report> {
    converse(stream, limit, || exchange::as_server(stream, limit))
}

fn converse(stream: &Stream, limit: &Limit, exchange: impl FnOnce() -> Result<()>) -> Result<Report> {
    // Asked before the data: a connection that breaks has no peer any more.
    let (local, peer) = (stream.local()?, stream.peer()?);
    let data = exchange();
    let (mode, fallback) = look_at(stream)?;
    let problem = data.and_then(|()| exchange::farewell(stream, limit)).err();
    let end = End { mode, reason: fallback.reason, peer_diagnosis: fallback.peer_diagnosis, local, peer };
    Ok(Report { end, problem: problem.map(|problem| format!("{problem:#}")) })
}

/// Asks the kernel about a socket of the calling thread's network namespace.
pub fn look_at(stream: &Stream) -> Result<(Mode, diag::Fallback)> {
    if stream.kind() == Kind::Tcp {
        return Ok((Mode::Tcp, diag::Fallback::default()));
    }
    let inode = stream.inode()?;
    let socket = diag::sockets()?.into_iter().find(|socket| socket.inode == inode);
    let socket = socket.with_context(|| format!("smc_diag does not list the socket with inode {inode}"))?;
    Ok((socket.mode.into(), socket.fallback.unwrap_or_default()))
}
