//! One policy file: from nodes to declarations, with all that is wrong in it.

use super::addresses::{AddressSet, AddressSetBuilder};
use super::convert::parse::ConvertDeclaration;
use super::diagnostic::{At, Findings};
use super::literal::{Wrong, nearest, ports, prefix};
use super::model::{Action, Mode, join_ports};
use super::yaml::{self, Node, Value};
use smc_agent_common::Role;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// The version of the language.
pub(super) const VERSION: &str = "1";

/// What a file declares.
#[derive(Default)]
pub(super) struct File {
    /// The file is a mapping: what is not in it is missing.
    pub(super) understood: bool,
    /// `default` stands there, whatever its value is.
    pub(super) has_default: bool,
    pub(super) default: Option<(Action, At)>,
    pub(super) sets: Vec<SetDeclaration>,
    pub(super) rules: Vec<RuleDeclaration>,
    pub(super) convert: Option<ConvertDeclaration>,
}

pub(super) struct SetDeclaration {
    pub(super) name: String,
    pub(super) at: At,
    pub(super) content: SetContent,
}

pub(super) enum SetContent {
    Inline(AddressSet),
    /// A path as written.
    File(String, At),
}

pub(super) struct RuleDeclaration {
    pub(super) name: String,
    pub(super) at: At,
    pub(super) action: Action,
    pub(super) role: Option<Role>,
    pub(super) peer: Option<AddressList>,
    pub(super) local: Option<AddressList>,
    pub(super) ports: Option<Vec<RangeInclusive<u16>>>,
    pub(super) log: bool,
    pub(super) mode: Mode,
}

/// What stands behind `peer` or `local`.
#[derive(Default)]
pub(super) struct AddressList {
    pub(super) at: Option<At>,
    pub(super) inline: AddressSet,
    pub(super) sets: Vec<(String, At)>,
}

/// Reads a file; what is wrong goes to `findings`, what is right comes back.
pub(super) fn parse(text: &str, findings: &mut Findings<'_>) -> File {
    let root = match yaml::parse(text) {
        Ok(root) => root,
        Err((at, message)) => {
            let line = text.lines().nth(at.line.saturating_sub(1) as usize).unwrap_or_default();
            findings.error(at, format!("this is not valid YAML: {message}"), yaml_help(line));
            return File::default();
        }
    };
    Parser { findings }.file(&root)
}

/// The two traps of YAML that policies fall into.
fn yaml_help(line: &str) -> &'static str {
    let unquoted = line.split(['[', ',', ' ']).any(|word| word.starts_with('@'));
    if unquoted {
        "YAML wants names of sets in quotes: write \"@name\""
    } else if line.contains("::") {
        "YAML wants IPv6 addresses in quotes: write \"2001:db8::/32\""
    } else if line.trim_start_matches(' ').starts_with('\t') {
        "YAML is indented by spaces, not by tabs"
    } else {
        ""
    }
}

pub(super) struct Parser<'f, 'a> {
    pub(super) findings: &'f mut Findings<'a>,
}

/// The entries of a mapping by their key, each key once.
pub(super) type Entries<'n> = HashMap<&'n str, (&'n Node, &'n Node)>;

impl Parser<'_, '_> {
    pub(super) fn wrong(&mut self, at: At, (message, help): Wrong) {
        self.findings.error(at, message, help);
    }

