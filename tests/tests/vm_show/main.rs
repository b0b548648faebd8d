//! `show`, `set` and `monitor` in a guest with real SMC: what they say is compared field by field with an independent reading
//! of the same kernel. Run it with `cargo xtask test --vm-only`.

mod changes;
mod expected;
mod figures;
mod many;
mod raw;
mod scene;
mod sockets;

use std::process::ExitCode;
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use smc_agent_tests::agent;

use scene::Scene;

/// One test at a time: they look at the same kernel.
static SCENE: Mutex<Option<Scene>> = Mutex::new(None);

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let in_guest = std::env::var_os("SMC_AGENT_VM").is_some();
    let trial = |name: &str, test: fn(&Scene) -> Result<()>| {
        Trial::test(format!("show::{name}"), move || with_scene(test)).with_ignored_flag(!in_guest)
    };
    let tests = vec![
        trial("sockets_of_all_kinds_are_told_as_the_kernel_has_them", sockets::all_kinds),
        trial("addresses_and_owners_are_filled_in", sockets::joined),
        trial("sockets_are_filtered", sockets::filtered),
        trial("statistics_and_fallbacks", figures::statistics),
        trial("link_groups_and_links", figures::link_groups),
        trial("devices_and_information", figures::devices),
        trial("counting_since_a_mark", figures::mark),
        trial("rates_of_a_known_transfer", figures::monitor),
        trial("other_namespaces", figures::namespaces),
        trial("eids_and_limits_are_set", changes::set),
        trial("pnet_ids_are_set", changes::pnet),
        trial("without_privileges", changes::unprivileged),
        trial("ten_thousand_sockets", many::ten_thousand),
    ];
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn with_scene(test: fn(&Scene) -> Result<()>) -> std::result::Result<(), Failed> {
    let mut place = SCENE.lock().map_err(|_| "an earlier test panicked")?;
    let run = || {
        if place.is_none() {
            *place = Some(Scene::set_up().context("cannot set the scene")?);
        }
        place.as_ref().map_or(Ok(()), test)
    };
    let mut run = run;
    run().map_err(|error: anyhow::Error| format!("{error:#}").into())
}

/// Runs the agent, which has to succeed, and reads the JSON that it prints.
pub(crate) fn json(arguments: &[&str]) -> Result<Value> {
    let text = run(&[arguments, &["-o", "json"]].concat(), 0)?;
    serde_json::from_str(&text).with_context(|| text)
}

/// What the agent finds in its one namespace.
pub(crate) fn found(arguments: &[&str]) -> Result<Value> {
    let mut report = json(arguments)?;
    ensure!(report["version"] == 1, "{report}");
    ensure!(report["namespaces"].as_array().is_some_and(|list| list.len() == 1), "{report}");
    Ok(report["namespaces"][0].take())
}

/// Runs the agent, which has to end with this code; gives its standard output, or its messages if the code is not 0.
pub(crate) fn run(arguments: &[&str], code: i32) -> Result<String> {
    let finished = agent::command(arguments)?;
    ensure!(finished.code == Some(code), "{arguments:?}: {finished:?}");
    Ok(if code == 0 { finished.stdout } else { finished.stderr })
}

/// Fails where both are not the same, and says where.
pub(crate) fn same(what: &str, found: &Value, expected: &Value) -> Result<()> {
    if let (Some(found), Some(expected)) = (found.as_object(), expected.as_object()) {
        for (key, value) in expected {
            same(&format!("{what}.{key}"), found.get(key).unwrap_or(&Value::Null), value)?;
        }
        for key in found.keys() {
            ensure!(expected.contains_key(key), "{what}.{key} was not expected");
        }
        return Ok(());
    }
    ensure!(found == expected, "{what}: the agent says {found}, the kernel {expected}");
    Ok(())
}

/// Compares two lists after sorting them by their texts.
pub(crate) fn same_lists(what: &str, found: &Value, expected: &[Value]) -> Result<()> {
    let mut found = found.as_array().cloned().with_context(|| format!("{what} is no list"))?;
    let mut expected = expected.to_vec();
    let by_text = |value: &Value| value.to_string();
    found.sort_by_key(by_text);
    expected.sort_by_key(by_text);
    ensure!(found.len() == expected.len(), "{what}: {} instead of {}", found.len(), expected.len());
    found.iter().zip(&expected).try_for_each(|(found, expected)| same(what, found, expected))
}
