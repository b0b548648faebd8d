//! What is enforced, as it can be read from the kernel and the records, with or without a running agent.

use std::{collections::BTreeMap, io, path::PathBuf};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common::{Counter, SCOPE_ALL};

use crate::{
    convert::ConvertStatus,
    enforce::{Backend, Candidate, ObjectPlaces, Places, PolicyRecord},
    kernel::{
        clsact,
        hooks::Missing,
        hs_ctrl,
        maps::{Maps, MapsError},
        tc,
    },
    netlink::link,
    netns::{self, Namespace},
    trace::EventStats,
};

/// Version of the form of the status as JSON.
pub(super) const VERSION: u32 = 1;

/// The whole status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Version of this form.
    pub version: u32,
    /// The running agent; `None` if none runs.
    pub agent: Option<AgentStatus>,
    /// What enforces at present, by what is in the kernel.
    pub backend: Backend,
    /// The policy in force; `None` if there is none.
    pub policy: Option<PolicyStatus>,
    /// What the programs counted, by name.
    pub counters: BTreeMap<String, u64>,
    /// Interfaces of this network namespace that both traffic control programs are attached to.
    pub interfaces: Vec<String>,
    /// The ctrl that is selected in `net.smc.hs_ctrl` of this network namespace.
    pub hs_ctrl: Option<String>,
    /// The network namespaces in which the policy is enforced.
    #[serde(default)]
    pub namespaces: Vec<NamespaceStatus>,
    /// Which TCP sockets become SMC ones; `None` if none are to.
    #[serde(default)]
    pub conversion: Option<ConvertStatus>,
    /// What is not as it should be.
    pub degraded: Vec<Degraded>,
}

/// A network namespace in which the policy is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceStatus {
    /// The inode number that identifies it.
    pub inode: u32,
    /// Its name under `/run/netns`, or the path where it is mounted; `None` if it has none.
    pub name: Option<String>,
    /// A process in it, if it has no name and is not that of whoever reads this.
    pub pid: Option<u32>,
    /// The ctrl that is selected in its `net.smc.hs_ctrl`.
    pub hs_ctrl: Option<String>,
    /// Its interfaces that both traffic control programs are attached to.
    pub interfaces: Vec<String>,
    /// Whether the policy is enforced there, on all of it.
    pub enforced: bool,
}

/// The running agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AgentStatus {
    /// Its process id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The kernel's release.
    pub kernel: String,
    /// When it started.
    pub since: Timestamp,
    /// The backends it considered, and why it uses the one it does.
    pub candidates: Vec<Candidate>,
    /// Whether it went on with the programs of an earlier agent.
    pub adopted: bool,
    /// Why fallbacks are not shown; `None` if they are.
    pub tracing_missing: Option<String>,
    /// What else this kernel does not tell of connections, and why.
    #[serde(default)]
    pub not_shown: Vec<NotShown>,
    /// What became of the events since it started; `None` if that cannot be read.
    #[serde(default)]
    pub events: Option<EventStats>,
    /// What came of the last reload; `None` if there was none.
    pub last_reload: Option<Reload>,
    /// In which network namespaces it is to enforce: `host`, `all`, or their names.
    #[serde(default)]
    pub scope: String,
    /// What of the scope is not there, in words.
    #[serde(default)]
    pub not_found: Vec<String>,
    /// Why sockets are not converted as the policy says; `None` if they are.
    #[serde(default)]
    pub conversion_problem: Option<String>,
}

/// Something that this kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotShown {
    /// What events lack.
    pub what: String,
    /// Why.
    pub why: String,
}

impl From<&Missing> for NotShown {
    fn from(missing: &Missing) -> Self {
        Self { what: missing.what.to_owned(), why: missing.why.clone() }
    }
}

/// A reload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reload {
    /// Version of this form.
    pub version: u32,
    /// When.
    pub time: Timestamp,
    /// The generation that came of it; `None` if it was refused.
    pub generation: Option<u64>,
    /// Why it was refused; empty if it was not.
    pub problems: Vec<String>,
}

