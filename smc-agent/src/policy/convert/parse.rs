//! Reads the `convert` section of a policy file.

use std::path::PathBuf;

use smc_agent_common::convert::{COMM, MAX_LEVELS, MAX_PATH};

use super::Selectors;
use crate::policy::diagnostic::At;
use crate::policy::literal::Wrong;
use crate::policy::parse::Parser;
use crate::policy::yaml::{Node, Value};

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

/// What a file says of conversion.
#[derive(Default)]
pub(in crate::policy) struct ConvertDeclaration {
    pub(in crate::policy) at: Option<At>,
    pub(in crate::policy) default: Option<(bool, At)>,
    pub(in crate::policy) rules: Vec<ConvertRuleDeclaration>,
}

pub(in crate::policy) struct ConvertRuleDeclaration {
    pub(in crate::policy) name: String,
    pub(in crate::policy) at: At,
    pub(in crate::policy) on: bool,
    pub(in crate::policy) selectors: Selectors,
}

impl Parser<'_, '_> {
    pub(in crate::policy) fn convert(&mut self, key: &Node, node: &Node) -> ConvertDeclaration {
        let mut convert = ConvertDeclaration { at: Some(key.at), ..ConvertDeclaration::default() };
        if matches!(node.value, Value::Null) {
            return convert;
        }
        let Some(entries) = self.entries(node, "`convert`", &["default", "rules"]) else { return convert };
        if let Some((_, node)) = entries.get("default") {
            convert.default = self.word(node, "default", &SWITCH).map(|on| (on, node.at));
        }
        match entries.get("rules").map(|(_, node)| (node, &node.value)) {
            None | Some((_, Value::Null)) => {}
            Some((_, Value::List(rules))) => {
                convert.rules = rules.iter().filter_map(|rule| self.convert_rule(rule)).collect();
            }
            Some((node, _)) => self.findings.error(
                node.at,
                format!("`rules` must be a list, this is {}", node.kind()),
                "begin each rule with `- name: …`",
            ),
        }
        convert
    }

    fn convert_rule(&mut self, node: &Node) -> Option<ConvertRuleDeclaration> {
        const KNOWN: [&str; 9] = ["name", "action", "cgroup", "uid", "gid", "comm", "exe", "netns", "pid"];
        let entries = self.entries(node, "a rule of `convert`", &KNOWN)?;
        let get = |key: &str| entries.get(key).map(|(_, node)| *node);
        let name = self.rule_name(node, get("name"));
        let on = if let Some(node) = get("action") {
            self.word(node, "action", &SWITCH)
        } else {
            let who = name.as_ref().map_or_else(|| "the rule".to_owned(), |name| format!("rule `{name}`"));
            self.findings.error(
                node.at,
                format!("{who} has no action"),
                "write `action: on` or `action: off`",
            );
            None
        };
        if let Some((key, _)) = entries.get("pid") {
            let help = "name the process by `comm`, `exe` or `cgroup`, or start it by `smc-agent exec`";
            self.findings.error(key.at, "a policy cannot name a process id: it lasts longer", help);
        }
        let selectors = Selectors {
            cgroup: get("cgroup").map(|node| self.values("cgroup", node, cgroup)),
            uid: get("uid").map(|node| self.values("uid", node, |text| id(text, "user", "-u"))),
            gid: get("gid").map(|node| self.values("gid", node, |text| id(text, "group", "-g"))),
            comm: get("comm").map(|node| self.values("comm", node, comm)),
            exe: get("exe").map(|node| self.values("exe", node, exe)),
            netns: get("netns").map(|node| self.values("netns", node, netns)),
        };
        let at = entries.get("name").map_or(node.at, |(_, name)| name.at);
        Some(ConvertRuleDeclaration { name: name?, at, on: on?, selectors })
    }

    /// The values of a selector, one or a list.
    fn values<T: PartialEq>(
        &mut self,
        key: &str,
        node: &Node,
        read: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Vec<T> {
        let mut values = Vec::new();
        for item in self.items(node, key) {
            match item.scalar().map(&read) {
                Some(Ok(value)) if values.contains(&value) => {}
                Some(Ok(value)) => values.push(value),
                Some(Err(wrong)) => self.wrong(item.at, wrong),
                None => {
                    let message = format!("a value of `{key}` was expected, this is {}", item.kind());
                    self.findings.error(
                        item.at,
                        message,
                        format!("write `{key}: VALUE` or a list of values"),
                    );
                }
            }
        }
        values
    }
}

/// A path in the cgroup hierarchy, without what makes two texts of one.
pub(crate) fn cgroup(text: &str) -> Result<String, Wrong> {
    let wrong = |message: &str, help: &str| Err((message.to_owned(), help.to_owned()));
    let example = "write the path in the hierarchy, as /proc/PID/cgroup has it: /system.slice/redis.service";
    if !text.starts_with('/') {
        return wrong(&format!("`{text}` is no path of a cgroup"), example);
    }
    if text == "/sys/fs/cgroup" || text.starts_with("/sys/fs/cgroup/") {
        return wrong(&format!("`{text}` has the place where the hierarchy is mounted in it"), example);
    }
    let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| matches!(*part, "." | "..") || part.chars().any(char::is_control)) {
        return wrong(&format!("`{text}` is no path of a cgroup"), example);
    }
    if parts.len() >= MAX_LEVELS as usize {
        return wrong(
            &format!("`{text}` is {} levels deep, at most {} are possible", parts.len(), MAX_LEVELS - 1),
            "name a group above it",
        );
    }
    let path = format!("/{}", parts.join("/"));
    if path.len() >= MAX_PATH {
        return wrong(
            &format!("the path has {} bytes, at most {} are possible", path.len(), MAX_PATH - 1),
            "name a group above it",
        );
    }
    Ok(path)
}

fn id(text: &str, what: &str, option: &str) -> Result<u32, Wrong> {
    let help = format!("write the number of the {what} (`id {option} NAME` tells it)");
    match text.parse::<u32>() {
        // (uid_t)-1 is none.
        Ok(number) if number != u32::MAX && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
        _ => Err((format!("`{text}` is no {what} id"), help)),
    }
}

fn comm(text: &str) -> Result<String, Wrong> {
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err((
            "the name of a process is empty, or no text".to_owned(),
            "write `comm: nginx`".to_owned(),
        ));
    }
    if text.contains('/') && text.starts_with('/') {
        return Err((
            format!("`{text}` is a path"),
            format!("write `exe: {text}`, or the name alone as `ps -o comm` shows it"),
        ));
    }
    if text.len() >= COMM {
        let mut end = COMM - 1;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        return Err((
            format!("`{text}` has {} bytes: the kernel keeps {} of a process' name", text.len(), COMM - 1),
            format!("write `comm: {}`, or use `exe`", &text[..end]),
        ));
    }
    Ok(text.to_owned())
}

fn exe(text: &str) -> Result<PathBuf, Wrong> {
    if !text.starts_with('/') || text.contains('\0') || text.ends_with('/') {
        return Err((
            format!("`{text}` is no absolute path of a program"),
            "write the whole path: /usr/sbin/nginx".to_owned(),
        ));
    }
    Ok(PathBuf::from(text))
}

pub(crate) fn netns(text: &str) -> Result<String, Wrong> {
    let is_name = !text.is_empty() && !text.contains('/') && !matches!(text, "." | "..");
    if text.contains('\0') || !(is_name || text.starts_with('/')) {
        return Err((
            format!("`{text}` is no network namespace"),
            "write a name under /run/netns, or an absolute path".to_owned(),
        ));
    }
    Ok(text.to_owned())
}
