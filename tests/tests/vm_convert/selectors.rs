//! Each selector, with a program that it is about and one that it is not.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use smc_agent_tests::netns::NetNs;

use crate::lab::{GROUPS, Lab, is_converted, listener, protocol_of_socket, sockets_of};

/// Checks a listener of a port that nothing else has.
fn expect(what: &str, command: &mut Command, port: u16, expected: bool) -> Result<()> {
    let converted = is_converted(command, port).with_context(|| what.to_owned())?;
    ensure!(converted == expected, "{what}: converted is {converted}");
    Ok(())
}

pub(crate) fn ids(lab: &Lab) -> Result<()> {
    lab.convert("  rules: [{name: web, action: on, uid: [7, 33]}, {name: group, action: on, gid: 44}]")?;
    let busybox = Path::new("/bin/busybox");
    expect("user 33", listener(busybox, 7001).uid(33), 7001, true)?;
    expect("user 34", listener(busybox, 7002).uid(34), 7002, false)?;
    expect("group 44", listener(busybox, 7003).gid(44), 7003, true)?;
    expect("group 45", listener(busybox, 7004).gid(45), 7004, false)?;
    ensure!(sockets_of("web")? == 1 && sockets_of("group")? == 1, "{:#}", crate::lab::status()?);
    Ok(())
}

pub(crate) fn comm(lab: &Lab) -> Result<()> {
    lab.convert("  rules: [{name: except, action: off, comm: second}, {name: some, action: on, comm: [first, second]}]")?;
    for (port, (name, expected)) in (7011..).zip([("busybox", false)]) {
        expect(name, &mut listener(Path::new("/bin/busybox"), port), port, expected)?;
    }
    // A static program is named by its file; an applet by what it is called.
    for (port, (name, expected)) in (7012..).zip([("first", true), ("second", false), ("third", false)]) {
        let program = lab.static_program(name)?;
        let mut command = Command::new(&program);
        command.arg0("busybox").args(["nc", "-l", "-p", &port.to_string()]);
        expect(name, &mut command, port, expected)?;
    }
    Ok(())
}

pub(crate) fn exe(lab: &Lab) -> Result<()> {
    let named = lab.static_program("named")?;
    let other = lab.static_program("other")?;
    lab.convert(&format!("  rules: [{{name: by-exe, action: on, exe: {}}}]", named.display()))?;
    let run = |program: &Path, port: u16| {
        let mut command = Command::new(program);
        command.arg0("busybox").args(["nc", "-l", "-p", &port.to_string()]);
        command
    };
    expect("the program named", &mut run(&named, 7021), 7021, true)?;
    expect("another", &mut run(&other, 7022), 7022, false)?;
    // A package upgrade puts another file in its place.
    let new = lab.static_program("named.new")?;
    expect("the new file, elsewhere", &mut run(&new, 7023), 7023, false)?;
    fs::rename(&new, &named)?;
    lab.wait_for("follow programs or namespaces")?;
    expect("the new file, in its place", &mut run(&named, 7024), 7024, true)
}

pub(crate) fn netns(lab: &Lab) -> Result<()> {
    lab.convert("  rules: [{name: blue, action: on, netns: blue}]")?;
    let red = NetNs::create("red")?;
    {
        let blue = NetNs::create("blue")?;
        lab.wait_for("follow programs or namespaces")?;
        blue.run(|| expect("in blue", &mut listener(Path::new("/bin/busybox"), 7031), 7031, true))??;
        red.run(|| expect("in red", &mut listener(Path::new("/bin/busybox"), 7031), 7031, false))??;
        expect("outside", &mut listener(Path::new("/bin/busybox"), 7031), 7031, false)?;
    }
    // One that comes after it under another name may have its inode, and is another all the same.
    let green = NetNs::create("green")?;
    green.run(|| expect("in green", &mut listener(Path::new("/bin/busybox"), 7031), 7031, false))?
}

/// A listener that has moved into a cgroup before it makes its socket.
fn in_group(group: &str, port: u16) -> Command {
    let mut command = Command::new("/bin/sh");
    let script = format!("echo $$ > {GROUPS}{group}/cgroup.procs && exec /bin/busybox nc -l -p {port}");
    command.args(["-c", &script]);
    command
}

pub(crate) fn cgroup(lab: &Lab) -> Result<()> {
    let make = |group: &str| fs::create_dir(format!("{GROUPS}{group}")).with_context(|| group.to_owned());
    let remove = |group: &str| {
        smc_agent_tests::wait::wait_until("the end of a cgroup", crate::lab::SOON, || {
            Ok(fs::remove_dir(format!("{GROUPS}{group}")).ok())
        })
    };
    make("/before")?;
    make("/other")?;
    lab.convert("  rules: [{name: services, action: on, cgroup: [/before, /later/inner]}]")?;
    expect("in a group from before", &mut in_group("/before", 7041), 7041, true)?;
    expect("in another", &mut in_group("/other", 7042), 7042, false)?;
    // As a service that is started again, and without an agent.
    lab.kill()?;
    for round in 0..2 {
        make("/later")?;
        make("/later/inner")?;
        make("/later/inner/below")?;
        expect("in a later group", &mut in_group("/later/inner", 7043), 7043, true)?;
        expect("below it", &mut in_group("/later/inner/below", 7044), 7044, true)?;
        expect("above it", &mut in_group("/later", 7045), 7045, false)
            .with_context(|| format!("round {round}"))?;
        for group in ["/later/inner/below", "/later/inner", "/later"] {
            remove(group)?;
        }
    }
    remove("/before")?;
    remove("/other")
}

/// Who asks for MPTCP gets it.
pub(crate) fn mptcp(lab: &Lab) -> Result<()> {
    lab.convert("  default: on")?;
    for (protocol, expected) in [(0, 256), (6, 256), (262, 262)] {
        let found = protocol_of_socket(protocol)?;
        ensure!(found == expected, "protocol {protocol} became {found}");
    }
    Ok(())
}
