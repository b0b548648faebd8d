//! In which network namespaces a policy is enforced.

use std::{collections::BTreeMap, fmt, io, str::FromStr};

use crate::netns::{self, Namespace};

/// Stands for the agent's own namespace.
const HOST: &str = "host";
/// Stands for all.
const ALL: &str = "all";

/// In which network namespaces a policy is enforced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// In that of the agent.
    #[default]
    Host,
    /// In all, those that will be made too.
    All,
    /// In those of these names (`host` is the agent's own) or paths, whenever they are there.
    Named(Vec<String>),
}

/// A scope that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScopeError {
    /// A name is empty.
    #[error("an empty name: host, all, or names of network namespaces with commas between them are wanted")]
    Empty,
    /// `all` is one of several.
    #[error("all has every namespace in it: name it alone")]
    AllAndMore,
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Self, ScopeError> {
        let mut names: Vec<String> = Vec::new();
        for name in text.split(',') {
            match name {
                "" => return Err(ScopeError::Empty),
                ALL if text == ALL => return Ok(Self::All),
                ALL => return Err(ScopeError::AllAndMore),
                name if names.iter().any(|known| known == name) => {}
                name => names.push(name.to_owned()),
            }
        }
        Ok(if names == [HOST] { Self::Host } else { Self::Named(names) })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => formatter.write_str(HOST),
            Self::All => formatter.write_str(ALL),
            Self::Named(names) => formatter.write_str(&names.join(",")),
        }
    }
}

/// What of a scope there is at present.
#[derive(Debug)]
pub(super) struct Found {
    /// The namespaces, by inode number.
    pub(super) namespaces: BTreeMap<u32, Namespace>,
    /// What could not be found, in words.
    pub(super) missing: Vec<String>,
}

impl Scope {
    /// Whether namespaces other than the agent's own may belong to it.
    pub(crate) fn has_others(&self) -> bool {
        *self != Self::Host
    }

    /// Finds the namespaces of it. The agent's own is known by no name, so that it is found whatever becomes of names.
    pub(super) fn find(&self) -> io::Result<Found> {
        let own = Namespace::own()?;
        let mut missing = Vec::new();
        let mut namespaces = match self {
            Self::Host => BTreeMap::from([(own.inode, own.clone())]),
            Self::All => {
                let all = netns::all()?;
                if all.denied > 0 {
                    missing.push(format!(
                        "the network namespaces of {} processes are not found (CAP_SYS_PTRACE is needed)",
                        all.denied
                    ));
                }
                let mut found = all.found;
                found.insert(own.inode, own.clone());
                found
            }
            Self::Named(names) => {
                let mut found = BTreeMap::new();
                for name in names {
                    let namespace = if name == HOST { Some(own.clone()) } else { Namespace::named(name)? };
                    match namespace {
                        Some(namespace) => {
                            found.entry(namespace.inode).or_insert(namespace);
                        }
                        None => {
                            missing.push(format!("there is no network namespace {}", name.escape_debug()));
                        }
                    }
                }
                found
            }
        };
        if let Some(found) = namespaces.get_mut(&own.inode) {
            *found = own;
        }
        Ok(Found { namespaces, missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read() {
        let named = |names: &[&str]| Ok(Scope::Named(names.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!("host".parse(), Ok(Scope::Host));
        assert_eq!("host,host".parse(), Ok(Scope::Host));
        assert_eq!("all".parse(), Ok(Scope::All));
        assert_eq!("blue".parse::<Scope>(), named(&["blue"]));
        assert_eq!(
            "blue,host,/run/docker/netns/a,blue".parse(),
            named(&["blue", "host", "/run/docker/netns/a"])
        );
        for text in ["", "blue,", ",blue", "a,,b"] {
            assert_eq!(text.parse::<Scope>(), Err(ScopeError::Empty), "{text:?}");
        }
        assert_eq!("all,blue".parse::<Scope>(), Err(ScopeError::AllAndMore));
        assert_eq!("blue,all".parse::<Scope>(), Err(ScopeError::AllAndMore));
    }

    #[test]
    fn ones_own_namespace_is_found_by_each() {
        let own = Namespace::own().unwrap();
        for scope in
            [Scope::Host, Scope::All, "/proc/self/ns/net".parse().unwrap(), "no-such,host".parse().unwrap()]
        {
            let found = scope.find().unwrap();
            assert_eq!(found.namespaces.get(&own.inode), Some(&own), "{scope:?}");
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        let found = "no-such".parse::<Scope>().unwrap().find().unwrap();
        assert!(found.namespaces.is_empty());
        assert_eq!(found.missing, ["there is no network namespace no-such"]);
    }
}
