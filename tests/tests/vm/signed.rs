//! Segments with MD5 signatures (RFC 2385): these do not cover the other options, so that a refused SYN stays valid.

use anyhow::{Result, ensure};
use smc_agent_tests::pair::{Connecting, md5_is_missing, run};

use crate::lab::{Flow, Lab, POLICY, Port, expect_denied, expect_negotiated, smc_is_possible};

const KEY: &[u8] = b"a key of both ends";

/// What this kernel lacks.
pub(crate) fn missing() -> Option<String> {
    md5_is_missing().then(|| "needs TCP_MD5SIG (CONFIG_TCP_MD5SIG)".to_owned())
}

pub(crate) fn flows(lab: &mut Lab) -> Result<()> {
    lab.start(POLICY)?;
    for port in [Port::NoClient, Port::NoServer, Port::Open] {
        let mut pair = Flow::smc(port).pair();
        pair.connecting = Connecting { md5_key: Some(KEY), ..Connecting::default() };
        let ends = run(&pair)?;
        ensure!(ends.intact, "{port:?}: {:?}", ends.problems);
        if port == Port::Open { expect_negotiated(&ends, smc_is_possible())? } else { expect_denied(&ends)? }
    }
    Ok(())
}
