//! Link groups and links.

use schemars::JsonSchema;
use serde::Serialize;

use super::error::Result;
use crate::netlink::diag::Role;
use crate::netlink::link;
use crate::netlink::smc::{IsmLinkGroup, Link, RdmaLinkGroup, Smc};

/// The link groups of all network namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LinkGroups {
    /// Those of SMC-R.
    pub smcr: Vec<RdmaLinkGroup>,
    /// Those of SMC-D.
    pub smcd: Vec<IsmLinkGroup>,
}

impl LinkGroups {
    /// Reads them.
    pub fn read() -> Result<Self> {
        let mut smc = Smc::open()?;
        Ok(Self { smcr: smc.rdma_link_groups()?, smcd: smc.ism_link_groups()? })
    }
}

/// A link with what its link group and its interface are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ListedLink {
    /// The number of its link group.
    pub link_group: u32,
    /// Which end of the link group this host is.
    pub role: Role,
    /// The interface whose index the link has, in this network namespace.
    pub interface: Option<String>,
    /// The link.
    #[serde(flatten)]
    pub link: Link,
}

/// The links of the SMC-R link groups of all network namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Links {
    /// The links.
    pub links: Vec<ListedLink>,
}

impl Links {
    /// Reads them.
    pub fn read() -> Result<Self> {
        let interfaces = Interfaces::read();
        let links = Smc::open()?.links()?.into_iter().map(|(group, link)| ListedLink {
            link_group: group.id,
            role: group.role,
            interface: interfaces.name(link.interface_index),
            link,
        });
        Ok(Self { links: links.collect() })
    }
}

/// The names of the interfaces of this network namespace.
pub(super) struct Interfaces(Vec<link::Link>);

impl Interfaces {
    /// Reads them; where that fails, none has a name.
    pub(super) fn read() -> Self {
        Self(link::list().unwrap_or_default())
    }

    /// The name of an interface; 0 is no interface.
    pub(super) fn name(&self, index: u32) -> Option<String> {
        let link = self.0.iter().find(|link| index != 0 && link.index == index)?;
        Some(link.name.clone())
    }
}
