//! The extensions of an SMC socket message (`include/uapi/linux/smc_diag.h`). Each is read as far as the kernel that sent it
//! fills it, and is `None` when it is shorter than its first version.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::wire::{array_at, text_of, u16_at, u32_at, u64_at};

/// Why a connection fell back to TCP (`struct smc_diag_fallback`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fallback {
    /// This end's reason (`SMC_CLC_DECL_*`, `net/smc/smc_clc.h`); 0 is none.
    pub reason: u32,
    /// The other end's, from its DECLINE message; 0 is none.
    pub peer_diagnosis: u32,
}

impl Fallback {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self { reason: u32_at(bytes, 0)?, peer_diagnosis: u32_at(bytes, 4)? })
    }
}

/// A position in a ring buffer (`struct smc_diag_cursor`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Cursor {
    /// How often it went round.
    pub wrap: u16,
    /// The offset in bytes.
    pub count: u32,
}

impl Cursor {
    const LENGTH: usize = 8;

    /// The `number`th of the cursors that begin at `offset`.
    fn parse(bytes: &[u8], offset: usize, number: usize) -> Option<Self> {
        let start = offset.checked_add(number.checked_mul(Self::LENGTH)?)?;
        Some(Self {
            wrap: u16_at(bytes, start.checked_add(2)?)?,
            count: u32_at(bytes, start.checked_add(4)?)?,
        })
    }
}

/// A connection within a link group (`struct smc_diag_conninfo`); sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Its number in the link group.
    pub token: u32,
    /// The send buffer.
    pub send_buffer: u32,
    /// The receive buffer (RMB element).
    pub receive_buffer: u32,
    /// The peer's receive buffer.
    pub peer_receive_buffer: u32,
    /// The producer cursor that the peer sent.
    pub received_producer: Cursor,
    /// The consumer cursor that the peer sent.
    pub received_consumer: Cursor,
    /// The producer cursor sent to the peer.
    pub sent_producer: Cursor,
    /// The consumer cursor sent to the peer.
    pub sent_consumer: Cursor,
    /// The producer's and the connection's flags: received, then sent (`rx_prod_flags`, `rx_conn_state_flags`,
    /// `tx_prod_flags`, `tx_conn_state_flags`).
    pub flags: [u8; 4],
    /// The send buffer: prepared.
    pub prepared: Cursor,
    /// The send buffer: sent.
    pub sent: Cursor,
    /// The send buffer: confirmed.
    pub confirmed: Cursor,
}

impl Connection {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            token: u32_at(bytes, 0)?,
            send_buffer: u32_at(bytes, 4)?,
            receive_buffer: u32_at(bytes, 8)?,
            peer_receive_buffer: u32_at(bytes, 12)?,
            received_producer: Cursor::parse(bytes, 16, 0)?,
            received_consumer: Cursor::parse(bytes, 16, 1)?,
            sent_producer: Cursor::parse(bytes, 16, 2)?,
            sent_consumer: Cursor::parse(bytes, 16, 3)?,
            flags: array_at(bytes, 48)?,
            prepared: Cursor::parse(bytes, 52, 0)?,
            sent: Cursor::parse(bytes, 52, 1)?,
            confirmed: Cursor::parse(bytes, 52, 2)?,
        })
    }
}

/// Which end of a link group this host is (`enum smc_lgr_role`, `net/smc/smc_core.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// `SMC_CLNT`, 0.
    Client,
    /// `SMC_SERV`, 1.
    Server,
    /// A number that this version does not know.
    Unknown(u8),
}

impl From<u8> for Role {
    fn from(number: u8) -> Self {
        match number {
            0 => Self::Client,
            1 => Self::Server,
            other => Self::Unknown(other),
        }
    }
}

/// The link that an SMC-R connection uses (`struct smc_diag_lgrinfo`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkGroup {
    /// The link's number.
    pub link_id: u8,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// This end's GID, as text.
    pub gid: String,
    /// The peer's GID, as text.
    pub peer_gid: String,
    /// Which end this host is.
    pub role: Role,
}

impl LinkGroup {
    /// u8 link id, 64 bytes of device name (`IB_DEVICE_NAME_MAX`), u8 port, twice 40 bytes of GID, u8 role.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let [role] = array_at(bytes, 146)?;
        let [link_id] = array_at(bytes, 0)?;
        let [port] = array_at(bytes, 65)?;
        Some(Self {
            link_id,
            device: text_of(bytes.get(1..65)?),
            port,
            gid: text_of(bytes.get(66..106)?),
            peer_gid: text_of(bytes.get(106..146)?),
            role: role.into(),
        })
    }
}

/// The buffers of an SMC-D connection (`struct smcd_diag_dmbinfo`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Dmb {
    /// The link group's number.
    pub link_id: u32,
    /// The peer's GID, with its extended part (0 on kernels before 6.7).
    pub peer_gid: (u64, u64),
    /// This end's GID, with its extended part.
    pub gid: (u64, u64),
    /// The token of this end's buffer.
    pub token: u64,
    /// The token of the peer's buffer.
    pub peer_token: u64,
}

impl Dmb {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            link_id: u32_at(bytes, 0)?,
            peer_gid: (u64_at(bytes, 8)?, u64_at(bytes, 40).unwrap_or_default()),
            gid: (u64_at(bytes, 16)?, u64_at(bytes, 48).unwrap_or_default()),
            token: u64_at(bytes, 24)?,
            peer_token: u64_at(bytes, 32)?,
        })
    }
}
