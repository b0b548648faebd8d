//! Where the fields are that the programs read: resolved from the running kernel's BTF, by the name of the global
//! that the program knows them by.

use super::btf::{Btf, BtfError};

/// A field of a kernel structure and the global that takes its offset.
struct Field(&'static str, &'static str, &'static str);

/// Fields of the kernel itself.
const KERNEL: &[Field] = &[
    Field("OFF_SKC_FAMILY", "sock", "__sk_common.skc_family"),
    Field("OFF_SKC_RCV_SADDR", "sock", "__sk_common.skc_rcv_saddr"),
    Field("OFF_SKC_DADDR", "sock", "__sk_common.skc_daddr"),
    Field("OFF_SKC_V6_RCV_SADDR", "sock", "__sk_common.skc_v6_rcv_saddr"),
    Field("OFF_SKC_V6_DADDR", "sock", "__sk_common.skc_v6_daddr"),
    Field("OFF_SKC_NUM", "sock", "__sk_common.skc_num"),
    Field("OFF_SKC_DPORT", "sock", "__sk_common.skc_dport"),
    Field("OFF_SKC_NET", "sock", "__sk_common.skc_net.net"),
    Field("OFF_INET_SPORT", "inet_sock", "inet_sport"),
    Field("OFF_NET_INUM", "net", "ns.inum"),
    Field("OFF_TP_SEGS_OUT", "tcp_sock", "segs_out"),
    Field("OFF_RSK_SNT_SYNACK", "tcp_request_sock", "snt_synack"),
    Field("OFF_SKB_HEAD", "sk_buff", "head"),
    Field("OFF_SKB_DATA", "sk_buff", "data"),
    Field("OFF_SKB_NETWORK_HEADER", "sk_buff", "network_header"),
    Field("OFF_SKB_DEV", "sk_buff", "dev"),
    Field("OFF_SKB_SK", "sk_buff", "sk"),
    Field("OFF_DEV_NET", "net_device", "nd_net.net"),
    Field("OFF_SOCKET_SK", "socket", "sk"),
    Field("OFF_SKC_STATE", "sock", "__sk_common.skc_state"),
    Field("OFF_SK_ERR", "sock", "sk_err"),
];

/// Fields of the kernel that events are told without where it has none.
const OPTIONAL: &[Field] = &[Field("OFF_NET_COOKIE", "net", "net_cookie")];

/// In the place of an offset: there is no such field.
const ABSENT: u32 = u32::MAX;

/// Fields of SMC, in the kernel or in its module.
const SMC: &[Field] = &[
    Field("OFF_SMC_CLCSOCK", "smc_sock", "clcsock"),
    Field("OFF_SMC_LISTEN", "smc_sock", "listen_smc"),
    Field("OFF_SMC_PEER_DIAGNOSIS", "smc_sock", "peer_diagnosis"),
    Field("OFF_SMC_USE_FALLBACK", "smc_sock", "use_fallback"),
    Field("OFF_SMC_FALLBACK_RSN", "smc_sock", "fallback_rsn"),
];

/// Fields of links of SMC-R, for events of those that go down.
const LINK: &[Field] = &[
    Field("OFF_LNK_LGR", "smc_link", "lgr"),
    Field("OFF_LNK_IBNAME", "smc_link", "ibname"),
    Field("OFF_LNK_IBPORT", "smc_link", "ibport"),
    Field("OFF_LNK_ID", "smc_link", "link_id"),
    Field("OFF_LNK_GID", "smc_link", "gid"),
    Field("OFF_LNK_PEER_GID", "smc_link", "peer_gid"),
    Field("OFF_LGR_ID", "smc_link_group", "id"),
    Field("OFF_LGR_SMC_VERSION", "smc_link_group", "smc_version"),
    Field("OFF_LGR_NET", "smc_link_group", "net"),
];

/// Fields of connections that are being set up, for events of those that fail.
const SETUP: &[Field] = &[
    Field("OFF_SMC_CONN", "smc_sock", "conn"),
    Field("OFF_SMC_CONN_LGR", "smc_sock", "conn.lgr"),
    Field("OFF_SMC_CONN_LNK", "smc_sock", "conn.lnk"),
    Field("OFF_SMC_CONN_TOKEN", "smc_sock", "conn.alert_token_local"),
    Field("OFF_LGR_IS_SMCD", "smc_link_group", "is_smcd"),
];

/// Where the names of devices of SMC-D are: elsewhere before 6.18.
const SETUP_OPTIONAL: &[Field] = &[
    Field("OFF_LGR_SMCD", "smc_link_group", "smcd"),
    Field("OFF_SMCD_DIBS", "smcd_dev", "dibs"),
    Field("OFF_DIBS_NAME", "dibs_dev", "dev.kobj.name"),
];

/// Fields of links that older kernels lack.
const LINK_OPTIONAL: &[Field] = &[Field("OFF_LNK_CONN_CNT", "smc_link", "conn_cnt")];

/// Fields that conversion reads.
const CONVERT: &[Field] = &[
    Field("OFF_TASK_LEADER", "task_struct", "group_leader"),
    Field("OFF_TASK_COMM", "task_struct", "comm"),
    Field("OFF_TASK_MM", "task_struct", "mm"),
    Field("OFF_TASK_NSPROXY", "task_struct", "nsproxy"),
    Field("OFF_NSPROXY_NET", "nsproxy", "net_ns"),
    Field("OFF_NET_COOKIE", "net", "net_cookie"),
    Field("OFF_MM_EXE", "mm_struct", "exe_file"),
    Field("OFF_FILE_INODE", "file", "f_inode"),
    Field("OFF_INODE_INO", "inode", "i_ino"),
    Field("OFF_INODE_SB", "inode", "i_sb"),
    Field("OFF_SB_DEV", "super_block", "s_dev"),
    Field("OFF_CGROUP_ROOT", "cgroup", "root"),
    Field("OFF_CGROUP_KN", "cgroup", "kn"),
    Field("OFF_ROOT_HIERARCHY", "cgroup_root", "hierarchy_id"),
    Field("OFF_KN_ID", "kernfs_node", "id"),
];

/// Name of a global and the offset that it gets, in bytes.
pub type Offset = (&'static str, u32);

/// The offsets of the kernel's own structures.
pub fn of_kernel(btf: &Btf) -> Result<Vec<Offset>, BtfError> {
    let mut offsets = resolve(btf, KERNEL)?;
    offsets.extend(resolve_optional(btf, OPTIONAL));
    Ok(offsets)
}

/// The offsets of SMC's sockets.
pub fn of_smc(btf: &Btf) -> Result<Vec<Offset>, BtfError> {
    resolve(btf, SMC)
}

/// The offsets that conversion needs.
pub fn of_convert(btf: &Btf) -> Result<Vec<Offset>, BtfError> {
    resolve(btf, CONVERT)
}

/// The offsets of SMC's links, and of connections that are to use them.
pub fn of_links(btf: &Btf) -> Result<Vec<Offset>, BtfError> {
    let mut offsets = resolve(btf, LINK)?;
    offsets.extend(resolve(btf, SETUP)?);
    offsets.extend(resolve_optional(btf, LINK_OPTIONAL));
    offsets.extend(resolve_optional(btf, SETUP_OPTIONAL));
    Ok(offsets)
}

fn resolve_optional(btf: &Btf, fields: &[Field]) -> Vec<Offset> {
    let offset = |field: &Field| (field.0, btf.offset(field.1, field.2).unwrap_or(ABSENT));
    fields.iter().map(offset).collect()
}

fn resolve(btf: &Btf, fields: &[Field]) -> Result<Vec<Offset>, BtfError> {
    fields
        .iter()
        .map(|Field(global, structure, field)| Ok((*global, btf.offset(structure, field)?)))
        .collect()
}
