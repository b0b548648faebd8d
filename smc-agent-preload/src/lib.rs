//! Replaces socket(2) of the program that it is loaded into: streams of TCP become SMC sockets, of `AF_SMC`, so that it
//! works on every kernel with SMC. Where the kernel has none, the program gets what it asked for.
//!
//! Set by `smc-agent exec`: `SMC_AGENT_CONVERT` is `kernel` where the kernel converts and only buffers are to be sized,
//! `SMC_AGENT_RCVBUF` and `SMC_AGENT_SNDBUF` are sizes in bytes, `SMC_AGENT_DEBUG` has it say what it does.

use std::ffi::{CStr, c_char, c_int, c_long};

/// `AF_SMC` (include/linux/socket.h).
const AF_SMC: c_int = 43;
/// `SMCPROTO_SMC` and `SMCPROTO_SMC6` (include/net/smc.h).
const SMCPROTO_SMC: c_int = 0;
const SMCPROTO_SMC6: c_int = 1;
/// `SOCK_TYPE_MASK` (include/linux/net.h).
const TYPE_MASK: c_int = 0xf;

/// socket(2).
///
/// # Safety
///
/// As socket(2): takes any numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_tcp = matches!(family, libc::AF_INET | libc::AF_INET6)
        && kind & TYPE_MASK == libc::SOCK_STREAM
        && matches!(protocol, libc::IPPROTO_IP | libc::IPPROTO_TCP);
    if !is_tcp {
        return make(family, kind, protocol);
    }
    let by_kernel = variable(c"SMC_AGENT_CONVERT") == Some(b"kernel");
    let mut made = -1;
    if !by_kernel {
        let smc = if family == libc::AF_INET6 { SMCPROTO_SMC6 } else { SMCPROTO_SMC };
        made = make(AF_SMC, kind, smc);
        say(if made >= 0 {
            c"smc-agent: a TCP socket became an SMC one\n"
        } else {
            c"smc-agent: no SMC here: TCP\n"
        });
    }
    if made < 0 {
        made = make(family, kind, protocol);
    }
    if made >= 0 {
        resize(made, c"SMC_AGENT_RCVBUF", libc::SO_RCVBUF);
        resize(made, c"SMC_AGENT_SNDBUF", libc::SO_SNDBUF);
    }
    made
}

fn make(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: takes plain numbers. The C library's own function cannot be called: it is this one.
    let made = unsafe {
        libc::syscall(libc::SYS_socket, c_long::from(family), c_long::from(kind), c_long::from(protocol))
    };
    c_int::try_from(made).unwrap_or(-1)
}

/// The value of a variable; no allocation, which a program may not have room for here.
fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a zero; the value is the environment's, and programs that change their environment while
    // they make sockets in other threads are wrong by themselves (getenv(3)).
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Sets a buffer's size if the variable has one. As `smc_run` does, a size that the kernel refuses changes nothing.
fn resize(socket: c_int, name: &CStr, option: c_int) {
    let number = variable(name).and_then(|text| std::str::from_utf8(text).ok()?.parse::<c_int>().ok());
    let Some(size) = number else { return };
    let Ok(length) = libc::socklen_t::try_from(size_of::<c_int>()) else { return };
    // SAFETY: the kernel reads `length` bytes of `size`, which outlives the call.
    unsafe {
        // The program is not to see an error that it did not ask for.
        let errno = *libc::__errno_location();
        libc::setsockopt(socket, libc::SOL_SOCKET, option, (&raw const size).cast(), length);
        *libc::__errno_location() = errno;
    }
}

fn say(text: &CStr) {
    if variable(c"SMC_AGENT_DEBUG").is_none() {
        return;
    }
    // SAFETY: the text is as long as is said; nothing depends on whether it could be written.
    unsafe {
        let errno = *libc::__errno_location();
        let start: *const c_char = text.as_ptr();
        libc::write(libc::STDERR_FILENO, start.cast(), text.count_bytes());
        *libc::__errno_location() = errno;
    }
}
