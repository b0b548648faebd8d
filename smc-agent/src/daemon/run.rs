//! The loop of the agent.

mod following;
mod reloading;

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use thiserror::Error;
use tokio::{
    io::unix::AsyncFd,
    net::UnixListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};
use tracing::{info, warn};

use super::{
    control::{self, Request},
    conversion::{self, Conversion},
    names::Names,
    notify::ServiceManager,
    publish::Publisher,
    reconcile::Reconciliation,
    smc_module::SmcModule,
    status::{AgentStatus, NotShown, Reload, Status},
    watch::Watch,
};
use crate::{
    enforce::{self, AgentLock, Backend, Candidate, EnforceError, Enforcer, LockError, Places},
    kernel::{
        btf::BtfError,
        features::{Features, Smc},
        hooks::{self, Missing},
        object,
    },
    netlink::link::{LinkChange, LinkMonitor},
    policy::{self, LoadError},
    trace::{
        Event, EventSource, EventStats, SourceError,
        event::{Kind, PolicyResult},
    },
};

/// Requests that wait for the loop.
const REQUESTS: usize = 16;

/// What to run.
#[derive(Debug)]
pub struct RunOptions {
    /// How to enforce.
    pub enforce: enforce::Options,
    /// Files and folders of the policy.
    pub sources: Vec<PathBuf>,
    /// Whether to let the kernel load the module smc.
    pub load_module: bool,
    /// Whether to read the policy anew when its files change.
    pub watch: bool,
}

