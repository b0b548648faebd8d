//! What decides in the kernel, and how it comes into force in one network namespace.

use std::{
    io,
    path::{Path, PathBuf},
};

use tracing::{debug, warn};

use super::{
    Backend,
    enforcer::EnforceError,
    places::{ObjectPlaces, Places},
};
use crate::{
    files::remove_file,
    kernel::{
        clsact,
        hs_ctrl::{self, Prepared, Registered},
        loader::Loader,
        tc::{Tc, Way},
    },
    netlink::link::{self, Link},
    netns::{self, Namespace},
};

/// What decides. It stays in the kernel when this is dropped.
#[derive(Debug)]
pub(super) enum Active {
    HsCtrl(Registered),
    Tc(Tc),
    Observe,
}

/// A backend whose programs the kernel has accepted; it decides nothing yet.
pub(super) enum Ready {
    HsCtrl(Box<(Prepared, Loader)>),
    HsCtrlAdopted(Registered),
    Tc,
    Observe,
}

impl Ready {
    /// Makes it known to the kernel. It decides in those network namespaces in which it is then put into force.
    pub(super) fn activate(self, places: &Places, pins: &ObjectPlaces) -> Result<Active, EnforceError> {
        Ok(match self {
            Self::HsCtrl(ready) => {
                let (prepared, loader) = *ready;
                remove_file(&pins.hs_ctrl())?;
                Active::HsCtrl(prepared.register(&loader, &pins.hs_ctrl())?)
            }
            Self::HsCtrlAdopted(registered) => Active::HsCtrl(registered),
            Self::Tc => {
                let way = Way::of_this_kernel(pins.links(), places.clsact_marks());
                Active::Tc(Tc::open(&pins.programs(), way)?)
            }
            Self::Observe => Active::Observe,
        })
    }
}

/// Whose ctrl is selected in a network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    /// The one in use, or there is nothing to select.
    Ours,
    /// None.
    Cleared,
    /// Another's, or one of an earlier agent.
    Other(String),
}

impl Active {
    /// Which backend it is of.
    pub(super) fn backend(&self) -> Backend {
        match self {
            Self::HsCtrl(_) => Backend::HsCtrl,
            Self::Tc(_) => Backend::Tc,
            Self::Observe => Backend::Observe,
        }
    }

    /// Lets it decide in a network namespace, in the place of what decided there before. Links of earlier objects are in the
    /// folders `former`. Says which interfaces, of several, are not covered and why.
    pub(super) fn enforce_in(
        &mut self,
        namespace: &Namespace,
        former: &[PathBuf],
        take_over: bool,
    ) -> Result<Vec<String>, EnforceError> {
        match self {
            Self::HsCtrl(registered) => {
                let before = namespace.enter(|| hs_ctrl::select(registered.name(), take_over))??;
                if let Some(before) = before.filter(|before| !hs_ctrl::is_ours(before)) {
                    warn!("{namespace}: {before} was selected in net.smc.hs_ctrl, and was displaced");
                }
                Ok(Vec::new())
            }
            Self::Tc(tc) => namespace.enter(|| cover_all(tc, namespace.inode, former))?,
            Self::Observe => Ok(Vec::new()),
        }
    }

    /// Covers an interface of a network namespace.
    pub(super) fn cover(&mut self, namespace: &Namespace, interface: &Link) -> Result<(), EnforceError> {
        if let Self::Tc(tc) = self {
            namespace.enter(|| tc.attach(namespace.inode, interface, &[]))??;
        }
        Ok(())
    }

    /// Looks whether it is still asked in a network namespace.
    pub(super) fn selection_in(&self, namespace: &Namespace) -> Result<Selection, EnforceError> {
        let Self::HsCtrl(registered) = self else { return Ok(Selection::Ours) };
        Ok(match namespace.enter(hs_ctrl::selected)?? {
            Some(name) if name == registered.name() => Selection::Ours,
            Some(name) => Selection::Other(name),
            None => Selection::Cleared,
        })
    }

    /// Takes what it does not use out of all network namespaces, and out of those that are not of the scope all: selections of
    /// other ctrls, and filters.
    pub(super) fn leave_others(
        &self,
        marks: &Path,
        is_in_scope: impl Fn(u32) -> bool + Sync,
        problems: &mut Vec<String>,
    ) {
        let backend = self.backend();
        let uses = |wanted, namespace: &Namespace| backend == wanted && is_in_scope(namespace.inode);
        let visited = visit_leftovers(|namespace| {
            if !uses(Backend::HsCtrl, namespace)
                && let Err(error) = hs_ctrl::deselect()
            {
                problems.push(format!("{namespace}: {error}"));
            }
            if !uses(Backend::Tc, namespace) {
                clsact::remove_all(namespace.inode, marks, problems);
            }
        });
        problems.extend(visited.err().map(|error| error.to_string()));
    }
}

/// Runs `job` in this network namespace, and in each of all others that could have something of the agent in it that its pins
/// do not tell of.
pub(super) fn visit_leftovers(mut job: impl FnMut(&Namespace) + Send) -> io::Result<()> {
    let own = Namespace::own()?;
    job(&own);
    // Links are found by their pins, wherever their interfaces are.
    let by_links = matches!(Way::of_this_kernel(PathBuf::new(), PathBuf::new()), Way::Tcx { .. });
    if by_links && !Path::new(hs_ctrl::SYSCTL).exists() {
        return Ok(());
    }
    for other in netns::all()?.found.values().filter(|other| other.inode != own.inode) {
        // It has gone, or this program may not enter others: then it never put anything there.
        if let Err(error) = other.enter(|| job(other)) {
            debug!("{error}");
        }
    }
    Ok(())
}

/// Covers the interfaces of this thread's network namespace; at least one, if there are any.
fn cover_all(tc: &mut Tc, netns: u32, former: &[PathBuf]) -> Result<Vec<String>, EnforceError> {
    let interfaces = link::list()?;
    let failed = |interface| Some(tc.attach(netns, interface, former).err()?.to_string());
    let uncovered: Vec<String> = interfaces.iter().filter_map(failed).collect();
    if !interfaces.is_empty() && uncovered.len() == interfaces.len() {
        return Err(EnforceError::NothingCovered(uncovered));
    }
    Ok(uncovered)
}
