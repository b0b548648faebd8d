//! The policy that runs: what the kernel and the records say of it, and the files that it was read from.

use super::{
    super::{privileges, runtime},
    Failure, remark, tell,
};
use crate::{
    daemon::{Client, ClientError, PolicyStatus, Status},
    enforce::{Places, PolicyRecord},
    kernel::maps::{Maps, MapsError, TableSize},
    policy::{self, Limits, LoadError, Policy},
};

/// The policy that runs.
pub(super) struct Running {
    pub(super) status: PolicyStatus,
    /// The rules with their places; `None` where the record cannot be read.
    pub(super) record: Option<PolicyRecord>,
    /// The maps that it is in; `None` where they cannot be opened, which takes privileges.
    maps: Option<Maps>,
}

impl Running {
    /// Finds it, by the running agent or else by what is in the kernel. `command` is who asks.
    pub(super) fn find(places: &Places, command: &str) -> Result<Self, Failure> {
        let status = match runtime()?.block_on(Client::new(places).status()) {
            Ok(status) => status,
            Err(ClientError::NotRunning { .. }) => {
                privileges::require(command)?;
                Status::read(places, None).map_err(|error| Failure::not_so(error.to_string()))?
            }
            Err(error) => return Err(error.into()),
        };
        let Some(status) = status.policy else {
            let degraded = status.degraded.into_iter().map(|degraded| degraded.what);
            let why: Vec<_> = std::iter::once("no policy is in force".to_owned()).chain(degraded).collect();
            return Err(Failure::not_so(why.join("; ")));
        };
        let maps = in_force(places, status.generation).unwrap_or(None);
        let record = PolicyRecord::read(places, status.generation).ok();
        Ok(Self { status, record, maps })
    }

    /// Its generation.
    pub(super) fn generation(&self) -> u64 {
        self.status.generation
    }

    /// What its table takes.
    pub(super) fn size(&self) -> Option<TableSize> {
        self.maps.as_ref().and_then(|maps| maps.table_size().ok().flatten())
    }

    /// Reads it anew from its files. Says also whether they still say what runs, and tells on standard error if not.
    pub(super) fn read(&self) -> Result<(Policy, bool), Failure> {
        let loaded = policy::load(&self.status.sources, &Limits::default()).map_err(|error| {
            let what = match error {
                LoadError::Unreadable { .. } => "cannot be read",
                LoadError::Invalid(_) => "is not valid any more",
            };
            Failure::not_so(format!("the policy that runs {what} in its files:\n{error}"))
        })?;
        let current = self.is(&loaded.policy);
        tell(&loaded.warnings);
        if !current {
            let generation = self.generation();
            remark(&format!(
                "the files have changed since generation {generation} came into force; this is what they say now \
                 (`smc-agent reload` puts it into force)"
            ));
        }
        Ok((loaded.policy, current))
    }

    /// Whether `policy` is what runs: by the table in the kernel, or where that cannot be read by the rules' names,
    /// actions and lines.
    pub(super) fn is(&self, policy: &Policy) -> bool {
        if let Some(maps) = &self.maps {
            let limits = Limits { table_memory: usize::MAX, ..Limits::default() };
            return policy::compile(policy, self.generation(), &limits)
                .is_ok_and(|table| maps.holds(&table).unwrap_or(false))
                && self.has_rules_of(policy);
        }
        self.has_rules_of(policy)
    }

    fn has_rules_of(&self, policy: &Policy) -> bool {
        let now = policy.rules().iter().map(|rule| (rule.name.as_str(), rule.action.to_string()));
        let then = self.status.rules.iter().map(|rule| (rule.name.as_str(), rule.action.clone()));
        self.status.default == policy.default_action().to_string() && now.eq(then)
    }
}

/// The maps that hold the table of `generation`.
fn in_force(places: &Places, generation: u64) -> Result<Option<Maps>, MapsError> {
    let Ok(objects) = places.of_other_objects("") else { return Ok(None) };
    for object in objects {
        let Ok(maps) = Maps::open(&object.maps()) else { continue };
        if maps.generation()? == Some(generation) {
            return Ok(Some(maps));
        }
    }
    Ok(None)
}

#[cfg(test)]
impl Running {
    /// A policy that only says it runs.
    pub(super) fn for_test(status: PolicyStatus, record: PolicyRecord) -> Self {
        Self { status, record: Some(record), maps: None }
    }
}
