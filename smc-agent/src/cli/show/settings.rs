//! Text of `show info`, `ueid`, `seid`, `pnet` and `hs-limit`.

use super::escape;
use super::table::Table;
use crate::show::{HandshakeLimit, Info, PnetRows, SystemEid, UserEids};

pub(super) fn info(info: &Info, _raw: bool) -> String {
    let unknown = || "unknown".to_owned();
    let yes_no =
        |value: Option<bool>| value.map_or_else(unknown, |value| if value { "Yes" } else { "No" }.to_owned());
    let number = |value: Option<u8>| value.map_or_else(unknown, |value| value.to_string());
    let smc = &info.smc;
    let host = smc.local_host.as_deref().map_or_else(String::new, escape);
    let seid = smc.seid.as_deref().map_or_else(|| "n/a".to_owned(), escape);
    let mut text = format!(
        "Kernel             {}\nSMC-Version        {}.{}\nHostname           {host}\nSEID               {seid}\n\
         SMC-D v2 capable   {}\nSMC-R v2 capable   {}\n",
        escape(&info.kernel),
        number(smc.version),
        number(smc.release),
        yes_no(smc.ism_v2),
        yes_no(smc.smcr_v2),
    );
    if info.sysctls.is_empty() {
        text.push_str("\nno sysctls under net.smc (needs 5.18)\n");
        return text;
    }
    let mut table = Table::new(&["net.smc", "Value", "Default", ""]);
    for sysctl in &info.sysctls {
        let shown = |value: Option<&String>| match value {
            None => "?".to_owned(),
            Some(value) if value.is_empty() => "(none)".to_owned(),
            Some(value) => escape(value),
        };
        let changed = sysctl.default.is_some() && sysctl.value != sysctl.default;
        let changed = if changed { "changed" } else { "" };
        table.row(vec![
            escape(&sysctl.name),
            shown(sysctl.value.as_ref()),
            shown(sysctl.default.as_ref()),
            changed.to_owned(),
        ]);
    }
    format!("{text}\n{table}")
}

pub(super) fn user_eids(eids: &UserEids, _raw: bool) -> String {
    if eids.user_eids.is_empty() {
        return format!("no user EIDs (up to {} can be set)\n", eids.maximum);
    }
    eids.user_eids.iter().map(|eid| escape(eid) + "\n").collect()
}

pub(super) fn system_eid(eid: &SystemEid, _raw: bool) -> String {
    match &eid.seid {
        Some(seid) => {
            format!("{}  {}\n", escape(&seid.eid), if seid.enabled { "[enabled]" } else { "[disabled]" })
        }
        None => "no system EID: there is no ISM device of version 2\n".to_owned(),
    }
}

pub(super) fn pnet(table: &PnetRows, _raw: bool) -> String {
    if table.entries.is_empty() {
        return "the PNET table is empty\n".to_owned();
    }
    let mut lines = Table::new(&["PNET-ID", "Net-Dev", "IB-Dev", ">IB-P"]);
    for entry in &table.entries {
        let text = |value: &Option<String>| value.as_deref().map_or_else(|| "n/a".to_owned(), escape);
        let port = entry.port.map_or_else(|| "n/a".to_owned(), |port| port.to_string());
        lines.row(vec![escape(&entry.pnet_id), text(&entry.interface), text(&entry.device), port]);
    }
    lines.to_string()
}

pub(super) fn handshake_limit(limit: &HandshakeLimit, _raw: bool) -> String {
    format!("handshake limitation {}\n", if limit.enabled { "on" } else { "off" })
}
