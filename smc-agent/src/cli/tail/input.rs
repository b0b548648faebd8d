//! Where events come from: standard input or the agent.

use std::fs::File;
use std::future;
use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Whether events are to be read from standard input: it is a pipe or a file. Services and scheduled jobs have `/dev/null`
/// or a socket there, and mean the agent.
pub(in super::super) fn is_piped() -> bool {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    let kind = stdin.as_fd().try_clone_to_owned().map(File::from).and_then(|file| file.metadata());
    kind.is_ok_and(|kind| kind.is_file() || kind.file_type().is_fifo())
}

/// Waits until nobody reads standard output any more; for ever where that cannot be told, as of a file.
pub(in super::super) async fn reader_gone() {
    let Ok(output) = io::stdout().as_fd().try_clone_to_owned() else { return future::pending().await };
    match watch(output) {
        Some(output) => {
            // An error of waiting: then writing tells.
            if output.ready(Interest::ERROR).await.is_err() {
                future::pending::<()>().await;
            }
        }
        None => future::pending().await,
    }
}

fn watch(output: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by what watches it, and open for as long as that lives.
    unsafe { AsyncFd::register_with_interest(output, Interest::ERROR) }.ok()
}
