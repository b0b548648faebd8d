//! The statistics of a network namespace (`net/smc/smc_stats.c`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

// The attributes of the enumeration that begins with SMC_NLA_STATS_PAD.
const SMCD: u16 = 1;
const SMCR: u16 = 2;
const CLIENT_ERRORS: u16 = 3;
const SERVER_ERRORS: u16 = 4;

// The attributes of the enumeration that begins with SMC_NLA_STATS_T_PAD.
const TX_BUFFERS: u16 = 1;
const RX_BUFFERS: u16 = 2;
const TX_REQUESTS: u16 = 3;
const RX_REQUESTS: u16 = 4;
const TX_EVENTS: u16 = 5;
const RX_EVENTS: u16 = 6;
const CLIENT_V1: u16 = 7;
const CLIENT_V2: u16 = 8;
const SERVER_V1: u16 = 9;
const SERVER_V2: u16 = 10;
const SENDPAGE: u16 = 11;
const SPLICE: u16 = 12;
const CORK: u16 = 13;
const NODELAY: u16 = 14;
const URGENT: u16 = 15;
const RX_BYTES: u16 = 16;
const TX_BYTES: u16 = 17;
const RX_COUNT: u16 = 18;
const TX_COUNT: u16 = 19;
const RX_USAGE: u16 = 20;
const TX_USAGE: u16 = 21;

/// All statistics of a network namespace. Counters only grow, with 64 bits; usages go up and down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Statistics {
    /// SMC over RDMA.
    pub smcr: Technology,
    /// SMC over ISM or dibs.
    pub smcd: Technology,
    /// Handshakes of connecting sockets that failed with an error.
    pub client_handshake_errors: u64,
    /// Handshakes of listening sockets that failed with an error.
    pub server_handshake_errors: u64,
}

/// One way in which SMC moves data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Technology {
    /// What was received.
    pub rx: Direction,
    /// What was sent.
    pub tx: Direction,
    /// Connections made with SMC version 1.
    pub client_v1: u64,
    /// Connections made with SMC version 2.
    pub client_v2: u64,
    /// Connections accepted with SMC version 1.
    pub server_v1: u64,
    /// Connections accepted with SMC version 2.
    pub server_v2: u64,
    /// Calls of sendpage.
    pub sendpage: u64,
    /// Calls of splice.
    pub splice: u64,
    /// Uses of `TCP_CORK`.
    pub cork: u64,
    /// Uses of `TCP_NODELAY`.
    pub nodelay: u64,
    /// Urgent data sent.
    pub urgent: u64,
}

/// One direction of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Direction {
    /// Bytes moved.
    pub bytes: u64,
    /// Requests of applications: calls that send or receive.
    pub requests: u64,
    /// Bytes of buffers that connections hold now; `null` where the kernel does not say (before 6.12).
    pub buffer_usage: Option<u64>,
    /// Buffers given to connections so far, by size.
    pub buffers: Histogram,
    /// Requests so far, by size.
    pub request_sizes: Histogram,
    /// How often the peer's buffer was smaller than a request.
    pub peer_buffer_small: u64,
    /// How often the buffer was smaller than a request.
    pub buffer_small: u64,
    /// How often the peer's buffer was full.
    pub peer_buffer_full: u64,
    /// How often the buffer was full.
    pub buffer_full: u64,
    /// How often a buffer was used again.
    pub buffers_reused: u64,
    /// How often a buffer was allocated.
    pub buffers_allocated: u64,
    /// How often a smaller buffer than wanted was allocated.
    pub buffers_downgraded: u64,
}

/// Numbers by size; each class reaches up to its name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the names say it: up to so many bytes")]
pub struct Histogram {
    #[serde(rename = "8k")]
    pub k8: u64,
    #[serde(rename = "16k")]
    pub k16: u64,
    #[serde(rename = "32k")]
    pub k32: u64,
    #[serde(rename = "64k")]
    pub k64: u64,
    #[serde(rename = "128k")]
    pub k128: u64,
    #[serde(rename = "256k")]
    pub k256: u64,
    #[serde(rename = "512k")]
    pub k512: u64,
    #[serde(rename = "1024k")]
    pub k1024: u64,
    #[serde(rename = "larger")]
    pub larger: u64,
}

impl Histogram {
    /// The classes from small to large.
    pub fn classes(&self) -> [u64; 9] {
        let Self { k8, k16, k32, k64, k128, k256, k512, k1024, larger } = *self;
        [k8, k16, k32, k64, k128, k256, k512, k1024, larger]
    }

    fn classes_mut(&mut self) -> [&mut u64; 9] {
        let Self { k8, k16, k32, k64, k128, k256, k512, k1024, larger } = self;
        [k8, k16, k32, k64, k128, k256, k512, k1024, larger]
    }

