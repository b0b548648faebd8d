//! The command line.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use lexopt::{Arg, ValueExt as _};
use smc_agent_tests::netns;
use smc_agent_tests::pair::{Connecting, DEFAULT_BYTES, DEFAULT_TIMEOUT, FastOpen, Kind, Listening};

/// A command line that makes no sense.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// All options of all commands, with their defaults, and the words in between.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) words: Vec<String>,
    pub(crate) server: Kind,
    pub(crate) client: Kind,
    pub(crate) kind: Kind,
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) bytes: u64,
    pub(crate) listening: Listening,
    pub(crate) connecting: Connecting,
    pub(crate) server_netns: Option<PathBuf>,
    pub(crate) client_netns: Option<PathBuf>,
    pub(crate) netns: Option<PathBuf>,
    pub(crate) count: u64,
    pub(crate) parallel: u64,
    pub(crate) timeout: Duration,
    pub(crate) smc_r: bool,
    pub(crate) json: bool,
}

impl Arguments {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    pub(crate) fn parse() -> Result<Self> {
        let mut parsed = Self {
            words: Vec::new(),
            server: Kind::Smc,
            client: Kind::Smc,
            kind: Kind::Smc,
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            bytes: DEFAULT_BYTES,
            listening: Listening::default(),
            connecting: Connecting::default(),
            server_netns: None,
            client_netns: None,
            netns: None,
            count: 1,
            parallel: 1,
            timeout: DEFAULT_TIMEOUT,
            smc_r: false,
            json: false,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("server") => parsed.server = parser.value()?.parse()?,
                Arg::Long("client") => parsed.client = parser.value()?.parse()?,
                Arg::Long("kind") => parsed.kind = parser.value()?.parse()?,
                Arg::Long("address") => parsed.ip = parser.value()?.parse()?,
                Arg::Long("port") => parsed.port = parser.value()?.parse()?,
                Arg::Long("bytes") => parsed.bytes = parser.value()?.parse()?,
                Arg::Long("local-bind") => parsed.connecting.local = Some(parser.value()?.parse()?),
                Arg::Long("fastopen-connect") => parsed.connecting.fast_open = Some(FastOpen::Option),
                Arg::Long("fastopen-message") => {
                    parsed.connecting.fast_open = Some(FastOpen::Message);
                }
                Arg::Long("fastopen-listen") => parsed.listening.fast_open = true,
                Arg::Long("ipsec-connect") => parsed.connecting.ipsec = true,
                Arg::Long("ipsec-listen") => parsed.listening.ipsec = true,
                Arg::Long("non-blocking") => parsed.connecting.non_blocking = true,
                Arg::Long("server-netns") => parsed.server_netns = Some(namespace(&mut parser)?),
                Arg::Long("client-netns") => parsed.client_netns = Some(namespace(&mut parser)?),
                Arg::Long("netns") => parsed.netns = Some(namespace(&mut parser)?),
                Arg::Long("count") => parsed.count = parser.value()?.parse()?,
                Arg::Long("parallel") => parsed.parallel = parser.value()?.parse()?,
                Arg::Long("timeout") => parsed.timeout = Duration::from_secs(parser.value()?.parse()?),
                Arg::Long("smcr") => parsed.smc_r = true,
                Arg::Long("json") => parsed.json = true,
                Arg::Long("help") | Arg::Short('h') => parsed.words = vec!["help".to_owned()],
                Arg::Value(word) => parsed.words.push(word.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(parsed)
    }
}

fn namespace(parser: &mut lexopt::Parser) -> Result<PathBuf> {
    Ok(netns::path_of(&parser.value()?.string()?))
}
