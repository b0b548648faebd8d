//! Numbers that only old kernels use. Those before 4.19 keep no reason, but send one when they decline: it shows as the
//! peer's code on a newer host. Events give them no name, since other systems use numbers of their own.

use super::super::CodeInfo;
use super::{DEVICES, KERNEL_LOG, KERNELS, LINUX, RDMA_LINKS};

const BEFORE_4_19: CodeInfo = CodeInfo { since: "4.11", until: Some("4.18"), ..LINUX };
/// From 5.4 on at the latest these are `0x0999……`.
const AT_4_19: CodeInfo = CodeInfo { since: "4.19", until: Some("4.19 or soon after"), ..LINUX };

pub(in super::super) const CODES: &[CodeInfo] = &[
    CodeInfo {
        value: 0x0200_0000,
        name: "TIMEOUT",
        meaning: "Something of the handshake took too long on the old host.",
        causes: &["The network between the hosts lost messages, or the old host was busy."],
        checks: &[RDMA_LINKS, KERNELS],
        ..BEFORE_4_19
    },
    CodeInfo {
        value: 0x0204_0000,
        name: "TCL",
        meaning: "The confirmation of the first RDMA link could not be sent. Later kernels say TIMEOUT_CL (0x02010000).",
        causes: &["The RDMA path between the hosts does not work."],
        checks: &[RDMA_LINKS, DEVICES, KERNELS],
        ..BEFORE_4_19
    },
    CodeInfo {
        value: 0x0600_0000,
        name: "REPLY",
        meaning: "Inside old kernels: the other host has declined. Later kernels say PEERDECL (0x05000000).",
        causes: &["See what the other host says."],
        checks: &[KERNELS],
        ..BEFORE_4_19
    },
    CodeInfo {
        value: 0x0700_0000,
        name: "SEND",
        meaning: "The old host could not send a message of the handshake.",
        causes: &["The TCP connection broke."],
        checks: &[KERNELS],
        ..BEFORE_4_19
    },
    CodeInfo {
        value: 0x9999_0000,
        name: "INTERR",
        since: "4.11",
        until: Some("4.19 or soon after"),
        meaning: "An error inside the old kernel, of no particular kind.",
        causes: &["The RDMA device could not be set up for the connection."],
        checks: &[KERNEL_LOG, KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x9999_0001,
        name: "ERR_RTOK",
        meaning: "The key of the peer's receive buffer could not be kept.",
        causes: &["See ERR_RTOK (0x09990001)."],
        checks: &[KERNELS],
        ..AT_4_19
    },
    CodeInfo {
        value: 0x9999_0002,
        name: "ERR_RDYLNK",
        meaning: "The RDMA queue pair of a new link could not be brought into working order.",
        causes: &["See ERR_RDYLNK (0x09990002)."],
        checks: &[RDMA_LINKS, KERNELS],
        ..AT_4_19
    },
    CodeInfo {
        value: 0x9999_0003,
        name: "ERR_REGRMB",
        meaning: "A receive buffer could not be registered with the RDMA device.",
        causes: &["See ERR_REGBUF (0x09990003)."],
        checks: &[RDMA_LINKS, KERNELS],
        ..AT_4_19
    },
];