/// What the loop has to say to whoever runs it.
#[derive(Debug)]
pub enum Notice<'a> {
    /// The policy is in force.
    Started {
        /// The backend in use.
        backend: Backend,
        /// Why this one, and what the others lacked.
        candidates: &'a [Candidate],
        /// The generation in force.
        generation: u64,
        /// Whether the programs of an earlier agent are in use.
        adopted: bool,
    },
    /// The policy was read anew, or refused.
    Reloaded(&'a Reload),
    /// Something happened to a connection.
    Event(&'a Event),
    /// That were all events for now.
    Pause,
}

/// Why the agent could not start or go on.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// The policy is not usable.
    #[error(transparent)]
    Policy(#[from] LoadError),
    /// The kernel does not describe its types.
    #[error("this kernel lacks what the agent needs: {0}")]
    Btf(#[from] BtfError),
    /// SMC is not in this kernel.
    #[error(
        "this kernel has no SMC: module smc is not loaded and cannot be (modprobe smc tells why); \
         --backend tc enforces without it"
    )]
    NoSmc,
    /// Another agent runs.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It could not be put into force.
    #[error(transparent)]
    Enforce(#[from] EnforceError),
    /// This kernel cannot convert sockets as the policy says.
    #[error(transparent)]
    Convert(#[from] crate::convert::ConvertError),
    /// The interfaces cannot be watched.
    #[error(transparent)]
    Netlink(#[from] crate::netlink::Error),
    /// The files of the policy cannot be watched.
    #[error("watch the files of the policy: {0}")]
    Watch(#[from] notify::Error),
    /// Events cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// SMC is not in this kernel: there is nothing to observe.
    #[error("this kernel has no SMC: module smc is not loaded and cannot be (modprobe smc tells why)")]
    NothingToObserve,
    /// This kernel does not tell of fallbacks.
    #[error("fallbacks cannot be seen on this kernel: {0}")]
    NoFallbacks(String),
    /// A file, socket or signal could not be used.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs the agent until it is told to stop. Enforcement stays in place, unless it was told to detach.
pub async fn run(options: RunOptions, mut tell: impl FnMut(Notice<'_>)) -> Result<(), DaemonError> {
    // First of all: a signal that comes before its handler would end the process.
    let signals = Signals::new()?;
    // Watched before it is read, so that no change is missed in between; set files follow once they are known.
    let mut watch = options.watch.then(|| Watch::new(paths(&options.sources))).transpose()?;
    let loaded = policy::load(&options.sources, &options.enforce.limits)?;
    for warning in &loaded.warnings {
        warn!("{warning}");
    }
    // Subscribed before the kernel is looked at, so that no change is missed in between.
    let module = SmcModule::follow();
    let features = Features::of_running_kernel(options.load_module)?;
    if features.smc == Smc::Absent
        && options.load_module
        && options.enforce.backend == enforce::BackendChoice::Auto
    {
        return Err(DaemonError::NoSmc);
    }
    let places = options.enforce.places.clone();
    places.prepare()?;
    let lock = AgentLock::take(&places)?;
    conversion::check(&places, &loaded.policy)?;
    // Subscribed before the interfaces are listed, so that none is missed in between.
    let monitor = if options.enforce.place.scope.has_others() {
        LinkMonitor::open_for_all()?
    } else {
        LinkMonitor::open()?
    };
    // Whatever can fail comes before the policy is in force.
    let listener = control::bind(&places.control_socket())?;
    let mut enforcer = Enforcer::start(options.enforce.clone(), &features, &loaded.policy, &options.sources)
        .inspect_err(|_| {
            let _ = std::fs::remove_file(places.control_socket());
            leave_nothing(&places);
        })?;
    if let Some(watch) = &mut watch {
        watch.renew(paths(&options.sources).chain(paths(loaded.policy.files())))?;
    }
    let mut source = EventSource::new(enforcer.ebpf_mut(), options.enforce.event_rate != 0)?;
    let is_there = features.smc != Smc::Absent;
    let mut agent = Agent {
        options,
        enforcer,
        names: Names::new(places.clone()),
        features,
        since: Timestamp::now(),
        missing: Vec::new(),
        last_reload: None,
        digest: loaded.digest,
        watch,
        publisher: Publisher::new(),
        reconciliation: Reconciliation::start(is_there),
        conversion: Conversion::default(),
        manager: ServiceManager::of_environment(),
        _lock: lock,
    };
    // After the policy for flows: what it denies is not to be converted first.
    agent.conversion.apply(&places, &loaded.policy);
    // The table is in the kernel: of a large policy nothing is kept here.
    drop(loaded);
    release_memory();
    agent.start_tracing();
    source.believe_owners_from_now();
    tell(Notice::Started {
        backend: agent.enforcer.backend(),
        candidates: agent.enforcer.candidates(),
        generation: agent.enforcer.generation(),
        adopted: agent.enforcer.adopted(),
    });
    agent.tell_ready();
    agent.serve(signals, listener, monitor, module, source, &mut tell).await
}

/// Removes the folders again that a start in vain made. Where anything is enforced the folder of pins is not empty, and
/// everything stays.
fn leave_nothing(places: &Places) {
    // The next start removes what this leaves of it.
    let _ = places.of_object(object::UNFINISHED).remove();
    if std::fs::remove_dir(&places.pins).is_ok() {
        // What cannot be removed is empty, too.
        enforce::remove_state(places, &mut enforce::Detached::default());
    }
}

/// The signals that the agent acts on.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

struct Agent {
    options: RunOptions,
    enforcer: Enforcer,
    names: Names,
    features: Features,
    since: Timestamp,
    /// What this kernel does not tell.
    missing: Vec<Missing>,
    last_reload: Option<Reload>,
    /// Of the files that the policy in force was read from.
    digest: [u8; 32],
    watch: Option<Watch>,
    publisher: Publisher,
    reconciliation: Option<Reconciliation>,
    conversion: Conversion,
    manager: ServiceManager,
    _lock: AgentLock,
}

impl Agent {
    fn start_tracing(&mut self) {
        self.missing = hooks::attach(self.enforcer.ebpf_mut(), &self.features);
        for Missing { what, why } in &self.missing {
            warn!("not shown: {what}: {why}");
        }
        if self.options.enforce.log_level > 0
            && let Err(error) = start_bpf_log(self.enforcer.ebpf_mut())
        {
            warn!("messages of the BPF side are not shown: {error}");
        }
    }

    /// Tells the service manager that the policy is in force, and which.
    fn tell_ready(&self) {
        let (generation, backend) = (self.enforcer.generation(), self.enforcer.backend());
        let refused = self.last_reload.as_ref().filter(|reload| reload.generation.is_none());
        let refused = refused.map(|reload| format!("; refused: {}", reload.problems.join("; ")));
        self.manager.ready(&format!("generation {generation} by {backend}{}", refused.unwrap_or_default()));
    }

    async fn serve(
        mut self,
        mut signals: Signals,
        listener: UnixListener,
        monitor: LinkMonitor,
        mut module: SmcModule,
        mut source: EventSource,
        tell: &mut impl FnMut(Notice<'_>),
    ) -> Result<(), DaemonError> {
        let (sender, mut requests) = mpsc::channel(REQUESTS);
        let server = control::serve(listener, sender);
        // SAFETY: the monitor owns its socket, which is the same and open for as long as it lives.
        let monitor = unsafe { AsyncFd::register_with_interest(monitor, tokio::io::Interest::READABLE) };
        let mut monitor = monitor.map_err(|error| error.into_parts().1)?;
        let mut look = self.looking();
        let mut detached = false;
        loop {
            tokio::select! {
                result = source.next(&mut self.names, |event| {
                    tell(Notice::Event(&event));
                    self.publisher.publish(event);
                }) => {
                    result?;
                    tell(Notice::Pause);
                }
                changes = next_changes(&mut monitor) => {
                    let (namespace, changes) = changes?;
                    self.follow(namespace, changes);
                }
                () = following::next_look(&mut look) => self.look_again(),
                change = module.changed() => {
                    self.renew(change, &mut source);
                    look = self.looking();
                }
                Some(request) = requests.recv() => {
                    detached = self.answer(request, &mut source, tell);
                    if detached {
                        break;
                    }
                }
                _ = signals.hangup.recv() => {
                    let reload = self.reload();
                    self.announce(&reload, &mut source, tell);
                }
                () = reloading::changed(&mut self.watch, self.last_reload.as_ref()) => {
                    if let Some(reload) = self.reload_if_changed() {
                        self.announce(&reload, &mut source, tell);
                    }
                }
                () = self.conversion.changed() => self.conversion.refresh(&self.options.enforce.places),
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
            }
        }
        self.manager.stopping();
        // A client finds at once that none listens.
        let _ = std::fs::remove_file(self.options.enforce.places.control_socket());
        server.stop().await;
        if detached {
            let mut report = enforce::Detached::default();
            enforce::remove_state(&self.options.enforce.places, &mut report);
            for problem in report.problems {
                warn!("{problem}");
            }
        }
        Ok(())
    }

    /// Serves one request. Says whether the agent is to stop.
    fn answer(
        &mut self,
        request: Request,
        source: &mut EventSource,
        tell: &mut impl FnMut(Notice<'_>),
    ) -> bool {
        // Whoever asked may have hung up by now: that changes nothing.
        match request {
            Request::Status(reply) => {
                let status = Status::read(&self.options.enforce.places, Some(self.status(source)));
                let _ = reply.send(status.map_err(|error| error.to_string()));
                false
            }
            Request::Reload(reply) => {
                let reload = self.reload();
                self.announce(&reload, source, tell);
                let _ = reply.send(reload);
                false
            }
            Request::Events(wanted, reply) => {
                let _ = reply.send(self.publisher.subscribe(wanted, source.run()));
                false
            }
            Request::Stats(reply) => {
                let _ = reply.send(self.stats(source).map_err(|error| error.to_string()));
                false
            }
            Request::Detach(reply) => {
                let _ = reply.send(enforce::detach(&self.options.enforce.places));
                true
            }
        }
    }

    /// Tells what came of a reload, to whoever runs this and to those who read events.
    fn announce(&mut self, reload: &Reload, source: &mut EventSource, tell: &mut impl FnMut(Notice<'_>)) {
        self.tell_ready();
        tell(Notice::Reloaded(reload));
        let result = if reload.generation.is_some() { PolicyResult::Reloaded } else { PolicyResult::Refused };
        let generation = self.enforcer.generation();
        let event = source.own_event(Kind::Policy { result, generation, problems: reload.problems.clone() });
        tell(Notice::Event(&event));
        tell(Notice::Pause);
        self.publisher.publish(event);
    }

    /// What became of events until now.
    fn stats(&self, source: &EventSource) -> Result<EventStats, SourceError> {
        let stats = source.stats()?;
        let fallbacks = self.reconciliation.and_then(|kernel| kernel.counts(source.shown(), stats.pending));
        Ok(EventStats {
            history: self.publisher.size(),
            readers: self.publisher.readers(),
            fallbacks,
            ..stats
        })
    }

    fn status(&self, source: &EventSource) -> AgentStatus {
        AgentStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: self.features.release.clone(),
            since: self.since,
            candidates: self.enforcer.candidates().to_vec(),
            adopted: self.enforcer.adopted(),
            tracing_missing: hooks::without_fallbacks(&self.missing).map(str::to_owned),
            not_shown: self.missing.iter().map(NotShown::from).collect(),
            events: self.stats(source).ok(),
            last_reload: self.last_reload.clone(),
            conversion_problem: self.conversion.problem(),
            scope: self.options.enforce.place.scope.to_string(),
            not_found: self.enforcer.not_found().to_vec(),
        }
    }
}

/// Gives back to the system what reading a large policy took; the C library would keep most of it for later.
fn release_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes any number, and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn paths(paths: &[PathBuf]) -> impl Iterator<Item = &Path> {
    paths.iter().map(PathBuf::as_path)
}

async fn next_changes(
    monitor: &mut AsyncFd<LinkMonitor>,
) -> Result<(Option<i32>, Vec<LinkChange>), DaemonError> {
    loop {
        let mut guard = monitor.readable_mut().await?;
        match guard.get_inner_mut().changes()? {
            Some(changes) => return Ok(changes),
            None => guard.clear_ready(),
        }
    }
}

/// Passes the messages of the BPF side on to this program's log.
fn start_bpf_log(ebpf: &mut aya::Ebpf) -> Result<(), Box<dyn std::error::Error>> {
    let logger = aya_log::EbpfLogger::init(ebpf)?;
    // SAFETY: the logger owns its ring buffer, whose descriptor is the same and open for as long as it lives.
    let mut logger = unsafe { AsyncFd::register_with_interest(logger, tokio::io::Interest::READABLE) }?;
    tokio::spawn(async move {
        while let Ok(mut guard) = logger.readable_mut().await {
            guard.get_inner_mut().flush();
            guard.clear_ready();
        }
    });
    info!("messages of the BPF side are shown");
    Ok(())
}
