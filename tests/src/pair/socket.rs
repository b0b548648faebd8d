//! Stream sockets of the three kinds, with every wait bounded.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::sockopt::{ReuseAddr, SendTimeout, SocketError, TcpFastOpenConnect};
use nix::sys::socket::{
    Backlog, MsgFlags, SockFlag, SockaddrLike as _, SockaddrStorage, accept4, bind, connect, getpeername,
    getsockname, getsockopt, listen, recv, send, sendto, setsockopt,
};
use nix::sys::stat::fstat;
use nix::sys::time::TimeVal;

use crate::wait::Limit;

/// `AF_SMC` (`include/linux/socket.h`).
const AF_SMC: libc::c_int = 43;
/// `SMCPROTO_SMC` and `SMCPROTO_SMC6` (`include/net/smc.h`).
const SMC_OVER_V4: libc::c_int = 0;
const SMC_OVER_V6: libc::c_int = 1;
/// `IPPROTO_SMC` (`include/uapi/linux/in.h`), since 6.11.
const IPPROTO_SMC: libc::c_int = 256;

/// A kind of socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `AF_SMC`.
    Smc,
    /// `AF_INET` or `AF_INET6` with `IPPROTO_SMC`, which needs 6.11.
    SmcInet,
    /// Plain TCP.
    Tcp,
}

impl FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "smc" => Ok(Self::Smc),
            "smc-inet" => Ok(Self::SmcInet),
            "tcp" => Ok(Self::Tcp),
            _ => Err(anyhow!("unknown kind of socket {text:?}: use smc, smc-inet or tcp")),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Smc => "smc",
            Self::SmcInet => "smc-inet",
            Self::Tcp => "tcp",
        })
    }
}

impl Kind {
    fn open(self, address: IpAddr) -> Result<OwnedFd> {
        let inet = if address.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
        let (family, protocol) = match self {
            Self::Smc => (AF_SMC, if address.is_ipv6() { SMC_OVER_V6 } else { SMC_OVER_V4 }),
            Self::SmcInet => (inet, IPPROTO_SMC),
            Self::Tcp => (inet, 0),
        };
        // SAFETY: no pointers are involved.
        let descriptor = unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, protocol) };
        if descriptor < 0 {
            let hint = match self {
                Self::Smc => "is module smc loaded?",
                Self::SmcInet => "needs 6.11; is module smc loaded?",
                Self::Tcp => "are file descriptors exhausted?",
            };
            return Err(io::Error::last_os_error())
                .context(format!("cannot open a socket of kind {self} ({hint})"));
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct Connecting {
    /// The address to bind to first, port 0.
    pub local: Option<IpAddr>,
    /// Connect without blocking, then wait for the socket to become writable.
    pub non_blocking: bool,
    /// Ask for TCP Fast Open, which makes an SMC socket fall back.
    pub fast_open: Option<FastOpen>,
    /// Set a policy of `IPsec` for the socket, which makes SMC fall back.
    pub ipsec: bool,
    /// The key of `TCP_MD5SIG` (RFC 2385) for segments from and to the peer.
    pub md5_key: Option<&'static [u8]>,
}

/// How a client asks for TCP Fast Open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastOpen {
    /// By the option `TCP_FASTOPEN_CONNECT`.
    Option,
    /// By sending with `MSG_FASTOPEN` instead of connecting.
    Message,
}

/// How to listen.
#[derive(Clone, Debug, Default)]
pub struct Listening {
    /// Set `TCP_FASTOPEN`, which makes an SMC socket fall back: what is accepted are plain TCP sockets.
    pub fast_open: bool,
    /// Set a policy of `IPsec` for the socket, which makes SMC fall back.
    pub ipsec: bool,
}

/// `struct xfrm_userpolicy_info` (`include/uapi/linux/xfrm.h`): for what goes out to anywhere, nothing is to be done. The
/// kernel takes a connection for one of `IPsec` all the same.
fn set_ipsec_policy(descriptor: &OwnedFd, address: IpAddr) -> Result<()> {
    const SIZE: usize = 168;
    /// Where the selector has the family, and the policy its direction.
    const FAMILY: usize = 40;
    const DIRECTION: usize = 160;
    const XFRM_POLICY_OUT: u8 = 1;
    /// `IP_XFRM_POLICY` (`include/uapi/linux/in.h`) and `IPV6_XFRM_POLICY` (`include/uapi/linux/in6.h`).
    const OPTIONS: [libc::c_int; 2] = [17, 35];
    /// `NETLINK_XFRM` (`include/uapi/linux/netlink.h`).
    const NETLINK_XFRM: libc::c_int = 6;
    // Who asks for it has the kernel load the module that understands such policies.
    // SAFETY: plain numbers.
    let asked = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, NETLINK_XFRM) };
    if asked >= 0 {
        // SAFETY: the descriptor is new and owned by nobody else.
        drop(unsafe { OwnedFd::from_raw_fd(asked) });
    }
    let mut policy = [0_u8; SIZE];
    let (family, level, option) = match address {
        IpAddr::V4(_) => (libc::AF_INET, libc::SOL_IP, OPTIONS[0]),
        IpAddr::V6(_) => (libc::AF_INET6, libc::SOL_IPV6, OPTIONS[1]),
    };
    policy[FAMILY..FAMILY + 2].copy_from_slice(&u16::try_from(family)?.to_ne_bytes());
    policy[DIRECTION] = XFRM_POLICY_OUT;
    set_option(descriptor, level, option, &policy)
        .context("cannot set a policy of IPsec (is module xfrm_user there?)")
}

