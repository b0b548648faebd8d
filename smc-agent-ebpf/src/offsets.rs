//! Where the fields of kernel structures are in the running kernel. User space resolves them from BTF and writes
//! them here before the load; the verifier then sees constants.

use aya_ebpf::Global;

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub static $name: Global<u32> = Global::new(0);
        )*
    };
}

offsets! {
    /// `struct sock`: `__sk_common.skc_family` (u16).
    OFF_SKC_FAMILY;
    /// `struct sock`: `__sk_common.skc_rcv_saddr` (be32).
    OFF_SKC_RCV_SADDR;
    /// `struct sock`: `__sk_common.skc_daddr` (be32).
    OFF_SKC_DADDR;
    /// `struct sock`: `__sk_common.skc_v6_rcv_saddr` (16 bytes).
    OFF_SKC_V6_RCV_SADDR;
    /// `struct sock`: `__sk_common.skc_v6_daddr` (16 bytes).
    OFF_SKC_V6_DADDR;
    /// `struct sock`: `__sk_common.skc_num` (u16, host order).
    OFF_SKC_NUM;
    /// `struct sock`: `__sk_common.skc_dport` (be16).
    OFF_SKC_DPORT;
    /// `struct sock`: `__sk_common.skc_net.net` (pointer).
    OFF_SKC_NET;
    /// `struct inet_sock`: `inet_sport` (be16).
    OFF_INET_SPORT;
    /// `struct net`: `ns.inum` (u32).
    OFF_NET_INUM;
    /// `struct tcp_sock`: `segs_out` (u32).
    OFF_TP_SEGS_OUT;
    /// `struct tcp_request_sock`: `snt_synack` (u64, microseconds).
    OFF_RSK_SNT_SYNACK;
    /// `struct sk_buff`: `head` (pointer).
    OFF_SKB_HEAD;
    /// `struct sk_buff`: `data` (pointer).
    OFF_SKB_DATA;
    /// `struct sk_buff`: `network_header` (u16, from `head`).
    OFF_SKB_NETWORK_HEADER;
    /// `struct sk_buff`: `dev` (pointer).
    OFF_SKB_DEV;
    /// `struct sk_buff`: `sk` (pointer).
    OFF_SKB_SK;
    /// `struct net_device`: `nd_net.net` (pointer).
    OFF_DEV_NET;
    /// `struct smc_sock`: `clcsock` (pointer to `struct socket`).
    OFF_SMC_CLCSOCK;
    /// `struct smc_sock`: `listen_smc` (pointer; set on the server side).
    OFF_SMC_LISTEN;
    /// `struct smc_sock`: `peer_diagnosis` (u32).
    OFF_SMC_PEER_DIAGNOSIS;
    /// `struct socket`: `sk` (pointer).
    OFF_SOCKET_SK;
    /// `struct net`: `net_cookie` (u64), or [`ABSENT`].
    OFF_NET_COOKIE;
    /// `struct sock`: `__sk_common.skc_state` (u8).
    OFF_SKC_STATE;
    /// `struct sock`: `sk_err` (int).
    OFF_SK_ERR;
    /// `struct smc_sock`: `use_fallback` (bool).
    OFF_SMC_USE_FALLBACK;
    /// `struct smc_sock`: `fallback_rsn` (int).
    OFF_SMC_FALLBACK_RSN;
    /// `struct smc_sock`: `conn` (a structure).
    OFF_SMC_CONN;
    /// `struct smc_sock`: `conn.lgr` (pointer).
    OFF_SMC_CONN_LGR;
    /// `struct smc_sock`: `conn.lnk` (pointer).
    OFF_SMC_CONN_LNK;
    /// `struct smc_sock`: `conn.alert_token_local` (u32).
    OFF_SMC_CONN_TOKEN;
    /// `struct smc_link_group`: `is_smcd` (bool).
    OFF_LGR_IS_SMCD;
    /// `struct smc_link_group`: `smcd` (pointer), or [`ABSENT`].
    OFF_LGR_SMCD;
    /// `struct smcd_dev`: `dibs` (pointer), or [`ABSENT`].
    OFF_SMCD_DIBS;
    /// `struct dibs_dev`: `dev.kobj.name` (pointer to text), or [`ABSENT`].
    OFF_DIBS_NAME;
    /// `struct smc_link`: `lgr` (pointer).
    OFF_LNK_LGR;
    /// `struct smc_link`: `ibname` (text).
    OFF_LNK_IBNAME;
    /// `struct smc_link`: `ibport` (u8).
    OFF_LNK_IBPORT;
    /// `struct smc_link`: `link_id` (u8).
    OFF_LNK_ID;
    /// `struct smc_link`: `gid` (16 bytes).
    OFF_LNK_GID;
    /// `struct smc_link`: `peer_gid` (16 bytes).
    OFF_LNK_PEER_GID;
    /// `struct smc_link`: `conn_cnt` (atomic), or [`ABSENT`].
    OFF_LNK_CONN_CNT;
    /// `struct smc_link_group`: `id` (4 bytes).
    OFF_LGR_ID;
    /// `struct smc_link_group`: `smc_version` (u8).
    OFF_LGR_SMC_VERSION;
    /// `struct smc_link_group`: `net` (pointer).
    OFF_LGR_NET;
}

/// In the place of an offset: this kernel has no such field.
pub const ABSENT: u32 = u32::MAX;

/// Events a second with one code and one peer that are reported; the others are counted. 0: no limit.
#[unsafe(no_mangle)]
pub static EVENT_RATE: Global<u32> = Global::new(0);

/// 1 where the kernel has no tracepoint for fallbacks, so that they are seen where the kernel comes by after them.
#[unsafe(no_mangle)]
pub static FALLBACK_BY_PROBE: Global<u32> = Global::new(0);

/// 1 when a backend enforces the policy, so that a refused option can be the policy's doing.
#[unsafe(no_mangle)]
pub static ENFORCING: Global<u32> = Global::new(0);
