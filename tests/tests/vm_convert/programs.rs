//! Programs as the distribution ships them, and static ones: over TCP without conversion, over SMC with it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use smc_agent::netlink::diag::Mode;
use smc_agent_tests::setup;

use crate::lab::{Lab, Running, only, program, smc_mode, watch};

const ON: &str = "  default: on";
const OFF: &str = "  default: off";

/// Runs a server with a client without and with conversion.
fn both(
    lab: &Lab,
    port: u16,
    server: impl Fn() -> Result<Command>,
    client: impl Fn() -> Command,
    mode: Mode,
) -> Result<()> {
    for (rules, expected) in [(OFF, only("TCP")), (ON, only(&mode.to_string()))] {
        lab.convert(rules)?;
        let mut running = Running::start(&mut server()?)?;
        running.listens(port)?;
        let seen = watch(port, &mut client())?;
        ensure!(seen == expected, "with {rules}: connections were {seen:?} instead of {expected:?}");
        ensure!(running.has_smc_socket()? == (rules == ON), "with {rules}: the server's own socket");
    }
    Ok(())
}

fn redis_server(port: u16, bind: &str) -> Command {
    let mut command = program("bin/redis-server");
    command.args(["--port", &port.to_string(), "--bind", bind, "--save", "", "--appendonly", "no"]);
    command
}

fn redis_benchmark(port: u16, host: &str) -> Command {
    let mut command = program("bin/redis-benchmark");
    command.args(["-h", host, "-p", &port.to_string(), "-n", "2000", "-c", "4", "-t", "set,get", "-q"]);
    command
}

pub(crate) fn redis(lab: &Lab) -> Result<()> {
    both(lab, 6379, || Ok(redis_server(6379, "127.0.0.1")), || redis_benchmark(6379, "127.0.0.1"), smc_mode())
}

/// Where SMC-D would be taken, SMC-R is made to be.
pub(crate) fn redis_smc_r(lab: &Lab) -> Result<()> {
    setup::prepare(true)?;
    both(lab, 6380, || Ok(redis_server(6380, "127.0.0.1")), || redis_benchmark(6380, "127.0.0.1"), Mode::SmcR)
}

/// A file that takes a while.
fn page(lab: &Lab) -> Result<PathBuf> {
    let folder = lab.file("pages");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("page"), vec![b'x'; 24 << 20])?;
    Ok(folder)
}

fn wget(port: u16) -> Command {
    let mut command = Command::new("/bin/busybox");
    command.args(["wget", "-q", "-O", "/dev/null", &format!("http://127.0.0.1:{port}/page")]);
    command
}

pub(crate) fn nginx(lab: &Lab) -> Result<()> {
    let (pages, config) = (page(lab)?, lab.file("nginx.conf"));
    let prefix = lab.file("nginx");
    fs::create_dir_all(&prefix)?;
    let server = || -> Result<Command> {
        let text = format!(
            "daemon off;\nmaster_process on;\nuser nobody nogroup;\npid {0}/pid;\nerror_log {0}/error;\n\
             events {{}}\nhttp {{\n access_log off;\n client_body_temp_path {0}/a; proxy_temp_path {0}/b;\n \
             fastcgi_temp_path {0}/c; uwsgi_temp_path {0}/d; scgi_temp_path {0}/e;\n \
             server {{ listen 127.0.0.1:8080; root {1}; }}\n}}\n",
            prefix.display(),
            pages.display()
        );
        fs::write(&config, text)?;
        let mut command = program("sbin/nginx");
        command.arg("-p").arg(&prefix).arg("-c").arg(&config).arg("-e").arg(prefix.join("error"));
        Ok(command)
    };
    // Workers are other users, who have to get at the pages.
    for folder in [lab.file(""), pages.clone()] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    both(lab, 8080, server, || wget(8080), smc_mode())
}

pub(crate) fn python(lab: &Lab) -> Result<()> {
    let pages = page(lab)?;
    let server = || {
        let mut command = program("bin/python3.11");
        command.args(["-m", "http.server", "8000", "--bind", "127.0.0.1"]).current_dir(&pages);
        Ok(command)
    };
    both(lab, 8000, server, || wget(8000), smc_mode())
}

pub(crate) fn iperf3(lab: &Lab) -> Result<()> {
    let server = || {
        let mut command = program("bin/iperf3");
        command.args(["-s", "-1", "-p", "5201", "-B", "127.0.0.1"]);
        Ok(command)
    };
    let client = || {
        let mut command = program("bin/iperf3");
        command.args(["-c", "127.0.0.1", "-p", "5201", "-n", "8M"]);
        command
    };
    both_one_shot(lab, 5201, server, client)
}

/// As [`both`], for a server that ends with its client.
fn both_one_shot(
    lab: &Lab,
    port: u16,
    server: impl Fn() -> Result<Command>,
    client: impl Fn() -> Command,
) -> Result<()> {
    for (rules, expected) in [(OFF, only("TCP")), (ON, only(&smc_mode().to_string()))] {
        lab.convert(rules)?;
        let mut running = Running::start(&mut server()?)?;
        running.listens(port)?;
        let seen = watch(port, &mut client())?;
        ensure!(seen == expected, "with {rules}: connections were {seen:?} instead of {expected:?}");
    }
    Ok(())
}

pub(crate) fn static_programs(lab: &Lab) -> Result<()> {
    let pages = page(lab)?;
    let server = || {
        let mut command = Command::new("/bin/busybox");
        command.args(["httpd", "-f", "-p", "127.0.0.1:8001", "-h"]).arg(&pages);
        Ok(command)
    };
    both(lab, 8001, server, || wget(8001), smc_mode())
}

/// All is converted, and what a rule for flows denies stays TCP: in one run.
pub(crate) fn one_peer_denied(lab: &Lab) -> Result<()> {
    lab.policy(
        "version: 1\ndefault: allow\nrules: [{name: no-two, action: deny, role: client, peer: 127.0.0.2}]\n\
         convert: {default: on}\n",
    )?;
    let mut server = Running::start(&mut redis_server(6381, "0.0.0.0"))?;
    server.listens(6381)?;
    for (peer, expected) in [
        ("127.0.0.1", only(&smc_mode().to_string())),
        ("127.0.0.2", only("FALLBACK_TCP 0x03010000")),
        ("127.0.0.1", only(&smc_mode().to_string())),
    ] {
        let seen = watch(6381, &mut redis_benchmark(6381, peer))?;
        ensure!(seen.is_superset(&expected), "to {peer}: {seen:?} instead of {expected:?}");
        ensure!(peer == "127.0.0.1" || seen == expected, "to {peer}: {seen:?}");
    }
    lab.wait_for("denied by rule \"no-two\"")?;
    Ok(())
}
