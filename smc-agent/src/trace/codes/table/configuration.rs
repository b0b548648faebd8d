//! What the two hosts are set up for, and what they were asked: `0x0300……` to `0x0302……`, and `0x0304……` to `0x0307……`.

use super::super::{Check, CodeInfo, Earlier, SeenBy};
use super::{ALIBABA, DEVICES, EIDS, INFO, LINUX, ROUTE};

pub(super) const CODES: &[CodeInfo] = &[
    CodeInfo {
        value: 0x0300_0000,
        name: "CNFERR",
        since: "4.11",
        seen_by: SeenBy::Client,
        meaning: "This host could not describe its own network for the proposal: it found no interface, or no address \
                  with its prefix, for the connection's local address. Only SMCv1 needs that.",
        causes: &[
            "The local address or the interface went away while the connection was made.",
            "The local address is not one of the interface that the route leaves by, as with addresses on `lo` or \
             addresses that a load balancer or NAT lends.",
            "A VLAN id that was registered at an ISM device for the handshake could not be given back.",
        ],
        checks: &[
            ROUTE,
            Check {
                command: "ip address show",
                to_see: "whether the connection's local address is on that interface",
            },
            DEVICES,
        ],
        earlier: &[Earlier {
            kernels: "4.11 to 4.18",
            name: "CNFERR",
            meaning: "There is no RDMA device for the interface of the connection, which is NOSMCDEV today.",
        }],
        ..LINUX
    },
    CodeInfo {
        value: 0x0301_0000,
        name: "PEERNOSMC",
        meaning: "The SYN or the SYN-ACK came without the TCP option that offers SMC, so there was nothing to negotiate. \
                  The kernel says the same whether the other end has no SMC or an end was not allowed to offer it.",
        causes: &[
            "The program at the other end uses a plain TCP socket: it was never started with SMC, or it is statically \
             linked and `smc_run` cannot reach it.",
            "A policy refused it, here or there. The event says `denied by` where it was this host's.",
            "The other host has no SMC, or its module is not loaded.",
            "Something on the way takes unknown TCP options out: a firewall, a load balancer, NAT, a proxy.",
            "A listener under load: SYN cookies keep no options, and with the handshake limitation on the listener \
             leaves the option out while handshakes queue up.",
            "There was no room: TCP's options hold 40 bytes, and SMC needs 8 beside signatures and timestamps.",
        ],
        checks: &[
            Check {
                command: "smc-agent policy explain --running --flow 'LOCAL -> PEER:PORT' --role client",
                to_see: "whether the policy in force refuses the connection, and by which rule (role: this host's)",
            },
            Check {
                command: "smc-agent show sockets --listening",
                to_see: "on the server, whether the port has an SMC listener at all",
            },
            Check {
                command: "tcpdump -ni any -vv 'tcp[tcpflags] & tcp-syn != 0 and host PEER'",
                to_see: "on both hosts, whether `exp-e2d4` is in the SYN and in the SYN-ACK, and where it gets lost",
            },
            Check {
                command: "nft list ruleset",
                to_see: "rules that strip TCP options (`tcp option … reset`, TCPOPTSTRIP)",
            },
            Check { command: "smc-agent show hs-limit", to_see: "whether listeners refuse SMC under load" },
            Check {
                command: "sysctl net.ipv4.tcp_syncookies",
                to_see: "2: every connection loses its options",
            },
        ],
        ..LINUX
    },
    CodeInfo {
        value: 0x0301_0001,
        name: "ALIBABA_SOCKOPT",
        meaning: "The application set a socket option that SMC cannot carry, and the kernel went back to TCP so that \
                  the option holds.",
        causes: &["The application, or a library that it uses, sets one of the options below."],
        checks: &[Check {
            command: "strace -f -e trace=setsockopt -p PID",
            to_see: "which option it sets, before it connects or listens",
        }],
        about_options: true,
        ..ALIBABA
    },
    CodeInfo {
        value: 0x0302_0000,
        name: "IPSEC",
        meaning: "IPsec protects the connection. What SMC moves by RDMA or ISM does not pass IPsec, so SMC stays away.",
        causes: &[
            "A policy of IPsec covers this peer, or the application set one on its socket (IP_XFRM_POLICY).",
        ],
        checks: &[
            Check { command: "ip xfrm policy", to_see: "policies whose selectors cover the connection" },
            Check { command: "ip xfrm state", to_see: "whether there are associations with this peer" },
        ],
        note: Some(
            "If the traffic has to be encrypted, this is as it should be. If not, take the connection out of the \
             policy of IPsec.",
        ),
        ..LINUX
    },
    CodeInfo {
        value: 0x0304_0000,
        name: "MODEUNSUPP",
        seen_by: SeenBy::Client,
        meaning: "The server accepted a kind of SMC that this host did not propose: SMC-R instead of SMC-D or the other \
                  way round, or of another version.",
        causes: &[
            "A fault in the SMC of the server, or two versions of it that do not understand each other.",
            "Something on the way changed the messages.",
        ],
        checks: &[DEVICES, INFO, super::KERNELS],
        ..LINUX
    },
    CodeInfo {
        value: 0x0305_0000,
        name: "RMBE_EC",
        meaning: "The other host wants marks (eye catchers) in the receive buffers, which RFC 7609 allows and Linux \
                  does not do.",
        causes: &["The other host is not Linux, and is set up to use these marks."],
        checks: &[Check {
            command: "smc-agent show linkgroups --details",
            to_see: "the peers of the link groups that there are, to tell which one it is",
        }],
        ..LINUX
    },
    CodeInfo {
        value: 0x0306_0000,
        name: "OPTUNSUPP",
        meaning: "The application asked for TCP Fast Open, which SMC does not have; so the connection became plain TCP \
                  before it was made.",
        causes: &[
            "sendto() or sendmsg() with MSG_FASTOPEN on a socket that is not connected.",
            "setsockopt() with TCP_FASTOPEN on a listener-to-be, or with TCP_FASTOPEN_CONNECT, TCP_FASTOPEN_KEY or \
             TCP_FASTOPEN_NO_COOKIE.",
        ],
        checks: &[
            Check {
                command: "strace -f -e trace=setsockopt,sendto,sendmsg -p PID",
                to_see: "TCP_FASTOPEN… or MSG_FASTOPEN",
            },
            Check {
                command: "nginx -T | grep fastopen",
                to_see: "an example of where it is set: nginx's `listen … fastopen=`, HAProxy's `tfo`",
            },
        ],
        about_options: true,
        ..LINUX
    },
    CodeInfo {
        value: 0x0307_0000,
        name: "DIFFPREFIX",
        since: "5.2",
        seen_by: SeenBy::Server,
        meaning: "SMCv1 works only between hosts of one IP subnet, and the client's prefix is none of this host's \
                  interface.",
        causes: &[
            "Client and server are in different subnets, and at least one of them cannot do SMCv2.",
            "Prefix lengths differ: a /24 on one host and a /16 on the other.",
            "SMCv2 would be possible, but there is no user EID in common.",
        ],
        checks: &[
            Check {
                command: "ip address show",
                to_see: "on both hosts, address and prefix length of the interface that the connection uses",
            },
            EIDS,
            DEVICES,
        ],
        note: Some("SMCv2 (RoCEv2 or ISMv2, with a user EID on both hosts) works over routers."),
        ..LINUX
    },
];
