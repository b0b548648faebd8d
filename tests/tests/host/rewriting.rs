//! What the packet programs do to a SYN: exactly the bytes of a true SMC option become NOPs, and the checksum stays right.
//! The programs are run by the kernel on packets made here (`BPF_PROG_TEST_RUN`), in a namespace with real listeners.

use std::fs;
use std::net::TcpListener;

use anyhow::{Context as _, Result, ensure};
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};

use crate::packet::{ACK, AH, Packet, SYN};
use crate::sandbox::Sandbox;

/// The SMC option (RFC 7609, appendix A): kind, length, "SMCR" in EBCDIC.
pub(crate) const SMC: [u8; 6] = [0xfe, 0x06, 0xe2, 0xd4, 0xc3, 0xd9];
pub(crate) const NOP: u8 = 1;
/// Ports that the policy denies and allows to servers; both have a listener.
pub(crate) const DENIED: u16 = 7002;
pub(crate) const ALLOWED: u16 = 7003;
/// Denied too, without a listener.
const NOBODY: u16 = 7004;
pub(crate) const POLICY: &str = "
version: 1
default: allow
rules:
  - { name: no-server, action: deny, role: server, port: [7002, 7004] }
";
/// What classifiers return to let the next one decide: `TC_ACT_UNSPEC`.
const NEXT: u32 = u32::MAX;

/// A namespace with the programs in force and with listeners; no agent runs.
struct Bench {
    ingress: SchedClassifier,
    egress: SchedClassifier,
    _listeners: Vec<TcpListener>,
}

impl Bench {
    fn new(sandbox: &Sandbox) -> Result<Self> {
        sandbox.start(POLICY)?.kill()?;
        let objects: Vec<_> = fs::read_dir(sandbox.pins())?.flatten().map(|entry| entry.path()).collect();
        let [object] = &objects[..] else { anyhow::bail!("not one object: {objects:?}") };
        let open = |name: &str| {
            SchedClassifier::from_pin(object.join("programs").join(name)).with_context(|| name.to_owned())
        };
        let mut listeners = Vec::new();
        for port in [DENIED, ALLOWED] {
            listeners.push(TcpListener::bind(("127.0.0.1", port))?);
            listeners.push(TcpListener::bind(("::1", port))?);
        }
        Ok(Self { ingress: open("smc_ingress")?, egress: open("smc_egress")?, _listeners: listeners })
    }

    fn receive(&self, packet: &[u8]) -> Result<Vec<u8>> {
        run(&self.ingress, packet)
    }

    /// The packet comes out with these options, and otherwise as it was.
    fn expect(&self, what: &str, packet: &Packet, options: &[u8]) -> Result<()> {
        let expected = Packet { options: options.to_vec(), ..packet.clone() }.bytes();
        let result = self.receive(&packet.bytes())?;
        ensure!(
            result == expected,
            "{what}:\n  in       {:02x?}\n  out      {result:02x?}\n  expected {expected:02x?}",
            packet.bytes()
        );
        Ok(())
    }

    fn expect_untouched(&self, what: &str, packet: &Packet) -> Result<()> {
        self.expect(what, packet, &packet.options)
    }
}

pub(crate) fn run(program: &SchedClassifier, packet: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0; packet.len() + 64];
    let options = TestRunOptions { data_in: Some(packet), data_out: Some(&mut out), ..TestRunOptions::new() };
    let result = program.test_run(options).context("the kernel does not run the program")?;
    ensure!(result.return_value == NEXT, "the program returned {}", result.return_value);
    out.truncate(usize::try_from(result.data_size_out)?);
    Ok(out)
}

