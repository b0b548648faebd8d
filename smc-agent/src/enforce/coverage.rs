//! The network namespaces in which the policy is in force: found, followed as they come and go, and held.

use std::{collections::BTreeMap, os::fd::AsFd as _, path::PathBuf};

use tracing::{info, warn};

use super::{
    Scope,
    active::{Active, Selection},
    enforcer::EnforceError,
    scope::Found,
};
use crate::{
    kernel::{hs_ctrl, maps::Maps, tc::Tc},
    netlink::{link::Link, nsid},
    netns::{self, Namespace},
};
use smc_agent_common::SCOPE_ALL;

/// How the policy comes into force in network namespaces, and stays there.
#[derive(Clone, Debug, Default)]
pub struct Where {
    /// Which ones.
    pub scope: Scope,
    /// Whether another's ctrl is displaced.
    pub take_over: bool,
    /// Whether a selection that somebody clears is put back.
    pub hold: bool,
}

/// A network namespace that belongs to the scope.
#[derive(Debug)]
struct Covered {
    namespace: Namespace,
    /// The number by which the monitor of interfaces knows it; `None` if it has none, as the agent's own.
    id: Option<i32>,
    /// Why the policy is not in force there; `None` if it is.
    problem: Option<String>,
}

/// The network namespaces of a scope.
#[derive(Debug)]
pub(super) struct Coverage {
    place: Where,
    own: u32,
    covered: BTreeMap<u32, Covered>,
    missing: Vec<String>,
}

impl Coverage {
    /// Puts the policy into force wherever it is to be: at least in one place, if there is one.
    pub(super) fn begin(
        place: Where,
        found: Found,
        active: &mut Active,
        former: &[PathBuf],
    ) -> Result<Self, EnforceError> {
        for missing in &found.missing {
            warn!("{missing}: the policy comes into force there when it is found");
        }
        let own = netns::own_inode()?;
        let mut coverage = Self { place, own, covered: BTreeMap::new(), missing: found.missing };
        let mut first_error = None;
        for namespace in found.namespaces.into_values() {
            if let Err(error) = coverage.add(namespace, active, former) {
                first_error.get_or_insert(error);
            }
        }
        match first_error {
            Some(error) if coverage.covered.values().all(|covered| covered.problem.is_some()) => Err(error),
            _ => Ok(coverage),
        }
    }

    fn add(
        &mut self,
        namespace: Namespace,
        active: &mut Active,
        former: &[PathBuf],
    ) -> Result<(), EnforceError> {
        // Before its interfaces are listed: what comes later is heard of.
        let id = if namespace.inode == self.own || !matches!(active, Active::Tc(_)) {
            None
        } else {
            let id =
                namespace.open().map_err(EnforceError::from).and_then(|file| Ok(nsid::of(file.as_fd())?));
            id.inspect_err(|error| warn!("{namespace}: new interfaces are found late: {error}")).ok()
        };
        let result = active.enforce_in(&namespace, former, self.place.take_over);
        let problem = match &result {
            Ok(uncovered) => {
                // The others are covered all the same; `status` names these.
                for uncovered in uncovered {
                    warn!("{namespace}: {uncovered}");
                }
                None
            }
            Err(error) => {
                warn!("{namespace}: the policy is not in force: {error}");
                Some(error.to_string())
            }
        };
        self.covered.insert(namespace.inode, Covered { namespace, id, problem });
        result.map(drop)
    }

    /// Writes down for the programs and for `status` where the policy is in force.
    pub(super) fn write(&self, maps: &mut Maps) -> Result<(), EnforceError> {
        let scope: Vec<u32> = if self.place.scope == Scope::All {
            vec![SCOPE_ALL]
        } else {
            self.covered.keys().copied().collect()
        };
        Ok(maps.set_scope(&scope)?)
    }

    /// Whether a network namespace is one of these.
    pub(super) fn has(&self, inode: u32) -> bool {
        self.covered.contains_key(&inode)
    }

    /// Their inode numbers.
    pub(super) fn inodes(&self) -> Vec<u32> {
        self.covered.keys().copied().collect()
    }

    /// What of the scope is not there, in words.
    pub(super) fn not_found(&self) -> &[String] {
        &self.missing
    }

