//! Module smc, as it is loaded and removed under a running agent.

use std::{fs, io, time::Duration};

use tokio::io::unix::AsyncFd;
use tracing::warn;

use crate::netlink::{
    self,
    module::{ModuleChange, ModuleMonitor},
};

/// What a module that is loaded says of itself.
const STATE: &str = "/sys/module/smc/initstate";
/// How often it is looked whether a module has begun, and for how long: before 5.12 the kernel tells of it earlier.
const BEGINS: (Duration, usize) = (Duration::from_millis(50), 200);

/// Follows the module; where the kernel does not tell of it, nothing ever happens to it.
pub(super) struct SmcModule {
    monitor: Option<AsyncFd<ModuleMonitor>>,
    /// That it was loaded, while it has not begun yet.
    begins: Option<ModuleChange>,
}

impl SmcModule {
    /// Within a tokio runtime.
    pub(super) fn follow() -> Self {
        let open = || -> Result<AsyncFd<ModuleMonitor>, netlink::Error> {
            let monitor = ModuleMonitor::open("smc")?;
            // SAFETY: the monitor owns its socket, which is the same and open for as long as it lives.
            let monitor = unsafe { AsyncFd::register_with_interest(monitor, tokio::io::Interest::READABLE) };
            monitor
                .map_err(|error| netlink::Error::Io { what: "watch modules", source: error.into_parts().1 })
        };
        let monitor = open().inspect_err(|error| warn!("module smc is not followed: {error}")).ok();
        Self { monitor, begins: None }
    }

    /// Waits until the module was loaded or removed. Nothing is lost if this is dropped while it waits.
    pub(super) async fn changed(&mut self) -> ModuleChange {
        loop {
            if let Some(change) = self.begins {
                let has_begun = begun().await;
                self.begins = None;
                if has_begun {
                    return change;
                }
            }
            let Some(monitor) = &mut self.monitor else { return std::future::pending().await };
            match next(monitor).await {
                Ok(ModuleChange::Removed) => return ModuleChange::Removed,
                Ok(change) => self.begins = Some(change),
                Err(error) => {
                    warn!("module smc is not followed any more: {error}");
                    self.monitor = None;
                }
            }
        }
    }
}

async fn next(monitor: &mut AsyncFd<ModuleMonitor>) -> Result<ModuleChange, Box<dyn std::error::Error>> {
    loop {
        let mut guard = monitor.readable_mut().await?;
        if let Some(change) = guard.get_inner_mut().changes()? {
            return Ok(change);
        }
        guard.clear_ready();
    }
}

/// Waits until the module has begun; no, if it fails to, or is gone again.
async fn begun() -> bool {
    let (pause, times) = BEGINS;
    for _ in 0..times {
        match fs::read_to_string(STATE) {
            Ok(state) if state.trim() == "live" => return true,
            Ok(_) => tokio::time::sleep(pause).await,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        }
    }
    false
}
