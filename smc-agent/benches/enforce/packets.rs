//! What the programs for traffic control cost a packet that is not a SYN with the SMC option, against one that does nothing.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use aya::{
    EbpfLoader,
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};

use crate::{
    Effort,
    lab::Hosts,
    report::{Report, median},
};

/// ACK, PSH and SYN among the flags of TCP.
const DATA: u8 = 0x18;
const ACK: u8 = 0x10;
const SYN: u8 = 0x02;
/// What Linux puts into a SYN: MSS, SACK, time stamps, window scale.
const SYN_OPTIONS: [u8; 20] = [2, 4, 5, 180, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7];
const STAMP_OPTIONS: [u8; 12] = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
const UDP: u8 = 17;
const TCP: u8 = 6;

/// A packet from 192.0.2.1 to 127.0.0.1 on Ethernet. Checksums are not looked at.
fn packet(protocol: u8, flags: u8, options: &[u8], data: usize) -> Vec<u8> {
    let mut packet = vec![0; 12];
    packet.extend([0x08, 0x00]);
    let header = if protocol == TCP { 20 + options.len() } else { 8 };
    let total = u16::try_from(20 + header + data).unwrap_or(u16::MAX);
    packet.extend([0x45, 0]);
    packet.extend(total.to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 127, 0, 0, 1]);
    packet.extend([0x9c, 0x40, 0x1b, 0x58]);
    if protocol == TCP {
        let words = u8::try_from(header / 4).unwrap_or(5);
        packet.extend([0, 0, 0, 1, 0, 0, 0, 0, words << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
        packet.extend(options);
    } else {
        packet.extend([0, 0, 0, 0]);
    }
    packet.resize(packet.len() + data, 0);
    packet
}

fn run(program: &SchedClassifier, packet: &[u8], repeat: u32) -> Result<f64> {
    let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::new() };
    Ok(program.test_run(options)?.duration.as_nanos() as f64)
}

pub(crate) fn cost(report: &mut Report, effort: Effort) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let policy = folder.path().join("policy.yaml");
    fs::write(&policy, "version: 1\ndefault: allow\nrules: [{name: r, action: deny, port: 7000}]\n")?;
    let mut hosts = Hosts::new()?;
    hosts.enforce(folder.path(), &policy)?;
    let programs = hosts.programs()?;
    hosts.at_client(|| measure(report, effort, &programs))
}

fn measure(report: &mut Report, effort: Effort, programs: &Path) -> Result<()> {
    let object = fs::read(env!("SMC_AGENT_PROBE"))?;
    let mut loader = EbpfLoader::new();
    let mut probe = loader.btf(None).load(&object)?;
    let empty: &mut SchedClassifier = probe.program_mut("probe_empty").context("no probe")?.try_into()?;
    empty.load()?;
    let kinds = [
        ("TCP data", packet(TCP, DATA, &STAMP_OPTIONS, 1000), Some(10.0)),
        ("TCP acknowledgement", packet(TCP, ACK, &STAMP_OPTIONS, 0), Some(10.0)),
        ("UDP", packet(UDP, 0, &[], 100), Some(10.0)),
        ("SYN without the option", packet(TCP, SYN, &SYN_OPTIONS, 0), None),
    ];
    for (direction, program) in [("egress", "smc_egress"), ("ingress", "smc_ingress")] {
        let program = SchedClassifier::from_pin(programs.join(program))?;
        for (kind, packet, target) in &kinds {
            let mut differences = Vec::new();
            for _ in 0..effort.rounds.min(101) {
                let before = run(empty, packet, effort.runs)?;
                let with = run(&program, packet, effort.runs)?;
                let after = run(empty, packet, effort.runs)?;
                differences.push(with - before.midpoint(after));
            }
            ensure!(!differences.is_empty(), "no rounds");
            let what = format!("tc {direction}, {kind}: over an empty classifier");
            // The time of a run is told in whole nanoseconds.
            report.at_most(&what, median(differences), "ns", *target);
        }
    }
    Ok(())
}
