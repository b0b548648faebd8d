//! Errors of the protocol and inside the kernel: `0x04……`, `0x05……` and `0x0999……`.

use super::super::{Check, CodeInfo, SeenBy};
use super::{ALIBABA, DEVICES, INFO, KERNEL_LOG, LINK_GROUPS, LINUX, MEMORY, RDMA_LINKS, VERBS};

pub(super) const CODES: &[CodeInfo] = &[
    CodeInfo {
        value: 0x0400_0000,
        name: "SYNCERR",
        since: "4.11",
        seen_by: SeenBy::Client,
        meaning: "The server wants to go on with a link group that this host does not have any more. Both give it up, \
                  and the next connection makes a new one.",
        causes: &[
            "This host was restarted, or its link group ended, and the server has not noticed yet.",
            "The RDMA port of one host was down for a while.",
        ],
        checks: &[LINK_GROUPS, RDMA_LINKS, KERNEL_LOG],
        note: Some("Single ones mend themselves. Many of them mean that link groups end again and again."),
        ..LINUX
    },
    CodeInfo {
        value: 0x0500_0000,
        name: "PEERDECL",
        meaning: "The other host declined during the handshake. Its own code, behind the slash or after `peer`, says why.",
        causes: &["See the peer's code. If it is 0 or unknown, look on the other host."],
        checks: &[
            Check {
                command: "smc-agent code 0x05000000/PEERCODE",
                to_see: "both codes explained; the peer's is from the other host's point of view",
            },
            Check {
                command: "smc-agent show sockets --fallback",
                to_see: "connections that fell back, with both codes",
            },
            Check {
                command: "smc-agent tail --follow --code 0x05000000 --explain",
                to_see: "the next ones as they happen, with advice",
            },
        ],
        note: Some(
            "Hosts that are not Linux (z/OS, AIX) use numbers of their own: look those up in their manuals.",
        ),
        ..LINUX
    },
    CodeInfo {
        value: 0x0999_0000,
        name: "INTERR",
        since: "5.4 (4.19: 0x99990000)",
        meaning: "The kernel could not set up a link group, for a reason that has no code of its own.",
        causes: &[
            "Resources of the RDMA device (protection domain, queue pair, completion queue) could not be made.",
        ],
        checks: &[
            KERNEL_LOG,
            VERBS,
            Check {
                command: "rdma resource show",
                to_see: "how many queue pairs, regions and queues are in use",
            },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0999_0001,
        name: "ERR_RTOK",
        since: "5.4 (4.19: 0x99990001)",
        meaning: "The key that the peer sent for its receive buffer could not be kept: the table of such keys of the \
                  link group is full.",
        causes: &[
            "Connections come and go so fast in one link group that its 255 places are used up.",
            "A fault in SMC.",
        ],
        checks: &[LINK_GROUPS, INFO, KERNEL_LOG],
        ..LINUX
    },
    CodeInfo {
        value: 0x0999_0002,
        name: "ERR_RDYLNK",
        since: "5.4 (4.19: 0x99990002)",
        meaning: "The RDMA queue pair of a new link could not be brought into working order.",
        causes: &[
            "The RDMA device or its driver refused: wrong GID, port down, no path to the peer's address.",
            "The device is being taken away or reset.",
        ],
        checks: &[DEVICES, RDMA_LINKS, VERBS, KERNEL_LOG],
        ..LINUX
    },
    CodeInfo {
        value: 0x0999_0003,
        name: "ERR_REGBUF",
        since: "5.4 (4.19: 0x99990003; until 5.19 named ERR_REGRMB)",
        meaning: "A buffer could not be registered with the RDMA device, or the peer did not confirm its key.",
        causes: &[
            "The device has a limit on memory regions and it is reached: fewer connections, or link groups with more \
             connections each, help.",
            "A buffer is larger than the device takes.",
            "Memory could not be pinned.",
        ],
        checks: &[
            VERBS,
            Check { command: "rdma resource show mr", to_see: "how many memory regions are in use" },
            Check { command: "sysctl net.smc.wmem net.smc.rmem", to_see: "the size of buffers" },
            MEMORY,
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0999_0004,
        name: "ALIBABA_CREDITS",
        meaning: "The first message of Alibaba's flow control, which tells the peer how much it may send, could not be \
                  sent over RDMA.",
        causes: &["The RDMA device or the path to the peer failed just then."],
        checks: &[
            DEVICES,
            RDMA_LINKS,
            Check { command: "eadm stat -d DEVICE", to_see: "errors that an eRDMA device counted" },
        ],
        ..ALIBABA
    },
];
