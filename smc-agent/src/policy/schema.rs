//! The language as types, for the JSON Schema that editors use.
//!
//! Policies are not read through these types: a reader that stops at the first error would not do. A test sees that both
//! agree on the examples and on what is refused.
#![expect(dead_code, reason = "only their schema is used")]

use schemars::{JsonSchema, Schema, schema_for};
use std::collections::BTreeMap;

/// A policy of smc-agent: which TCP connections may negotiate SMC. A flow is decided by the first rule that matches it.
#[derive(JsonSchema)]
#[schemars(rename = "Policy", deny_unknown_fields)]
struct PolicyFile {
    /// Version of the language.
    #[schemars(range(min = 1, max = 1))]
    version: u32,
    /// What happens to flows that no rule matches. Stands in exactly one file of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Action")]
    default: Option<Action>,
    /// Named sets of addresses; rules of all files refer to them as "@name".
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"pattern": "^[A-Za-z0-9._-]+$"}))]
    sets: BTreeMap<String, Set>,
    /// The rules, in order: the first that matches decides.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    rules: Vec<Rule>,
    /// Which new TCP sockets become SMC ones, by the process that makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Convert")]
    convert: Option<Convert>,
}

/// Whether sockets are converted.
#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Switch {
    /// They become SMC ones.
    On,
    /// They stay TCP.
    Off,
}

/// Which new TCP sockets become SMC ones. The first rule that matches the process decides.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Convert {
    /// What happens to sockets that no rule matches: `off` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Switch")]
    default: Option<Switch>,
    /// The rules, in order.
    #[serde(default)]
    #[schemars(length(max = 240))]
    rules: Vec<ConvertRule>,
}

/// A rule of `convert`. All selectors that are given must match.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct ConvertRule {
    /// The name, unique among the rules of `convert`.
    #[schemars(length(min = 1))]
    name: String,
    /// Whether sockets of these processes are converted.
    action: Switch,
    /// Cgroup v2, by its path in the hierarchy; all below it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<AbsolutePath>")]
    cgroup: Option<OneOrMore<AbsolutePath>>,
    /// Real user id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<u32>")]
    uid: Option<OneOrMore<u32>>,
    /// Real group id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<u32>")]
    gid: Option<OneOrMore<u32>>,
    /// Name of the process, as `ps -o comm` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<Comm>")]
    comm: Option<OneOrMore<Comm>>,
    /// Path of the executable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<AbsolutePath>")]
    exe: Option<OneOrMore<AbsolutePath>>,
    /// Network namespace: a name under /run/netns, or a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<String>")]
    netns: Option<OneOrMore<String>>,
}

/// A path that begins with a slash.
#[derive(JsonSchema)]
struct AbsolutePath(#[schemars(regex(pattern = r"^/"))] String);

/// A process' name.
#[derive(JsonSchema)]
struct Comm(#[schemars(length(min = 1, max = 15))] String);

/// What to do with a connection.
#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Action {
    /// It may negotiate SMC.
    Allow,
    /// It stays TCP.
    Deny,
}

/// A set: addresses here, or in a file.
#[derive(JsonSchema)]
#[serde(untagged)]
enum Set {
    /// One address or CIDR.
    One(Prefix),
    /// Addresses and CIDRs.
    List(Vec<Prefix>),
    /// A file.
    File(SetFile),
}

/// A file with one address or CIDR a line; `#` begins a comment.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct SetFile {
    /// Its path, relative to the policy file.
    #[schemars(length(min = 1))]
    file: String,
}

/// An address or a CIDR, as 192.0.2.1, 10.0.0.0/8 or `2001:db8::/32`.
#[derive(JsonSchema)]
struct Prefix(#[schemars(regex(pattern = r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"))] String);

/// An address, a CIDR, or a set as "@name".
#[derive(JsonSchema)]
struct AddressOrSet(
    #[schemars(regex(pattern = r"^(@[A-Za-z0-9._-]+|[0-9A-Fa-f.:]+(/[0-9]{1,3})?)$"))] String,
);

/// One of something, or a list that is not empty.
#[derive(JsonSchema)]
#[serde(untagged)]
enum OneOrMore<T> {
    /// One.
    One(T),
    /// Several.
    List(#[schemars(length(min = 1))] Vec<T>),
}

/// A port, or a range of ports with both ends.
#[derive(JsonSchema)]
#[serde(untagged)]
enum Port {
    /// One port.
    One(#[schemars(range(min = 1, max = 65535))] u16),
    /// A port or a range, as 8000-8099.
    Range(#[schemars(regex(pattern = r"^[0-9]{1,5}( *- *[0-9]{1,5})?$"))] String),
}

/// Which side of a connection this host is.
#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    /// It sends the SYN.
    Client,
    /// It answers the SYN.
    Server,
    /// Either.
    Any,
}

/// Whether a rule decides.
#[derive(JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// It decides.
    Enforce,
    /// It is counted and reported, and the flow passes on to later rules.
    Shadow,
}

/// A rule. What is left out matches anything.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Rule {
    /// The name, unique in the whole policy.
    #[schemars(length(min = 1))]
    name: String,
    /// What to do with the connections that match.
    action: Action,
    /// Which side of the connection this host is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Role")]
    role: Option<Role>,
    /// The other end's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<AddressOrSet>")]
    peer: Option<OneOrMore<AddressOrSet>>,
    /// This host's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<AddressOrSet>")]
    local: Option<OneOrMore<AddressOrSet>>,
    /// The service port: the destination port of the SYN, whichever side this host is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OneOrMore<Port>")]
    port: Option<OneOrMore<Port>>,
    /// Report each decision of this rule as an event.
    #[serde(default)]
    log: bool,
    /// Whether the rule decides or only reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Mode")]
    mode: Option<Mode>,
}

/// The JSON Schema of a policy file.
pub fn schema() -> Schema {
    schema_for!(PolicyFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checked_in_schema_is_this_one() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/policy.schema.json");
        let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(checked_in, text, "run this test with UPDATE_SCHEMA=1 and commit {}", path.display());
    }

    #[test]
    fn keys_are_those_that_the_reader_knows() {
        let schema = serde_json::to_value(schema()).unwrap();
        let keys = |value: &serde_json::Value| -> Vec<String> {
            let mut keys: Vec<String> = value["properties"].as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&schema), ["convert", "default", "rules", "sets", "version"]);
        let convert = ["action", "cgroup", "comm", "exe", "gid", "name", "netns", "uid"];
        assert_eq!(keys(&schema["$defs"]["ConvertRule"]), convert);
        let rule = ["action", "local", "log", "mode", "name", "peer", "port", "role"];
        assert_eq!(keys(&schema["$defs"]["Rule"]), rule);
        assert_eq!(schema["$defs"]["Rule"]["required"], serde_json::json!(["name", "action"]));
        assert_eq!(schema["required"], serde_json::json!(["version"]));
    }
}
