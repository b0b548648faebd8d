//! The policy in the running kernel: the same decisions as the language says, also while it is replaced.

mod agreement;
mod convert;
mod language;
mod overload;
#[path = "../probe/mod.rs"]
#[expect(dead_code, reason = "what only the measurements use")]
mod probe;
mod reload;
mod watch;

use std::{
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use libtest_mimic::{Arguments, Failed, Trial};

static TURN: Mutex<()> = Mutex::new(());

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = probe::missing();
    if missing.is_none() && !arguments.list {
        // Mounts of the tests are theirs alone.
        if let Err(error) = private_mounts() {
            eprintln!("no mount namespace: {error}");
            return ExitCode::FAILURE;
        }
    }
    let trial = |name: &str, test: fn() -> anyhow::Result<()>| {
        // Those of conversion move the process from one cgroup to another, and it has one only.
        let alone = name.starts_with("convert_");
        let run = move || {
            let _turn = alone.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
            test().map_err(|error| Failed::from(format!("{error:#}")))
        };
        match missing {
            None => Trial::test(name, run),
            Some(why) => Trial::test(format!("{name} ({why})"), run).with_ignored_flag(true),
        }
    };
    let tests = vec![
        trial("convert_selectors", convert::selectors),
        trial("convert_namespaces", convert::namespaces),
        trial("convert_deadlines", convert::deadlines),
        trial("convert_groups", convert::groups),
        trial("convert_life_lines", convert::life_lines),
        trial("convert_own_sockets", convert::own_sockets),
        trial("convert_race", convert::race),
        trial("events_of_an_overload_add_up", overload::test),
        trial("the_kernel_decides_as_the_language_says", agreement::test),
        trial("a_policy_is_replaced_as_a_whole_under_load", reload::test),
        trial("a_policy_that_is_watched_is_replaced_when_its_files_change", watch::test),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn private_mounts() -> nix::Result<()> {
    use nix::mount::{MsFlags, mount};
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
}