/// Sets an option that nix does not have.
fn set_option(descriptor: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &[u8]) -> Result<()> {
    let length = libc::socklen_t::try_from(value.len())?;
    // SAFETY: the kernel reads as many bytes as it is told, which the slice has.
    let result =
        unsafe { libc::setsockopt(descriptor.as_raw_fd(), level, option, value.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    descriptor: OwnedFd,
    kind: Kind,
}

impl Listener {
    /// Binds and listens; port 0 lets the kernel choose.
    pub fn bind(kind: Kind, address: SocketAddr, backlog: i32) -> Result<Self> {
        Self::bind_with(kind, address, backlog, &Listening::default())
    }

    /// The same, and says how.
    pub fn bind_with(kind: Kind, address: SocketAddr, backlog: i32, how: &Listening) -> Result<Self> {
        let descriptor = kind.open(address.ip())?;
        setsockopt(&descriptor, ReuseAddr, &true).context("cannot set SO_REUSEADDR")?;
        bind(descriptor.as_raw_fd(), &SockaddrStorage::from(address))
            .with_context(|| format!("cannot bind to {address}"))?;
        if how.ipsec {
            set_ipsec_policy(&descriptor, address.ip())?;
        }
        let mut kind = kind;
        if how.fast_open {
            set_option(&descriptor, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &1_i32.to_ne_bytes())
                .context("cannot set TCP_FASTOPEN")?;
            // The kernel puts the internal TCP socket into the place of the SMC socket.
            kind = Kind::Tcp;
        }
        let backlog = Backlog::new(backlog).context("backlog out of range")?;
        listen(&descriptor, backlog).with_context(|| format!("cannot listen on {address}"))?;
        // A connection may be gone between poll and accept: accept must not block then.
        set_non_blocking(&descriptor)?;
        Ok(Self { descriptor, kind })
    }

    /// The address that it listens on.
    pub fn local(&self) -> Result<SocketAddr> {
        name(getsockname(self.descriptor.as_raw_fd()))
    }

    /// Demands the signature of `TCP_MD5SIG` with this key from a peer.
    pub fn sign(&self, peer: IpAddr, key: &[u8]) -> Result<()> {
        sign(&self.descriptor, peer, key)
    }

    /// Takes the next connection.
    pub fn accept(&self, limit: &Limit) -> Result<Stream> {
        loop {
            match accept4(&self.descriptor, SockFlag::SOCK_CLOEXEC) {
                Ok(descriptor) => return Ok(Stream { descriptor, kind: self.kind }),
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(error) => return Err(error).context("accept failed"),
            }
            wait(&self.descriptor, PollFlags::POLLIN, limit).context("no connection to accept")?;
        }
    }
}

/// A connected socket. Reading and writing never block: [`Stream::wait`] does, within a limit.
#[derive(Debug)]
pub struct Stream {
    descriptor: OwnedFd,
    kind: Kind,
}

impl Stream {
    /// Connects and tells how long that took.
    pub fn connect(
        kind: Kind,
        peer: SocketAddr,
        how: &Connecting,
        limit: &Limit,
    ) -> Result<(Self, Duration)> {
        let descriptor = kind.open(peer.ip())?;
        if let Some(local) = how.local {
            bind(descriptor.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(local, 0)))
                .with_context(|| format!("cannot bind to {local}"))?;
        }
        if how.fast_open == Some(FastOpen::Option) {
            setsockopt(&descriptor, TcpFastOpenConnect, &true).context("cannot set TCP_FASTOPEN_CONNECT")?;
        }
        if let Some(key) = how.md5_key {
            sign(&descriptor, peer.ip(), key)?;
        }
        if how.ipsec {
            set_ipsec_policy(&descriptor, peer.ip())?;
        }
        if how.non_blocking {
            set_non_blocking(&descriptor)?;
        } else {
            // Bounds a blocking connect; SMC hands it on to its internal TCP socket.
            let left = i64::try_from(limit.remaining()?.as_millis())?;
            let left = TimeVal::new(left / 1000, (left % 1000) * 1000 + 1);
            setsockopt(&descriptor, SendTimeout, &left).context("cannot set SO_SNDTIMEO")?;
        }
        let begin = Instant::now();
        let address = SockaddrStorage::from(peer);
        let connected = if how.fast_open == Some(FastOpen::Message) {
            sendto(descriptor.as_raw_fd(), &[], &address, MsgFlags::from_bits_retain(libc::MSG_FASTOPEN))
                .map(drop)
        } else {
            connect(descriptor.as_raw_fd(), &address)
        };
        match connected {
            Ok(()) => {}
            Err(Errno::EINPROGRESS) if how.non_blocking => {
                wait(&descriptor, PollFlags::POLLOUT, limit)
                    .with_context(|| format!("no connection to {peer}"))?;
                let error = Errno::from_raw(getsockopt(&descriptor, SocketError)?);
                if error != Errno::from_raw(0) {
                    return Err(error).with_context(|| format!("cannot connect to {peer}"));
                }
            }
            Err(error) => return Err(error).with_context(|| format!("cannot connect to {peer}")),
        }
        Ok((Self { descriptor, kind }, begin.elapsed()))
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The address of this end.
    pub fn local(&self) -> Result<SocketAddr> {
        name(getsockname(self.descriptor.as_raw_fd()))
    }

    /// The address of the other end.
    pub fn peer(&self) -> Result<SocketAddr> {
        name(getpeername(self.descriptor.as_raw_fd()))
    }

    /// Its inode, by which socket diagnostics know it.
    pub fn inode(&self) -> Result<u64> {
        Ok(fstat(&self.descriptor).context("cannot stat a socket")?.st_ino)
    }

    /// Waits until it can be read (or was closed) or, if asked, written.
    pub fn wait(&self, read: bool, write: bool, limit: &Limit) -> Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, read);
        events.set(PollFlags::POLLOUT, write);
        wait(&self.descriptor, events, limit)
    }

    /// Sends what fits; `None` when nothing does at present.
    pub fn send(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        would_block(send(self.descriptor.as_raw_fd(), bytes, flags)).context("cannot send")
    }

    /// Receives what is there; `None` when there is nothing at present, 0 bytes when the peer has closed.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Option<usize>> {
        would_block(recv(self.descriptor.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT))
            .context("cannot receive")
    }
}

