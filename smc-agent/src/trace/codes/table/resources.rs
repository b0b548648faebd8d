//! Memory and time: `0x01……` and `0x02……`.

use super::super::{Check, CodeInfo};
use super::{DEVICES, KERNEL_LOG, LINUX, MEMORY, RDMA_LINKS};

pub(super) const CODES: &[CodeInfo] = &[
    CodeInfo {
        value: 0x0101_0000,
        name: "MEM",
        since: "4.11",
        meaning: "There was no memory for the connection: for its control structures, for its link group, or for the \
                  send and receive buffers that SMC sets up before any data flows.",
        causes: &[
            "The host is short of memory, or of memory in one piece: buffers are physically contiguous unless \
             net.smc.smcr_buf_type says otherwise.",
            "Very many connections, each with buffers of the size in net.smc.wmem and net.smc.rmem.",
            "Buffers are large: an application sets SO_SNDBUF or SO_RCVBUF, or the sysctls were raised.",
        ],
        checks: &[
            MEMORY,
            Check { command: "cat /proc/buddyinfo", to_see: "whether large pieces of memory are left" },
            Check { command: "smc-agent monitor memory", to_see: "how much memory SMC's buffers take" },
            Check {
                command: "sysctl net.smc.wmem net.smc.rmem net.smc.smcr_buf_type",
                to_see: "the sizes of buffers; smcr_buf_type 1 or 2 lets them be virtually contiguous",
            },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0201_0000,
        name: "TIMEOUT_CL",
        meaning: "The first link of a new SMC-R link group did not come up in time: the two hosts agreed over TCP, and \
                  then the confirmation that has to travel over RDMA did not arrive or could not be sent.",
        causes: &[
            "The RDMA path does not carry traffic although the ports are active: a firewall or switch that drops \
             RoCE (UDP port 4791), a wrong VLAN, a wrong GID, or an MTU that does not fit.",
            "The RDMA adapter, its firmware or a cable has a fault.",
            "The two hosts chose devices that cannot reach each other, because PNET ids or user EIDs join networks \
             that are separate.",
            "A host is so busy that its answer takes seconds.",
        ],
        checks: &[
            RDMA_LINKS,
            DEVICES,
            Check {
                command: "rping -s  (here)  and  rping -c -a THIS-HOST -C 3  (on the peer)",
                to_see: "whether RDMA works between the two hosts without SMC",
            },
            Check {
                command: "rdma statistic show link DEVICE/1",
                to_see: "counters of errors and of packets that were sent again",
            },
            KERNEL_LOG,
        ],
        note: Some(
            "Take repeated ones seriously: when both hosts time out at once, the message by which one declines has been \
             seen as data in the other's application. Until the RDMA path is mended, a policy that denies SMC between \
             these hosts is the safe way.",
        ),
        ..LINUX
    },
    CodeInfo {
        value: 0x0202_0000,
        name: "TIMEOUT_AL",
        until: Some("5.7"),
        meaning: "The second link of an SMC-R link group was not offered in time. Kernels from 5.8 on go on with one \
                  link instead, and do not use the code any more.",
        causes: &["The peer has an old kernel, and the RDMA path between the hosts lost messages."],
        checks: &[RDMA_LINKS, super::KERNELS],
        ..LINUX
    },
];
