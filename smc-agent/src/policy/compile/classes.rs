//! A policy's dimensions cut into classes, for those who compare policies rather than judge flows.

use super::regions::{Source, regions};
use super::sets::SetPool;
use super::{CompileError, sources};
use crate::policy::model::Policy;
use smc_agent_common::Line;

/// The regions of a dimension: each begins where it says and goes up to the next.
pub(in crate::policy) struct Dimension {
    /// IPv4 by its 32 bits.
    pub(in crate::policy) v4: Vec<(u32, u32)>,
    /// IPv6 by its 128 bits.
    pub(in crate::policy) v6: Vec<(u128, u32)>,
}

/// All of a policy's classes.
pub(in crate::policy) struct Classes {
    pub(in crate::policy) peer: Dimension,
    pub(in crate::policy) local: Dimension,
    pool: SetPool,
    lines: Vec<Line>,
}

impl Classes {
    /// Cuts a policy. Fails only where [`super::compile`] does.
    pub(in crate::policy) fn new(policy: &Policy) -> Result<Self, CompileError> {
        let (mut pool, mut lines) = (SetPool::new(policy.rules().len()), Vec::new());
        let local = cut(&mut pool, &mut lines, &sources(policy.rules(), |rule| rule.local.as_ref()))?;
        pool.allow_lines();
        let peer = cut(&mut pool, &mut lines, &sources(policy.rules(), |rule| rule.peer.as_ref()))?;
        Ok(Self { peer, local, pool, lines })
    }

    /// The rules of a class, in words of 64 bits.
    pub(in crate::policy) fn rules(&self, class: u32) -> smc_agent_common::table::RuleBits {
        self.pool.rules(class, &self.lines)
    }
}

fn cut(pool: &mut SetPool, lines: &mut Vec<Line>, sources: &[Source<'_>]) -> Result<Dimension, CompileError> {
    Ok(Dimension { v4: regions(sources, pool, lines)?, v6: regions(sources, pool, lines)? })
}
