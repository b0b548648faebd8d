//! The conversation that both ends of a connection hold: a header, the data both ways at once, a farewell.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail, ensure};

use super::pattern::{Pattern, mix};
use super::socket::Stream;
use crate::wait::Limit;

/// What the client's header begins with.
const MAGIC: [u8; 8] = *b"smctest1";
/// The header: the magic, the connection's seed, the number of bytes each way (both big endian).
const HEADER_LEN: usize = 24;
/// How much is sent or received at once, in bytes.
const CHUNK: usize = 32 * 1024;
/// What each end sends when it has seen enough of the connection.
const FAREWELL: &[u8] = b".";

/// Told apart within one process by a count, and between processes by the process id.
fn fresh_seed() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    mix(u64::from(std::process::id()) << 32 | COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The client's part: `bytes` each way.
pub(crate) fn as_client(stream: &Stream, bytes: u64, limit: &Limit) -> Result<()> {
    let seed = fresh_seed();
    let header = [MAGIC, seed.to_be_bytes(), bytes.to_be_bytes()].concat();
    send_all(stream, &header, limit).context("sending the header")?;
    both_ways(stream, Pattern::new(seed, true), Pattern::new(seed, false), bytes, limit)
}

/// The server's part: the client's header says how much.
pub(crate) fn as_server(stream: &Stream, limit: &Limit) -> Result<()> {
    let header: [u8; HEADER_LEN] = receive_exact(stream, limit).context("receiving the header")?;
    let [magic, seed, bytes] = [0, 8, 16].map(|at| std::array::from_fn(|index| header[at + index]));
    ensure!(magic == MAGIC, "foreign data: the header begins with {magic:02x?} instead of {MAGIC:02x?}");
    let (seed, bytes) = (u64::from_be_bytes(seed), u64::from_be_bytes(bytes));
    both_ways(stream, Pattern::new(seed, false), Pattern::new(seed, true), bytes, limit)
}

/// Keeps the connection open until both ends have seen what they want to see of it.
pub(crate) fn farewell(stream: &Stream, limit: &Limit) -> Result<()> {
    send_all(stream, FAREWELL, limit).context("sending the farewell")?;
    let received: [u8; FAREWELL.len()] = receive_exact(stream, limit).context("receiving the farewell")?;
    ensure!(received == FAREWELL, "foreign data: the farewell is {received:02x?}");
    Ok(())
}

fn both_ways(stream: &Stream, ours: Pattern, theirs: Pattern, bytes: u64, limit: &Limit) -> Result<()> {
    let (mut sent, mut received) = (0, 0);
    let (mut outgoing, mut unsent) = (vec![0; CHUNK], 0..0);
    let mut incoming = vec![0; CHUNK];
    let part = |done: u64| usize::try_from(bytes - done).map_or(CHUNK, |left| left.min(CHUNK));
    while sent < bytes || received < bytes {
        stream
            .wait(received < bytes, sent < bytes, limit)
            .with_context(|| format!("stalled with {sent} of {bytes} bytes sent, {received} received"))?;
        if sent < bytes {
            if unsent.is_empty() {
                unsent = 0..part(sent);
                ours.fill(sent, &mut outgoing[unsent.clone()]);
            }
            let length = stream.send(&outgoing[unsent.clone()])?.unwrap_or(0);
            unsent.start += length;
            sent += u64::try_from(length)?;
        }
        if received < bytes {
            let chunk = &mut incoming[..part(received)];
            match stream.receive(chunk)? {
                Some(0) => bail!("the peer closed after {received} of {bytes} bytes"),
                Some(length) => {
                    theirs.check(received, &chunk[..length])?;
                    received += u64::try_from(length)?;
                }
                None => {}
            }
        }
    }
    Ok(())
}

fn send_all(stream: &Stream, mut bytes: &[u8], limit: &Limit) -> Result<()> {
    while !bytes.is_empty() {
        stream.wait(false, true, limit)?;
        bytes = &bytes[stream.send(bytes)?.unwrap_or(0)..];
    }
    Ok(())
}

fn receive_exact<const N: usize>(stream: &Stream, limit: &Limit) -> Result<[u8; N]> {
    let mut buffer = [0; N];
    let mut filled = 0;
    while filled < N {
        stream.wait(true, false, limit)?;
        match stream.receive(&mut buffer[filled..])? {
            Some(0) => bail!("the peer closed after {filled} of {N} bytes"),
            Some(length) => filled += length,
            None => {}
        }
    }
    Ok(buffer)
}
