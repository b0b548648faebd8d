//! The table in the kernel against the language's meaning.

use std::{cell::RefCell, path::Path};

use anyhow::Result;
use proptest::{
    prelude::any,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use smc_agent::policy::{Limits, compile, load_text};
use smc_agent_common::Verdict;

use crate::{
    language::{self, Policy},
    probe::{Probe, Sizes},
};

/// Flows of one policy.
const FLOWS: u32 = 1024;
/// Policies: together more than 100,000 decisions.
const CASES: u32 = 110;

pub(crate) fn test() -> Result<()> {
    let sizes = Sizes { flows: FLOWS, loads: 1, trie: 1 };
    let probe = RefCell::new(Probe::load(sizes, true)?);
    let seed = match std::env::var("SMC_AGENT_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs(),
    };
    eprintln!("seed: SMC_AGENT_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config =
        Config { cases: CASES, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let policies = proptest::prop_oneof![3 => language::policy(12), 1 => language::policy(150)];
    runner
        .run(&(policies, any::<u64>()), |(policy, seed)| {
            agree(&mut probe.borrow_mut(), &policy, seed | 1)
                .map_err(|error| TestCaseError::fail(format!("{error:#}\nthe policy:\n{}", policy.text())))
        })
        .map_err(|error| anyhow::anyhow!("{error}"))
}

fn agree(probe: &mut Probe, policy: &Policy, seed: u64) -> Result<()> {
    let loaded = load_text(Path::new("p.yaml"), &policy.text(), &Limits::default())?;
    let mut table = compile(&loaded.policy, 7, &Limits::default())?;
    probe.maps()?.install(&mut table)?;
    let flows = policy.flows(seed, FLOWS as usize);
    probe.set_flows(&flows)?;
    probe.run("probe_decide", FLOWS)?;
    for (flow, decided) in flows.iter().zip(probe.results(FLOWS)?) {
        let decided = decided.map(|decided| (decided.verdict == Verdict::Deny, decided.rule, decided.log));
        let expected = policy.judge(flow);
        anyhow::ensure!(
            decided == Some(expected),
            "{flow:?}: expected {expected:?}, the kernel says {decided:?}"
        );
    }
    // Hits were counted for all of them.
    let hits = probe.maps()?.hits(loaded.policy.rules().len())?;
    let shadow = loaded.policy.rules().iter().map(|rule| rule.mode == smc_agent::policy::Mode::Shadow);
    let decided =
        hits.rules.iter().zip(shadow).filter(|(_, shadow)| !shadow).map(|(hits, _)| hits).sum::<u64>();
    anyhow::ensure!(decided + hits.default == u64::from(FLOWS), "hits: {hits:?}");
    Ok(())
}
