//! Events as lines for people.

use std::fmt::{self, Display};

use super::event::{Code, Decider, Event, Kind};

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
        let Self { time, role, local, peer, .. } = self;
        let role = role.word();
        match &self.kind {
            Kind::Fallback { code, peer_code, denied_by } => {
                write!(f, "{time:.3} fallback {role} {local} <-> {peer} {code}")?;
                match peer_code {
                    Some(code) => write!(f, ", peer {code}")?,
                    None => f.write_str(", peer -")?,
                }
                match denied_by {
                    Some(decider) => write!(f, ", denied by {decider}"),
                    None => Ok(()),
                }
            }
            Kind::Verdict { verdict, shadow, by } => {
                let shadow = if *shadow { " (shadow: not applied)" } else { "" };
                write!(f, "{time:.3} verdict {role} {local} <-> {peer} {verdict}{shadow} by {by}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Side;
    use super::*;

    fn event(kind: Kind) -> Event {
        Event {
            version: 1,
            time: "2026-01-02T03:04:05.678901Z".parse().unwrap(),
            monotonic: 1,
            netns: 4_026_531_840,
            role: Side::Client,
            local: "10.0.0.1:40000".parse().unwrap(),
            peer: "[2001:db8::1]:443".parse().unwrap(),
            kind,
        }
    }

    #[test]
    fn a_fallback_is_one_line_with_the_rule_that_caused_it() {
        let code = |value, name: Option<&str>| Code { value, name: name.map(str::to_owned) };
        let line = event(Kind::Fallback {
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
            code: code(0x0500_0000, Some("PEERDECL")),
            peer_code: Some(code(0x1234, None)),
            denied_by: None,
        });
        assert!(line.to_string().ends_with(" 0x05000000 PEERDECL, peer 0x00001234"), "{line}");
    }

    #[test]
    fn json_is_flat_and_can_be_read_back() {
        let event = event(Kind::Verdict {
            verdict: "deny".to_owned(),
            shadow: true,
            by: Decider { rule: None, generation: 1 },
        });
        let text = serde_json::to_string(&event).unwrap();
        assert!(text.contains(r#""event":"verdict""#) && text.contains(r#""role":"client""#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
    }
}
