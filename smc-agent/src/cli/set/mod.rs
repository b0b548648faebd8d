//! `smc-agent set …`: what smc-tools can change. Input is checked before the kernel sees it.

mod pnet;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::show::Page;
use super::{Failure, Output, print};
use crate::netlink::smc::{Eid, MAX_USER_EIDS, Smc};
use crate::show::{HandshakeLimit, PnetRows, Scope, ShowError, SystemEid, UserEids, netns};

#[derive(Debug, Args)]
pub(super) struct SetArguments {
    /// How to write the result: as JSON it is what `show` shows afterwards
    #[arg(short, long, value_enum, default_value_t = Output::Text, global = true)]
    output: Output,
    /// Change it in this network namespace: a name, a path, or `all`
    #[arg(long, value_name = "NAME|all", global = true)]
    netns: Option<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The user EIDs, which are the whole kernel's
    #[command(subcommand)]
    Ueid(UserEid),
    /// The system EID (s390x)
    Seid {
        /// Whether SMC-D offers it
        state: Switch,
    },
    /// The PNET table
    #[command(subcommand)]
    Pnet(pnet::PnetCommand),
    /// Whether listeners refuse SMC while handshakes queue up
    #[command(name = "hs-limit")]
    HandshakeLimit {
        /// Whether they do
        state: Switch,
    },
}

#[derive(Debug, Subcommand)]
enum UserEid {
    /// Add user EIDs: up to 32 of A-Z, 0-9, '.' and '-'; the kernel holds 4
    Add {
        /// The EIDs
        #[arg(required = true, value_name = "EID")]
        eids: Vec<Eid>,
    },
    /// Remove user EIDs
    Del {
        /// The EIDs
        #[arg(required = true, value_name = "EID")]
        eids: Vec<Eid>,
    },
    /// Remove all user EIDs
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

pub(super) fn set(arguments: &SetArguments) -> Result<ExitCode, Failure> {
    let scope = arguments.netns.as_deref().map_or(Scope::Current, Scope::from);
    let page = Page { scope, output: arguments.output, watch: None, raw: true };
    match &arguments.what {
        What::Ueid(command) => user_eids(&page, command)?,
        What::Seid { state } => {
            let switch = |mut smc: Smc| match state {
                Switch::On => smc.enable_seid(),
                Switch::Off => smc.disable_seid(),
            };
            change(&page, || Ok(switch(Smc::open()?)?))?;
            done(&page, SystemEid::read, &format!("system EID {}", word(*state)))?;
        }
        What::Pnet(command) => {
            let outcome = pnet::run(&page.scope, command)?;
            done(&page, PnetRows::read, &outcome)?;
        }
        What::HandshakeLimit { state } => {
            change(&page, || Ok(Smc::open()?.set_handshake_limitation(*state == Switch::On)?))?;
            done(&page, HandshakeLimit::read, &format!("handshake limitation {}", word(*state)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn word(state: Switch) -> &'static str {
    match state {
        Switch::On => "on",
        Switch::Off => "off",
    }
}

/// Runs a change in each network namespace of the page.
fn change(page: &Page, job: impl Fn() -> Result<(), ShowError> + Sync) -> Result<(), Failure> {
    netns::visit(&page.scope, job)?;
    Ok(())
}

fn done<T: serde::Serialize + Send>(
    page: &Page,
    read: impl Fn() -> Result<T, ShowError> + Sync,
    text: &str,
) -> Result<(), Failure> {
    match page.output {
        Output::Json => page.show(read, |_, _| String::new()),
        Output::Text => print(format_args!("{text}\n")),
    }
}

fn user_eids(page: &Page, command: &UserEid) -> Result<(), Failure> {
    let text = match command {
        UserEid::Add { eids } => {
            let mut smc = Smc::open()?;
            check_room(&smc.user_eids()?, eids)?;
            one_by_one(eids, "added", |eid| smc.add_user_eid(eid))?
        }
        UserEid::Del { eids } => {
            let mut smc = Smc::open()?;
            one_by_one(eids, "removed", |eid| smc.remove_user_eid(eid))?
        }
        UserEid::Flush => {
            Smc::open()?.flush_user_eids()?;
            "all user EIDs removed".to_owned()
        }
    };
    done(page, UserEids::read, &text)
}

/// Fails before anything is changed where the kernel would fail half-way.
fn check_room(present: &[String], wanted: &[Eid]) -> Result<(), Failure> {
    if let Some(double) = wanted.iter().find(|eid| present.iter().any(|there| there == eid.as_str())) {
        return Err(Failure::not_so(format!("cannot add the user EID: the kernel has {double} already")));
    }
    let room = MAX_USER_EIDS.saturating_sub(present.len());
    if wanted.len() > room {
        let wanted = wanted.len();
        return Err(Failure::not_so(format!(
            "cannot add {wanted} user EIDs: the kernel holds {MAX_USER_EIDS} and has {} already: remove some first",
            present.len()
        )));
    }
    Ok(())
}

fn one_by_one(
    eids: &[Eid],
    done: &str,
    mut change: impl FnMut(&Eid) -> crate::netlink::Result<()>,
) -> Result<String, Failure> {
    let mut lines = Vec::new();
    for eid in eids {
        if let Err(error) = change(eid) {
            let failure = Failure::from(error);
            // What was done before it stays done, and is told.
            for line in &lines {
                print(format_args!("{line}\n"))?;
            }
            return Err(failure);
        }
        lines.push(format!("user EID {eid} {done}"));
    }
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_is_noticed_before_anything_is_added() {
        let eids = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Eid>>();
        let present = ["A".to_owned(), "B".to_owned(), "C".to_owned()];
        assert!(check_room(&present, &eids(&["D"])).is_ok());
        let error = check_room(&present, &eids(&["D", "E"])).unwrap_err().to_string();
        assert!(error.contains("holds 4 and has 3 already"), "{error}");
        let error = check_room(&present, &eids(&["B"])).unwrap_err().to_string();
        assert!(error.contains("has B already"), "{error}");
    }
}
