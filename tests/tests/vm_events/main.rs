//! Fallbacks that are provoked for real, each with its event, field by field. Run it with `cargo xtask test --vm-only`.

mod devices;
mod options;
mod owners;
mod peers;
mod provoke;
mod scene;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use smc_agent_tests::agent;
use smc_agent_tests::netns::NetNs;
use smc_agent_tests::pair::Kind;

use provoke::PEER_NO_SMC;
use scene::{Expected, Scene, V4, connect, connect_in};

fn main() -> ExitCode {
    let in_guest = std::env::var_os("SMC_AGENT_VM").is_some();
    let trial = |name: &str, test: fn(&mut Scene) -> Result<()>| {
        let run = move || {
            let result = Scene::new()
                .and_then(|mut scene| test(&mut scene).and_then(|()| scene.expect_all_accounted()));
            let cleaned = agent::command(&["detach"]).map(drop);
            result.and(cleaned).map_err(|error| format!("{error:#}").into())
        };
        Trial::test(format!("events::{name}"), run).with_ignored_flag(!in_guest)
    };
    let mut tests = vec![
        trial("a_peer_without_smc", options::plain_peers),
        trial("syncookies_lose_the_option", options::syncookies),
        trial("fast_open", options::fast_open),
        trial("fast_open_of_a_listener", options::fast_open_of_a_listener),
        trial("ipsec", options::ipsec),
        trial("messages_of_clients_made_by_hand", peers::clients),
        trial("messages_of_servers_made_by_hand", peers::servers),
        trial("owners_of_other_processes", owners::other_processes),
        trial("owners_of_verdicts", owners::verdicts),
        trial("without_a_device", devices::none),
        trial("another_network_namespace", other_namespace),
        trial("a_policy_is_reloaded_and_refused", policy),
    ];
    if scene::can_use_smc().unwrap_or(true) {
        tests.extend([
            trial("without_a_user_eid", devices::no_user_eid),
            trial("a_server_without_an_rdma_device", devices::server_without_rdma),
            trial("a_link_goes_down", devices::link_down),
            // Last: the kernel's link groups have been through much after it.
            trial("a_link_that_is_not_confirmed", devices::not_confirmed),
        ]);
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn other_namespace(scene: &mut Scene) -> Result<()> {
    let away = NetNs::create("smcvm-events")?;
    away.command("ip", &["link", "set", "lo", "up"])?;
    let ends = connect_in(&away, Kind::Smc, Kind::Tcp)?;
    let event = scene.event_of("client", ends.client.local)?;
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(away.path())?);
    ensure!(event["netns"] == inode && event["netns_name"] == away.name(), "{event:#}");
    // Before 5.12 a namespace has a cookie only once somebody asked for it.
    ensure!(event["netns_cookie"].is_u64() || scene::kernel()? < (5, 12), "{event:#}");
    ensure!(event["code"]["value"] == PEER_NO_SMC, "{event:#}");
    // It goes while its events are on their way.
    let mut last = Vec::new();
    for _ in 0..5 {
        last.push(connect_in(&away, Kind::Smc, Kind::Tcp)?.client.local);
    }
    drop(away);
    for local in last {
        let event = scene.event_of("client", local)?;
        ensure!(event["netns"] == inode && event["code"]["value"] == PEER_NO_SMC, "{event:#}");
    }
    let ends = connect(Kind::Smc, Kind::Tcp, V4, false)?;
    scene.expect_client(&ends, &Expected::code(PEER_NO_SMC))
}

fn policy(scene: &mut Scene) -> Result<()> {
    let of_policy = |events: &[Value]| -> Vec<Value> {
        events.iter().filter(|event| event["event"] == "policy").cloned().collect()
    };
    scene.write_policy("{ version: 1, default: deny, rules: [] }")?;
    ensure!(agent::command(&["reload"])?.code == Some(0), "reload failed");
    scene.write_policy("{ version: 1, default: never, rules: [] }")?;
    ensure!(agent::command(&["reload"])?.code == Some(1), "a bad policy was taken");
    let events = scene.wait_for("two events of the policy", |events| of_policy(events).len() == 2)?;
    let [reloaded, refused] = &of_policy(&events)[..] else { anyhow::bail!("{events:#?}") };
    ensure!(reloaded["result"] == "reloaded" && reloaded["generation"] == 2, "{reloaded:#}");
    ensure!(reloaded["problems"] == json!([]), "{reloaded:#}");
    ensure!(refused["result"] == "refused" && refused["generation"] == 2, "{refused:#}");
    ensure!(refused["problems"].to_string().contains("never"), "{refused:#}");
    let numbers: Vec<_> = events.iter().filter_map(|event| event["seq"].as_u64()).collect();
    ensure!(numbers == (1..=numbers.len() as u64).collect::<Vec<_>>(), "numbers have gaps: {numbers:?}");
    Ok(())
}