    /// A mapping's entries. Keys that stand twice or that are unknown are told.
    pub(super) fn entries<'n>(
        &mut self,
        node: &'n Node,
        what: &str,
        known: &[&'static str],
    ) -> Option<Entries<'n>> {
        let Value::Map(map) = &node.value else {
            let help = format!("write keys and values: {}", known.join(", "));
            self.findings.error(node.at, format!("{what} must be a mapping, this is {}", node.kind()), help);
            return None;
        };
        let mut entries = Entries::new();
        for (key, value) in map {
            let Some(name) = key.scalar() else {
                self.findings.error(
                    key.at,
                    "a key must be a single word",
                    format!("write one of {}", known.join(", ")),
                );
                continue;
            };
            if !known.is_empty() && !known.contains(&name) {
                let help = match (name, nearest(name, known.iter().copied())) {
                    ("netns" | "pod", _) => {
                        "this key is reserved for a later version; leave it out".to_owned()
                    }
                    (_, Some(meant)) => format!("did you mean `{meant}`?"),
                    (_, None) => format!("{what} has {}", known.join(", ")),
                };
                self.findings.error(key.at, format!("unknown key `{name}` in {what}"), help);
                continue;
            }
            if let Some((first, _)) = entries.get(name) {
                let first: &Node = first;
                let message = format!("`{name}` stands here twice, first in line {}", first.at.line);
                self.findings.error(key.at, message, "keep one of them");
                continue;
            }
            entries.insert(name, (key, value));
        }
        Some(entries)
    }

    /// One word of several.
    pub(super) fn word<T: Copy>(
        &mut self,
        node: &Node,
        what: &str,
        words: &[(&'static str, T)],
    ) -> Option<T> {
        let list: Vec<String> = words.iter().map(|word| format!("`{}`", word.0)).collect();
        let help = format!("write {}", list.join(" or "));
        let Some(text) = node.scalar() else {
            self.findings.error(
                node.at,
                format!("`{what}` must be a single word, this is {}", node.kind()),
                help,
            );
            return None;
        };
        let found = words.iter().find(|word| word.0 == text);
        if found.is_none() {
            let help = if what == "action" && text == "auto" {
                format!("`auto` is reserved for a later version; {help}")
            } else {
                match nearest(text, words.iter().map(|word| word.0)) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => help,
                }
            };
            self.findings.error(node.at, format!("`{text}` is not a value of `{what}`"), help);
        }
        found.map(|word| word.1)
    }

    fn file(&mut self, root: &Node) -> File {
        let mut file = File::default();
        if matches!(root.value, Value::Null) {
            self.findings.error(At::START, "the file is empty", "begin with `version: 1`");
            return file;
        }
        let Some(entries) =
            self.entries(root, "a policy", &["version", "default", "sets", "rules", "convert"])
        else {
            return file;
        };
        file.understood = true;
        file.has_default = entries.contains_key("default");
        match entries.get("version") {
            None => self.findings.error(At::START, "`version` is missing", "begin with `version: 1`"),
            Some((_, node)) if node.scalar() == Some(VERSION) => {}
            Some((_, node)) => {
                let text = node.scalar().unwrap_or_else(|| node.kind());
                self.findings.error(
                    node.at,
                    format!("version {text} of the policy language is not known"),
                    "write `version: 1`",
                );
            }
        }
        if let Some((_, node)) = entries.get("default") {
            file.default = self.action(node, "default").map(|action| (action, node.at));
        }
        if let Some((_, node)) = entries.get("sets")
            && !matches!(node.value, Value::Null)
            && let Some(sets) = self.entries(node, "`sets`", &[])
        {
            let mut sets: Vec<_> = sets.into_iter().collect();
            sets.sort_by_key(|(_, (key, _))| (key.at.line, key.at.column));
            file.sets =
                sets.into_iter().filter_map(|(name, (key, node))| self.set(name, key, node)).collect();
        }
        if let Some((_, node)) = entries.get("rules") {
            match &node.value {
                Value::Null => {}
                Value::List(rules) => {
                    file.rules = rules.iter().filter_map(|rule| self.rule(rule)).collect();
                }
                _ => self.findings.error(
                    node.at,
                    format!("`rules` must be a list, this is {}", node.kind()),
                    "begin each rule with `- name: …`",
                ),
            }
        }
        if let Some((key, node)) = entries.get("convert") {
            file.convert = Some(self.convert(key, node));
        }
        file
    }

    fn action(&mut self, node: &Node, what: &str) -> Option<Action> {
        self.word(node, what, &[("allow", Action::Allow), ("deny", Action::Deny)])
    }

    fn set(&mut self, name: &str, key: &Node, node: &Node) -> Option<SetDeclaration> {
        let valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || !name.chars().all(valid) {
            let help = "write letters, digits, `.`, `_` and `-`; the `@` stands only where the set is used";
            self.findings.error(key.at, format!("`{name}` cannot be the name of a set"), help);
            return None;
        }
        let content = match &node.value {
            Value::Map(_) => {
                let entries = self.entries(node, "a set", &["file"])?;
                let Some((_, file)) = entries.get("file") else {
                    self.findings.error(
                        node.at,
                        "the set has neither addresses nor a file",
                        "write `{ file: PATH }`",
                    );
                    return None;
                };
                match file.scalar() {
                    Some(path) if !path.is_empty() => SetContent::File(path.to_owned(), file.at),
                    _ => {
                        let message = format!("`file` must be a path, this is {}", file.kind());
                        self.findings.error(
                            file.at,
                            message,
                            "write the path of a file, relative to this one",
                        );
                        return None;
                    }
                }
            }
            Value::List(items) => {
                let mut builder = AddressSetBuilder::default();
                let mut right = true;
                for item in items {
                    right &= self.set_item(item, &mut builder);
                }
                let set = builder.finish();
                if set.is_empty() && right {
                    let message = format!("the set `{name}` is empty");
                    self.findings.warning(key.at, message, "rules that name only empty sets never match");
                }
                SetContent::Inline(set)
            }
            Value::Scalar(_) => {
                let mut builder = AddressSetBuilder::default();
                self.set_item(node, &mut builder);
                SetContent::Inline(builder.finish())
            }
            Value::Null => {
                self.findings.error(
                    key.at,
                    format!("the set `{name}` has no value"),
                    "write a list, `[]` if it is empty",
                );
                return None;
            }
        };
        Some(SetDeclaration { name: name.to_owned(), at: key.at, content })
    }

    fn set_item(&mut self, item: &Node, builder: &mut AddressSetBuilder) -> bool {
        match item.scalar() {
            Some(text) if text.starts_with('@') => {
                let help = "name both sets where they are used: peer: [\"@a\", \"@b\"]";
                self.findings.error(item.at, format!("a set cannot contain a set: `{text}`"), help);
                false
            }
            Some(text) => self.address(text, item.at, builder),
            None => {
                self.not_address(item);
                false
            }
        }
    }

    fn not_address(&mut self, item: &Node) {
        let help = match item.value {
            // `[2001:db8::]`: YAML takes the last colon for that of a mapping.
            Value::Map(_) => "put IPv6 addresses in quotes: \"2001:db8::\"",
            _ => "write an address as 192.0.2.1 or a CIDR as 10.0.0.0/8",
        };
        self.findings.error(item.at, format!("an address was expected, this is {}", item.kind()), help);
    }

    fn address(&mut self, text: &str, at: At, builder: &mut AddressSetBuilder) -> bool {
        match prefix(text) {
            Ok((prefix, host_bits)) => {
                if host_bits {
                    let message = format!("`{text}` has bits set behind its prefix");
                    self.findings.warning(at, message, format!("the network meant is {prefix}"));
                }
                builder.push(prefix);
                true
            }
            Err(wrong) => {
                self.wrong(at, wrong);
                false
            }
        }
    }

    fn rule(&mut self, node: &Node) -> Option<RuleDeclaration> {
        let known = ["name", "action", "role", "peer", "local", "port", "log", "mode"];
        let entries = self.entries(node, "a rule", &known)?;
        let get = |key: &str| entries.get(key).map(|(_, node)| *node);

        let name = self.rule_name(node, get("name"));
        let action = if let Some(node) = get("action") {
            self.action(node, "action")
        } else {
            let who = name.as_ref().map_or_else(|| "the rule".to_owned(), |name| format!("rule `{name}`"));
            let help = "write `action: allow` or `action: deny`";
            self.findings.error(node.at, format!("{who} has no action"), help);
            None
        };
        let roles = [("client", Some(Role::Client)), ("server", Some(Role::Server)), ("any", None)];
        let role = get("role").and_then(|node| self.word(node, "role", &roles)).flatten();
        let peer = get("peer").map(|node| self.addresses(node, "peer"));
        let local = get("local").map(|node| self.addresses(node, "local"));
        let ports = get("port").map(|node| self.ports(node));
        let log = get("log").and_then(|node| self.word(node, "log", &[("true", true), ("false", false)]));
        let modes = [("enforce", Mode::Enforce), ("shadow", Mode::Shadow)];
        let mode = get("mode").and_then(|node| self.word(node, "mode", &modes));
        let at = entries.get("name").map_or(node.at, |(_, name)| name.at);
        Some(RuleDeclaration {
            name: name?,
            at,
            action: action?,
            role,
            peer,
            local,
            ports,
            log: log.unwrap_or_default(),
            mode: mode.unwrap_or_default(),
        })
    }

    /// The name of the rule at `node`, from what stands behind `name`.
    pub(super) fn rule_name(&mut self, node: &Node, name: Option<&Node>) -> Option<String> {
        match name.map(|node| (node, node.scalar())) {
            Some((_, Some(name))) if !name.is_empty() && !name.chars().any(char::is_control) => {
                Some(name.to_owned())
            }
            Some((node, _)) => {
                self.findings.error(
                    node.at,
                    "a rule's name must be some words in one line",
                    "write `name: my-rule`",
                );
                None
            }
            None => {
                self.findings.error(node.at, "the rule has no name", "write `name: my-rule`");
                None
            }
        }
    }

    /// The items of a value that may be one or a list.
    pub(super) fn items<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.value {
            Value::List(items) if !items.is_empty() => items,
            Value::List(_) | Value::Null => {
                let message = format!("`{what}` is empty, so that the rule could never match");
                self.findings.error(node.at, message, format!("leave `{what}` out to mean any"));
                &[]
            }
            _ => std::slice::from_ref(node),
        }
    }

    fn addresses(&mut self, node: &Node, what: &str) -> AddressList {
        let mut list = AddressList { at: Some(node.at), ..AddressList::default() };
        let mut builder = AddressSetBuilder::default();
        for item in self.items(node, what) {
            match item.scalar() {
                Some(text) => match text.strip_prefix('@') {
                    Some(name) => list.sets.push((name.to_owned(), item.at)),
                    None => {
                        self.address(text, item.at, &mut builder);
                    }
                },
                None => self.not_address(item),
            }
        }
        list.inline = builder.finish();
        list
    }

    fn ports(&mut self, node: &Node) -> Vec<RangeInclusive<u16>> {
        let mut ranges = Vec::new();
        for item in self.items(node, "port") {
            match item.scalar().map(ports) {
                Some(Ok(range)) => ranges.push(range),
                Some(Err(wrong)) => self.wrong(item.at, wrong),
                None => {
                    let message = format!("a port was expected, this is {}", item.kind());
                    self.findings.error(
                        item.at,
                        message,
                        "write a port from 1 to 65535, or a range as 8000-8099",
                    );
                }
            }
        }
        join_ports(ranges)
    }
}
