//! Talks to the running agent.

use std::{io, path::PathBuf};

use http_body_util::{BodyExt as _, Empty};
use hyper::{Method, StatusCode, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::net::UnixStream;

use super::status::{Reload, Status};
use crate::{
    enforce::{Detached, Places},
    trace::EventStats,
};

/// Why the running agent gave no answer.
#[derive(Debug, Error)]
pub enum ClientError {
    /// No agent listens.
    #[error("no agent runs ({path}: {source})")]
    NotRunning {
        /// The control socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The socket is not for this user.
    #[error("{path}: not permitted: only root and its group may talk to the agent")]
    NotPermitted {
        /// The control socket.
        path: PathBuf,
    },
    /// It hung up, or does not speak HTTP.
    #[error("the agent hung up: {0}")]
    Http(#[from] hyper::Error),
    /// It answered with an error.
    #[error("the agent answered {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// Its words.
        message: String,
    },
    /// Its answer is not of the form expected: another version runs.
    #[error("the agent's answer is not understood (does another version run?): {0}")]
    Json(#[from] serde_json::Error),
}

/// A way to ask the running agent.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Asks the agent of `places`.
    pub fn new(places: &Places) -> Self {
        Self { path: places.control_socket() }
    }

    /// Its status.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.ask(Method::GET, "/v1/status").await
    }

    /// What became of events since it started.
    pub async fn event_stats(&self) -> Result<EventStats, ClientError> {
        self.ask(Method::GET, "/v1/events/stats").await
    }

    /// Has it read its policy anew.
    pub async fn reload(&self) -> Result<Reload, ClientError> {
        self.ask(Method::POST, "/v1/reload").await
    }

    /// Has it take everything out of the kernel and stop.
    pub async fn detach(&self) -> Result<Detached, ClientError> {
        self.ask(Method::POST, "/v1/detach").await
    }

    async fn ask<T: DeserializeOwned>(&self, method: Method, path: &str) -> Result<T, ClientError> {
        let stream = UnixStream::connect(&self.path).await.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted { path: self.path.clone() },
            _ => ClientError::NotRunning { path: self.path.clone(), source },
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = hyper::Request::new(Empty::<Bytes>::new());
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::try_from(path).unwrap_or_default();
        request
            .headers_mut()
            .insert(hyper::header::HOST, hyper::header::HeaderValue::from_static("smc-agent"));
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if status != StatusCode::OK {
            let message = String::from_utf8_lossy(&body).trim().to_owned();
            return Err(ClientError::Refused { status, message });
        }
        Ok(serde_json::from_slice(&body)?)
    }
}
