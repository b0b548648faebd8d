//! The JSON Schemas of the forms, as they are checked in under docs/schema.

use schemars::{Schema, schema_for};

use super::{
    Devices, Fallbacks, HandshakeLimit, Info, LinkGroups, Links, PnetRows, Report, Sample, SocketCounts,
    Sockets, Stats, SystemEid, UserEids,
};

/// The schemas, by the command whose output they describe.
pub fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("sockets", schema_for!(Report<Sockets>)),
        ("devices", schema_for!(Report<Devices>)),
        ("linkgroups", schema_for!(Report<LinkGroups>)),
        ("links", schema_for!(Report<Links>)),
        ("stats", schema_for!(Report<Stats>)),
        ("fallbacks", schema_for!(Report<Fallbacks>)),
        ("info", schema_for!(Report<Info>)),
        ("netns", schema_for!(Report<SocketCounts>)),
        ("ueid", schema_for!(Report<UserEids>)),
        ("seid", schema_for!(Report<SystemEid>)),
        ("pnet", schema_for!(Report<PnetRows>)),
        ("hs-limit", schema_for!(Report<HandshakeLimit>)),
        ("monitor", schema_for!(Report<Sample>)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_schemas_are_these() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
        for (command, schema) in schemas() {
            let path = folder.join(format!("show-{command}.schema.json"));
            let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("UPDATE_SCHEMA").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(checked_in == text, "run this test with UPDATE_SCHEMA=1 and commit {}", path.display());
        }
    }
}
