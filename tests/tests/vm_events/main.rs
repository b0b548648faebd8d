//! Fallbacks that are provoked for real, each with its event, field by field. Run it with `cargo xtask test --vm-only`.

mod provoke;
mod scene;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use smc_agent_tests::agent;
use smc_agent_tests::netns::NetNs;
use smc_agent_tests::pair::Kind;

use provoke::{NO_DEVICE, NO_USER_EID, OPTION, PEER_DECLINED, PEER_NO_SMC};
use scene::{Expected, Scene, V4, V6, connect, connect_fast, connect_in, expect_owner, has_dibs};

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
    let tests = vec![
        trial("a_peer_without_smc", plain_peers),
        trial("syncookies_lose_the_option", syncookies),
        trial("fast_open", fast_open),
        trial("without_a_user_eid", no_user_eid),
        trial("ipv6_over_soft_roce", ipv6),
        trial("another_network_namespace", other_namespace),
        trial("a_policy_is_reloaded_and_refused", policy),
    ];
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, tests).exit_code()
}

fn plain_peers(scene: &mut Scene) -> Result<()> {
    let addresses = if has_dibs() { &[V4, V6][..] } else { &[V4] };
    for address in addresses.iter().copied() {
        for kind in [Kind::Smc, Kind::SmcInet] {
            for non_blocking in [false, true] {
                let to_tcp = connect(kind, Kind::Tcp, address, non_blocking)?;
                scene.expect_client(&to_tcp, &Expected::code(PEER_NO_SMC))?;
                let from_tcp = connect(Kind::Tcp, kind, address, non_blocking)?;
                scene.expect_server(&from_tcp, &Expected::code(PEER_NO_SMC))?;
            }
        }
    }
    Ok(())
}

fn syncookies(scene: &mut Scene) -> Result<()> {
    let _always = provoke::Sysctl::set("net/ipv4/tcp_syncookies", "2")?;
    let ends = connect(Kind::Smc, Kind::Smc, V4, false)?;
    scene.expect_client(&ends, &Expected::code(PEER_NO_SMC))?;
    scene.expect_server(&ends, &Expected::code(PEER_NO_SMC))
}

fn fast_open(scene: &mut Scene) -> Result<()> {
    for kind in [Kind::Smc, Kind::SmcInet] {
        let before = scene.fallbacks()?.len();
        let ends = connect_fast(kind)?;
        scene.expect_server(&ends, &Expected::code(PEER_NO_SMC))?;
        // The option is set before there is a connection: there are no addresses yet.
        let events = scene.fallbacks()?;
        let client = events[before..]
            .iter()
            .find(|event| event["role"] == "client")
            .context("no event of the client")?;
        ensure!(client["code"] == json!({"value": OPTION, "name": "OPTUNSUPP"}), "{client:#}");
        ensure!(ends.client.reason == OPTION, "{ends:?}");
        // No process has connected or listened, and the making of an AF_SMC socket is not seen: not known rather than wrong.
        if kind == Kind::SmcInet {
            expect_owner(client)?;
        } else {
            ensure!(client["owner"].is_null(), "{client:#}");
        }
    }
    Ok(())
}

fn no_user_eid(scene: &mut Scene) -> Result<()> {
    let _none = provoke::NoUserEid::new()?;
    let ends = connect(Kind::Smc, Kind::Smc, V4, false)?;
    if has_dibs() {
        // SMC-D has a device, and no EID that both ends have.
        scene.expect_server(&ends, &Expected::code(NO_USER_EID))?;
        scene.expect_client(&ends, &Expected { code: PEER_DECLINED, peer_code: Some(NO_USER_EID) })
    } else {
        scene.expect_client(&ends, &Expected::code(NO_DEVICE))?;
        scene.expect_server(&ends, &Expected { code: PEER_DECLINED, peer_code: Some(NO_DEVICE) })
    }
}

fn ipv6(scene: &mut Scene) -> Result<()> {
    if has_dibs() {
        // SMC-D does IPv6: nothing falls back, and there is no event.
        let before = scene.fallbacks()?.len();
        let ends = connect(Kind::Smc, Kind::Smc, V6, false)?;
        ensure!(ends.client.mode.is_smc() && ends.server.mode.is_smc(), "{ends:?}");
        let marker = connect(Kind::Smc, Kind::Tcp, V4, false)?;
        scene.expect_client(&marker, &Expected::code(PEER_NO_SMC))?;
        ensure!(scene.fallbacks()?.len() == before + 1, "an event without a fallback");
        return Ok(());
    }
    let ends = connect(Kind::Smc, Kind::Smc, V6, false)?;
    scene.expect_client(&ends, &Expected::code(NO_DEVICE))?;
    scene.expect_server(&ends, &Expected { code: PEER_DECLINED, peer_code: Some(NO_DEVICE) })
}

fn other_namespace(scene: &mut Scene) -> Result<()> {
    let away = NetNs::create("smcvm-events")?;
    away.command("ip", &["link", "set", "lo", "up"])?;
    let ends = connect_in(&away, Kind::Smc, Kind::Tcp)?;
    let event = scene.event_of("client", ends.client.local)?;
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(away.path())?);
    ensure!(event["netns"] == inode && event["netns_name"] == away.name(), "{event:#}");
    ensure!(event["netns_cookie"].is_u64(), "{event:#}");
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
