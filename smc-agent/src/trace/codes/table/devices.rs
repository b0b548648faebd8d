//! Devices, and what version 2 of SMC needs of the peer: `0x0303……`, and `0x0308……` to `0x030f……`.

use super::super::{Check, CodeInfo, Earlier, SeenBy};
use super::{
    ALIBABA, DEVICES, EIDS, INFO, KERNEL_LOG, KERNELS, LINK_GROUPS, LINUX, PNET, RDMA_LINKS, RDMA_NETNS,
    ROUTE,
};

const ISM_VLAN: Check = Check {
    command: "ip -d link show",
    to_see: "VLAN ids of the interface of the connection and what it is stacked on",
};
const LIMITS: Check = Check {
    command: "sysctl net.smc.smcr_max_conns_per_lgr net.smc.smcr_max_links_per_lgr",
    to_see: "on both hosts, the limits that are negotiated: 16 to 255 connections, 1 or 2 links",
};

pub(super) const CODES: &[CodeInfo] = &[
    CodeInfo {
        value: 0x0303_0000,
        name: "NOSMCDEV",
        meaning: "No device that SMC could use for this connection: neither RDMA (SMC-R) nor ISM or dibs (SMC-D).",
        causes: &[
            "There is no such device, its driver is not loaded, or its port is down.",
            "The interface of the connection does not belong to the device, and no PNET id joins them. Bonds, bridges, \
             VLANs and veth pairs of containers need one on the lowest interface.",
            "RDMA devices are in exclusive mode, and the device is in another network namespace.",
            "SMC-Rv2 has no user EID, or none in common with the peer (the server says this code then, too).",
            "The connection is IPv6: SMC-Rv2 does IPv4 only, and devices such as Alibaba's eRDMA do nothing but SMCv2.",
        ],
        checks: &[
            DEVICES,
            RDMA_LINKS,
            ROUTE,
            PNET,
            EIDS,
            RDMA_NETNS,
            Check {
                command: "rdma dev set DEVICE netns NAME",
                to_see: "moves a device to the namespace that needs it",
            },
        ],
        earlier: &[Earlier {
            kernels: "4.11 to 4.18",
            name: "IPSEC",
            meaning: "IPsec protects the connection. A host with such a kernel sends it as its reason to decline.",
        }],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0001,
        name: "NOSMCDDEV",
        since: "5.2",
        seen_by: SeenBy::Server,
        meaning: "The client offered SMC-D only, and this host has no ISM or dibs device that reaches the client's.",
        causes: &[
            "The two hosts are not on one machine (or, on IBM Z, not on one CPC with a common internal network).",
            "No ISM device is attached to this host, or its PNET id is not that of the interface.",
            "SMCv2: no EID in common.",
        ],
        checks: &[
            DEVICES,
            PNET,
            EIDS,
            Check { command: "smc-agent show seid", to_see: "whether the system EID is in use" },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0002,
        name: "NOSMCRDEV",
        since: "5.2",
        seen_by: SeenBy::Server,
        meaning: "The client offered SMC-Rv2, and this host has no RDMA device for it on the interface of the connection.",
        causes: &[
            "The device is missing, its port is down, or it went away.",
            "The interface of the connection is another one than that of the device, as on hosts with several.",
            "RDMA devices are in exclusive mode, and the device is in another network namespace.",
            "The device has no RoCEv2 GID for the local address.",
        ],
        checks: &[
            DEVICES,
            RDMA_LINKS,
            ROUTE,
            PNET,
            RDMA_NETNS,
            Check {
                command: "grep . /sys/class/infiniband/DEVICE/ports/1/gid_attrs/types/*",
                to_see: "the kinds of its GIDs: `RoCE v2` is needed, with the connection's local address",
            },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0003,
        name: "NOISM2SUPP",
        since: "5.10",
        seen_by: SeenBy::Server,
        meaning: "The client offered SMC-D version 2 only, and this host's ISM devices do not do version 2.",
        causes: &["This host has no ISM device of version 2, or none at all."],
        checks: &[DEVICES, INFO],
        earlier: &[Earlier {
            kernels: "5.2 to 5.9",
            name: "SMCDNOTALK",
            meaning: "The ISM device of the server cannot reach that of the client.",
        }],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0004,
        name: "NOV2EXT",
        since: "5.10",
        seen_by: SeenBy::Server,
        meaning: "The client says that it wants SMCv2, and its proposal lacks the part that describes it.",
        causes: &[
            "One host uses devices for SMCv1 and the other for SMCv2: which version is used follows from the device \
             (RoCEv1 or RoCEv2, eRDMA).",
            "Its SMC is of another maker or age, or something on the way changed the message.",
        ],
        checks: &[DEVICES, INFO, KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0005,
        name: "NOV2DEXT",
        since: "5.10",
        seen_by: SeenBy::Server,
        meaning: "The client wants SMC-D version 2, and its proposal lacks the list of its ISM devices.",
        causes: &["Its SMC is of another maker or age, or something on the way changed the message."],
        checks: &[INFO, KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0006,
        name: "NOSEID",
        since: "5.10",
        seen_by: SeenBy::Server,
        meaning: "The client's proposal names no system EID. Current kernels do not set the code: they accept user EIDs \
                  instead and say NOUEID.",
        causes: &["The client is a guest or machine whose system EID is off or unknown."],
        checks: &[Check {
            command: "smc-agent show seid",
            to_see: "on the client, the system EID and whether it is on",
        }],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0007,
        name: "NOSMCD2DEV",
        since: "5.10",
        seen_by: SeenBy::Server,
        meaning: "Of the ISM or dibs devices that the client offers for SMC-D version 2, this host has none, or none \
                  that reaches the client.",
        causes: &[
            "The two hosts are not on one machine.",
            "The devices are on different channels (CHID), or a PNET id keeps them apart.",
        ],
        checks: &[DEVICES, PNET],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0008,
        name: "NOUEID",
        since: "5.15",
        seen_by: SeenBy::Server,
        meaning: "The client's proposal for SMCv2 names no EID, so the two hosts cannot know that they belong together.",
        causes: &[
            "No user EID was set on the client. It is not kept over a reboot unless something sets it again.",
            "SMC-D: the client's system EID is off, too.",
        ],
        checks: &[
            EIDS,
            Check { command: "smc-agent set ueid add NAME", to_see: "adds one; the same name on both hosts" },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_0009,
        name: "RELEASEERR",
        since: "6.6",
        seen_by: SeenBy::Server,
        meaning: "The client confirmed another release of SMCv2 than the one that was agreed on.",
        causes: &[
            "The SMC of the two hosts differs, or one of them was replaced while the handshake went on.",
        ],
        checks: &[KERNELS, INFO],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_000a,
        name: "MAXCONNERR",
        since: "6.6",
        meaning: "The two hosts do not agree on how many connections a link group may hold.",
        causes: &[
            "A host offers fewer than 16, the least that Linux takes.",
            "The client confirmed another number than the one that was agreed on.",
        ],
        checks: &[LIMITS, KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_000b,
        name: "MAXLINKERR",
        since: "6.6",
        meaning: "The two hosts do not agree on how many links a link group may have.",
        causes: &[
            "A host offers none, or more than the 2 that Linux knows.",
            "The client confirmed another number than the one that was agreed on.",
        ],
        checks: &[LIMITS, KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x0303_000c,
        name: "ALIBABA_VENDOR",
        seen_by: SeenBy::Server,
        meaning: "The client confirmed other features of Alibaba's SMC than those that were agreed on.",
        causes: &[
            "Somebody changed the sysctl of these features while connections were made.",
            "The two hosts run different releases.",
        ],
        checks: &[
            KERNELS,
            Check {
                command: "sysctl net.smc.vendor_exp_options net.smc.experiment_vendor_options",
                to_see: "the features; the first name is that of 5.10.134-015, the second that of later kernels",
            },
        ],
        ..ALIBABA
    },
    CodeInfo {
        value: 0x0308_0000,
        name: "GETVLANERR",
        since: "5.2",
        meaning: "The connection had no interface when SMC asked for its VLAN id.",
        causes: &["The route or the interface went away while the connection was made."],
        checks: &[ROUTE, ISM_VLAN, KERNEL_LOG],
        ..LINUX
    },
    CodeInfo {
        value: 0x0309_0000,
        name: "ISMVLANERR",
        since: "5.2",
        meaning: "The ISM device did not take the VLAN id of the connection.",
        causes: &["The device holds as many VLAN ids as it can, or it is failing."],
        checks: &[ISM_VLAN, DEVICES, KERNEL_LOG],
        ..LINUX
    },
    CodeInfo {
        value: 0x030a_0000,
        name: "NOACTLINK",
        since: "5.8",
        meaning: "The link group that the connection was to join has no link that works.",
        causes: &[
            "The RDMA port went down, and the link group is about to end.",
            "Links are being moved to another port just now.",
        ],
        checks: &[LINK_GROUPS, RDMA_LINKS, KERNEL_LOG],
        note: Some("Once the port is up, new connections make a new link group by themselves."),
        ..LINUX
    },
    CodeInfo {
        value: 0x030b_0000,
        name: "NOSRVLINK",
        since: "5.8",
        seen_by: SeenBy::Client,
        meaning: "The server chose a link of an existing link group (by its QP number, GID and MAC address) that this \
                  host does not have.",
        causes: &[
            "A link went down on this host, and the server does not know it yet.",
            "The two hosts have lost step over a link group, for instance after one was restarted.",
        ],
        checks: &[LINK_GROUPS, RDMA_LINKS, KERNEL_LOG],
        ..LINUX
    },
    CodeInfo {
        value: 0x030c_0000,
        name: "VERSMISMAT",
        since: "5.8",
        meaning: "The SMC versions of the two hosts do not fit. Current kernels agree on one instead, and do not set the \
                  code.",
        causes: &["The two hosts run kernels of different age or make."],
        checks: &[KERNELS, INFO],
        ..LINUX
    },
    CodeInfo {
        value: 0x030d_0000,
        name: "MAX_DMB",
        since: "5.8",
        meaning: "The ISM device has no room for another receive buffer (DMB).",
        causes: &["Very many SMC-D connections share one device, or their buffers are large."],
        checks: &[
            DEVICES,
            Check { command: "smc-agent show sockets --smcd", to_see: "which connections hold the buffers" },
            Check { command: "smc-agent show stats --smcd", to_see: "the sizes of their buffers" },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x030e_0000,
        name: "NOROUTE",
        since: "5.16",
        seen_by: SeenBy::Client,
        meaning: "This host has no route from its address to the server's RDMA address, or does not know the next hop's \
                  MAC address.",
        causes: &[
            "The server's RDMA device has another address than the one connected to, in a network that is not routed.",
            "The neighbour does not answer ARP.",
        ],
        checks: &[
            ROUTE,
            Check { command: "ip neighbour show", to_see: "whether the next hop is REACHABLE or FAILED" },
            DEVICES,
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x030f_0000,
        name: "NOINDIRECT",
        since: "5.16",
        seen_by: SeenBy::Client,
        meaning: "The server says that the way between the hosts leads over a gateway, and by this host's routes it \
                  does not.",
        causes: &["Routes or prefix lengths of the two hosts differ, or the ways there and back do."],
        checks: &[
            ROUTE,
            Check { command: "ip address show", to_see: "on both hosts, whether prefix lengths agree" },
        ],
        ..LINUX
    },
];
