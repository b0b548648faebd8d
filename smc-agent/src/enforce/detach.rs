//! Taking everything of the agent out of the kernel again. It goes on after an error, and reports all.

use std::path::Path;

use super::{
    PolicyRecord,
    active::visit_leftovers,
    places::{ObjectPlaces, Places},
};
use crate::{
    files::{remove_file, remove_folder},
    kernel::{
        clsact,
        features::Features,
        hs_ctrl::{self, Registered},
        tc,
    },
};

/// Version of the form of the report as JSON.
const VERSION: u32 = 1;

/// What was removed, and what could not be.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct Detached {
    /// Version of this form.
    pub version: u32,
    /// What was there and is gone.
    pub removed: Vec<String>,
    /// What went wrong.
    pub problems: Vec<String>,
}

/// Removes selection, registrations, programs, maps, pins and records of the agent. The caller holds the lock.
pub fn detach(places: &Places) -> Detached {
    let mut report = Detached { version: VERSION, ..Detached::default() };
    let Detached { removed, problems, .. } = &mut report;
    let visited = visit_leftovers(|namespace| {
        match hs_ctrl::deselect() {
            Ok(true) => removed.push(format!("selection in net.smc.hs_ctrl of {namespace}")),
            Ok(false) => {}
            Err(error) => problems.push(format!("selection in net.smc.hs_ctrl of {namespace}: {error}")),
        }
        let interfaces = clsact::remove_all(namespace.inode, &places.clsact_marks(), problems);
        if !interfaces.is_empty() {
            removed.push(format!("filters on {} of {namespace}", interfaces.join(" ")));
        }
    });
    report.problems.extend(visited.err().map(|error| error.to_string()));
    // What is left are marks of interfaces that have gone.
    report.problems.extend(remove_folder(&places.clsact_marks()).err().map(|error| error.to_string()));
    let mut note = |what: &str, result: Result<bool, String>| match result {
        Ok(true) => report.removed.push(what.to_owned()),
        Ok(false) => {}
        Err(error) => report.problems.push(format!("{what}: {error}")),
    };
    // Where there is nothing to select with, or no BTF, nothing can be registered.
    if Path::new(hs_ctrl::SYSCTL).exists()
        && let Ok(features) = Features::of_running_kernel(false)
        && let Ok(btf) = &features.smc_btf
    {
        match Registered::all(btf) {
            Ok(all) => {
                for registered in all {
                    let what = format!("smc_hs_ctrl {}", registered.name());
                    note(&what, registered.unregister().map(|()| true).map_err(|error| error.to_string()));
                }
            }
            Err(hs_ctrl::HsCtrlError::NoType) => {}
            Err(error) => note("registered smc_hs_ctrl", Err(error.to_string())),
        }
    }
    match places.of_other_objects("") {
        Ok(objects) => {
            for object in objects {
                let before = report.problems.len();
                remove_object(&object, &mut report.problems);
                if report.problems.len() == before {
                    report.removed.push(format!("pins in {}", object.root.display()));
                }
            }
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    let (removed, problems) = crate::convert::detach(places);
    report.removed.extend(removed);
    report.problems.extend(problems);
    if places.pins.exists()
        && let Err(error) = std::fs::remove_dir(&places.pins)
    {
        report.problems.push(format!("remove {}: {error}", places.pins.display()));
    }
    if places.state.exists()
        && let Err(error) = PolicyRecord::remove_all(places)
    {
        report.problems.push(error.to_string());
    }
    report
}

/// Removes the socket, the lock and the state folder, after [`detach`]. The caller holds the lock, and nobody needs it any
/// more.
pub fn remove_state(places: &Places, report: &mut Detached) {
    for path in [places.control_socket(), places.lock()] {
        report.problems.extend(remove_file(&path).err().map(|error| error.to_string()));
    }
    // Somebody else's files in it are left alone, and then the folder too.
    let _ = std::fs::remove_dir(&places.state);
}

/// Takes an object's programs off the interfaces and removes its pins.
pub(super) fn remove_object(object: &ObjectPlaces, problems: &mut Vec<String>) {
    problems.extend(tc::remove_links(&object.links()).err().map(|error| error.to_string()));
    if let Err(error) = object.remove() {
        problems.push(error.to_string());
    }
}