/// Options with what is to become of them: `x` where a byte becomes a NOP.
pub(crate) fn variants() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];
    const AO: [u8; 4] = [29, 4, 1, 2];
    let [smc, mss, ao] = [&SMC[..], &MSS, &AO];
    vec![
        ("alone", [smc, &[NOP, NOP]].concat(), "xxxxxx.."),
        (
            "as Linux sends it",
            [mss, &[4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, NOP, 3, 3, 7], smc, &[NOP, NOP]].concat(),
            "....................xxxxxx..",
        ),
        ("at the very end", [&[NOP; 34], smc].concat(), "..................................xxxxxx"),
        ("at an odd offset", [&[NOP], smc, &[NOP]].concat(), ".xxxxxx."),
        ("at an odd offset, last", [mss, &[NOP, 3, 3, 7, NOP, NOP], smc].concat(), "..........xxxxxx"),
        ("twice", [smc, smc].concat(), "xxxxxxxxxxxx"),
        ("before the end of the list", [smc, &[0, 0]].concat(), "xxxxxx.."),
        ("behind the end of the list", [&[0, NOP], smc].concat(), "........"),
        ("inside another option", [&[253, 8], smc].concat(), "........"),
        (
            "once inside another option, once itself",
            [&[253, 8], smc, smc, &[0, 0]].concat(),
            "........xxxxxx..",
        ),
        ("of 8 bytes", [0xfe, 8, 0xe2, 0xd4, 0xc3, 0xd9, 0xaa, 0xbb].to_vec(), "xxxxxxxx"),
        ("of 7 bytes, which no kernel takes", [0xfe, 7, 0xe2, 0xd4, 0xc3, 0xd9, 0, NOP].to_vec(), "........"),
        ("beside TCP-AO", [ao, smc, &[NOP, NOP]].concat(), "............"),
        ("before TCP-AO", [smc, ao, &[NOP, NOP]].concat(), "............"),
        ("of another experiment", [0xfe, 6, 0xf9, 0x89, 1, 2, NOP, NOP].to_vec(), "........"),
        (
            "of another experiment, then SMC",
            [&[0xfe, 4, 0xf9, 0x89], smc, &[NOP, NOP]].concat(),
            "....xxxxxx..",
        ),
        ("of kind 253", [0xfd, 6, 0xe2, 0xd4, 0xc3, 0xd9, NOP, NOP].to_vec(), "........"),
        ("that runs over the end", [NOP, NOP, NOP, NOP, 0xfe, 6, 0xe2, 0xd4].to_vec(), "........"),
        ("behind an option without length", [&[5, 0], smc].concat(), "........"),
        ("behind an option of one byte's length", [&[5, 1], smc].concat(), "........"),
        ("absent", [mss, &[NOP, 3, 3, 7]].concat(), "........"),
    ]
}

pub(crate) fn rewritten(options: &[u8], places: &str) -> Vec<u8> {
    let byte = |(byte, place): (&u8, char)| if place == 'x' { NOP } else { *byte };
    options.iter().zip(places.chars()).map(byte).collect()
}

fn all_variants(sandbox: &Sandbox, v6: bool) -> Result<()> {
    let bench = Bench::new(sandbox)?;
    for (what, options, places) in variants() {
        ensure!(options.len() == places.len() && options.len() % 4 == 0, "{what}: this test is wrong");
        let packet = Packet::syn(v6, DENIED, &options);
        bench.expect(what, &packet, &rewritten(&options, places))?;
        let with_data = Packet { data: b"early".to_vec(), ..packet.clone() };
        bench.expect(&format!("{what}, with data"), &with_data, &rewritten(&options, places))?;
        let with_ecn = Packet { flags: SYN | 0xc0, ..packet.clone() };
        bench.expect(&format!("{what}, with ECN"), &with_ecn, &rewritten(&options, places))?;
        for flags in [SYN | ACK, ACK, SYN | 0x01, SYN | 0x04] {
            let other = Packet { flags, ..packet.clone() };
            bench.expect_untouched(&format!("{what}, with flags {flags:#04x}"), &other)?;
        }
    }
    let counters = sandbox.status()?["counters"].clone();
    ensure!(counters["tcp_ao_untouched"] == 6, "{counters:#}");
    ensure!(counters["rewrite_failed"] == 0 && counters["undecided"] == 0, "{counters:#}");
    Ok(())
}

pub(crate) fn ipv4(sandbox: &Sandbox) -> Result<()> {
    all_variants(sandbox, false)
}

pub(crate) fn ipv6(sandbox: &Sandbox) -> Result<()> {
    all_variants(sandbox, true)
}

