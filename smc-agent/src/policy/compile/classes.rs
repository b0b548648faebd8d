//! A policy's dimensions cut into classes, for those who compare policies rather than judge flows.

use super::regions::regions;
use super::sets::SetPool;
use super::{CompileError, sources};
use crate::policy::model::Policy;

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
}

impl Classes {
    /// Cuts a policy. Fails only where [`super::compile`] does.
    pub(in crate::policy) fn new(policy: &Policy) -> Result<Self, CompileError> {
        let mut pool = SetPool::new();
        let mut cut = |sources: &[_]| -> Result<Dimension, CompileError> {
            Ok(Dimension {
                v4: regions(sources, &mut pool)?,
                v6: regions(sources, &mut pool)?,
            })
        };
        let peer = cut(&sources(policy.rules(), |rule| rule.peer.as_ref()))?;
        let local = cut(&sources(policy.rules(), |rule| rule.local.as_ref()))?;
        Ok(Self { peer, local, pool })
    }

    /// The rules of a class, in words of 64 bits.
    pub(in crate::policy) fn rules(&self, class: u32) -> smc_agent_common::table::RuleBits {
        self.pool.rules(class)
    }
}
