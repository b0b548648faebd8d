//! The backend for kernels without `smc_hs_ctrl`: the two traffic control programs on every interface. From 6.6 on
//! through tcx links that are pinned, so that they outlive the process and can be found and changed by the next; before,
//! as filters of a clsact qdisc ([`clsact`]).

use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    programs::{
        LinkOrder, ProgramError, SchedClassifier, TcAttachType,
        links::{FdLink, PinnedLink},
        tc::{SchedClassifierLink, TcAttachOptions},
    },
    util::KernelVersion,
};
use thiserror::Error;
use tracing::debug;

use super::{clsact, sys};
use crate::netlink::link::Link;

const PROGRAMS: [(&str, TcAttachType, &str); 2] =
    [("smc_egress", TcAttachType::Egress, "egress"), ("smc_ingress", TcAttachType::Ingress, "ingress")];

/// A step with traffic control failed.
#[derive(Debug, Error)]
pub enum TcError {
    /// A program was refused.
    #[error("the kernel refused program {program}: {}", super::why_refused(.source))]
    Program {
        /// Which one.
        program: &'static str,
        /// aya's word on it, with the verifier's log.
        source: ProgramError,
    },
    /// An interface could not be covered.
    #[error("attach to {interface} ({direction}): {}", super::with_causes(source.as_ref()))]
    Attach {
        /// The interface.
        interface: String,
        /// `egress` or `ingress`.
        direction: &'static str,
        /// What went wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A call failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> TcError {
    let what = what.into();
    move |source| TcError::Io { what, source }
}

/// Loads both programs and pins them in `folder`.
pub fn load(ebpf: &mut Ebpf, folder: &Path) -> Result<(), TcError> {
    for (name, _, _) in PROGRAMS {
        let program = load_one(ebpf, name)?;
        if let Some(count) = program.info().ok().and_then(|info| info.verified_instruction_count()) {
            debug!("{name}: the verifier followed {count} instructions");
        }
        let path = folder.join(name);
        program
            .pin(&path)
            .map_err(|error| failed(format!("pin {}", path.display()))(io::Error::other(error)))?;
    }
    Ok(())
}

fn load_one<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut SchedClassifier, TcError> {
    let refused = |source| TcError::Program { program: name, source };
    let missing = || refused(ProgramError::InvalidName { name: name.to_owned() });
    let program: &mut SchedClassifier =
        ebpf.program_mut(name).ok_or_else(missing)?.try_into().map_err(refused)?;
    program.load().map_err(refused)?;
    Ok(program)
}

/// Whether both programs are pinned in `folder`: whoever pinned or removed them may have been killed half way.
pub fn is_loaded(folder: &Path) -> bool {
    PROGRAMS.iter().all(|(name, _, _)| folder.join(name).exists())
}

/// Has the kernel verify both programs, and puts them nowhere: they go with `ebpf`.
pub fn try_load(ebpf: &mut Ebpf) -> Result<(), TcError> {
    PROGRAMS.iter().try_for_each(|(name, _, _)| load_one(ebpf, name).map(drop))
}

/// Whether this kernel has tcx; asked of the loopback interface, and needs `CAP_NET_ADMIN`.
pub fn has_tcx() -> io::Result<bool> {
    match SchedClassifier::query_tcx("lo", TcAttachType::Ingress) {
        Ok(_) => Ok(true),
        Err(ProgramError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EINVAL) => {
            Ok(false)
        }
        Err(error) => Err(io::Error::other(super::with_causes(&error))),
    }
}

/// How programs are put on interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// tcx links, pinned in a folder.
    Tcx {
        /// The folder.
        links: PathBuf,
    },
    /// Filters of clsact qdiscs.
    Clsact {
        /// Folder where the qdiscs are marked that we made.
        marks: PathBuf,
    },
}

impl Way {
    /// The best way that this kernel has.
    pub fn of_this_kernel(links: PathBuf, marks: PathBuf) -> Self {
        let tcx = KernelVersion::new(6, 6, 0);
        if KernelVersion::current().is_ok_and(|current| current >= tcx) {
            Self::Tcx { links }
        } else {
            Self::Clsact { marks }
        }
    }
}

