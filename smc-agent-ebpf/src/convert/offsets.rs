//! Where the fields of kernel structures are in the running kernel. User space resolves them from BTF and writes them here
//! before the load; the verifier then sees constants.

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
    /// `struct task_struct`: `group_leader` (pointer to one).
    OFF_TASK_LEADER;
    /// `struct task_struct`: `comm` (16 bytes).
    OFF_TASK_COMM;
    /// `struct task_struct`: `mm` (pointer).
    OFF_TASK_MM;
    /// `struct task_struct`: `nsproxy` (pointer).
    OFF_TASK_NSPROXY;
    /// `struct nsproxy`: `net_ns` (pointer to `struct net`).
    OFF_NSPROXY_NET;
    /// `struct net`: `net_cookie` (u64).
    OFF_NET_COOKIE;
    /// `struct mm_struct`: `exe_file` (pointer to `struct file`).
    OFF_MM_EXE;
    /// `struct file`: `f_inode` (pointer).
    OFF_FILE_INODE;
    /// `struct inode`: `i_ino` (unsigned long).
    OFF_INODE_INO;
    /// `struct inode`: `i_sb` (pointer to `struct super_block`).
    OFF_INODE_SB;
    /// `struct super_block`: `s_dev` (u32).
    OFF_SB_DEV;
    /// `struct cgroup`: `root` (pointer to `struct cgroup_root`).
    OFF_CGROUP_ROOT;
    /// `struct cgroup`: `kn` (pointer to `struct kernfs_node`).
    OFF_CGROUP_KN;
    /// `struct cgroup_root`: `hierarchy_id` (int).
    OFF_ROOT_HIERARCHY;
    /// `struct kernfs_node`: `id` (u64).
    OFF_KN_ID;
}
