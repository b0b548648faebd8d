//! Programs as filters of a clsact qdisc: for kernels before 6.6, which have no tcx. A filter lives as long as its qdisc,
//! so it outlives the process without a pin, and is found again by its name and priority.

use std::{
    fs,
    path::{Path, PathBuf},
};

use aya::programs::{
    SchedClassifier, TcAttachType,
    tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
};

use crate::netlink::{
    link::{self, Link},
    qdisc::{self, BpfFilter, Direction},
};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// The place of our filters among others: those of lower numbers come first. (The first half of SMC's option.)
const PRIORITY: u16 = 0xe2d4;
/// Our filters begin with this.
const NAME_PREFIX: &str = "smc_";

fn direction(attach_type: TcAttachType) -> Direction {
    match attach_type {
        TcAttachType::Egress => Direction::Egress,
        _ => Direction::Ingress,
    }
}

fn ours(index: u32, direction: Direction) -> Result<Option<BpfFilter>, crate::netlink::Error> {
    let filters = qdisc::bpf_filters(index, direction)?;
    Ok(filters
        .into_iter()
        .find(|filter| filter.priority() == PRIORITY && filter.name.starts_with(NAME_PREFIX)))
}

/// Puts a program on an interface, in one step in the place of an earlier one of ours. Where the qdisc is missing it is
/// made, and marked in the folder `marks` as made by us.
pub(super) fn attach(
    program: &mut SchedClassifier,
    attach_type: TcAttachType,
    netns: u32,
    interface: &Link,
    marks: &Path,
) -> Result<(), AnyError> {
    if qdisc::add_clsact(interface.index)? {
        fs::create_dir_all(marks)?;
        fs::write(mark(marks, netns, interface.index), "")?;
    }
    let id = if let Some(filter) = ours(interface.index, direction(attach_type))? {
        let handle = TcHandle::from(filter.handle);
        let present = SchedClassifierLink::attached(&interface.name, attach_type, PRIORITY, handle, None)?;
        program.attach_to_link(present)?
    } else {
        let options = NlOptions { priority: PRIORITY, handle: TcHandle::AUTO_ASSIGN, classid: None };
        program.attach_with_options(&interface.name, attach_type, TcAttachOptions::Netlink(options))?
    };
    // Dropped, the link would take the filter with it.
    std::mem::forget(program.take_link(id)?);
    Ok(())
}

/// Whether both programs are on an interface.
pub fn is_covered(index: u32) -> Result<bool, crate::netlink::Error> {
    Ok(ours(index, Direction::Egress)?.is_some() && ours(index, Direction::Ingress)?.is_some())
}

/// Takes our filters off all interfaces of this thread's network namespace `netns`, and the qdiscs that we made and nobody
/// else uses. Gives the names of the interfaces that had any; goes on after an error.
pub fn remove_all(netns: u32, marks: &Path, problems: &mut Vec<String>) -> Vec<String> {
    let mut removed = Vec::new();
    let interfaces = match link::list() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            problems.push(error.to_string());
            Vec::new()
        }
    };
    for interface in interfaces {
        match remove(netns, &interface, marks) {
            Ok(true) => removed.push(interface.name),
            Ok(false) => {}
            Err(error) => problems.push(format!("interface {}: {error}", interface.name)),
        }
    }
    removed
}

fn remove(netns: u32, interface: &Link, marks: &Path) -> Result<bool, AnyError> {
    let mut had = false;
    for direction in [Direction::Egress, Direction::Ingress] {
        if let Some(filter) = ours(interface.index, direction)? {
            qdisc::delete_filter(interface.index, direction, &filter)?;
            had = true;
        }
    }
    let mark = mark(marks, netns, interface.index);
    if mark.exists() {
        let used = !qdisc::bpf_filters(interface.index, Direction::Egress)?.is_empty()
            || !qdisc::bpf_filters(interface.index, Direction::Ingress)?.is_empty();
        if !used {
            qdisc::delete_clsact(interface.index)?;
        }
        fs::remove_file(mark)?;
    }
    Ok(had)
}

fn mark(marks: &Path, netns: u32, index: u32) -> PathBuf {
    marks.join(format!("{netns}-{index}"))
}