    /// Looks for network namespaces that have come or gone, and whether the policy is still asked in each.
    pub(super) fn look_again(&mut self, active: &mut Active, maps: &mut Maps) -> Result<(), EnforceError> {
        let found = self.place.scope.find()?;
        for missing in found.missing.iter().filter(|missing| !self.missing.contains(missing)) {
            warn!("{missing}: the policy comes into force there when it is found");
        }
        self.missing = found.missing;
        let before = self.inodes();
        for inode in before.iter().filter(|inode| !found.namespaces.contains_key(inode)) {
            self.forget(*inode, active)?;
        }
        for namespace in found.namespaces.into_values() {
            match self.covered.get_mut(&namespace.inode) {
                Some(covered) => {
                    // By the name that it has now: the process that it was known by may have ended.
                    covered.namespace = namespace;
                    check(covered, active, &self.place, self.own);
                }
                None => {
                    // What went wrong is kept, and has been told.
                    if self.add(namespace.clone(), active, &[]).is_ok() {
                        info!("{namespace}: the policy is in force there too");
                    }
                }
            }
        }
        if self.inodes() == before { Ok(()) } else { self.write(maps) }
    }

    /// One that cannot be found any more.
    fn forget(&mut self, inode: u32, active: &Active) -> Result<(), EnforceError> {
        if let Active::Tc(tc) = active
            && !tc.forget_namespace(inode)?
        {
            // Something keeps it alive: it goes on being covered as it is.
            return Ok(());
        }
        self.covered.remove(&inode);
        Ok(())
    }

    /// Covers an interface that has appeared or changed in the network namespace of that number, `None` for the agent's own.
    pub(super) fn cover(
        &self,
        active: &mut Active,
        id: Option<i32>,
        interface: &Link,
    ) -> Result<(), EnforceError> {
        match self.of_id(id) {
            Some(covered) => active.cover(&covered.namespace, interface),
            None => Ok(()),
        }
    }

    /// Takes note that an interface has gone.
    pub(super) fn uncover(&self, tc: &Tc, id: Option<i32>, interface: &Link) {
        if let Some(covered) = self.of_id(id) {
            tc.forget(covered.namespace.inode, interface.index);
        }
    }

    /// Covers all interfaces of all of these, after news of some were lost.
    pub(super) fn cover_all(&mut self, active: &mut Active) {
        for covered in self.covered.values_mut() {
            let result = active.enforce_in(&covered.namespace, &[], false);
            covered.problem = result.err().map(|error| error.to_string());
        }
    }

    fn of_id(&self, id: Option<i32>) -> Option<&Covered> {
        match id {
            None => self.covered.get(&self.own),
            Some(_) => self.covered.values().find(|covered| covered.id == id),
        }
    }
}

/// Looks whether the policy is still asked in a network namespace, and sees to it where that is wanted.
fn check(covered: &mut Covered, active: &mut Active, place: &Where, own: u32) {
    let namespace = &covered.namespace;
    // Of one without a number nothing is heard.
    let is_deaf = matches!(active, Active::Tc(_)) && covered.id.is_none() && namespace.inode != own;
    let selection = match active.selection_in(namespace) {
        Ok(selection) => selection,
        Err(error) => {
            note(covered, Some(error.to_string()));
            return;
        }
    };
    let (is_to_be_mended, what) = match &selection {
        Selection::Ours => (is_deaf || covered.problem.is_some(), String::new()),
        Selection::Cleared => (place.hold, "net.smc.hs_ctrl was cleared".to_owned()),
        // Of an earlier agent: the namespace was made before that one's successor was in the first one.
        Selection::Other(name) if hs_ctrl::is_ours(name) => (true, format!("net.smc.hs_ctrl was {name}")),
        Selection::Other(name) => {
            (place.hold && place.take_over, format!("net.smc.hs_ctrl was set to {name}"))
        }
    };
    if !is_to_be_mended {
        note(covered, (selection != Selection::Ours).then(|| format!("{what}: the policy is not asked")));
        return;
    }
    let result = active.enforce_in(namespace, &[], place.take_over);
    if result.is_ok() && selection != Selection::Ours {
        warn!("{namespace}: {what}, and was put back");
    }
    note(covered, result.err().map(|error| error.to_string()));
}

/// Keeps why the policy is not in force in a network namespace, and tells it if that is new.
fn note(covered: &mut Covered, problem: Option<String>) {
    let namespace = &covered.namespace;
    match (&problem, &covered.problem) {
        (Some(new), old) if old.as_ref() != Some(new) => warn!("{namespace}: {new}"),
        (None, Some(_)) => info!("{namespace}: the policy is in force again"),
        _ => {}
    }
    covered.problem = problem;
}