/// The programs, loaded, and how they are put on interfaces.
#[derive(Debug)]
pub struct Tc {
    programs: Vec<(SchedClassifier, TcAttachType, &'static str)>,
    way: Way,
}

impl Tc {
    /// Opens the programs pinned in `programs`.
    pub fn open(programs: &Path, way: Way) -> Result<Self, TcError> {
        if let Way::Tcx { links } = &way {
            fs::create_dir_all(links).map_err(failed(format!("make {}", links.display())))?;
        }
        let programs = PROGRAMS
            .into_iter()
            .map(|(name, attach_type, direction)| {
                let program = SchedClassifier::from_pin(programs.join(name))
                    .map_err(|source| TcError::Program { program: name, source })?;
                Ok((program, attach_type, direction))
            })
            .collect::<Result<_, TcError>>()?;
        Ok(Self { programs, way })
    }

    /// Covers an interface of network namespace `netns` (an inode number), which this thread is in. A link that is
    /// pinned already, here or in one of `former` (folders of earlier objects), is kept and its program exchanged, so
    /// that there is no moment without a program.
    pub fn attach(&mut self, netns: u32, interface: &Link, former: &[PathBuf]) -> Result<(), TcError> {
        for (program, attach_type, direction) in &mut self.programs {
            let name = pin_name(netns, interface.index, direction);
            let wrong = |source: Box<dyn std::error::Error + Send + Sync>| TcError::Attach {
                interface: interface.name.clone(),
                direction,
                source,
            };
            let links = match &self.way {
                Way::Tcx { links } => links,
                Way::Clsact { marks } => {
                    clsact::attach(program, *attach_type, netns, interface, marks).map_err(wrong)?;
                    continue;
                }
            };
            let pin = links.join(&name);
            if !pin.exists()
                && let Some(old) = former.iter().map(|folder| folder.join(&name)).find(|old| old.exists())
            {
                fs::rename(&old, &pin).map_err(failed(format!("move {}", old.display())))?;
            }
            if pin.exists() && revive(program, &pin, interface.index).map_err(wrong)? {
                continue;
            }
            let link = attach_new(program, &interface.name, *attach_type).map_err(wrong)?;
            // The pin keeps the link; a descriptor here would keep it against a detach by another process.
            drop(link.pin(&pin).map_err(|error| wrong(error.into()))?);
        }
        Ok(())
    }

    /// Takes the programs off the interfaces of all network namespaces but `kept`, where an earlier agent may have put them,
    /// and removes the pins of interfaces that have gone meanwhile.
    pub fn leave_other_namespaces(&self, kept: &[u32]) -> Result<(), TcError> {
        let Way::Tcx { links } = &self.way else { return Ok(()) };
        let read = || -> io::Result<()> {
            for entry in fs::read_dir(links)? {
                let path = entry?.path();
                if !namespace_of_pin(&path).is_some_and(|netns| kept.contains(&netns)) || is_dead(&path) {
                    remove_link(&path)?;
                }
            }
            Ok(())
        };
        read().map_err(failed(format!("clear {}", links.display())))
    }

    /// Forgets a network namespace that cannot be found any more, unless an interface of it is still there. Says whether it was
    /// forgotten.
    pub fn forget_namespace(&self, netns: u32) -> Result<bool, TcError> {
        let folder = match &self.way {
            Way::Tcx { links } => links,
            Way::Clsact { marks } => marks,
        };
        let forget = || -> io::Result<bool> {
            let entries = match fs::read_dir(folder) {
                Ok(entries) => entries,
                // Of a clsact qdisc that somebody else made there is no mark.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                Err(error) => return Err(error),
            };
            let mut is_forgotten = true;
            for entry in entries {
                let path = entry?.path();
                if namespace_of_pin(&path) != Some(netns) {
                    continue;
                }
                if matches!(self.way, Way::Clsact { .. }) || is_dead(&path) {
                    fs::remove_file(&path)?;
                } else {
                    is_forgotten = false;
                }
            }
            Ok(is_forgotten)
        };
        forget().map_err(failed(format!("clear {}", folder.display())))
    }

