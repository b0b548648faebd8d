//! Policies that change while the agent runs.

use anyhow::{Result, ensure};

use crate::lab::{ALLOW_ALL, Flow, Lab, POLICY, Port, command, generation, hang_up, status};

const OTHER_WAY_ROUND: &str = "
version: 1
default: allow
rules:
  - { name: not-there, action: deny, role: client, port: 9000-9999 }
";

pub(crate) fn changes_verdicts(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let first = generation()?;
    Flow::smc(Port::NoClient).run_denied()?;
    Flow::smc(Port::Open).run_allowed()?;

    lab.write_policy(OTHER_WAY_ROUND)?;
    let finished = command(&["reload"])?;
    ensure!(
        finished.code == Some(0) && finished.stdout == format!("generation {}", first + 1),
        "{finished:?}"
    );
    Flow::smc(Port::NoClient).run_allowed()?;
    Flow::smc(Port::NoServer).run_allowed()?;
    Flow::smc(Port::Open).run_denied()?;

    lab.write_policy(ALLOW_ALL)?;
    let generation = hang_up(lab.agent()?)?;
    ensure!(generation == Some(first + 2), "SIGHUP gave generation {generation:?}");
    Flow::smc(Port::Open).run_allowed()?;
    let policy = status()?["policy"].clone();
    ensure!(policy["generation"] == first + 2 && policy["rules"] == serde_json::json!([]), "{policy}");
    Ok(())
}

pub(crate) fn bad_policy(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    let before = generation()?;
    let file = lab.policy_file().display().to_string();
    lab.write_policy("version: 1\ndefault: allow\nrulez: []\n")?;
    let place = format!("{file}:3:1");

    let finished = command(&["reload"])?;
    ensure!(finished.code == Some(1) && finished.stderr.contains(&place), "{finished:?}");
    let taken = hang_up(lab.agent()?)?;
    ensure!(taken.is_none(), "SIGHUP took a bad policy as generation {taken:?}");
    let report = status()?;
    let problems = report["agent"]["last_reload"]["problems"].to_string();
    ensure!(problems.contains(&place), "the status does not tell what is wrong: {problems}");
    ensure!(report["policy"]["generation"] == before, "{}", report["policy"]);
    Flow::smc(Port::NoClient).run_denied()?;
    Flow::smc(Port::NoServer).run_denied()?;
    Flow::smc(Port::Open).run_allowed()?;

    std::fs::remove_file(lab.policy_file())?;
    let finished = command(&["reload"])?;
    ensure!(finished.code == Some(1) && finished.stderr.contains(&file), "{finished:?}");
    Flow::smc(Port::NoClient).run_denied()?;

    // And it takes the next good one.
    lab.reload(ALLOW_ALL)?;
    Flow::smc(Port::NoClient).run_allowed()?;
    Ok(())
}
