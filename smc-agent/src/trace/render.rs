//! Events as lines for people.

use std::fmt::{self, Display};

use super::event::{Code, Connection, Decider, Errno, Event, Kind, Link, PolicyResult};

impl Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08x}", self.value)?;
        match &self.name {
            Some(name) => write!(f, " {name}"),
            None => Ok(()),
        }
    }
}

impl Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rule {
            // Debug form: a name comes from a file, and is shown with everything odd in it escaped.
            Some(rule) => write!(f, "rule {rule:?}"),
            None => f.write_str("the default"),
        }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ", self.time)?;
        match &self.kind {
            Kind::Fallback { connection, code, peer_code, denied_by } => {
                write!(f, "fallback {connection} {code}")?;
                match peer_code {
                    Some(code) => write!(f, ", peer {code}")?,
                    None => f.write_str(", peer -")?,
                }
                match denied_by {
                    Some(decider) => write!(f, ", denied by {decider}"),
                    None => Ok(()),
                }
            }
            Kind::Verdict { connection, verdict, shadow, by } => {
                let shadow = if *shadow { " (shadow: not applied)" } else { "" };
                write!(f, "verdict {connection} {verdict}{shadow} by {by}")
            }
            Kind::HandshakeError { connection, error, peer_code } => {
                write!(f, "handshake_error {connection} ")?;
                match error {
                    Some(Errno { name: Some(name), .. }) => f.write_str(name)?,
                    Some(Errno { value, .. }) => write!(f, "error {value}")?,
                    None => f.write_str("unknown error")?,
                }
                match peer_code {
                    Some(code) => write!(f, ", peer {code}"),
                    None => Ok(()),
                }
            }
            Kind::LinkDown { link } => {
                let Link { device, port, link_group, link, connections, peer_gid, .. } = link;
                // Debug form: nothing that comes from outside gets to a terminal as it is.
                let device = device.as_deref().unwrap_or("?");
                write!(
                    f,
                    "link_down {device:?} port {port} link {link} of link group {link_group:?} to {peer_gid}, \
                     {connections} connections"
                )
            }
            Kind::Policy { result: PolicyResult::Reloaded, generation, .. } => {
                write!(f, "policy reloaded: generation {generation}")
            }
            Kind::Policy { result: PolicyResult::Refused, generation, problems } => {
                write!(f, "policy refused, generation {generation} stays")?;
                problems.iter().try_for_each(|problem| write!(f, "; {}", problem.escape_debug()))
            }
            Kind::Lost { count } => write!(f, "lost {count} events: the kernel's buffer was full"),
            Kind::Suppressed { code, peer, role, count } => {
                write!(f, "suppressed {count} events: {} {peer} {code}", role.word())
            }
            Kind::Missed { count } => write!(f, "missed {count} events: this reader was too slow"),
        }
    }
}

impl Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} <-> {}", self.role.word(), self.local, self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Owner, Seen, Side};
    use super::*;

    fn event(kind: Kind) -> Event {
        Event {
            version: 1,
            time: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
            monotonic: 1,
            run: 1_767_323_045_000,
            seq: Some(7),
            kind,
        }
    }

    fn connection() -> Connection {
        Connection {
            netns: 4_026_531_840,
            netns_cookie: Some(1),
            netns_name: None,
            role: Side::Client,
            local: "10.0.0.1:40000".parse().unwrap(),
            peer: "[2001:db8::1]:443".parse().unwrap(),
            service_port: 443,
            smc_version: Some(2),
            device: Some("mlx5_0".to_owned()),
            owner: Some(Owner {
                pid: 17,
                comm: "a\u{1b}[31m".to_owned(),
                uid: 1000,
                cgroup: Some("/system.slice/a.service".to_owned()),
                container: None,
                seen: Seen::Connect,
            }),
        }
    }

    #[test]
    fn a_fallback_is_one_line_with_the_rule_that_caused_it() {
        let code = |value, name: Option<&str>| Code { value, name: name.map(str::to_owned) };
        let line = event(Kind::Fallback {
            connection: connection(),
            code: code(0x0301_0000, Some("PEERNOSMC")),
            peer_code: None,
            denied_by: Some(Decider { rule: Some("no \u{1b}[31m".to_owned()), generation: 3 }),
        });
        assert_eq!(
            line.to_string(),
            "2026-01-02T03:04:05.678Z fallback client 10.0.0.1:40000 <-> [2001:db8::1]:443 0x03010000 PEERNOSMC, \
             peer -, denied by rule \"no \\u{1b}[31m\""
        );
        let line = event(Kind::Fallback {
            connection: connection(),
            code: code(0x0500_0000, Some("PEERDECL")),
            peer_code: Some(code(0x1234, None)),
            denied_by: None,
        });
        assert!(line.to_string().ends_with(" 0x05000000 PEERDECL, peer 0x00001234"), "{line}");
    }

    #[test]
    fn json_is_flat_and_can_be_read_back() {
        let code = || Code::new(0x0301_0000);
        let kinds = [
            Kind::Fallback { connection: connection(), code: code(), peer_code: None, denied_by: None },
            Kind::Verdict {
                connection: Connection { owner: None, device: None, ..connection() },
                verdict: "deny".to_owned(),
                shadow: true,
                by: Decider { rule: None, generation: 1 },
            },
            Kind::HandshakeError {
                connection: connection(),
                error: Some(Errno::new(104)),
                peer_code: Some(code()),
            },
            Kind::LinkDown {
                link: Link {
                    netns: 1,
                    netns_cookie: None,
                    netns_name: Some("blue".to_owned()),
                    device: Some("rxe\n0".to_owned()),
                    port: 1,
                    link_group: "00000100".to_owned(),
                    link: 1,
                    smc_version: Some(2),
                    local_gid: "10.0.0.1".parse().unwrap(),
                    peer_gid: "fe80::1".parse().unwrap(),
                    connections: 3,
                },
            },
            Kind::Policy { result: PolicyResult::Refused, generation: 3, problems: vec!["a\nb".to_owned()] },
            Kind::Lost { count: 1 },
            Kind::Suppressed {
                code: code(),
                peer: "10.0.0.1".parse().unwrap(),
                role: Side::Server,
                count: u64::MAX,
            },
            Kind::Missed { count: 2 },
        ];
        for kind in kinds {
            let event = event(kind);
            let text = serde_json::to_string(&event).unwrap();
            assert!(text.contains(r#""seq":7,"event":""#), "{text}");
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
            // One line each, whatever is in it.
            assert!(!event.to_string().contains(char::is_control), "{event}");
        }
    }

    #[test]
    fn an_event_of_the_first_release_is_still_read() {
        let text = r#"{"version":1,"time":"2026-01-02T03:04:05.6Z","monotonic":1,"netns":2,"role":"client",
            "local":"10.0.0.1:1","peer":"10.0.0.2:2","event":"fallback","code":{"value":1,"name":null},
            "peer_code":null,"denied_by":null}"#;
        let event: Event = serde_json::from_str(text).unwrap();
        assert_eq!((event.seq, event.connection().unwrap().netns), (None, 2));
    }
}
