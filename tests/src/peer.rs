//! A peer of SMC that is made by hand: plain TCP sockets whose SYN or SYN-ACK carries the option of SMC, so that the kernel at
//! the other end takes them for SMC ones and waits for messages, which tests write as they like.
//!
//! A small BPF program, called for TCP sockets of the whole machine, writes the option for sockets of two ports only.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use anyhow::{Context as _, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

/// Where cgroups (version 2) are mounted.
const GROUPS: &str = "/sys/fs/cgroup";

/// Commands, types and helpers of bpf(2) (`include/uapi/linux/bpf.h`).
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_DETACH: libc::c_int = 9;
const BPF_PROG_TYPE_SOCK_OPS: u32 = 13;
const BPF_CGROUP_SOCK_OPS: u32 = 3;
const BPF_F_ALLOW_MULTI: u32 = 2;
const HELPER_CB_FLAGS_SET: i32 = 59;
const HELPER_STORE_HDR_OPT: i32 = 143;
const HELPER_RESERVE_HDR_OPT: i32 = 144;
/// What a program of sockets is called for.
const TCP_CONNECT_CB: i32 = 3;
const TCP_LISTEN_CB: i32 = 11;
const HDR_OPT_LEN_CB: i32 = 14;
const WRITE_HDR_OPT_CB: i32 = 15;
const WRITE_HDR_OPT_CB_FLAG: i32 = 1 << 6;
/// Fields of `struct bpf_sock_ops`.
const OP: i16 = 0;
const REMOTE_PORT: i16 = 64;
const LOCAL_PORT: i16 = 68;
const SKB_TCP_FLAGS: i16 = 212;
const SYN: i32 = 2;

/// The option: an experiment (kind 254, RFC 6994) of so many bytes with the identifier of SMC (RFC 7609, appendix A).
const OPTION_LENGTH: i32 = 6;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high one.
    registers: u8,
    offset: i16,
    number: i32,
}

/// One instruction: `to` and `from` are registers.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, number }
}

/// `to = *(u32 *)(r6 + offset)`
const fn load(to: u8, offset: i16) -> Instruction {
    instruction(0x61, to, 6, offset, 0)
}

/// `to = number`
const fn set(to: u8, number: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, number)
}

/// `to = from`
const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

/// `if register == number goto +offset`
const fn if_equal(register: u8, number: i32, offset: i16) -> Instruction {
    instruction(0x15, register, 0, offset, number)
}

/// `if register != number goto +offset`
const fn unless_equal(register: u8, number: i32, offset: i16) -> Instruction {
    instruction(0x55, register, 0, offset, number)
}

const fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

/// Writes the option for clients of one port and listeners of another.
fn program(client_of: u16, listener_at: u16) -> [Instruction; 44] {
    let [low, high] = [[254, 6, 0xe2, 0xd4], [0xc3, 0xd9, 0, 0]].map(i32::from_ne_bytes);
    [
        copy(6, 1),
        load(2, OP),
        if_equal(2, TCP_CONNECT_CB, 5),
        if_equal(2, TCP_LISTEN_CB, 9),
        if_equal(2, HDR_OPT_LEN_CB, 17),
        if_equal(2, WRITE_HDR_OPT_CB, 25),
        set(0, 1),
        EXIT,
        // 8: a socket connects. The port is in network order.
        load(2, REMOTE_PORT),
        instruction(0xdc, 2, 0, 0, 32),
        if_equal(2, i32::from(client_of), 6),
        set(0, 1),
        EXIT,
        // 13: a socket listens.
        load(2, LOCAL_PORT),
        if_equal(2, i32::from(listener_at), 2),
        set(0, 1),
        EXIT,
        // 17: it is to write options.
        copy(1, 6),
        set(2, WRITE_HDR_OPT_CB_FLAG),
        call(HELPER_CB_FLAGS_SET),
        set(0, 1),
        EXIT,
        // 22: how much room does it need?
        load(2, SKB_TCP_FLAGS),
        instruction(0x57, 2, 0, 0, SYN),
        unless_equal(2, SYN, 4),
        copy(1, 6),
        set(2, OPTION_LENGTH),
        set(3, 0),
        call(HELPER_RESERVE_HDR_OPT),
        set(0, 1),
        EXIT,
        // 31: write it.
        load(2, SKB_TCP_FLAGS),
        instruction(0x57, 2, 0, 0, SYN),
        unless_equal(2, SYN, 8),
        instruction(0x62, 10, 0, -8, low),
        instruction(0x62, 10, 0, -4, high),
        copy(1, 6),
        copy(2, 10),
        instruction(0x07, 2, 0, 0, -8),
        set(3, OPTION_LENGTH),
        set(4, 0),
        call(HELPER_STORE_HDR_OPT),
        set(0, 1),
        EXIT,
    ]
}

