//! `smc-agent set pnet …`: which devices are connected to the same physical network.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::super::Failure;
use crate::netlink::pnet::{PnetDevice, PnetEntry, PnetId, PnetTable};
use crate::show::{Scope, ShowError, netns};

/// `IFNAMSIZ` and `IB_DEVICE_NAME_MAX` without the closing NUL.
const LONGEST: (usize, usize) = (15, 63);

#[derive(Debug, Subcommand)]
pub(super) enum PnetCommand {
    /// Give a PNET id to a device
    Add(AddArguments),
    /// Remove PNET ids from all devices that have them
    Del {
        /// The PNET ids
        #[arg(required = true, value_name = "PNET-ID")]
        ids: Vec<PnetId>,
    },
    /// Empty the table
    Flush,
    /// Make the table what a file says: lines of `PNET-ID interface NAME` or `PNET-ID device NAME [PORT]`, '#' comments
    Apply {
        /// The file
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// Up to 16 letters and digits
    #[arg(value_name = "PNET-ID")]
    id: PnetId,
    /// The network interface that gets it
    #[arg(short = 'I', long, value_name = "NAME", required_unless_present = "device", conflicts_with = "device",
          value_parser = interface_name)]
    interface: Option<String>,
    /// The RDMA or ISM device that gets it
    #[arg(short = 'D', long, value_name = "NAME", value_parser = device_name)]
    device: Option<String>,
    /// The device's port
    #[arg(short = 'P', long, value_name = "PORT", default_value_t = 1, requires = "device",
          value_parser = clap::value_parser!(u8).range(1..=2))]
    port: u8,
}

/// Runs the command in each network namespace of `scope` and tells what was done.
pub(super) fn run(scope: &Scope, command: &PnetCommand) -> Result<String, Failure> {
    match command {
        PnetCommand::Add(arguments) => {
            let device = match (&arguments.interface, &arguments.device) {
                (Some(name), _) => PnetDevice::Ethernet(name.clone()),
                (None, Some(name)) => PnetDevice::Rdma { name: name.clone(), port: arguments.port },
                (None, None) => return Err(Failure::usage("give --interface or --device")),
            };
            netns::visit(scope, || Ok(PnetTable::open()?.add(&arguments.id, &device)?))?;
            Ok(format!("PNET id {} added", arguments.id))
        }
        PnetCommand::Del { ids } => {
            netns::visit(scope, || {
                let mut table = PnetTable::open()?;
                ids.iter().try_for_each(|id| Ok(table.delete(id)?))
            })?;
            let ids: Vec<_> = ids.iter().map(PnetId::as_str).collect();
            Ok(format!("PNET id {} removed", ids.join(", ")))
        }
        PnetCommand::Flush => {
            netns::visit(scope, || Ok(PnetTable::open()?.flush()?))?;
            Ok("PNET table emptied".to_owned())
        }
        PnetCommand::Apply { file } => {
            let wanted = read(file)?;
            let changes = netns::visit(scope, || apply(&wanted))?;
            let (removed, added) =
                changes.iter().fold((0, 0), |sum, (_, change)| (sum.0 + change.0, sum.1 + change.1));
            Ok(format!("PNET table applied: {removed} entries removed, {added} added"))
        }
    }
}

type Entry = (PnetId, PnetDevice);

/// Makes the table what is wanted; gives how many entries were removed and added. An id is removed whole, since the
/// kernel knows no other way. When an entry cannot be added, what was there before is put back.
fn apply(wanted: &[Entry]) -> Result<(usize, usize), ShowError> {
    let mut table = PnetTable::open()?;
    let before = table.entries()?;
    let plan = plan(&before, wanted);
    for id in &plan.delete {
        table.delete(id)?;
    }
    for (id, device) in &plan.add {
        if let Err(error) = table.add(id, device) {
            put_back(&mut table, &before);
            return Err(error.into());
        }
    }
    Ok((plan.removed, plan.add.len() + plan.removed - plan.deleted))
}

