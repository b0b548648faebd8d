//! The format of netlink: message headers, attributes, error messages. No sockets here.
//!
//! Netlink numbers are in host byte order; lengths count the header and exclude the padding to four bytes.

use super::error::{Error, Result};

/// Length of `struct nlmsghdr` (`include/uapi/linux/netlink.h`): u32 length, u16 type, u16 flags, u32 sequence, u32 port.
pub const HEADER_LEN: usize = 16;
/// Length of `struct nlattr` (`include/uapi/linux/netlink.h`): u16 length, u16 type.
const ATTRIBUTE_HEADER_LEN: usize = 4;
/// `NLA_TYPE_MASK` (`include/uapi/linux/netlink.h`): the type without the nested and byte order bits.
const TYPE_MASK: u16 = 0x3fff;
/// Messages and attributes begin at multiples of this (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
const ALIGNMENT: usize = 4;

/// `NLM_F_CAPPED`: the error message leaves out the request's payload.
const FLAG_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow in an error or end-of-dump message.
const FLAG_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the extended ACK's text.
const ACK_TEXT: u16 = 1;

fn padded(length: usize) -> usize {
    length.saturating_add(ALIGNMENT - 1) & !(ALIGNMENT - 1)
}

/// The `N` bytes at `offset`, if they are there.
pub(super) fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// A u16 in host byte order.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_ne_bytes)
}

/// A u32 in host byte order.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_ne_bytes)
}

/// A u64 in host byte order.
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_ne_bytes)
}

/// The text before the first NUL, or all of it; bytes that are not UTF-8 become U+FFFD.
pub(super) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

/// A request under construction. The socket fills in flags and sequence number when it sends it.
#[derive(Clone, Debug)]
pub struct Request {
    bytes: Vec<u8>,
    what: &'static str,
    too_long: bool,
}

impl Request {
    /// A request of message type `kind`; `what` completes "cannot …" in errors.
    pub fn new(kind: u16, what: &'static str) -> Self {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        Self { bytes, what, too_long: false }
    }

    /// What the request is for, to complete "cannot …".
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// Appends the protocol's own fixed header (padded to four bytes).
    #[must_use]
    pub fn fixed(mut self, header: &[u8]) -> Self {
        self.append(header);
        self
    }

    /// Appends an attribute.
    #[must_use]
    pub fn attribute(mut self, kind: u16, payload: &[u8]) -> Self {
        match u16::try_from(ATTRIBUTE_HEADER_LEN.saturating_add(payload.len())) {
            Ok(length) => {
                self.append(&length.to_ne_bytes().into_iter().chain(kind.to_ne_bytes()).collect::<Vec<_>>());
                self.append(payload);
            }
            Err(_) => self.too_long = true,
        }
        self
    }

    /// Appends an attribute that holds a NUL-terminated text.
    #[must_use]
    pub fn text(self, kind: u16, text: &str) -> Self {
        let mut payload = text.as_bytes().to_vec();
        payload.push(0);
        self.attribute(kind, &payload)
    }

    fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(padded(self.bytes.len()), 0);
    }

    /// The finished message.
    pub(super) fn encode(&self, flags: u16, sequence: u32) -> Result<Vec<u8>> {
        let length = u32::try_from(self.bytes.len()).ok().filter(|_| !self.too_long);
        let length = length.ok_or(Error::Malformed { what: "a request longer than the format allows" })?;
        let mut bytes = self.bytes.clone();
        bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        Ok(bytes)
    }
}

/// One message of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`: the number of the request that it answers.
    pub sequence: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes after a fixed header of `skip` bytes (padded).
    pub fn attributes(&self, skip: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(padded(skip)..).unwrap_or_default())
    }
}

/// The messages in one datagram.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Reads `datagram`.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let message = split_message(self.rest);
        self.rest = match &message {
            Some((_, length)) => self.rest.get(padded(*length)..).unwrap_or_default(),
            None => &[],
        };
        let message = message.map(|(message, _)| message);
        Some(message.ok_or(Error::Malformed { what: "a message whose length does not fit its datagram" }))
    }
}

