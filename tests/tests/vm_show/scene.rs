//! Sockets of every kind and state, held open while the agent looks at them.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use smc_agent_tests::pair::{Connecting, Kind, Listener, Stream};
use smc_agent_tests::wait::{Limit, wait_until};

use super::raw;

/// How long anything may take.
pub(crate) const LONG: Duration = Duration::from_mins(1);

/// What is held open.
pub(crate) struct Scene {
    /// Both ends of connections, the connecting one first.
    pub(crate) pairs: Vec<(Stream, Stream)>,
    /// An end whose peer has closed.
    pub(crate) closing: Stream,
    /// Listeners.
    pub(crate) listeners: Vec<Listener>,
}

impl Scene {
    pub(crate) fn set_up() -> Result<Self> {
        let mut pairs = Vec::new();
        let v4 = [
            (Kind::Smc, Kind::Smc),
            (Kind::SmcInet, Kind::SmcInet),
            (Kind::Smc, Kind::Tcp),
            (Kind::Tcp, Kind::SmcInet),
        ];
        for (server, client) in v4 {
            pairs.push(connected(server, client, [127, 0, 0, 1].into())?);
        }
        for kind in [Kind::Smc, Kind::SmcInet] {
            pairs.push(connected(kind, kind, IpAddr::V6(std::net::Ipv6Addr::LOCALHOST))?);
        }
        for (one, other) in &pairs {
            exchange(one, other, 100_000)?;
        }
        let (closing, gone) = connected(Kind::Smc, Kind::Smc, [127, 0, 0, 1].into())?;
        drop(gone);
        let listeners = [
            (Kind::Smc, "127.0.0.1:0"),
            (Kind::Smc, "[::]:0"),
            (Kind::SmcInet, "127.0.0.2:0"),
            (Kind::SmcInet, "[::1]:0"),
        ]
        .into_iter()
        .map(|(kind, address)| Listener::bind(kind, address.parse()?, 4))
        .collect::<Result<_>>()?;
        let scene = Self { pairs, closing, listeners };
        scene.settle()?;
        Ok(scene)
    }

    /// Waits until nothing moves: two looks that see the same.
    #[expect(clippy::unused_self, reason = "it is this scene that settles")]
    pub(crate) fn settle(&self) -> Result<()> {
        let mut last = Vec::new();
        wait_until("sockets that stay as they are", LONG, || {
            thread::sleep(Duration::from_millis(300));
            let now = raw::smc_sockets()?;
            let same = now == last;
            last = now;
            Ok(same.then_some(()))
        })
    }
}

/// Sends so many bytes from one end to the other.
pub(crate) fn exchange(from: &Stream, to: &Stream, bytes: usize) -> Result<()> {
    let limit = Limit::new(LONG);
    let block = vec![7; 8192];
    let mut buffer = vec![0; 65_536];
    let (mut sent, mut received) = (0, 0);
    while received < bytes {
        if sent < bytes {
            sent += from.send(&block[..block.len().min(bytes - sent)])?.unwrap_or(0);
        }
        match to.receive(&mut buffer)? {
            Some(length) => received += length,
            None => drop(limit.slice().map(|_| thread::sleep(Duration::from_millis(1)))?),
        }
    }
    Ok(())
}

/// Both ends of a connection; the one that connected first.
pub(crate) fn connected(server: Kind, client: Kind, address: IpAddr) -> Result<(Stream, Stream)> {
    let listener = Listener::bind(server, SocketAddr::new(address, 0), 8)?;
    let to = listener.local()?;
    let limit = Limit::new(LONG);
    let accepting = thread::spawn({
        let limit = limit.clone();
        move || listener.accept(&limit)
    });
    let (stream, _) = Stream::connect(client, to, &Connecting::default(), &limit)?;
    let accepted = accepting.join().map_err(|_| anyhow!("a thread panicked"))??;
    Ok((stream, accepted))
}