/// As far as the kernel lets it: an error here would hide the one that led here.
fn put_back(table: &mut PnetTable, before: &[PnetEntry]) {
    let _ = table.flush();
    for entry in before {
        if let (Ok(id), Some(device)) = (entry.id.parse(), &entry.device) {
            let _ = table.add(&id, device);
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// Ids to remove.
    delete: BTreeSet<PnetId>,
    /// Entries to add after that.
    add: Vec<Entry>,
    /// How many entries are there now and not wanted.
    removed: usize,
    /// How many entries go with the ids, those that are added again among them.
    deleted: usize,
}

fn plan(before: &[PnetEntry], wanted: &[Entry]) -> Plan {
    let mut plan = Plan::default();
    let present: Vec<Entry> =
        before.iter().filter_map(|entry| Some((entry.id.parse().ok()?, entry.device.clone()?))).collect();
    let surplus = present.iter().filter(|entry| !wanted.contains(entry));
    plan.removed = surplus.clone().count();
    plan.delete = surplus.map(|(id, _)| id.clone()).collect();
    plan.deleted = present.iter().filter(|(id, _)| plan.delete.contains(id)).count();
    let stays = |entry: &&Entry| present.contains(entry) && !plan.delete.contains(&entry.0);
    plan.add = wanted.iter().filter(|entry| !stays(entry)).cloned().collect();
    plan
}

fn read(file: &Path) -> Result<Vec<Entry>, Failure> {
    let text = crate::files::read_to_string(file)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    parse(&text).map_err(|problems| {
        let lines: Vec<_> =
            problems.iter().map(|(line, what)| format!("{}:{line}: {what}", file.display())).collect();
        Failure::not_so(format!("nothing was changed:\n{}", lines.join("\n")))
    })
}

/// All entries, or all problems with their lines.
fn parse(text: &str) -> Result<Vec<Entry>, Vec<(usize, String)>> {
    let (mut entries, mut problems) = (Vec::<Entry>::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        match parse_line(&words) {
            Ok(entry) => match entries.iter().find(|(_, device)| *device == entry.1) {
                Some((id, _)) => {
                    problems.push((number, format!("this device has PNET id {id} in a line above")));
                }
                None => entries.push(entry),
            },
            Err(problem) => problems.push((number, problem)),
        }
    }
    if problems.is_empty() { Ok(entries) } else { Err(problems) }
}

fn parse_line(words: &[&str]) -> Result<Entry, String> {
    let [id, kind, name, rest @ ..] = words else {
        return Err("write `PNET-ID interface NAME` or `PNET-ID device NAME [PORT]`".to_owned());
    };
    let id: PnetId = id.parse().map_err(|error| format!("{error}"))?;
    let device = match (*kind, rest) {
        ("interface", []) => PnetDevice::Ethernet(interface_name(name)?),
        ("device", []) => PnetDevice::Rdma { name: device_name(name)?, port: 1 },
        ("device", [port @ ("1" | "2")]) => {
            PnetDevice::Rdma { name: device_name(name)?, port: if *port == "1" { 1 } else { 2 } }
        }
        ("device", [port]) => return Err(format!("port {port:?}: use 1 or 2")),
        ("interface" | "device", _) => return Err("there is more than belongs there".to_owned()),
        (other, _) => return Err(format!("{other:?}: write `interface` or `device`")),
    };
    Ok((id, device))
}

fn interface_name(text: &str) -> Result<String, String> {
    device_text(text, LONGEST.0)
}

fn device_name(text: &str) -> Result<String, String> {
    device_text(text, LONGEST.1)
}

fn device_text(text: &str, longest: usize) -> Result<String, String> {
    let bad = |character: char| character == '/' || character.is_whitespace() || character.is_control();
    if text.is_empty() || text.len() > longest || text.contains(bad) {
        return Err(format!("{text:?} is no device name: 1 to {longest} characters without space and '/'"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ethernet(id: &str, name: &str) -> Entry {
        (id.parse().unwrap(), PnetDevice::Ethernet(name.to_owned()))
    }

    #[test]
    fn files_are_read_whole_or_refused_with_all_problems() {
        let entries = parse("# nets\nnet1 interface eth0\nNET1 device mlx5_0 2 # second\n\n").unwrap();
        assert_eq!(entries[0], ethernet("NET1", "eth0"));
        assert_eq!(entries[1].1, PnetDevice::Rdma { name: "mlx5_0".to_owned(), port: 2 });
        let problems =
            parse("A\nB-C interface x\nD device y 3\nE interface z\nF interface z\nG else q\n").unwrap_err();
        let lines: Vec<_> = problems.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2, 3, 5, 6]);
        assert!(parse("A interface abcdefghijklmnop").is_err());
    }

    #[test]
    fn only_what_differs_is_changed() {
        let entry = |id: &str, name: &str| PnetEntry {
            id: id.to_owned(),
            device: Some(PnetDevice::Ethernet(name.to_owned())),
        };
        let before = [entry("A", "e0"), entry("A", "e1"), entry("B", "e2")];
        let same = [ethernet("A", "e0"), ethernet("A", "e1"), ethernet("B", "e2")];
        assert_eq!(plan(&before, &same), Plan::default());
        let plan = plan(&before, &[ethernet("A", "e0"), ethernet("B", "e2"), ethernet("C", "e3")]);
        assert_eq!(plan.delete, BTreeSet::from(["A".parse().unwrap()]));
        assert_eq!(plan.add, [ethernet("A", "e0"), ethernet("C", "e3")]);
        assert_eq!((plan.removed, plan.deleted), (1, 2));
    }
}
