//! The part of the language that says which new TCP sockets become SMC ones, and of whose.

mod explain;
pub(super) mod parse;

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common::convert::{MAX_CONVERT_RULES, MAX_TIMED};

pub use explain::{ConvertExplanation, PassedOver, SocketOwner, explain_socket};

use super::model::{Action, Mode, Place, Policy};

/// The most rules of `convert`: the rest is for switches.
pub const MAX_RULES: usize = MAX_CONVERT_RULES - MAX_TIMED;

/// Names of processes (15 bytes, as the kernel keeps them) that operators depend on to get at a host, or the host to run:
/// only a rule that names the program converts them. All whose names begin with `systemd` are among them.
pub const LIFE_LINES: [&str; 27] = [
    // Shells from elsewhere.
    "sshd",
    "sshd-session",
    "sshd-auth",
    "dropbear",
    "tailscaled",
    "teleport",
    // Nodes of clusters.
    "kubelet",
    "kube-apiserver",
    "kube-proxy",
    "k3s-server",
    "k3s-agent",
    "etcd",
    // Container runtimes.
    "containerd",
    "containerd-shim",
    "dockerd",
    "docker-proxy",
    "crio",
    "conmon",
    "runc",
    "crun",
    "podman",
    // Agents of clouds and hypervisors.
    "amazon-ssm-agen",
    "aliyun-service",
    "AliYunDun",
    "qemu-ga",
    "cloud-init",
    "NetworkManager",
];

/// The `convert` section.
#[derive(Clone, Debug, Default)]
pub struct Convert {
    /// Whether sockets that no rule matches are converted.
    pub default_on: bool,
    /// Where `default` is; `None` if it is left out.
    pub default_place: Option<Place>,
    /// The rules, in order.
    pub rules: Vec<ConvertRule>,
}

/// A rule of it.
#[derive(Clone, Debug)]
pub struct ConvertRule {
    /// The name, unique among the rules of `convert`.
    pub name: String,
    /// Where it begins.
    pub place: Place,
    /// Whether it converts.
    pub on: bool,
    /// Whose sockets it is about.
    pub selectors: Selectors,
}

/// Whose sockets a rule is about: all that are given must match, and of each list one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Selectors {
    /// Cgroups v2 by their paths in the hierarchy: these and all below them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<Vec<String>>,
    /// Real user ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Vec<u32>>,
    /// Real group ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<Vec<u32>>,
    /// Names of processes, 15 bytes at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<Vec<String>>,
    /// Executables by their paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<Vec<PathBuf>>,
    /// Network namespaces: names under `/run/netns`, or paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<Vec<String>>,
}

impl Selectors {
    /// Whether a program is named: such a rule also converts programs that operators depend on.
    pub fn names_program(&self) -> bool {
        self.comm.is_some() || self.exe.is_some()
    }

    /// Whether only whole namespaces are asked for.
    pub fn only_netns(&self) -> bool {
        let Self { cgroup, uid, gid, comm, exe, netns: _ } = self;
        cgroup.is_none() && uid.is_none() && gid.is_none() && comm.is_none() && exe.is_none()
    }

    /// Whether these match all that `inner` do.
    fn cover(&self, inner: &Self) -> bool {
        fn dimension<T: PartialEq>(outer: Option<&Vec<T>>, inner: Option<&Vec<T>>) -> bool {
            match (outer, inner) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(outer), Some(inner)) => inner.iter().all(|value| outer.contains(value)),
            }
        }
        let groups = match (&self.cgroup, &inner.cgroup) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(outer), Some(inner)) => {
                inner.iter().all(|path| outer.iter().any(|group| is_within(path, group)))
            }
        };
        groups
            && dimension(self.uid.as_ref(), inner.uid.as_ref())
            && dimension(self.gid.as_ref(), inner.gid.as_ref())
            && dimension(self.comm.as_ref(), inner.comm.as_ref())
            && dimension(self.exe.as_ref(), inner.exe.as_ref())
            && dimension(self.netns.as_ref(), inner.netns.as_ref())
    }
}

impl fmt::Display for Selectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list<T: ToString>(values: &[T]) -> String {
            values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        }
        let mut parts = Vec::new();
        let mut add = |name: &str, values: Option<String>| {
            parts.extend(values.map(|values| format!("{name} {values}")));
        };
        add("cgroup", self.cgroup.as_deref().map(list));
        add("uid", self.uid.as_deref().map(list));
        add("gid", self.gid.as_deref().map(list));
        add("comm", self.comm.as_deref().map(list));
        let exe = self.exe.as_deref();
        add("exe", exe.map(|paths| list(&paths.iter().map(|path| path.display()).collect::<Vec<_>>())));
        add("netns", self.netns.as_deref().map(list));
        f.write_str(&if parts.is_empty() { "any process".to_owned() } else { parts.join(", ") })
    }
}

/// Whether a cgroup is `group` or below it; both are paths as rules have them.
pub(crate) fn is_within(path: &str, group: &str) -> bool {
    group == "/" || path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Convert {
    /// Whether anything can be converted.
    pub fn converts(&self) -> bool {
        self.default_on || self.rules.iter().any(|rule| rule.on)
    }

    /// Pairs of a rule that can never match and the earlier rule that covers it.
    pub(super) fn unreachable(&self) -> Vec<(usize, usize)> {
        let covered = |(number, rule): (usize, &ConvertRule)| {
            let cover =
                self.rules[..number].iter().position(|earlier| earlier.selectors.cover(&rule.selectors))?;
            Some((number, cover))
        };
        self.rules.iter().enumerate().filter_map(covered).collect()
    }
}

/// What lets a flow to any address at all use SMC: the default, or a rule; `None` where peers are listed.
///
/// Conversion together with such a policy puts the SMC option into every SYN, also into those over paths whose middleboxes
/// drop it.
pub(super) fn open_to_any(policy: &Policy) -> Option<String> {
    let takes_all = |rule: &super::Rule| {
        rule.role.is_none() && rule.peer.is_none() && rule.local.is_none() && rule.ports.is_none()
    };
    for rule in policy.rules().iter().filter(|rule| rule.mode == Mode::Enforce) {
        let any_peer = rule.peer.as_ref().is_none_or(|peer| {
            let joined = peer.joined();
            joined.v4() == [(0, u32::MAX)] || joined.v6() == [(0, u128::MAX)]
        });
        if rule.action == Action::Allow && any_peer {
            return Some(format!("rule `{}`", rule.name));
        }
        if rule.action == Action::Deny && takes_all(rule) {
            return None;
        }
    }
    (policy.default_action() == Action::Allow).then(|| "`default: allow`".to_owned())
}
