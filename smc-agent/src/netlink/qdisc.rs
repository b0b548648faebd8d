//! Traffic control's clsact qdisc and the BPF filters in it (rtnetlink): where programs stand on kernels without tcx.

use nix::errno::Errno;

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Message, Request, u32_at};

// Message types of `include/uapi/linux/rtnetlink.h`.
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
/// Length of `struct tcmsg`: u8 family, three bytes of padding, i32 index, u32 handle, u32 parent, u32 info.
const HEADER_LEN: usize = 20;

// `include/uapi/linux/pkt_sched.h`.
const CLSACT_HANDLE: u32 = 0xffff_0000;
const CLSACT_PARENT: u32 = 0xffff_fff1;
const INGRESS_PARENT: u32 = 0xffff_fff2;
const EGRESS_PARENT: u32 = 0xffff_fff3;

/// `TCA_KIND`, text.
const KIND: u16 = 1;
/// `TCA_OPTIONS`, nested.
const OPTIONS: u16 = 2;
/// `TCA_BPF_NAME` within the options of a filter of kind `bpf`, text.
const BPF_NAME: u16 = 7;

/// The direction of packets at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// On their way out.
    Egress,
    /// On their way in.
    Ingress,
}

impl Direction {
    fn parent(self) -> u32 {
        match self {
            Self::Egress => EGRESS_PARENT,
            Self::Ingress => INGRESS_PARENT,
        }
    }
}

/// A BPF filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfFilter {
    /// Its handle within the priority.
    pub handle: u32,
    /// `tcm_info`: the priority in the upper half, the protocol in network order in the lower.
    info: u32,
    /// Its name.
    pub name: String,
}

impl BpfFilter {
    /// Its priority; lower ones come first.
    pub fn priority(&self) -> u16 {
        u16::try_from(self.info >> 16).unwrap_or(u16::MAX)
    }

    fn parse(message: &Message<'_>) -> Result<Option<Self>> {
        let malformed = || Error::Malformed { what: "a filter message without its header" };
        let payload = message.payload;
        let handle = u32_at(payload, 8).ok_or_else(malformed)?;
        let info = u32_at(payload, 16).ok_or_else(malformed)?;
        let kind = message.attributes(HEADER_LEN).find(KIND)?;
        // The list also has an entry of handle 0 for each priority.
        if handle == 0 || kind.is_none_or(|kind| kind.text() != "bpf") {
            return Ok(None);
        }
        let name = match message.attributes(HEADER_LEN).find(OPTIONS)? {
            Some(options) => options.nested().find(BPF_NAME)?.map(|name| name.text()),
            None => None,
        };
        Ok(Some(Self { handle, info, name: name.unwrap_or_default() }))
    }
}

fn header(index: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let words = [0, index, handle, parent, info];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

/// Gives an interface a clsact qdisc. Says whether it did: one that is there already stays.
pub fn add_clsact(index: u32) -> Result<bool> {
    let request = Request::new(NEW_QDISC, "add a clsact qdisc")
        .fixed(&header(index, CLSACT_HANDLE, CLSACT_PARENT, 0))
        .text(KIND, "clsact");
    match Socket::open(Protocol::Route)?.create(&request) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(Errno::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the clsact qdisc of an interface, with all filters in it.
pub fn delete_clsact(index: u32) -> Result<()> {
    let request = Request::new(DELETE_QDISC, "remove a clsact qdisc")
        .fixed(&header(index, CLSACT_HANDLE, CLSACT_PARENT, 0))
        .text(KIND, "clsact");
    Socket::open(Protocol::Route)?.request(&request, |_| Ok(()))
}

/// The BPF filters of an interface; none where it has no clsact qdisc.
pub fn bpf_filters(index: u32, direction: Direction) -> Result<Vec<BpfFilter>> {
    let request = Request::new(GET_FILTER, "list filters").fixed(&header(index, 0, direction.parent(), 0));
    Socket::open(Protocol::Route)?.list(&request, BpfFilter::parse)
}

/// Removes a filter.
pub fn delete_filter(index: u32, direction: Direction, filter: &BpfFilter) -> Result<()> {
    let request = Request::new(DELETE_FILTER, "remove a filter")
        .fixed(&header(index, filter.handle, direction.parent(), filter.info))
        .text(KIND, "bpf");
    Socket::open(Protocol::Route)?.request(&request, |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(kind: &str, handle: u32) -> Vec<u8> {
        let options = Request::new(0, "test").text(BPF_NAME, "smc_egress").encode(0, 0).unwrap();
        Request::new(44, "test")
            .fixed(&header(3, handle, EGRESS_PARENT, 7 << 16 | 0x0300))
            .text(KIND, kind)
            .attribute(OPTIONS, &options[16..])
            .encode(0, 0)
            .unwrap()
    }

    fn parse(bytes: &[u8]) -> Result<Option<BpfFilter>> {
        BpfFilter::parse(&Message {
            kind: 44,
            flags: 0,
            sequence: 0,
            payload: bytes.get(16..).unwrap_or_default(),
        })
    }

    #[test]
    fn a_bpf_filter_is_read_and_others_are_passed_over() {
        let found = parse(&filter("bpf", 1)).unwrap().unwrap();
        assert_eq!((found.handle, found.priority(), found.name.as_str()), (1, 7, "smc_egress"));
        assert_eq!(parse(&filter("flower", 1)).unwrap(), None);
        assert_eq!(parse(&filter("bpf", 0)).unwrap(), None);
    }

    #[test]
    fn truncations_do_not_panic() {
        let bytes = filter("bpf", 1);
        for length in 0..bytes.len() {
            let _ = parse(&bytes[..length]);
        }
        assert!(parse(&bytes[..20]).is_err());
    }
}
