//! Why a process' sockets are converted or not; also the language's meaning, written down plainly, that tests compare the
//! compiled rules with.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Serialize;

use super::{Convert, ConvertRule, LIFE_LINES, is_within, parse};
use crate::policy::model::Place;

/// Whose socket it is, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOwner {
    /// Path of the cgroup.
    pub cgroup: Option<String>,
    /// Real user id.
    pub uid: Option<u32>,
    /// Real group id.
    pub gid: Option<u32>,
    /// Name of the process.
    pub comm: Option<String>,
    /// Path of the executable.
    pub exe: Option<PathBuf>,
    /// Name or path of the network namespace.
    pub netns: Option<String>,
}

impl FromStr for SocketOwner {
    type Err = String;

    /// Reads `comm=nginx,uid=33`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut owner = Self::default();
        for part in text.split(',').map(str::trim) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not KEY=VALUE, as uid=33"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("`{value}` is no number"));
            let twice = match key {
                "cgroup" => owner.cgroup.replace(parse::cgroup(value).map_err(|(what, _)| what)?).is_some(),
                "uid" => owner.uid.replace(number()?).is_some(),
                "gid" => owner.gid.replace(number()?).is_some(),
                "comm" => owner.comm.replace(value.to_owned()).is_some(),
                "exe" => owner.exe.replace(PathBuf::from(value)).is_some(),
                "netns" => owner.netns.replace(value.to_owned()).is_some(),
                _ => return Err(format!("`{key}` is not one of cgroup, uid, gid, comm, exe, netns")),
            };
            if twice {
                return Err(format!("`{key}` stands there twice"));
            }
        }
        Ok(owner)
    }
}

impl fmt::Display for SocketOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exe = self.exe.as_ref().map(|path| path.display().to_string());
        let parts = [
            ("cgroup", self.cgroup.clone()),
            ("uid", self.uid.map(|id| id.to_string())),
            ("gid", self.gid.map(|id| id.to_string())),
            ("comm", self.comm.clone()),
            ("exe", exe),
            ("netns", self.netns.clone()),
        ];
        let given = parts.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value?)));
        f.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

/// What becomes of a process' TCP sockets, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ConvertExplanation {
    /// Version of this form.
    pub version: u32,
    /// The process, as it can be written.
    pub socket: String,
    /// Whether its new sockets are converted.
    pub converted: bool,
    /// The name of the rule that decided; `None` (null) for the default.
    pub rule: Option<String>,
    /// Where that rule is.
    pub place: Option<Place>,
    /// It would be converted if it were not a program that operators depend on, which no rule names.
    pub life_line: bool,
    /// Every rule before the one that decided, in order.
    pub earlier: Vec<PassedOver>,
}

/// A rule that did not decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PassedOver {
    /// Its name.
    pub rule: String,
    /// Where it is.
    pub place: Place,
    /// The first of its selectors that does not match.
    pub selector: &'static str,
    /// That in words.
    pub text: String,
}

/// Explains what `convert` does with sockets of `owner`. What is not known of it matches no rule that asks for it.
pub fn explain_socket(convert: &Convert, owner: &SocketOwner) -> ConvertExplanation {
    let mut earlier = Vec::new();
    let mut decider: Option<&ConvertRule> = None;
    for rule in &convert.rules {
        let Some((selector, text)) = mismatch(rule, owner) else {
            decider = Some(rule);
            break;
        };
        earlier.push(PassedOver { rule: rule.name.clone(), place: rule.place.clone(), selector, text });
    }
    let on = decider.map_or(convert.default_on, |rule| rule.on);
    let named = decider.is_some_and(|rule| rule.selectors.names_program());
    let is_life_line =
        owner.comm.as_deref().is_some_and(|comm| comm.starts_with("systemd") || LIFE_LINES.contains(&comm));
    let life_line = on && !named && is_life_line;
    ConvertExplanation {
        version: 1,
        socket: owner.to_string(),
        converted: on && !life_line,
        rule: decider.map(|rule| rule.name.clone()),
        place: decider.map(|rule| rule.place.clone()),
        life_line,
        earlier,
    }
}

/// The first selector that does not match.
fn mismatch(rule: &ConvertRule, owner: &SocketOwner) -> Option<(&'static str, String)> {
    fn of<T>(
        name: &'static str,
        asked: Option<&Vec<T>>,
        given: Option<&T>,
        text: impl Fn(&T) -> String,
        matches: impl Fn(&T, &T) -> bool,
    ) -> Option<(&'static str, String)> {
        let asked = asked?;
        match given {
            Some(given) if asked.iter().any(|value| matches(given, value)) => None,
            Some(given) => Some((name, format!("{name} {} is not among its own", text(given)))),
            None => Some((name, format!("asks for {name}, which was not given"))),
        }
    }
    let asks = &rule.selectors;
    let same_text = |a: &String, b: &String| a == b;
    let same_number = |a: &u32, b: &u32| a == b;
    of("cgroup", asks.cgroup.as_ref(), owner.cgroup.as_ref(), Clone::clone, |path, group| {
        is_within(path, group)
    })
    .or_else(|| of("uid", asks.uid.as_ref(), owner.uid.as_ref(), ToString::to_string, same_number))
    .or_else(|| of("gid", asks.gid.as_ref(), owner.gid.as_ref(), ToString::to_string, same_number))
    .or_else(|| of("comm", asks.comm.as_ref(), owner.comm.as_ref(), Clone::clone, same_text))
    .or_else(|| {
        let text = |path: &PathBuf| path.display().to_string();
        of("exe", asks.exe.as_ref(), owner.exe.as_ref(), text, |a, b| a == b)
    })
    .or_else(|| of("netns", asks.netns.as_ref(), owner.netns.as_ref(), Clone::clone, same_text))
}

impl fmt::Display for ConvertExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.converted { "converted" } else { "stays TCP" };
        write!(f, "{}: {what}", self.socket)?;
        match (&self.rule, &self.place) {
            (Some(rule), Some(place)) => write!(f, " by rule `{rule}` ({place})")?,
            _ => write!(f, " by default, no rule matches")?,
        }
        if self.life_line {
            write!(f, ", but that names no program, and operators depend on this one")?;
        }
        for passed in &self.earlier {
            write!(f, "\n  not `{}` ({}): {}", passed.rule, passed.place, passed.text)?;
        }
        Ok(())
    }
}
