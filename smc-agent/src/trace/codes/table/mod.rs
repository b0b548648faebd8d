//! What is known of every code: the one place for it. Numbers and who sets them are from the kernel's `net/smc`; causes and
//! remedies are those that operators met.

mod configuration;
mod devices;
mod negotiation;
mod resources;
mod retired;

use super::{Check, CodeInfo, Origin, SeenBy};

/// The tables, each in the order of its numbers.
pub(super) const TABLES: [&[CodeInfo]; 4] =
    [resources::CODES, configuration::CODES, devices::CODES, negotiation::CODES];

pub(super) use retired::CODES as RETIRED;

/// What an entry is where it says nothing else.
const LINUX: CodeInfo = CodeInfo {
    value: 0,
    name: "",
    origin: Origin::Linux,
    since: "4.19",
    until: None,
    seen_by: SeenBy::Both,
    meaning: "",
    causes: &[],
    checks: &[],
    note: None,
    earlier: &[],
    about_options: false,
};

/// One of Alibaba's kernels, whose names are this program's.
const ALIBABA: CodeInfo =
    CodeInfo { origin: Origin::Alibaba, since: "Alibaba Cloud Linux 3 (5.10)", ..LINUX };

// What is checked for more than one code.
const DEVICES: Check = Check {
    command: "smc-agent show devices",
    to_see: "which RDMA, ISM and dibs devices SMC may use, whether their ports are active, and their PNET ids",
};
const RDMA_LINKS: Check = Check {
    command: "rdma link show",
    to_see: "the state of every RDMA port and the interface that it belongs to",
};
const RDMA_NETNS: Check = Check {
    command: "rdma system show",
    to_see: "`netns exclusive`: then SMC finds an RDMA device only from its own network namespace",
};
const EIDS: Check = Check {
    command: "smc-agent show ueid",
    to_see: "the user EIDs; both hosts need one in common for SMCv2",
};
const PNET: Check = Check {
    command: "smc-agent show pnet",
    to_see: "whether the interface of the connection and the device carry the same PNET id",
};
const ROUTE: Check = Check {
    command: "ip route get PEER",
    to_see: "by which interface and gateway this host reaches the peer",
};
const KERNELS: Check =
    Check { command: "uname -r", to_see: "on both hosts, whether their kernels are of one age" };
const INFO: Check = Check {
    command: "smc-agent show info",
    to_see: "on both hosts, SMC's version and the sysctls of net.smc that differ from their defaults",
};
const LINK_GROUPS: Check = Check {
    command: "smc-agent show linkgroups --details",
    to_see: "link groups, their links and their state, and how many connections each has",
};
const KERNEL_LOG: Check =
    Check { command: "dmesg", to_see: "messages of smc, of the RDMA driver and of the memory management" };
const VERBS: Check = Check {
    command: "ibv_devinfo -v -d DEVICE",
    to_see: "the limits of the device (max_qp, max_mr, max_mr_size) and the state of its port",
};
const MEMORY: Check = Check { command: "free -m", to_see: "how much memory is left" };