fn split_message(bytes: &[u8]) -> Option<(Message<'_>, usize)> {
    let length = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let message = Message {
        kind: u16_at(bytes, 4)?,
        flags: u16_at(bytes, 6)?,
        sequence: u32_at(bytes, 8)?,
        payload: bytes.get(HEADER_LEN..length)?,
    };
    Some((message, length))
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// `nla_type` without its flag bits.
    pub kind: u16,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// The payload as one byte.
    pub fn u8(&self) -> Result<u8> {
        self.number().map(u8::from_ne_bytes)
    }

    /// The payload as a u16.
    pub fn u16(&self) -> Result<u16> {
        self.number().map(u16::from_ne_bytes)
    }

    /// The payload as a u32.
    pub fn u32(&self) -> Result<u32> {
        self.number().map(u32::from_ne_bytes)
    }

    /// The payload as a number of four or eight bytes: the kernel's `uint` attributes are as wide as they need to be.
    pub fn uint(&self) -> Result<u64> {
        if self.payload.len() == size_of::<u32>() {
            self.u32().map(u64::from)
        } else {
            self.number().map(u64::from_ne_bytes)
        }
    }

    /// The payload as a number of one, two, four or eight bytes: where the kernel's code and its header disagree.
    pub fn unsigned(&self) -> Result<u64> {
        match self.payload.len() {
            1 => self.u8().map(u64::from),
            2 => self.u16().map(u64::from),
            _ => self.uint(),
        }
    }

    /// The payload as text up to its NUL.
    pub fn text(&self) -> String {
        text_of(self.payload)
    }

    /// The payload as text without the spaces and zeroes that fill it up; `None` if nothing is left.
    pub fn label(&self) -> Option<String> {
        Some(self.text().trim_end().to_owned()).filter(|text| !text.is_empty())
    }

    /// The attributes nested in this one.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    fn number<const N: usize>(&self) -> Result<[u8; N]> {
        self.payload
            .try_into()
            .map_err(|_| Error::Malformed { what: "an attribute with a number of another width" })
    }
}

/// A sequence of attributes.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Reads `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The first attribute of type `kind`.
    pub fn find(self, kind: u16) -> Result<Option<Attribute<'a>>> {
        for attribute in self {
            let attribute = attribute?;
            if attribute.kind == kind {
                return Ok(Some(attribute));
            }
        }
        Ok(None)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let attribute = split_attribute(self.rest);
        self.rest = match &attribute {
            Some((_, length)) => self.rest.get(padded(*length)..).unwrap_or_default(),
            None => &[],
        };
        let attribute = attribute.map(|(attribute, _)| attribute);
        Some(attribute.ok_or(Error::Malformed { what: "an attribute whose length does not fit its message" }))
    }
}

fn split_attribute(bytes: &[u8]) -> Option<(Attribute<'_>, usize)> {
    let length = usize::from(u16_at(bytes, 0)?);
    let kind = u16_at(bytes, 2)? & TYPE_MASK;
    Some((Attribute { kind, payload: bytes.get(ATTRIBUTE_HEADER_LEN..length)? }, length))
}

/// What a message of type `NLMSG_ERROR` or `NLMSG_DONE` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The error number, positive; 0 is success.
    pub(super) errno: i32,
    /// The extended ACK's text.
    pub(super) text: Option<String>,
}

impl Verdict {
    /// Reads a `struct nlmsgerr`: the error, the header of the request, its payload unless capped, attributes.
    pub(super) fn of_error(message: &Message<'_>) -> Result<Self> {
        let malformed = Error::Malformed { what: "an error message without its number" };
        let errno = array_at(message.payload, 0).map(i32::from_ne_bytes).ok_or(malformed)?;
        let echoed = if message.flags & FLAG_CAPPED == 0 && errno != 0 {
            u32_at(message.payload, 4)
                .map_or(HEADER_LEN, |length| usize::try_from(length).unwrap_or(usize::MAX))
        } else {
            HEADER_LEN
        };
        Ok(Self::with_text(errno, message, echoed.saturating_add(size_of::<i32>())))
    }

    /// Reads the end of a dump: its error and attributes; old kernels send an empty one.
    pub(super) fn of_done(message: &Message<'_>) -> Self {
        let errno = array_at(message.payload, 0).map_or(0, i32::from_ne_bytes);
        Self::with_text(errno, message, size_of::<i32>())
    }

    fn with_text(errno: i32, message: &Message<'_>, skip: usize) -> Self {
        let has_text = message.flags & FLAG_ACK_TLVS != 0;
        let text = has_text.then(|| message.attributes(skip).find(ACK_TEXT).ok().flatten()).flatten();
        Self { errno: errno.saturating_neg().max(0), text: text.map(|text| text.text()) }
    }
}

#[cfg(test)]
mod tests;
