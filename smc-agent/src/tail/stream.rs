//! Events of the running agent, line by line.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::UnixStream;

use crate::daemon::ClientError;
use crate::enforce::Places;

/// The longest line that is taken; an event is some hundred bytes, a refused policy with many problems more.
const LONGEST: usize = 4 << 20;

/// Which events are asked of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Of those that it remembers, only those since then.
    pub since: Option<Timestamp>,
    /// Whether to go on with those to come.
    pub follow: bool,
}

/// The way to the events of the agent.
#[derive(Clone, Debug)]
pub struct AgentEvents {
    path: PathBuf,
}

impl AgentEvents {
    /// Those of the agent of `places`.
    pub fn new(places: &Places) -> Self {
        Self { path: places.control_socket() }
    }

    /// Asks for events.
    pub async fn open(&self, query: &Query) -> Result<Lines, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path: self.path.clone() },
            _ => ClientError::NotRunning { path: self.path.clone(), source },
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = Uri::try_from(query.path()).unwrap_or_default();
        request.headers_mut().insert(HOST, HeaderValue::from_static("smc-agent"));
        let response = sender.send_request(request).await?;
        let status = response.status();
        if status != StatusCode::OK {
            let body = response.into_body().collect().await?.to_bytes();
            return Err(ClientError::Refused {
                status,
                message: String::from_utf8_lossy(&body).trim().to_owned(),
            });
        }
        Ok(Lines { body: response.into_body(), buffer: Vec::new(), start: 0, searched: 0 })
    }
}

impl Query {
    fn path(&self) -> String {
        let follow = self.follow;
        match self.since {
            Some(since) => format!("/v1/events?follow={follow}&since={since}"),
            // All that there are.
            None => format!("/v1/events?follow={follow}&history={}", u32::MAX),
        }
    }
}

/// Lines of a stream of events.
#[derive(Debug)]
pub struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    /// Where the next line begins in the buffer.
    start: usize,
    /// Up to where the buffer is known to have no end of that line.
    searched: usize,
}

impl Lines {
    /// Whether a further line is there without waiting.
    pub fn has_more(&self) -> bool {
        self.buffer[self.searched..].contains(&b'\n')
    }

    /// The next line; `None` at the end. What stands behind the last end of a line is no event.
    pub async fn next(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at;
                let line = String::from_utf8_lossy(&self.buffer[self.start..end]).into_owned();
                self.start = end + 1;
                self.searched = self.start;
                return Ok(Some(line));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            self.searched = self.buffer.len();
            if self.buffer.len() > LONGEST {
                let message = format!("a line of more than {LONGEST} bytes");
                return Err(ClientError::Refused { status: StatusCode::OK, message });
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}

/// Whether a character may be written to a terminal in the midst of JSON: no control characters, and nothing that turns
/// the direction of writing.
pub fn is_harmless(character: char) -> bool {
    !matches!(character, '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// A line of JSON as it may be shown: the same value, with nothing in it that a terminal obeys.
pub fn printable_json(line: &str) -> String {
    let line = line.trim_end_matches(['\r', '\n']);
    let mut text = String::with_capacity(line.len());
    for character in line.chars() {
        if is_harmless(character) {
            text.push(character);
        } else if character == '\t' || character == '\r' {
            // Between the parts of JSON; within a text it would have to be escaped.
            text.push(' ');
        } else {
            // All of these are in the basic plane, and within a text: one unit.
            let _ = write!(text, "\\u{:04x}", u32::from(character));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_asked_for_what_is_wanted() {
        let since = "2026-01-02T03:04:05.5Z".parse().ok();
        assert_eq!(
            Query { since, follow: true }.path(),
            "/v1/events?follow=true&since=2026-01-02T03:04:05.5Z"
        );
        assert_eq!(Query::default().path(), "/v1/events?follow=false&history=4294967295");
        assert!(Uri::try_from(Query { since, follow: true }.path()).is_ok());
    }

    #[test]
    fn json_keeps_its_value_and_loses_what_terminals_obey() {
        let line = "{\"a\":\t\"x\u{9b}\u{202e}é\",\"b\":\"\\u001b\"}\r\n";
        let printed = printable_json(line);
        assert_eq!(printed, "{\"a\": \"x\\u009b\\u202eé\",\"b\":\"\\u001b\"}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&printed), value(line));
    }
}
