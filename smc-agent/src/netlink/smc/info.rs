//! What the kernel says of its SMC.

use schemars::JsonSchema;
use serde::Serialize;

use crate::netlink::error::Result;
use crate::netlink::wire::Attributes;

// The attributes of the enumeration that begins with SMC_NLA_SYS_UNSPEC.
const VERSION: u16 = 1;
const RELEASE: u16 = 2;
const IS_ISM_V2: u16 = 3;
const LOCAL_HOST: u16 = 4;
const SEID: u16 = 5;
const IS_SMCR_V2: u16 = 6;

/// The answer to `SMC_NETLINK_GET_SYS_INFO`. What the kernel did not send is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SystemInfo {
    /// The SMC version.
    pub version: Option<u8>,
    /// The release within the version.
    pub release: Option<u8>,
    /// Whether SMC-D version 2 is possible.
    pub ism_v2: Option<bool>,
    /// Whether SMC-R version 2 is possible.
    pub smcr_v2: Option<bool>,
    /// The host name that peers see.
    pub local_host: Option<String>,
    /// The system EID; `None` also where the kernel's is empty (dibs loopback).
    pub seid: Option<String>,
}

impl SystemInfo {
    pub(super) fn parse(attributes: Attributes<'_>) -> Result<Self> {
        let mut info = Self::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind {
                VERSION => info.version = Some(attribute.u8()?),
                RELEASE => info.release = Some(attribute.u8()?),
                IS_ISM_V2 => info.ism_v2 = Some(attribute.u8()? != 0),
                IS_SMCR_V2 => info.smcr_v2 = Some(attribute.u8()? != 0),
                LOCAL_HOST => info.local_host = Some(attribute.text().trim_end().to_owned()),
                SEID => {
                    info.seid = Some(attribute.text().trim_end().to_owned()).filter(|eid| !eid.is_empty());
                }
                _ => {}
            }
        }
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::Request;

    #[test]
    fn known_attributes_are_read_and_unknown_ones_skipped() {
        let bytes = Request::new(0, "test")
            .attribute(VERSION, &[2])
            .attribute(99, &[1, 2, 3])
            .attribute(IS_ISM_V2, &[0])
            .text(LOCAL_HOST, "host  ")
            .encode(0, 0)
            .unwrap();
        let info = SystemInfo::parse(Attributes::new(&bytes[16..])).unwrap();
        let expected = SystemInfo {
            version: Some(2),
            ism_v2: Some(false),
            local_host: Some("host".to_owned()),
            ..SystemInfo::default()
        };
        assert_eq!(info, expected);
        assert!(SystemInfo::parse(Attributes::new(&bytes[16..bytes.len() - 5])).is_err());
    }
}
