//! The story that the demo tells.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use smc_agent_tests::agent::{self, Agent};
use smc_agent_tests::pair::{Kind, Pair, run as connect};
use smc_agent_tests::setup::kernel_release;

use crate::claim::Claim;
use crate::table::{Row, render};

const POLICY_FILE: &str = "/tmp/demo-policy.yaml";
const POLICY: &str = "\
version: 1
default: allow
rules:
  - name: no-smc-to-7001        # when this host connects to port 7001
    action: deny
    role: client
    port: 7001
  - name: no-smc-from-outside   # when this host serves port 7002
    action: deny
    role: server
    port: 7002
";
const OTHER_POLICY: &str = "\
version: 1
default: allow
rules:
  - name: maintenance           # 7001 and 7002 may use SMC again, 7003 may not
    action: deny
    role: client
    port: 7003
";
/// How long the agent may take to start: the kernel verifies its programs, under emulation.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// A flow over 127.0.0.1 and what is claimed of it.
struct Flow {
    what: &'static str,
    port: u16,
    client: Kind,
    server: Kind,
    policy: &'static str,
    claim: Claim,
}

impl Flow {
    fn smc(what: &'static str, port: u16, policy: &'static str, claim: Claim) -> Self {
        Self { what, port, client: Kind::Smc, server: Kind::Smc, policy, claim }
    }
}

#[derive(Default)]
struct Demo {
    agent: Option<Agent>,
    rows: Vec<Row>,
    step: usize,
}

/// Tells it all; true when every flow did as claimed.
pub(crate) fn run() -> Result<bool> {
    let mut demo = Demo::default();
    demo.begin()?;
    demo.decided_flows()?;
    demo.change_of_policy()?;
    demo.without_agent()?;
    println!("\n{}", render(&demo.rows));
    let wrong = demo.rows.iter().filter(|row| !row.holds).count();
    match wrong {
        0 => println!("All {} flows as expected, with 64 KiB intact each way.", demo.rows.len()),
        _ => println!("{wrong} of {} flows NOT as expected.", demo.rows.len()),
    }
    Ok(wrong == 0)
}

impl Demo {
    fn begin(&mut self) -> Result<()> {
        println!("\nsmc-agent on kernel {}, real SMC on 127.0.0.1", kernel_release()?);
        write_policy(POLICY)?;
        println!("\n$ smc-agent run --policy {POLICY_FILE}");
        let agent = Agent::start_enforcing(&["run", "--policy", POLICY_FILE], START_TIMEOUT)?;
        self.agent = Some(agent);
        println!("$ smc-agent status");
        let status = command(&["status"])?;
        let interesting = |line: &&str| line.starts_with("backend") || line.starts_with("policy");
        status.lines().filter(interesting).for_each(|line| println!("  {line}"));
        Ok(())
    }

    fn decided_flows(&mut self) -> Result<()> {
        self.title("A flow that no rule denies");
        self.flow(&Flow::smc("client -> port 7003", 7003, "allow", Claim::Smc))?;

        self.title("A flow that a rule about clients denies: its SYN goes out without the SMC option");
        let claim = Claim::Denied { role: "client", rule: "no-smc-to-7001" };
        self.flow(&Flow::smc("client -> port 7001", 7001, "deny, client", claim))?;

        self.title("A flow that a rule about servers denies: the server behaves as one without SMC");
        let claim = Claim::Denied { role: "server", rule: "no-smc-from-outside" };
        self.flow(&Flow::smc("client -> port 7002", 7002, "deny, server", claim))?;

        self.title("A server that knows only TCP: the same code, but no rule did it");
        let claim = Claim::TcpPeer { role: "client" };
        let what = "client -> TCP server, port 7003";
        self.flow(&Flow { server: Kind::Tcp, ..Flow::smc(what, 7003, "allow", claim) })
    }

    fn change_of_policy(&mut self) -> Result<()> {
        self.title("Another policy, while the agent runs");
        write_policy(OTHER_POLICY)?;
        println!("\n$ smc-agent reload\n  {}", command(&["reload"])?);
        self.flow(&Flow::smc("client -> port 7001, new policy", 7001, "allow", Claim::Smc))?;
        self.flow(&Flow::smc("client -> port 7002, new policy", 7002, "allow", Claim::Smc))?;
        let claim = Claim::Denied { role: "client", rule: "maintenance" };
        self.flow(&Flow::smc("client -> port 7003, new policy", 7003, "deny, client", claim))
    }

    fn without_agent(&mut self) -> Result<()> {
        self.title("The agent dies: what it enforced stays in the kernel");
        let agent = self.agent.take().context("no agent runs")?;
        println!("$ kill -9 {}", agent.id());
        agent.kill()?;
        let claim = Claim::DeniedUntold;
        self.flow(&Flow::smc("client -> port 7003, agent killed", 7003, "deny, client", claim))?;

        self.title("Everything is taken out of the kernel");
        println!("$ smc-agent detach");
        command(&["detach"])?.lines().for_each(|line| println!("  {line}"));
        self.flow(&Flow::smc("client -> port 7003, detached", 7003, "none", Claim::Smc))
    }

    fn title(&mut self, text: &str) {
        self.step += 1;
        println!("\n{}. {text}", self.step);
    }

    fn flow(&mut self, flow: &Flow) -> Result<()> {
        let address = ([127, 0, 0, 1], flow.port).into();
        let ends = connect(&Pair::new(flow.server, flow.client, address)).context(flow.what)?;
        let outcome = flow.claim.check(&ends, self.agent.as_ref());
        println!("  {}: ran over {}", flow.what, outcome.over);
        outcome.lines.iter().for_each(|line| println!("    {line}"));
        ends.problems.iter().for_each(|problem| println!("    DATA DAMAGED: {problem}"));
        self.rows.push(Row {
            flow: flow.what.to_owned(),
            policy: flow.policy.to_owned(),
            over: outcome.over,
            reason: outcome.reason,
            holds: outcome.holds,
        });
        Ok(())
    }
}

fn write_policy(text: &str) -> Result<()> {
    fs::write(POLICY_FILE, text).context("cannot write the policy")?;
    println!("\n$ cat {POLICY_FILE}");
    text.lines().for_each(|line| println!("  {line}"));
    Ok(())
}

/// Runs one of the agent's commands, which has to succeed; gives what it printed.
fn command(arguments: &[&str]) -> Result<String> {
    let finished = agent::command(arguments)?;
    if finished.code != Some(0) {
        bail!("smc-agent {}: {finished:?}", arguments.join(" "));
    }
    Ok(finished.stdout)
}
