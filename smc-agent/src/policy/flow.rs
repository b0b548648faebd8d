//! Flows as people write them.

use smc_agent_common::{Address, Flow, Role};
use std::net::IpAddr;
use thiserror::Error;

/// Why a text is no flow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FlowError {
    /// There is no `->`.
    #[error("`{0}` is no flow; write it as \"10.0.0.1 -> 192.0.2.7:6379\"")]
    Arrow(String),
    /// An end is not an address.
    #[error("`{0}` is not an IP address; IPv6 with a port stands in brackets, as in [2001:db8::1]:443")]
    Address(String),
    /// The right side has no port.
    #[error("`{0}` has no port; the right side is the service, as in 192.0.2.7:6379 or [2001:db8::1]:443")]
    NoPort(String),
    /// A port is not one.
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
}

/// Reads a flow as `10.0.0.1 -> 192.0.2.7:6379` or `[2001:db8::1]:40000 -> [2001:db8::2]:443`.
///
/// The left side is the end that sends the SYN, its port is optional and without meaning; the right side is the
/// service. `role` says which of the two this host is.
pub fn parse_flow(text: &str, role: Role) -> Result<Flow, FlowError> {
    let (left, right) = text.split_once("->").ok_or_else(|| FlowError::Arrow(text.trim().to_owned()))?;
    let (sender, _) = end(left)?;
    let (service, port) = end(right)?;
    let port = port.ok_or_else(|| FlowError::NoPort(right.trim().to_owned()))?;
    Ok(flow(sender, service, port, role))
}

/// The flow of a connection from `sender` to `service`.
pub(super) fn flow(sender: IpAddr, service: IpAddr, port: u16, role: Role) -> Flow {
    let (local, peer) = match role {
        Role::Client => (sender, service),
        Role::Server => (service, sender),
    };
    Flow { peer: Address::from(peer), local: Address::from(local), port, role }
}

/// Writes a flow as [`parse_flow`] reads it.
pub fn format_flow(flow: &Flow) -> String {
    let (local, peer) = (IpAddr::from(flow.local), IpAddr::from(flow.peer));
    let (sender, service) = match flow.role {
        Role::Client => (local, peer),
        Role::Server => (peer, local),
    };
    format!("{sender} -> {}", std::net::SocketAddr::new(service, flow.port))
}

fn end(text: &str) -> Result<(IpAddr, Option<u16>), FlowError> {
    let text = text.trim();
    let wrong = || FlowError::Address(text.to_owned());
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let (address, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']').ok_or_else(wrong)?;
        if !address.contains(':') {
            return Err(wrong());
        }
        match rest.strip_prefix(':') {
            Some(port) => (address, Some(port)),
            None if rest.is_empty() => (address, None),
            None => return Err(wrong()),
        }
    } else {
        let (address, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        if address.contains(':') {
            return Err(wrong());
        }
        (address, Some(port))
    };
    let address = address.parse::<IpAddr>().map_err(|_| wrong())?;
    let port = match port {
        None => None,
        Some(port) => {
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let number = port.parse::<u16>().ok().filter(|number| digits && *number != 0);
            Some(number.ok_or_else(|| FlowError::Port(port.to_owned()))?)
        }
    };
    Ok((address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_roles_and_families() {
        let flow = parse_flow("10.0.0.1 -> 192.0.2.7:6379", Role::Client).unwrap();
        assert_eq!((IpAddr::from(flow.local).to_string(), flow.port), ("10.0.0.1".to_owned(), 6379));
        assert_eq!(format_flow(&flow), "10.0.0.1 -> 192.0.2.7:6379");
        let flow = parse_flow("[2001:db8::1]:40000->[::ffff:10.0.0.2]:443", Role::Server).unwrap();
        assert_eq!(format_flow(&flow), "2001:db8::1 -> 10.0.0.2:443");
        assert_eq!(IpAddr::from(flow.peer).to_string(), "2001:db8::1");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let said = |text| parse_flow(text, Role::Client).unwrap_err().to_string();
        assert_eq!(said("10.0.0.1"), "`10.0.0.1` is no flow; write it as \"10.0.0.1 -> 192.0.2.7:6379\"");
        assert_eq!(
            said("10.0.0.1 -> 10.0.0.2"),
            "`10.0.0.2` has no port; the right side is the service, as in 192.0.2.7:6379 or [2001:db8::1]:443"
        );
        assert_eq!(said("10.0.0.1 -> 10.0.0.2:0"), "`0` is not a port from 1 to 65535");
        assert_eq!(said("10.0.0.1 -> 10.0.0.2:+80"), "`+80` is not a port from 1 to 65535");
        assert_eq!(
            said("10.0.0.1 -> host:80"),
            "`host:80` is not an IP address; IPv6 with a port stands in brackets, as in [2001:db8::1]:443"
        );
        // Could be an address with a port as well as one without.
        assert!(parse_flow("::1 -> ::1:80", Role::Client).is_err());
    }
}