/// The policy in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PolicyStatus {
    /// Its generation.
    pub generation: u64,
    /// Where it was read from.
    pub sources: Vec<PathBuf>,
    /// `allow` or `deny`; `unknown` if there is no record of the policy, whose rules are then not named either.
    pub default: String,
    /// How often the default decided.
    pub default_hits: u64,
    /// The rules, in order.
    pub rules: Vec<RuleStatus>,
}

/// A rule in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RuleStatus {
    /// Its name.
    pub name: String,
    /// `allow` or `deny`.
    pub action: String,
    /// How often it decided.
    pub hits: u64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Degraded {
    /// What.
    pub what: String,
    /// Whether because of it something is not enforced that should be.
    pub unenforced: bool,
}

impl Status {
    /// Reads what is in the kernel. `agent` is what the running agent knows of itself.
    pub fn read(places: &Places, agent: Option<AgentStatus>) -> Result<Self, StatusError> {
        let mut status = Self {
            version: VERSION,
            agent,
            backend: Backend::Observe,
            policy: None,
            counters: BTreeMap::new(),
            interfaces: Vec::new(),
            hs_ctrl: hs_ctrl::selected().ok().flatten(),
            namespaces: Vec::new(),
            conversion: None,
            degraded: Vec::new(),
        };
        status.read_conversion(places)?;
        // Of several objects, while one takes over from another or after a crash, one that decides comes before one that
        // does not yet, and then the highest generation is the one in force.
        let mut found: Option<((bool, u64), Maps, ObjectPlaces)> = None;
        for object in places.of_other_objects("")? {
            let Ok(maps) = Maps::open(&object.maps()) else { continue };
            if let Some(generation) = maps.generation()? {
                let rank = (object.hs_ctrl().exists() || object.links().exists(), generation);
                if found.as_ref().is_none_or(|(highest, ..)| rank > *highest) {
                    found = Some((rank, maps, object));
                }
            }
        }
        let Some(((_, generation), maps, object)) = found else {
            return Ok(status);
        };
        for (counter, name) in Counter::ALL {
            status.counters.insert(name.to_owned(), maps.counter(counter)?);
        }
        status.read_policy(places, generation, &maps)?;
        status.backend = if object.hs_ctrl().exists() {
            Backend::HsCtrl
        } else if object.programs().exists() {
            Backend::Tc
        } else {
            Backend::Observe
        };
        if status.backend != Backend::Observe {
            status.read_namespaces(&maps, &object)?;
        }
        for missing in status.agent.iter().flat_map(|agent| agent.not_found.clone()).collect::<Vec<_>>() {
            status.degraded.push(Degraded { what: missing, unenforced: false });
        }
        if let Some(missing) = status.agent.as_ref().and_then(|agent| agent.tracing_missing.clone()) {
            status
                .degraded
                .push(Degraded { what: format!("no fallback events: {missing}"), unenforced: false });
        }
        Ok(status)
    }

    /// Looks into the network namespaces of the scope.
    fn read_namespaces(&mut self, maps: &Maps, object: &ObjectPlaces) -> Result<(), StatusError> {
        let own = Namespace::own()?;
        let scope = maps.scope()?;
        let has = |inode| scope.contains(&SCOPE_ALL) || scope.contains(&inode);
        let mut namespaces =
            if scope.iter().all(|inode| *inode == own.inode) { BTreeMap::new() } else { netns::all()?.found };
        namespaces.insert(own.inode, own.clone());
        namespaces.retain(|inode, _| has(*inode));
        let tcx = if object.links().exists() { tc::attached(&object.links())? } else { Vec::new() };
        let by_links = object.links().exists();
        for namespace in namespaces.into_values() {
            let is_own = namespace.inode == own.inode;
            let of = if is_own { String::new() } else { format!(" of {namespace}") };
            let mut found = NamespaceStatus {
                inode: namespace.inode,
                name: namespace.name.clone(),
                pid: namespace.pid,
                ..NamespaceStatus::default()
            };
            let covered = by_links.then_some(&tcx[..]);
            let looked = match self.backend {
                Backend::HsCtrl => namespace.enter(|| Ok(selected(&mut found, &of))),
                Backend::Tc => namespace.enter(|| interfaces(&mut found, covered, &of)),
                Backend::Observe => Ok(Ok(Vec::new())),
            };
            let lacking = match looked {
                Ok(lacking) => lacking?,
                // It has gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => vec![format!("what is enforced cannot be seen{of}: {error}")],
            };
            found.enforced = lacking.is_empty();
            for lacking in lacking {
                self.unenforced(lacking);
            }
            if is_own {
                self.interfaces.clone_from(&found.interfaces);
            }
            self.namespaces.push(found);
        }
        Ok(())
    }

