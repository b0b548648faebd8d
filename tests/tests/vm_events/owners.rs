//! Whose connections are: of several processes, users and cgroups.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{Gid, Uid, setgid, setuid};
use serde_json::{Value, json};
use smc_agent_tests::agent;
use smc_agent_tests::pair::Kind;

use crate::provoke::PEER_NO_SMC;
use crate::scene::{Expected, Place, Scene, V4, connect, expect_owner, forms, fresh_port};

const GROUPS: &str = "/sys/fs/cgroup";

/// A cgroup of a test's own.
struct Group(String);

impl Group {
    fn new(name: &str) -> Result<Self> {
        fs::create_dir_all(format!("{GROUPS}/{name}"))?;
        Ok(Self(name.to_owned()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Not while a process is in it, which its test tells of.
        let _ = fs::remove_dir(format!("{GROUPS}/{}", self.0));
    }
}

/// A process of a user in a cgroup; killed when dropped.
struct Process {
    child: Child,
    uid: u32,
    cgroup: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts `smctest` with these arguments.
    fn smctest(arguments: &[&str], uid: u32, group: &Group) -> Result<Self> {
        let procs = format!("{GROUPS}/{}/cgroup.procs", group.0);
        let mut command = Command::new("smctest");
        command.args(arguments).stdout(Stdio::piped());
        let enter = move || {
            fs::write(&procs, "0")?;
            setgid(Gid::from_raw(uid))?;
            setuid(Uid::from_raw(uid))?;
            Ok(())
        };
        // SAFETY: the program has no other thread that could hold a lock while it forks which these calls want.
        let child = unsafe { command.pre_exec(enter) }.spawn().context("cannot run smctest")?;
        Ok(Self { child, uid, cgroup: format!("/{}", group.0) })
    }

    /// Its output, up to the first line that `wanted` makes something of.
    fn output<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Result<T> {
        let output = self.child.stdout.as_mut().context("its output was read before")?;
        let mut lines = BufReader::new(output).lines();
        lines.find_map(|line| line.ok().as_deref().and_then(&wanted)).context("smctest said something else")
    }

    /// Waits for its end, which has to be well.
    fn finish(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "smctest: {status}");
        Ok(())
    }

    /// As events have it.
    fn as_owner(&self, seen: &str) -> Value {
        json!({
            "pid": self.child.id(), "comm": "smctest", "uid": self.uid, "cgroup": self.cgroup,
            "container": null, "seen": seen,
        })
    }
}

pub(crate) fn other_processes(scene: &mut Scene) -> Result<()> {
    let (servers, clients) = (Group::new("smcvm-servers")?, Group::new("smcvm-clients")?);
    for (kind, non_blocking) in forms()? {
        let kind = kind.to_string();
        // Each end is once the SMC one: nothing else falls back.
        for (server_kind, client_kind) in [(&*kind, "tcp"), ("tcp", &*kind)] {
            let port = fresh_port().to_string();
            let serve = ["serve", "--kind", server_kind, "--port", &port, "--json"];
            let mut server = Process::smctest(&serve, 1001, &servers)?;
            server.output(|line| line.starts_with("listening").then_some(()))?;
            let mut connect = vec!["connect", "--kind", client_kind, "--port", &port, "--json"];
            connect.extend(non_blocking.then_some("--non-blocking"));
            let mut client = Process::smctest(&connect, 1002, &clients)?;
            let ends: Value =
                client.output(|line| serde_json::from_str(line).ok()).context("the client says nothing")?;
            client.finish()?;
            server.finish()?;
            let of = |name: &str| -> Result<_> {
                Ok(ends["client"][name].as_str().context("no address")?.parse()?)
            };
            let (local, peer) = (of("local")?, of("peer")?);
            let (place, owner) = if client_kind == "tcp" {
                (Place::server(peer, local), server.as_owner("listen"))
            } else {
                (Place::client(local, peer), client.as_owner("connect"))
            };
            let event = scene.expect_fallback(place, &Expected::code(PEER_NO_SMC))?;
            ensure!(event["owner"] == owner, "{event:#} is not of {owner:#}");
        }
    }
    Ok(())
}

/// Verdicts have the owner that fallbacks have.
pub(crate) fn verdicts(scene: &mut Scene) -> Result<()> {
    scene.write_policy(
        "{ version: 1, default: allow, rules: [{ name: all, action: deny, port: 1024-65535, log: true }] }",
    )?;
    ensure!(agent::command(&["reload"])?.code == Some(0), "reload failed");
    for (kind, non_blocking) in forms()? {
        let ends = connect(kind, Kind::Tcp, V4, non_blocking)?;
        let event = scene.only_event("verdict", "client", ends.client.local)?;
        ensure!(event["owner"]["seen"] == "connect" && event["verdict"] == "deny", "{event:#}");
        expect_owner(&event)?;
    }
    scene.write_policy(
        "{ version: 1, default: allow, rules: [{ name: all, action: deny, role: server, log: true }] }",
    )?;
    ensure!(agent::command(&["reload"])?.code == Some(0), "reload failed");
    for (kind, non_blocking) in forms()? {
        let ends = connect(kind, kind, V4, non_blocking)?;
        let event = scene.only_event("verdict", "server", ends.server.local)?;
        ensure!(event["owner"]["seen"] == "listen" && event["verdict"] == "deny", "{event:#}");
        expect_owner(&event)?;
    }
    Ok(())
}