    /// The attributes are 1 to 9, in the order of the classes.
    fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut histogram = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            let class = usize::from(attribute.kind).checked_sub(1);
            if let Some(place) = class.and_then(|class| histogram.classes_mut().into_iter().nth(class)) {
                *place = attribute.uint()?;
            }
        }
        Ok(histogram)
    }
}

impl Direction {
    /// Reads what the enumeration that begins with `SMC_NLA_STATS_RMB_PAD` names.
    fn parse_events(&mut self, attributes: Attributes<'_>) -> Result<()> {
        for attribute in attributes {
            let attribute = attribute?;
            let place = match attribute.kind {
                1 => &mut self.peer_buffer_small,
                2 => &mut self.buffer_small,
                3 => &mut self.peer_buffer_full,
                4 => &mut self.buffer_full,
                5 => &mut self.buffers_reused,
                6 => &mut self.buffers_allocated,
                7 => &mut self.buffers_downgraded,
                _ => continue,
            };
            *place = attribute.uint()?;
        }
        Ok(())
    }

    fn counters_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self {
            bytes,
            requests,
            buffer_usage: _,
            buffers,
            request_sizes,
            peer_buffer_small,
            buffer_small,
            peer_buffer_full,
            buffer_full,
            buffers_reused,
            buffers_allocated,
            buffers_downgraded,
        } = self;
        [bytes, requests, peer_buffer_small, buffer_small, peer_buffer_full, buffer_full]
            .into_iter()
            .chain([buffers_reused, buffers_allocated, buffers_downgraded])
            .chain(buffers.classes_mut())
            .chain(request_sizes.classes_mut())
    }
}

impl Technology {
    /// The connections that became SMC.
    pub fn connections(&self) -> u64 {
        [self.client_v1, self.client_v2, self.server_v1, self.server_v2]
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    /// The calls that smc-tools counts as special.
    pub fn special_calls(&self) -> u64 {
        [self.sendpage, self.splice, self.cork, self.nodelay, self.urgent]
            .into_iter()
            .fold(0, u64::wrapping_add)
    }

    fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut technology = Self::default();
        let (mut rx, mut tx) = (Direction::default(), Direction::default());
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                TX_BUFFERS => tx.buffers = Histogram::parse(attribute.nested())?,
                RX_BUFFERS => rx.buffers = Histogram::parse(attribute.nested())?,
                TX_REQUESTS => tx.request_sizes = Histogram::parse(attribute.nested())?,
                RX_REQUESTS => rx.request_sizes = Histogram::parse(attribute.nested())?,
                TX_EVENTS => tx.parse_events(attribute.nested())?,
                RX_EVENTS => rx.parse_events(attribute.nested())?,
                CLIENT_V1 => technology.client_v1 = attribute.uint()?,
                CLIENT_V2 => technology.client_v2 = attribute.uint()?,
                SERVER_V1 => technology.server_v1 = attribute.uint()?,
                SERVER_V2 => technology.server_v2 = attribute.uint()?,
                SENDPAGE => technology.sendpage = attribute.uint()?,
                SPLICE => technology.splice = attribute.uint()?,
                CORK => technology.cork = attribute.uint()?,
                NODELAY => technology.nodelay = attribute.uint()?,
                URGENT => technology.urgent = attribute.uint()?,
                RX_BYTES => rx.bytes = attribute.uint()?,
                TX_BYTES => tx.bytes = attribute.uint()?,
                RX_COUNT => rx.requests = attribute.uint()?,
                TX_COUNT => tx.requests = attribute.uint()?,
                RX_USAGE => rx.buffer_usage = Some(attribute.uint()?),
                TX_USAGE => tx.buffer_usage = Some(attribute.uint()?),
                _ => {}
            }
        }
        Ok(Self { rx, tx, ..technology })
    }

    fn counters_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self {
            rx,
            tx,
            client_v1,
            client_v2,
            server_v1,
            server_v2,
            sendpage,
            splice,
            cork,
            nodelay,
            urgent,
        } = self;
        [client_v1, client_v2, server_v1, server_v2, sendpage, splice, cork, nodelay, urgent]
            .into_iter()
            .chain(rx.counters_mut())
            .chain(tx.counters_mut())
    }
}

impl Statistics {
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut statistics = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                SMCD => statistics.smcd = Technology::parse(attribute.nested())?,
                SMCR => statistics.smcr = Technology::parse(attribute.nested())?,
                CLIENT_ERRORS => statistics.client_handshake_errors = attribute.uint()?,
                SERVER_ERRORS => statistics.server_handshake_errors = attribute.uint()?,
                _ => {}
            }
        }
        Ok(statistics)
    }

    /// All counters, without the usages.
    pub fn counters_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self { smcr, smcd, client_handshake_errors, server_handshake_errors } = self;
        [client_handshake_errors, server_handshake_errors]
            .into_iter()
            .chain(smcr.counters_mut())
            .chain(smcd.counters_mut())
    }
}
