//! Packets as an interface has them: sent and received byte by byte.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};

use crate::wait::Limit;

/// `TUNSETIFF` (`include/uapi/linux/if_tun.h`).
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
/// The largest packet that is read.
const LARGEST: usize = 65536 + 64;

/// What an interface's packets begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// An Ethernet header (tap).
    Ethernet,
    /// The IP header (tun).
    Ip,
}

/// A `struct virtio_net_hdr` (`include/uapi/linux/virtio_net.h`): what is to be believed of a packet's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing.
    Unknown,
    /// It was looked at, and is right.
    Checked,
    /// Only the pseudo header is in it: the rest is summed from here on, and put 16 bytes after, where TCP has it.
    Partial {
        /// Where the TCP header begins.
        from: u16,
    },
}

impl Checksum {
    /// Length of the header.
    const LENGTH: usize = 10;

    fn header(self) -> [u8; Self::LENGTH] {
        /// `VIRTIO_NET_HDR_F_NEEDS_CSUM`, `VIRTIO_NET_HDR_F_DATA_VALID`
        const NEEDS: u8 = 1;
        const VALID: u8 = 2;
        let mut header = [0; Self::LENGTH];
        match self {
            Self::Unknown => {}
            Self::Checked => header[0] = VALID,
            Self::Partial { from } => {
                header[0] = NEEDS;
                header[6..8].copy_from_slice(&from.to_ne_bytes());
                header[8..10].copy_from_slice(&16_u16.to_ne_bytes());
            }
        }
        header
    }
}

/// An interface of which this process is the other end; goes when dropped.
#[derive(Debug)]
pub struct Tap {
    file: File,
}

impl Tap {
    /// Makes one in the calling thread's network namespace.
    pub fn open(name: &str, layer: Layer) -> Result<Self> {
        let path = "/dev/net/tun";
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .with_context(|| format!("cannot open {path} (module tun)"))?;
        // SAFETY: `ifreq` is plain data for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        ensure!(name.len() < request.ifr_name.len(), "{name} is too long for an interface");
        for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *place = libc::c_char::try_from(byte)?;
        }
        let kind = if layer == Layer::Ethernet { libc::IFF_TAP } else { libc::IFF_TUN };
        let flags = kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags)?;
        // SAFETY: the descriptor is open; TUNSETIFF reads and writes the `ifreq`, which lives through the call.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        if result < 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("cannot make interface {name}"));
        }
        Ok(Self { file })
    }

    /// Has the interface receive a packet.
    pub fn send(&self, packet: &[u8], checksum: Checksum) -> Result<()> {
        let bytes = [&checksum.header(), packet].concat();
        let sent = (&self.file).write(&bytes).context("the interface takes no packet")?;
        ensure!(sent == bytes.len(), "the interface took {sent} of {} bytes", bytes.len());
        Ok(())
    }

    /// The next packet that the interface sends and that is wanted.
    pub fn receive(&self, limit: &Limit, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
        let mut buffer = vec![0; LARGEST];
        loop {
            match (&self.file).read(&mut buffer) {
                Ok(length) if length < Checksum::LENGTH => bail!("a packet of {length} bytes"),
                Ok(length) if wanted(&buffer[Checksum::LENGTH..length]) => {
                    return Ok(buffer[Checksum::LENGTH..length].to_vec());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&self.file, limit)?,
                Err(error) => return Err(error).context("cannot read from the interface"),
            }
        }
    }
}

/// What an interface receives, after traffic control has had it; with the protocol [`ALL`] before that, and what it sends too.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
}

/// `ETH_P_ALL` (`include/uapi/linux/if_ether.h`): packets of all protocols, as they are on the wire.
pub const ALL: u16 = 3;

impl Capture {
    /// Begins to listen for packets of a protocol.
    pub fn open(interface: &str, protocol: u16) -> Result<Self> {
        let index = nix::net::if_::if_nametoindex(interface).with_context(|| interface.to_owned())?;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // Until it is bound, it shall hear nothing.
        // SAFETY: no pointers are involved.
        let descriptor = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error()).context("cannot open a packet socket");
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: all fields are integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET)?;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = i32::try_from(index)?;
        let size = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>())?;
        // SAFETY: the address has the size that is given and lives through the call.
        let result = unsafe { libc::bind(descriptor, (&raw const address).cast(), size) };
        if result < 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("cannot listen on {interface}"));
        }
        Ok(Self { socket })
    }

    /// The next packet that is wanted. A VLAN tag that the kernel keeps beside the packet is not in it.
    pub fn receive(&self, limit: &Limit, wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
        let mut buffer = vec![0; LARGEST];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(length) if wanted(&buffer[..length]) => return Ok(buffer[..length].to_vec()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => wait(&self.socket, limit)?,
                Err(error) => return Err(error).context("cannot receive packets"),
            }
        }
    }
}

fn wait(descriptor: &impl AsFd, limit: &Limit) -> Result<()> {
    let slice: Duration = limit.slice().context("no such packet")?;
    let slice = PollTimeout::try_from(slice).unwrap_or(PollTimeout::ZERO);
    match poll(&mut [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)], slice) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error).context("cannot wait for a packet"),
    }
}