    fn read_conversion(&mut self, places: &Places) -> Result<(), StatusError> {
        if let Some(problem) = self.agent.as_ref().and_then(|agent| agent.conversion_problem.clone()) {
            self.unenforced(format!("conversion is not as the policy says: {problem}"));
        }
        if !places.convert_record().exists() {
            return Ok(());
        }
        let conversion = ConvertStatus::read(places)?;
        if !conversion.is_complete() {
            let lacks = conversion.lacks.as_deref().unwrap_or("its programs are not in the kernel");
            self.unenforced(format!("sockets are not converted: {lacks}"));
        }
        self.conversion = (conversion.wanted || conversion.mechanism.is_some()).then_some(conversion);
        Ok(())
    }

    fn read_policy(&mut self, places: &Places, generation: u64, maps: &Maps) -> Result<(), StatusError> {
        let record = match PolicyRecord::read(places, generation) {
            Ok(record) => record,
            Err(error) => {
                let what = format!("the rules of generation {generation} have no names: {error}");
                self.degraded.push(Degraded { what, unenforced: false });
                self.policy = Some(PolicyStatus {
                    generation,
                    sources: Vec::new(),
                    default: "unknown".to_owned(),
                    default_hits: maps.hits(0)?.default,
                    rules: Vec::new(),
                });
                return Ok(());
            }
        };
        let hits = maps.hits(record.rules.len())?;
        let rules = record.rules.into_iter().zip(hits.rules);
        self.policy = Some(PolicyStatus {
            generation,
            sources: record.sources,
            default: record.default,
            default_hits: hits.default,
            rules: rules
                .map(|(rule, hits)| RuleStatus { name: rule.name, action: rule.action, hits })
                .collect(),
        });
        Ok(())
    }

    fn unenforced(&mut self, what: String) {
        self.degraded.push(Degraded { what, unenforced: true });
    }

    /// Whether a policy is in force, and all of it.
    pub fn is_enforced(&self) -> bool {
        self.backend != Backend::Observe && self.degraded.iter().all(|degraded| !degraded.unenforced)
    }
}

/// Reads which ctrl is selected in this thread's network namespace, which messages name by `of`. Says what is not enforced.
fn selected(found: &mut NamespaceStatus, of: &str) -> Vec<String> {
    found.hs_ctrl = hs_ctrl::selected().ok().flatten();
    match &found.hs_ctrl {
        Some(ours) if hs_ctrl::is_ours(ours) => Vec::new(),
        Some(other) => vec![format!("net.smc.hs_ctrl{of} was set to {other}: the policy is not asked")],
        None => vec![format!("net.smc.hs_ctrl{of} was cleared: the policy is not asked")],
    }
}

/// Reads which interfaces of this thread's network namespace are covered, by links or, without them, by filters. Says what is
/// not enforced, as [`selected`] does.
fn interfaces(
    found: &mut NamespaceStatus,
    links: Option<&[(u32, u32)]>,
    of: &str,
) -> Result<Vec<String>, StatusError> {
    let mut lacking = Vec::new();
    for interface in link::list()? {
        let covered = match links {
            Some(attached) => attached.contains(&(found.inode, interface.index)),
            None => clsact::is_covered(interface.index)?,
        };
        if covered {
            found.interfaces.push(interface.name);
        } else {
            lacking.push(format!("interface {}{of} is not covered", interface.name));
        }
    }
    Ok(lacking)
}

/// Why the status could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// A map could not be read.
    #[error(transparent)]
    Maps(#[from] MapsError),
    /// The interfaces could not be listed.
    #[error(transparent)]
    Netlink(#[from] crate::netlink::Error),
    /// A pin or record could not be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}