fn would_block(result: nix::Result<usize>) -> nix::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `struct tcp_md5sig` (`include/uapi/linux/tcp.h`).
#[repr(C)]
struct Md5Signature {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: libc::c_int,
    key: [u8; 80],
}

/// Whether this kernel says that it has no `TCP_MD5SIG`.
pub fn md5_is_missing() -> bool {
    let address = IpAddr::from(Ipv4Addr::LOCALHOST);
    let error = Kind::Tcp.open(address).and_then(|socket| sign(&socket, address, b"any")).err();
    let code = error.and_then(|error| error.downcast::<io::Error>().ok()?.raw_os_error());
    code == Some(libc::ENOPROTOOPT)
}

fn sign(descriptor: &OwnedFd, peer: IpAddr, key: &[u8]) -> Result<()> {
    // SAFETY: all fields are plain data for which zeroes are valid.
    let mut signature: Md5Signature = unsafe { std::mem::zeroed() };
    let address = SockaddrStorage::from(SocketAddr::new(peer, 0));
    // SAFETY: the address is at most as long as the storage that it is copied to, and does not overlap it.
    unsafe {
        let to = (&raw mut signature.address).cast::<u8>();
        std::ptr::copy_nonoverlapping(address.as_ptr().cast::<u8>(), to, usize::try_from(address.len())?);
    }
    signature.key.get_mut(..key.len()).context("the key has more than 80 bytes")?.copy_from_slice(key);
    signature.key_length = u16::try_from(key.len())?;
    let size = libc::socklen_t::try_from(size_of::<Md5Signature>())?;
    let value = (&raw const signature).cast();
    // SAFETY: the value has the size that is given and lives through the call.
    let result =
        unsafe { libc::setsockopt(descriptor.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_MD5SIG, value, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("cannot set TCP_MD5SIG") }
}

fn set_non_blocking(descriptor: &OwnedFd) -> Result<()> {
    fcntl(descriptor, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context("cannot set O_NONBLOCK").map(drop)
}

fn name(address: nix::Result<SockaddrStorage>) -> Result<SocketAddr> {
    let address = address.context("cannot get a socket's address")?;
    let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::from((v4.ip(), v4.port())));
    let v6 = || address.as_sockaddr_in6().map(|v6| SocketAddr::from((v6.ip(), v6.port())));
    v4.or_else(v6).context("a socket's address is neither IPv4 nor IPv6")
}

fn wait(descriptor: &OwnedFd, events: PollFlags, limit: &Limit) -> Result<()> {
    loop {
        let slice = PollTimeout::try_from(limit.slice()?).unwrap_or(PollTimeout::ZERO);
        match poll(&mut [PollFd::new(descriptor.as_fd(), events)], slice) {
            Ok(0) | Err(Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error).context("cannot wait for a socket"),
        }
    }
}