pub(crate) fn headers(sandbox: &Sandbox) -> Result<()> {
    let bench = Bench::new(sandbox)?;
    let options = [&SMC[..], &[NOP, NOP]].concat();
    let gone = [NOP; 8];
    let v4 = Packet::syn(false, DENIED, &options);
    bench.expect("IPv4 options", &Packet { between: vec![NOP; 8], ..v4.clone() }, &gone)?;
    bench.expect("do not fragment", &Packet { fragment: 0x4000, ..v4.clone() }, &gone)?;
    bench.expect_untouched("first fragment", &Packet { fragment: 0x2000, ..v4.clone() })?;
    bench.expect_untouched("later fragment", &Packet { fragment: 0x0003, ..v4.clone() })?;

    let v6 = Packet::syn(true, DENIED, &options);
    // Hop-by-hop options with padding, destination options, routing header of 8 bytes each.
    for (what, next) in [("hop-by-hop", 0), ("routing", 43), ("destination", 60)] {
        let packet = Packet { next, between: vec![6, 0, 1, 4, 0, 0, 0, 0], ..v6.clone() };
        bench.expect(what, &packet, &gone)?;
    }
    let chain = [[60, 0, 1, 4, 0, 0, 0, 0], [6, 0, 1, 4, 0, 0, 0, 0]].concat();
    bench.expect("hop-by-hop and destination", &Packet { next: 0, between: chain, ..v6.clone() }, &gone)?;
    let atomic = Packet { next: 44, between: vec![6, 0, 0, 0, 1, 2, 3, 4], ..v6.clone() };
    bench.expect("atomic fragment", &atomic, &gone)?;
    let first = Packet { next: 44, between: vec![6, 0, 0, 1, 1, 2, 3, 4], ..v6.clone() };
    bench.expect_untouched("first fragment", &first)?;
    // An authentication header of 24 bytes covers what comes after it.
    let ah = [[6, 4, 0, 0].as_slice(), &[7; 20]].concat();
    bench.expect_untouched("AH", &Packet { next: AH, between: ah.clone(), ..v6.clone() })?;
    bench.expect_untouched("AH", &Packet { next: AH, between: ah.clone(), ..v4 })?;
    let behind = [&[AH, 0, 1, 4, 0, 0, 0, 0], &ah[..]].concat();
    bench.expect_untouched("AH behind hop-by-hop", &Packet { next: 0, between: behind, ..v6 })?;
    let counters = sandbox.status()?["counters"].clone();
    ensure!(counters["ah_untouched"] == 3, "{counters:#}");
    Ok(())
}

pub(crate) fn who_is_asked(sandbox: &Sandbox) -> Result<()> {
    let bench = Bench::new(sandbox)?;
    let options = [&SMC[..], &[NOP, NOP]].concat();
    for v6 in [false, true] {
        bench.expect("denied", &Packet::syn(v6, DENIED, &options), &[NOP; 8])?;
        bench.expect_untouched("allowed", &Packet::syn(v6, ALLOWED, &options))?;
        bench.expect_untouched("nobody listens", &Packet::syn(v6, NOBODY, &options))?;
        let mut udp = Packet::syn(v6, DENIED, &options).bytes();
        udp[if v6 { 20 } else { 23 }] = 17;
        ensure!(bench.receive(&udp)? == udp, "not TCP");
    }
    // The other listener that would do has another address.
    let elsewhere = Packet { to: [127, 0, 0, 9].into(), ..Packet::syn(false, DENIED, &options) };
    bench.expect_untouched("for another address", &elsewhere)?;
    let status = sandbox.status()?;
    let (judged, denied) = (&status["counters"]["server_judged"], &status["counters"]["server_denied"]);
    ensure!(*judged == 4 && *denied == 2, "{status:#}");
    ensure!(status["policy"]["rules"][0]["hits"] == 2 && status["policy"]["default_hits"] == 2, "{status:#}");
    Ok(())
}

pub(crate) fn outgoing(sandbox: &Sandbox) -> Result<()> {
    let bench = Bench::new(sandbox)?;
    let options = [&SMC[..], &[NOP, NOP]].concat();
    for v6 in [false, true] {
        // Forwarded, or of a socket that is not connecting.
        let packet = Packet::syn(v6, DENIED, &options).bytes();
        ensure!(run(&bench.egress, &packet)? == packet, "a SYN of no socket of this host was changed");
    }
    Ok(())
}
