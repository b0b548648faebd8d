//! Events without an agent: only the programs that see them are loaded, for as long as they are read. No policy, no pin
//! and no file is touched, and an agent that runs beside it is not disturbed.

use crate::{
    kernel::{
        features::{Features, Smc},
        hooks::{self, Missing},
        object,
    },
    trace::{Event, EventSource, EventStats, NoNames},
};

use super::{DaemonError, reconcile::Reconciliation};

/// How to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObserveOptions {
    /// Whether to let the kernel load the module smc.
    pub load_module: bool,
    /// Events a second with one code and one peer that are reported; 0: all.
    pub event_rate: u32,
}

/// Sees events. Dropping it ends that.
pub struct Observer {
    /// Keeps the programs attached.
    _ebpf: aya::Ebpf,
    source: EventSource,
    missing: Vec<Missing>,
    reconciliation: Option<Reconciliation>,
    release: String,
}

impl Observer {
    /// Starts to see events. Within a tokio runtime; needs `CAP_SYS_ADMIN`.
    pub fn start(options: ObserveOptions) -> Result<Self, DaemonError> {
        let features = Features::of_running_kernel(options.load_module)?;
        if features.smc == Smc::Absent {
            return Err(DaemonError::NothingToObserve);
        }
        let offsets = features.offsets();
        let mut ebpf = object::load(&object::Options {
            maps: None,
            offsets: &offsets,
            enforcing: false,
            log_level: 0,
            event_rate: options.event_rate,
            fallback_tracepoint: features.fallback_tracepoint,
        })
        .map_err(crate::enforce::EnforceError::from)?;
        let source = EventSource::new(&mut ebpf, options.event_rate != 0)?;
        let reconciliation = Reconciliation::start(true);
        let missing = hooks::attach(&mut ebpf, &features);
        if let Some(why) = hooks::without_fallbacks(&missing) {
            return Err(DaemonError::NoFallbacks(why.to_owned()));
        }
        Ok(Self { _ebpf: ebpf, source, missing, reconciliation, release: features.release })
    }

    /// Waits for events, and hands some of them to `take`. Nothing is lost if this is dropped while it waits.
    pub async fn next(&mut self, take: impl FnMut(Event)) -> Result<(), DaemonError> {
        Ok(self.source.next(&mut NoNames, take).await?)
    }

    /// The same, of records that `wanted` says may be of interest.
    pub async fn next_of(
        &mut self,
        wanted: impl Fn(&smc_agent_common::Event) -> bool,
        take: impl FnMut(Event),
    ) -> Result<(), DaemonError> {
        Ok(self.source.next_of(wanted, &mut NoNames, take).await?)
    }

    /// What this kernel does not tell.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// The kernel's release.
    pub fn kernel(&self) -> &str {
        &self.release
    }

    /// What became of events until now.
    pub fn stats(&self) -> Result<EventStats, DaemonError> {
        let stats = self.source.stats()?;
        let fallbacks =
            self.reconciliation.and_then(|kernel| kernel.counts(self.source.shown(), stats.pending));
        Ok(EventStats { fallbacks, ..stats })
    }
}