/// The program at its place; taken away when this is dropped.
#[derive(Debug)]
pub struct Disguise {
    groups: File,
    program: OwnedFd,
}

impl Disguise {
    /// From now on plain TCP sockets that connect to port `client_of`, or listen on port `listener_at`, look like SMC ones.
    pub fn start(client_of: u16, listener_at: u16) -> Result<Self> {
        let groups = File::open(GROUPS).with_context(|| format!("open {GROUPS} (are cgroups mounted?)"))?;
        let program = load_program(&program(client_of, listener_at))
            .context("load a program for TCP options (needs 5.10 and CAP_BPF)")?;
        let this = Self { groups, program };
        this.attach(BPF_PROG_ATTACH).context("attach a program for TCP options (needs CONFIG_CGROUP_BPF)")?;
        Ok(this)
    }

    fn attach(&self, command: libc::c_int) -> io::Result<()> {
        // target_fd, attach_bpf_fd, attach_type, attach_flags
        let flags = if command == BPF_PROG_ATTACH { BPF_F_ALLOW_MULTI } else { 0 };
        let [groups, program] = [self.groups.as_raw_fd(), self.program.as_raw_fd()].map(RawFd::unsigned_abs);
        let mut attributes = [groups, program, BPF_CGROUP_SOCK_OPS, flags];
        // SAFETY: four integers are what the command reads; it has no pointers.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes))
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Disguise {
    fn drop(&mut self) {
        // The next one fails to attach if it was not taken away.
        let _ = self.attach(BPF_PROG_DETACH);
    }
}

/// The attributes of `BPF_PROG_LOAD` that are needed.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

fn load_program(instructions: &[Instruction]) -> Result<OwnedFd> {
    let license = c"GPL";
    // Before 5.11 programs count as locked memory. Where the limit cannot be raised, loading fails by itself.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let mut log = vec![0_u8; 64 * 1024];
    let mut attributes = Load {
        kind: BPF_PROG_TYPE_SOCK_OPS,
        count: u32::try_from(instructions.len())?,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 1,
        log_size: u32::try_from(log.len())?,
        log: log.as_mut_ptr() as u64,
        kernel_version: 0,
        flags: 0,
    };
    // SAFETY: instructions, license and log live until the call is over and are as long as is said.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw mut attributes, size_of::<Load>()) };
    if result < 0 {
        let error = io::Error::last_os_error();
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        return Err(error).context(String::from_utf8_lossy(&log[..end]).into_owned());
    }
    // SAFETY: the kernel just made this descriptor for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(result)?) })
}

/// Messages of the handshake (`net/smc/smc_clc.h`, RFC 7609).
pub mod message {
    use std::net::Ipv4Addr;

    const EYECATCHER: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
    const PROPOSAL: u8 = 1;
    const DECLINE: u8 = 4;
    /// Version 1 in the upper half; `SMC_TYPE_R` in the lower one.
    const VERSION_1: u8 = 1 << 4;

    fn message(kind: u8, version: u8, body: &[u8]) -> Vec<u8> {
        let length = 8 + body.len() + EYECATCHER.len();
        let [high, low] = u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
        [&EYECATCHER[..], &[kind, high, low, version], body, &EYECATCHER].concat()
    }

    /// A DECLINE of version 1, with a reason.
    pub fn decline(reason: u32) -> Vec<u8> {
        let mut body = [0; 16];
        body[8..12].copy_from_slice(&reason.to_be_bytes());
        message(DECLINE, VERSION_1, &body)
    }

    /// A PROPOSAL of version 1: SMC-R, from a host in this network.
    pub fn proposal(network: Ipv4Addr, prefix: u8) -> Vec<u8> {
        let mut body = Vec::new();
        // Id, GID and MAC of a host that nobody knows.
        body.extend([0x5a; 8 + 16 + 6]);
        // The addresses follow at once.
        body.extend([0, 0]);
        body.extend(network.octets());
        body.extend([prefix, 0, 0, 0]);
        message(PROPOSAL, VERSION_1, &body)
    }

    /// The reason in a DECLINE; `None` if this is none.
    pub fn reason(message: &[u8]) -> Option<u32> {
        let is_decline = message.starts_with(&EYECATCHER) && message.get(4) == Some(&DECLINE);
        let reason = message.get(16..20)?.try_into().ok()?;
        is_decline.then(|| u32::from_be_bytes(reason))
    }
}
