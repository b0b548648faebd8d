//! A decision in parts that the verifier follows one by one: the kernel's way through smc-agent-common's.

use smc_agent_common::{
    Address, Classified, Decision, Family, Flow, RULE_DEFAULT, Role, TableReader as _, Verdict, classify,
    decide::SHADOW_REPORTS,
    first_match, next_shadow,
    table::{LOCAL_V4, PEER_V4},
};

use crate::table::KernelTable;

/// A decision in one register, which is all that a function that is not inlined can return.
struct Packed;

impl Packed {
    const DECIDED: u32 = 1 << 31;
    const DENY: u32 = 1 << 30;
    const LOG: u32 = 1 << 29;
    const RULE: u32 = 0xffff;

    #[inline(always)]
    fn pack(decision: Decision) -> u32 {
        let mut packed = Self::DECIDED | u32::from(decision.rule);
        if decision.verdict == Verdict::Deny {
            packed |= Self::DENY;
        }
        if decision.log {
            packed |= Self::LOG;
        }
        packed
    }

    #[inline(always)]
    fn unpack(packed: u32) -> Option<Decision> {
        (packed & Self::DECIDED != 0).then_some(Decision {
            verdict: if packed & Self::DENY != 0 { Verdict::Deny } else { Verdict::Allow },
            rule: (packed & Self::RULE) as u16,
            log: packed & Self::LOG != 0,
        })
    }
}

/// A flow whose addresses are classified, as [`smc_first_match`] takes it.
#[derive(Clone, Copy)]
pub struct Classes {
    /// Port, families and role: see [`classified`].
    what: u32,
    peer: u32,
    local: u32,
}

/// Decides by `table`; `None` if there is no decision.
#[inline(always)]
pub fn decide(flow: &Flow, table: &KernelTable) -> Option<(Classes, Decision)> {
    let slot = table.slot();
    let family = |address: &Address| u32::from(matches!(address.family(), Family::V6));
    let (peer_family, local_family) = (family(&flow.peer), family(&flow.local));
    let peer = smc_classify(slot, PEER_V4 as u32 + peer_family, flow.peer.high(), flow.peer.low());
    let local = if table.asks_local() {
        smc_classify(slot, LOCAL_V4 as u32 + local_family, flow.local.high(), flow.local.low())
    } else {
        0
    };
    let server = u32::from(matches!(flow.role, Role::Server));
    let what = u32::from(flow.port) | peer_family << 16 | local_family << 17 | server << 18;
    let decision = Packed::unpack(smc_first_match(slot, what, peer, local))?;
    Some((Classes { what, peer, local }, decision))
}

/// What came of judging a flow.
pub struct Judged {
    /// The decision.
    pub decision: Decision,
    /// The shadow rule that is to be reported: of several that match one flow, the first with `log`.
    pub shadow: Option<u16>,
}

/// Decides by `table`, and counts the rule that decided and the shadow rules that matched before it.
#[inline(always)]
pub fn decide_and_count(flow: &Flow, table: &KernelTable) -> Option<Judged> {
    let (Classes { what, peer, local }, decision) = decide(flow, table)?;
    let mut shadow = u32::from(RULE_DEFAULT);
    if table.has_shadow_rules() {
        shadow = smc_count_shadows(table.slot(), what, peer, local, u32::from(decision.rule));
    }
    table.hit(decision.rule);
    Some(Judged { decision, shadow: (shadow != u32::from(RULE_DEFAULT)).then_some(shadow as u16) })
}

/// Counts the shadow rules that a classified flow satisfies and that stand before the rule `until`. Returns the first of
/// them that is to be reported, or `RULE_DEFAULT`.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_count_shadows(slot: u32, what: u32, peer: u32, local: u32, until: u32) -> u32 {
    let mut reported = u32::from(RULE_DEFAULT);
    let Some(table) = KernelTable::in_slot(slot) else { return reported };
    let mut from = 0;
    for _ in 0..SHADOW_REPORTS {
        let found = smc_next_shadow(slot, what, peer, local, from);
        if found >= until {
            break;
        }
        table.hit(found as u16);
        if reported == u32::from(RULE_DEFAULT) && table.logs(found as u16) {
            reported = found;
        }
        from = found + 1;
    }
    reported
}

/// No class: [`smc_first_match`] makes no decision of it.
const NO_CLASS: u32 = u32::MAX;

/// The class of an address in the table in `slot`.
///
/// Global functions are verified once each, by themselves, for all values of their arguments: in one piece with the
/// rest, the verifier would follow every way through here once for every way through there.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_classify(slot: u32, dimension: u32, high: u64, low: u64) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return NO_CLASS };
    let trie = &table.fixed().tries[dimension as usize & 3];
    classify(&table, trie, high, low).unwrap_or(NO_CLASS)
}

/// The first rule of the table in `slot` that a classified flow satisfies, as [`Packed`].
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_first_match(slot: u32, what: u32, peer: u32, local: u32) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return 0 };
    first_match(&classified(what, peer, local), &table).map_or(0, Packed::pack)
}

/// The first shadow rule from number `from` on that a classified flow satisfies; `RULE_DEFAULT` if there is none.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn smc_next_shadow(slot: u32, what: u32, peer: u32, local: u32, from: u32) -> u32 {
    let Some(table) = KernelTable::in_slot(slot) else { return u32::from(RULE_DEFAULT) };
    let found = next_shadow(&classified(what, peer, local), &table, from as u16);
    u32::from(found.unwrap_or(RULE_DEFAULT))
}

/// What [`decide`] packs into `what`, and the classes.
#[inline(always)]
fn classified(what: u32, peer: u32, local: u32) -> Classified {
    Classified {
        peer_family: (what >> 16 & 1) as usize,
        local_family: (what >> 17 & 1) as usize,
        side: (what >> 18 & 1) as usize,
        port: what as u16,
        peer,
        local,
    }
}
