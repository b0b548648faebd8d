//! Numbers by which a network namespace knows others (rtnetlink): a socket hears of what happens in those that have one.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use super::error::{Error, Result};
use super::socket::{Protocol, Socket};
use super::wire::{Message, Request, array_at};

// Message types of `include/uapi/linux/rtnetlink.h`.
const NEW_ID: u16 = 88;
const GET_ID: u16 = 90;
/// Length of `struct rtgenmsg`: u8 family.
const HEADER_LEN: usize = 1;

// Attributes of `include/uapi/linux/net_namespace.h`.
const ID: u16 = 1;
const DESCRIPTOR: u16 = 3;
/// `NETNSA_NSID_NOT_ASSIGNED`: there is none, and in a request: any that is free.
const NOT_ASSIGNED: i32 = -1;

/// The number by which this thread's network namespace knows another. It is given one if it has none: that changes nothing but
/// what `ip netns` shows.
pub fn of(namespace: BorrowedFd<'_>) -> Result<i32> {
    let mut socket = Socket::open(Protocol::Route)?;
    if let Some(id) = get(&mut socket, namespace)? {
        return Ok(id);
    }
    let request = Request::new(NEW_ID, "number a network namespace")
        .fixed(&[0; HEADER_LEN])
        .attribute(DESCRIPTOR, &namespace.as_raw_fd().to_ne_bytes())
        .attribute(ID, &NOT_ASSIGNED.to_ne_bytes());
    let made = socket.request(&request, |_| Ok(()));
    // Somebody else may have been first, and then it is theirs.
    match get(&mut socket, namespace)? {
        Some(id) => Ok(id),
        None => made
            .and(Err(Error::Malformed { what: "no number of a network namespace that was just given one" })),
    }
}

fn get(socket: &mut Socket, namespace: BorrowedFd<'_>) -> Result<Option<i32>> {
    let request = Request::new(GET_ID, "ask for the number of a network namespace")
        .fixed(&[0; HEADER_LEN])
        .attribute(DESCRIPTOR, &namespace.as_raw_fd().to_ne_bytes());
    let mut found = None;
    socket.request(&request, |message| {
        found = parse(message)?;
        Ok(())
    })?;
    Ok(found.filter(|id| *id != NOT_ASSIGNED))
}

fn parse(message: &Message<'_>) -> Result<Option<i32>> {
    let id = message.attributes(HEADER_LEN).find(ID)?;
    Ok(id.and_then(|id| array_at(id.payload, 0)).map(i32::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        let bytes = Request::new(NEW_ID, "test")
            .fixed(&[0; HEADER_LEN])
            .attribute(99, &[1, 2, 3])
            .attribute(ID, &7_i32.to_ne_bytes())
            .encode(0, 0)
            .unwrap();
        for length in 16..=bytes.len() {
            let message = Message { kind: NEW_ID, flags: 0, sequence: 0, payload: &bytes[16..length] };
            let id = parse(&message);
            assert!(length < bytes.len() || id.unwrap() == Some(7));
        }
    }
}
