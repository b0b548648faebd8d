//! A blocking netlink socket: one request at a time, each answer waited for at most so long.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt,
    socket,
};
use nix::sys::time::TimeVal;

use super::error::{Error, Result};
use super::wire::{Message, Messages, Request, Verdict};

/// `NLMSG_ERROR` (`include/uapi/linux/netlink.h`): a refusal, or with error 0 the acknowledgement.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const DONE: u16 = 3;
/// `NLM_F_REQUEST`.
const FLAG_REQUEST: u16 = 0x01;
/// `NLM_F_ACK`.
const FLAG_ACK: u16 = 0x04;
/// `NLM_F_EXCL`: fail where it is there already.
const FLAG_EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`: make what is not there.
const FLAG_CREATE: u16 = 0x400;
/// `NLM_F_DUMP_INTR`: the list changed while it was dumped.
const FLAG_DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`.
const FLAG_DUMP: u16 = 0x300;

/// How long one answer is waited for unless the caller says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often an interrupted dump is begun again.
const DUMP_ATTEMPTS: usize = 8;

/// A netlink protocol that this project speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `NETLINK_ROUTE`: interfaces.
    Route,
    /// `NETLINK_SOCK_DIAG`: sockets.
    SocketDiag,
    /// `NETLINK_GENERIC`: families found by name.
    Generic,
    /// `NETLINK_RDMA`: RDMA devices.
    Rdma,
    /// `NETLINK_KOBJECT_UEVENT`: devices and modules that come and go.
    Uevent,
}

impl Protocol {
    fn name(self) -> &'static str {
        match self {
            Self::Route => "NETLINK_ROUTE",
            Self::SocketDiag => "NETLINK_SOCK_DIAG",
            Self::Generic => "NETLINK_GENERIC",
            Self::Rdma => "NETLINK_RDMA",
            Self::Uevent => "NETLINK_KOBJECT_UEVENT",
        }
    }

    fn number(self) -> SockProtocol {
        match self {
            Self::Route => SockProtocol::NetlinkRoute,
            Self::SocketDiag => SockProtocol::NetlinkSockDiag,
            Self::Generic => SockProtocol::NetlinkGeneric,
            Self::Rdma => SockProtocol::NetlinkRDMA,
            Self::Uevent => SockProtocol::NetlinkKObjectUEvent,
        }
    }
}

/// How a dump ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpEnd {
    /// The list is what the kernel had.
    Complete,
    /// `NLM_F_DUMP_INTR`: the list changed meanwhile: entries may be missing or double.
    Interrupted,
}

