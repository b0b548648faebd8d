//! One connection with both of its ends: does the data arrive intact, and what does the kernel say of each end?

mod end;
mod exchange;
mod pattern;
mod socket;

pub use end::{End, Mode, Report, client, look_at, server};
pub use socket::{Connecting, FastOpen, Kind, Listener, Listening, Stream, md5_is_missing};

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::netns;
use crate::wait::Limit;

/// How much data goes each way unless a test says otherwise, in bytes.
pub const DEFAULT_BYTES: u64 = 64 * 1024;
/// How long everything may take unless a test says otherwise; a hung test is what this ends.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// How much later than its ends the whole gives up: they have the better error.
const GRACE: Duration = Duration::from_secs(5);

/// A connection to be made: see [`Pair::new`] for what is usual.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The kind of the listening socket.
    pub server: Kind,
    /// The kind of the connecting socket.
    pub client: Kind,
    /// Where the server listens; port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// Where the client connects to; `None` is where the server listens.
    pub through: Option<SocketAddr>,
    /// How the server listens.
    pub listening: Listening,
    /// How the client connects. A signature of its segments is demanded by the server, from the server's own address: both
    /// ends are on one host then.
    pub connecting: Connecting,
    /// How much data goes each way, in bytes.
    pub bytes: u64,
    /// The server's network namespace; `None` is the caller's.
    pub server_netns: Option<PathBuf>,
    /// The client's network namespace; `None` is the caller's.
    pub client_netns: Option<PathBuf>,
    /// How long everything may take.
    pub timeout: Duration,
}

impl Pair {
    /// A pair in the caller's network namespace with [`DEFAULT_BYTES`] and [`DEFAULT_TIMEOUT`].
    pub fn new(server: Kind, client: Kind, address: SocketAddr) -> Self {
        Self {
            server,
            client,
            address,
            through: None,
            listening: Listening::default(),
            connecting: Connecting::default(),
            bytes: DEFAULT_BYTES,
            server_netns: None,
            client_netns: None,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// What became of a [`Pair`].
#[derive(Clone, Debug)]
pub struct Ends {
    /// The end that connected.
    pub client: End,
    /// The end that accepted.
    pub server: End,
    /// How long connect took.
    pub connect: Duration,
    /// Whether all data arrived as it was sent, both ways.
    pub intact: bool,
    /// What went wrong with the data.
    pub problems: Vec<String>,
}

/// Makes the connection, sends the data and asks the kernel about both ends while they are open.
///
/// An error means that there was no connection, or that an end could not be looked at; data that did not arrive is told in
/// [`Ends::intact`] and [`Ends::problems`].
///
/// ```
/// use smc_agent_tests::pair::{Kind, Mode, Pair, run};
///
/// let ends = run(&Pair::new(Kind::Tcp, Kind::Tcp, "127.0.0.1:0".parse()?))?;
/// assert!(ends.intact);
/// assert_eq!(ends.client.mode, Mode::Tcp);
/// # anyhow::Ok(())
/// ```
pub fn run(pair: &Pair) -> Result<Ends> {
    let limit = Limit::new(pair.timeout);
    let (listening, address) = mpsc::channel();
    let server = in_thread(pair.server_netns.clone(), limit.clone(), {
        let (pair, limit) = (pair.clone(), limit.clone());
        move || {
            let listener = Listener::bind_with(pair.server, pair.address, 8, &pair.listening)?;
            if let Some(key) = pair.connecting.md5_key {
                listener.sign(pair.address.ip(), key)?;
            }
            // The receiver is gone only when the whole has given up.
            let _ = listening.send(listener.local()?);
            end::server(&listener.accept(&limit)?, &limit)
        }
    });
    // When the server fails before it listens, its error is the one to report.
    let Ok(address) = address.recv_timeout(pair.timeout) else {
        return Err(result_of(&server, &limit, "server").err().context("the server never listened")?);
    };
    let client = in_thread(pair.client_netns.clone(), limit.clone(), {
        let (pair, limit) = (pair.clone(), limit.clone());
        move || {
            let to = pair.through.unwrap_or(address);
            let (stream, connect) = Stream::connect(pair.client, to, &pair.connecting, &limit)?;
            end::client(&stream, pair.bytes, &limit).map(|report| (report, connect))
        }
    });
    let client = result_of(&client, &limit, "client");
    let server = result_of(&server, &limit, "server");
    let ((client, connect), server) = (client?, server?);
    let problems: Vec<_> = [("client", client.problem), ("server", server.problem)]
        .into_iter()
        .filter_map(|(end, problem)| Some(format!("{end}: {}", problem?)))
        .collect();
    Ok(Ends { client: client.end, server: server.end, connect, intact: problems.is_empty(), problems })
}

/// Runs one end in a thread of its own, which is not waited for when it hangs in the kernel; its failure ends the other.
fn in_thread<T: Send + 'static>(
    namespace: Option<PathBuf>,
    limit: Limit,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> mpsc::Receiver<Result<T>> {
    let (result, receiver) = mpsc::channel();
    thread::spawn(move || {
        let outcome = namespace.as_deref().map_or(Ok(()), netns::enter).and_then(|()| job());
        if outcome.is_err() {
            limit.cancel();
        }
        // The receiver is gone only when the whole has given up.
        let _ = result.send(outcome);
    });
    receiver
}

fn result_of<T>(receiver: &mpsc::Receiver<Result<T>>, limit: &Limit, end: &str) -> Result<T> {
    let left = limit.remaining().unwrap_or_default() + GRACE;
    let result = receiver.recv_timeout(left).with_context(|| format!("the {end} hangs in the kernel"))?;
    result.with_context(|| format!("the {end} failed"))
}
