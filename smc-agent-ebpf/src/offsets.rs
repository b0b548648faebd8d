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
}

/// 1 when a backend enforces the policy, so that a refused option can be the policy's doing.
#[unsafe(no_mangle)]
pub static ENFORCING: Global<u32> = Global::new(0);
