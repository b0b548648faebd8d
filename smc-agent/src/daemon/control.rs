//! The control socket: HTTP/1.1 with JSON on a socket in the file system, for root and its group only.

use std::{convert::Infallible, fs, io, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{RawQuery, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
    serve::Listener,
};
use futures_util::{Stream, StreamExt as _};
use serde::Serialize;
use tokio::{
    net::{UnixListener, UnixStream, unix::SocketAddr},
    sync::{broadcast, mpsc, oneshot},
    task::JoinHandle,
};
use tracing::{debug, warn};

use super::{
    publish::{Subscription, Wanted, line},
    query,
    status::{Reload, Status},
};
use crate::{
    enforce::{Detached, at},
    trace::{Event, EventStats},
};

/// What the socket's tasks ask of the loop that owns the agent.
#[derive(Debug)]
pub(super) enum Request {
    /// The status, or why it cannot be read.
    Status(oneshot::Sender<Result<Status, String>>),
    /// Read the policy anew.
    Reload(oneshot::Sender<Reload>),
    /// Events, past and to come.
    Events(Wanted, oneshot::Sender<Subscription>),
    /// What became of events, or why that cannot be read.
    Stats(oneshot::Sender<Result<EventStats, String>>),
    /// Take everything out of the kernel and stop.
    Detach(oneshot::Sender<Detached>),
}

#[derive(Clone)]
struct Shared {
    requests: mpsc::Sender<Request>,
}

/// The socket's tasks.
#[derive(Debug)]
pub(super) struct Server {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    /// Accepts no more, and lets answers that are under way reach their readers. Streams of events, which have no
    /// end, are cut.
    pub(super) async fn stop(self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let _ = self.stop.send(());
        let _ = tokio::time::timeout(PATIENCE, self.task).await;
    }
}

/// Makes the socket at `path`, in the place of one that a dead agent left.
pub(super) fn bind(path: &Path) -> io::Result<UnixListener> {
    let make = || {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
        Ok(listener)
    };
    make().map_err(at("make the control socket", path))
}

/// Serves the socket. Events come as lines of JSON.
pub(super) fn serve(listener: UnixListener, requests: mpsc::Sender<Request>) -> Server {
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/events", get(stream))
        .route("/v1/events/stats", get(stats))
        .route("/v1/reload", post(reload))
        .route("/v1/detach", post(detach))
        .with_state(Shared { requests });
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        let serve = axum::serve(Checked(listener), router).with_graceful_shutdown(async {
            let _ = stopped.await;
        });
        if let Err(error) = serve.await {
            warn!("control socket: {error}");
        }
    });
    Server { stop, task }
}

/// A listener that accepts root and members of its group only.
struct Checked(UnixListener);

impl Listener for Checked {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.0).await;
            match stream.peer_cred() {
                Ok(peer)
                    if peer.uid() == 0
                        || peer.gid() == 0
                        || peer.uid() == nix::unistd::geteuid().as_raw() =>
                {
                    return (stream, address);
                }
                Ok(peer) => warn!("control socket: refused user {} of group {}", peer.uid(), peer.gid()),
                Err(error) => warn!("control socket: who is there? {error}"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

async fn ask<T>(shared: &Shared, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, Response> {
    let stopping = || (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping\n").into_response();
    let (sender, receiver) = oneshot::channel();
    shared.requests.send(request(sender)).await.map_err(|_| stopping())?;
    receiver.await.map_err(|_| stopping())
}

fn answer<T: Serialize>(result: Result<T, Response>) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(response) => response,
    }
}

async fn status(State(shared): State<Shared>) -> Response {
    match ask(&shared, Request::Status).await {
        Ok(Ok(status)) => Json(status).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(response) => response,
    }
}

async fn reload(State(shared): State<Shared>) -> Response {
    answer(ask(&shared, Request::Reload).await)
}

async fn detach(State(shared): State<Shared>) -> Response {
    answer(ask(&shared, Request::Detach).await)
}

async fn stats(State(shared): State<Shared>) -> Response {
    match ask(&shared, Request::Stats).await {
        Ok(Ok(stats)) => Json(stats).into_response(),
        Ok(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
        Err(response) => response,
    }
}

/// Events: those of the past that are asked for, then those to come. A reader that is too slow misses some and is told how
/// many, and never holds up anybody.
async fn stream(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    let wanted = match query::wanted(query.as_deref().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(problem) => return (StatusCode::BAD_REQUEST, format!("{problem}\n")).into_response(),
    };
    match ask(&shared, |reply| Request::Events(wanted, reply)).await {
        Ok(subscription) => {
            let body = Body::from_stream(lines_of(subscription));
            ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
        }
        Err(response) => response,
    }
}

fn lines_of(subscription: Subscription) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let Subscription { past, future, run } = subscription;
    // Made as they are sent: a reader that hangs up early costs little.
    let past = futures_util::stream::iter(past).filter_map(|event| async move { line(&event).map(Ok) });
    let future = futures_util::stream::unfold(future, move |events| async move {
        let mut events = events?;
        let line = match events.recv().await {
            Ok(line) => line,
            Err(broadcast::error::RecvError::Lagged(count)) => {
                debug!("a reader of events missed {count}");
                line(&Event::missed(run, count))?
            }
            Err(broadcast::error::RecvError::Closed) => return None,
        };
        Some((Ok(line), Some(events)))
    });
    past.chain(future)
}