    /// Forgets an interface that has gone: the kernel has cut its links, only their pins are left.
    pub fn forget(&self, netns: u32, index: u32) {
        // A qdisc goes with its interface.
        if let Way::Tcx { links } = &self.way {
            for (_, _, direction) in &self.programs {
                // Nothing depends on it: a pin that stays is removed when the number is used again, or by detach.
                let _ = fs::remove_file(links.join(pin_name(netns, index, direction)));
            }
        }
    }
}

/// Takes the programs of all links in `folder` off their interfaces, and removes the folder. They see no packet any more
/// when this returns.
pub fn remove_links(folder: &Path) -> io::Result<()> {
    let remove = || {
        for entry in fs::read_dir(folder)? {
            remove_link(&entry?.path())?;
        }
        fs::remove_dir(folder)
    };
    match remove() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("remove {}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

fn remove_link(pin: &Path) -> io::Result<()> {
    sys::link_detach(sys::open_pin(pin)?.as_fd())?;
    fs::remove_file(pin)
}

/// Whether the interface of a link has gone.
fn is_dead(pin: &Path) -> bool {
    sys::open_pin(pin).and_then(|link| sys::tcx_interface(link.as_fd())).is_ok_and(|index| index == 0)
}

/// The network namespace that a pin, or a mark of a qdisc, is of.
fn namespace_of_pin(pin: &Path) -> Option<u32> {
    pin.file_name()?.to_str()?.split('-').next()?.parse().ok()
}

fn pin_name(netns: u32, index: u32, direction: &str) -> String {
    format!("{netns}-{index}-{direction}")
}

/// Which interfaces, by the number of their namespace and their own, have both programs according to the pins in
/// `links`.
pub fn attached(links: &Path) -> io::Result<Vec<(u32, u32)>> {
    let mut found: Vec<(u32, u32, String)> = Vec::new();
    for entry in fs::read_dir(links)? {
        let entry = entry?;
        let name = entry.file_name();
        let mut parts = name.to_str().unwrap_or_default().splitn(3, '-');
        if let (Some(Ok(netns)), Some(Ok(index)), Some(direction)) =
            (parts.next().map(str::parse), parts.next().map(str::parse), parts.next())
            && sys::open_pin(&entry.path()).and_then(|link| sys::tcx_interface(link.as_fd()))? == index
        {
            found.push((netns, index, direction.to_owned()));
        }
    }
    let ingress = |(netns, index): (u32, u32)| found.contains(&(netns, index, "ingress".to_owned()));
    let mut both: Vec<(u32, u32)> = found
        .iter()
        .filter(|(netns, index, direction)| direction == "egress" && ingress((*netns, *index)))
        .map(|(netns, index, _)| (*netns, *index))
        .collect();
    both.sort_unstable();
    Ok(both)
}

/// Exchanges the program of a pinned link. Says no, and removes the pin, if the link's interface has gone.
fn revive(
    program: &mut SchedClassifier,
    pin: &Path,
    index: u32,
) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let link = FdLink::from(PinnedLink::from_pin(pin)?);
    let present = sys::open_pin(pin).and_then(|link| sys::tcx_interface(link.as_fd()))?;
    if present != index {
        drop(link);
        fs::remove_file(pin)?;
        return Ok(false);
    }
    let id = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
    // Only the descriptor is dropped: the pin keeps the link.
    drop(program.take_link(id)?);
    Ok(true)
}

fn attach_new(
    program: &mut SchedClassifier,
    interface: &str,
    attach_type: TcAttachType,
) -> Result<FdLink, Box<dyn std::error::Error + Send + Sync>> {
    let options = TcAttachOptions::TcxOrder(LinkOrder::default());
    let id = program.attach_with_options(interface, attach_type, options)?;
    Ok(FdLink::try_from(program.take_link(id)?)?)
}