/// A netlink socket in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
    timeout: Duration,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Socket {
    /// Opens a socket with [`DEFAULT_TIMEOUT`].
    pub fn open(protocol: Protocol) -> Result<Self> {
        Self::open_for_groups(protocol, 0)
    }

    /// Opens a socket that also receives the multicast groups of the bit mask `groups` (`RTMGRP_*`).
    pub(super) fn open_for_groups(protocol: Protocol, groups: u32) -> Result<Self> {
        let failed = |source: Errno| Error::Open { protocol: protocol.name(), source: source.into() };
        let descriptor =
            socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol.number())
                .map_err(failed)?;
        bind(descriptor.as_raw_fd(), &NetlinkAddr::new(0, groups)).map_err(failed)?;
        request_extended_ack(&descriptor);
        let mut socket = Self { descriptor, timeout: DEFAULT_TIMEOUT, sequence: 0, buffer: Vec::new() };
        socket
            .set_timeout(DEFAULT_TIMEOUT)
            .map_err(|source| Error::Open { protocol: protocol.name(), source })?;
        Ok(socket)
    }

    /// Sets how long one answer is waited for (a dump has many answers).
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        // A zero timeval would mean "wait for ever".
        let microseconds = i64::from(timeout.subsec_micros()).max(i64::from(seconds == 0));
        setsockopt(&self.descriptor, ReceiveTimeout, &TimeVal::new(seconds, microseconds))?;
        self.timeout = timeout;
        Ok(())
    }

    /// Sends a request, hands each message of the answer to `each`, and waits for the acknowledgement.
    pub fn request(&mut self, request: &Request, each: impl FnMut(&Message<'_>) -> Result<()>) -> Result<()> {
        self.exchange(request, FLAG_REQUEST | FLAG_ACK, each).map(drop)
    }

    /// Asks for something to be made that is not there yet, and waits for the acknowledgement.
    pub fn create(&mut self, request: &Request) -> Result<()> {
        let flags = FLAG_REQUEST | FLAG_ACK | FLAG_CREATE | FLAG_EXCLUSIVE;
        self.exchange(request, flags, |_| Ok(())).map(drop)
    }

    /// Asks for a list and hands each message to `each`, also when it turns out to be [`DumpEnd::Interrupted`].
    pub fn dump(
        &mut self,
        request: &Request,
        each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<DumpEnd> {
        self.exchange(request, FLAG_REQUEST | FLAG_DUMP, each)
    }

    /// Asks for a list, and again when it changed meanwhile. `parse` may leave out messages by returning `None`.
    pub fn list<T>(
        &mut self,
        request: &Request,
        mut parse: impl FnMut(&Message<'_>) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        for _ in 0..DUMP_ATTEMPTS {
            let mut items = Vec::new();
            let end = self.dump(request, |message| {
                items.extend(parse(message)?);
                Ok(())
            })?;
            if end == DumpEnd::Complete {
                return Ok(items);
            }
        }
        Err(Error::Interrupted { what: request.what() })
    }

    fn exchange(
        &mut self,
        request: &Request,
        flags: u16,
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<DumpEnd> {
        let what = request.what();
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.encode(flags, self.sequence)?;
        send(self.descriptor.as_raw_fd(), &bytes, MsgFlags::empty())
            .map_err(|source| Error::Io { what, source: source.into() })?;
        // After an error of `each` the rest is still read: an unfinished dump would make the next one fail (EBUSY).
        let mut first_error = Ok(());
        let mut end = DumpEnd::Complete;
        loop {
            let length = self.receive(what, MsgFlags::empty())?;
            for message in Messages::new(self.buffer.get(..length).unwrap_or_default()) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue;
                }
                if message.flags & FLAG_DUMP_INTERRUPTED != 0 {
                    end = DumpEnd::Interrupted;
                }
                let verdict = match message.kind {
                    ERROR => Verdict::of_error(&message)?,
                    DONE => Verdict::of_done(&message),
                    _ => {
                        if first_error.is_ok() {
                            first_error = each(&message);
                        }
                        continue;
                    }
                };
                if verdict.errno != 0 {
                    return Err(Error::refused(what, verdict.errno, verdict.text.as_deref()));
                }
                return first_error.map(|()| end);
            }
        }
    }

    /// Receives one whole datagram into the buffer, which grows to fit it, and returns its length.
    pub(super) fn receive(&mut self, what: &'static str, flags: MsgFlags) -> Result<usize> {
        let descriptor = self.descriptor.as_raw_fd();
        let attempt = |buffer: &mut [u8], flags| loop {
            match recv(descriptor, buffer, flags) {
                Ok(length) => return Ok(length),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) if !flags.contains(MsgFlags::MSG_DONTWAIT) => {
                    return Err(Error::Timeout { what, after: self.timeout });
                }
                Err(source) => return Err(Error::Io { what, source: source.into() }),
            }
        };
        let length = attempt(&mut [], flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)?;
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        attempt(&mut self.buffer, flags)
    }

    /// Has the socket hear of other network namespaces too, those that have a number in its own (4.2 and later).
    pub(super) fn listen_to_all_namespaces(&mut self) -> Result<()> {
        let on: libc::c_int = 1;
        // SAFETY: the descriptor is open for the call, and the value pointer and its length describe `on`, which lives
        // through it and is only read.
        let result = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_LISTEN_ALL_NSID,
                (&raw const on).cast(),
                libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default(),
            )
        };
        if result == 0 {
            return Ok(());
        }
        Err(Error::Io { what: "listen to all network namespaces", source: io::Error::last_os_error() })
    }

    /// Receives one whole datagram, without waiting for it. Gives its length, and the number of the network namespace that it
    /// is of; `None` for the socket's own.
    pub(super) fn receive_with_namespace(&mut self, what: &'static str) -> Result<(usize, Option<i32>)> {
        let failed = |source: Errno| Error::Io { what, source: source.into() };
        let flags = MsgFlags::MSG_DONTWAIT;
        let length = loop {
            match recv(self.descriptor.as_raw_fd(), &mut [], flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_TRUNC)
            {
                Err(Errno::EINTR) => {}
                result => break result.map_err(failed)?,
            }
        };
        if self.buffer.len() < length {
            self.buffer.resize(length, 0);
        }
        // Room for one number: a header of 16 bytes, and 4 of data, padded.
        let mut control = [0_u64; 3];
        let mut buffer =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: `msghdr` is plain data for which zeroes are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = &raw mut buffer;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let length = loop {
            // SAFETY: the descriptor is open, and the header points to buffers of the lengths that it says, which live through
            // the call.
            let result = unsafe { libc::recvmsg(self.descriptor.as_raw_fd(), &raw mut header, flags.bits()) };
            match Errno::result(result) {
                Err(Errno::EINTR) => {}
                result => break usize::try_from(result.map_err(failed)?).unwrap_or_default(),
            }
        };
        let mut namespace = None;
        // SAFETY: the header is as the kernel left it, with its control data in `control`, which is aligned for it; what the
        // macros give is within it or null, and the data of a message of that kind is one number.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(&raw const header);
            while let Some(found) = message.as_ref() {
                if found.cmsg_level == libc::SOL_NETLINK && found.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID {
                    namespace = Some(libc::CMSG_DATA(message).cast::<i32>().read_unaligned());
                }
                message = libc::CMSG_NXTHDR(&raw const header, message);
            }
        }
        // NETNSA_NSID_NOT_ASSIGNED (uapi/linux/net_namespace.h): what is of the socket's own namespace.
        Ok((length, namespace.filter(|id| *id >= 0)))
    }

    /// What [`receive`](Self::receive) read.
    pub(super) fn received(&self, length: usize) -> &[u8] {
        self.buffer.get(..length).unwrap_or_default()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Asks for the kernel's error texts (4.12 and later) without an echo of the request; both are optional.
fn request_extended_ack(descriptor: &OwnedFd) {
    let on: libc::c_int = 1;
    for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
        // SAFETY: the descriptor is open for the call, and the value pointer and its length describe `on`, which
        // lives through it and is only read.
        unsafe {
            libc::setsockopt(
                descriptor.as_raw_fd(),
                libc::SOL_NETLINK,
                option,
                (&raw const on).cast(),
                libc::socklen_t::try_from(size_of_val(&on)).unwrap_or_default(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;
    use std::thread;

    use super::*;
    use crate::netlink::wire::array_at;

    fn message(kind: u16, flags: u16, sequence: [u8; 4], payload: [u8; 4]) -> Vec<u8> {
        let mut bytes = 20_u32.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence);
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    /// A socket whose other end answers each dump with one entry, its number; the first `interrupted` are interrupted.
    fn socket_to_kernel(interrupted: u32) -> Socket {
        let (ours, kernel) = UnixDatagram::pair().unwrap();
        thread::spawn(move || {
            let mut request = [0; 256];
            for number in 0_u32.. {
                let Ok(16..) = kernel.recv(&mut request) else { return };
                let sequence = array_at(&request, 8).unwrap();
                let flags = if number < interrupted { FLAG_DUMP_INTERRUPTED } else { 0 };
                let entry = message(99, 2, sequence, number.to_ne_bytes());
                let stale = message(98, 2, [0xff; 4], [0xff; 4]);
                let done = message(DONE, 2 | flags, sequence, [0; 4]);
                for datagram in [stale, entry, done] {
                    if kernel.send(&datagram).is_err() {
                        return;
                    }
                }
            }
        });
        Socket { descriptor: ours.into(), timeout: DEFAULT_TIMEOUT, sequence: 0, buffer: Vec::new() }
    }

    fn list(socket: &mut Socket) -> Result<Vec<u32>> {
        let request = Request::new(99, "list things");
        socket.list(&request, |message| Ok(array_at(message.payload, 0).map(u32::from_ne_bytes)))
    }

    #[test]
    fn an_interrupted_dump_is_begun_again_without_what_it_gave() {
        let mut socket = socket_to_kernel(3);
        assert_eq!(list(&mut socket).unwrap(), [3]);
        assert_eq!(list(&mut socket).unwrap(), [4]);
    }

    #[test]
    fn a_list_that_never_holds_still_is_an_error() {
        let error = list(&mut socket_to_kernel(u32::MAX)).unwrap_err();
        assert!(matches!(error, Error::Interrupted { what: "list things" }), "{error}");
    }
}
