//! The filter against its meaning, written down plainly over the JSON of events.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn event(value: &Value) -> Event {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

const CODES: [u32; 6] = [0x0301_0000, 0x0303_0000, 0x0303_0001, 0x0500_0000, 0x0999_0001, 0x1234];
const ADDRESSES: [&str; 5] = ["10.0.0.1", "10.0.1.1", "192.0.2.7", "2001:db8::1", "::ffff:10.0.0.9"];
const NAMES: [&str; 4] = ["web", "web-2", "db", "(default)"];

fn some<T: Clone + std::fmt::Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(values)
}

fn connection() -> impl Strategy<Value = Value> {
    let ends = (some(&ADDRESSES), some(&ADDRESSES), 1_u16..6, 1_u16..6, any::<bool>());
    (ends, proptest::option::of(some(&NAMES)), any::<bool>(), proptest::option::of(some(&NAMES))).prop_map(
        |((local, peer, local_port, peer_port, client), name, named, owner)| {
            let end = |address: &str, port: u16| std::net::SocketAddr::new(address.parse().unwrap(), port);
            json!({
                "netns": 7, "netns_cookie": 8, "netns_name": name,
                "role": if client { "client" } else { "server" },
                "local": end(local, local_port), "peer": end(peer, peer_port),
                "service_port": if !named { 0 } else if client { peer_port } else { local_port },
                "owner": owner.map(|name| json!({
                    "pid": 1, "comm": name, "uid": 0, "cgroup": format!("/system.slice/{name}/x"), "container": null,
                    "seen": "socket"
                })),
            })
        },
    )
}

fn events() -> impl Strategy<Value = Value> {
    let code = |value: u32| json!({ "value": value, "name": null });
    let decider =
        || proptest::option::of(some(&NAMES[..3])).prop_map(|rule| json!({ "rule": rule, "generation": 1 }));
    let fallback = (connection(), some(&CODES), proptest::option::of(some(&CODES)), proptest::option::of(decider()))
        .prop_map(move |(connection, own, peer, by)| {
            json!({ "event": "fallback", "connection": connection, "code": code(own), "peer_code": peer.map(code), "denied_by": by })
        });
    let verdict = (connection(), any::<bool>(), any::<bool>(), decider()).prop_map(|(connection, deny, shadow, by)| {
        json!({ "event": "verdict", "connection": connection, "verdict": if deny { "deny" } else { "allow" }, "shadow": shadow, "by": by })
    });
    let suppressed = (some(&CODES), some(&ADDRESSES)).prop_map(move |(own, peer)| {
        json!({ "event": "suppressed", "code": code(own), "peer": peer, "role": "client", "count": 3 })
    });
    let others = prop_oneof![
        Just(json!({ "event": "policy", "result": "reloaded", "generation": 2, "problems": [] })),
        Just(json!({ "event": "lost", "count": 2 })),
        Just(json!({ "event": "missed", "count": 2 })),
    ];
    prop_oneof![4 => fallback, 2 => verdict, 1 => suppressed, 1 => others].prop_map(|mut value| {
        // Flat, as it is written.
        let connection = value["connection"].take();
        let object = value.as_object_mut().unwrap();
        object.remove("connection");
        if let Value::Object(fields) = connection {
            object.extend(fields);
        }
        object.extend([
            ("version".to_owned(), json!(1)),
            ("time".to_owned(), json!("2026-01-02T03:04:05Z")),
            ("monotonic".to_owned(), json!(1)),
        ]);
        value
    })
}

/// A flag with a value, as it is written on the command line.
fn flags() -> impl Strategy<Value = (&'static str, String)> {
    let ports = (1_u16..6, 0_u16..3).prop_map(|(first, more)| format!("{first}-{}", first + more));
    prop_oneof![
        some(&["0x03010000", "3", "0x0303/", "0x05000000/0x03030001", "NOSMCDEV", "4660", "0x09/"])
            .prop_map(|text| ("code", text.to_owned())),
        some(&["10.0.0.0/8", "10.0.0.1", "2001:db8::/32", "::/0", "::ffff:10.0.0.9"])
            .prop_map(|text| ("peer", text.to_owned())),
        some(&["10.0.0.0/16", "192.0.2.7"]).prop_map(|text| ("local", text.to_owned())),
        ports.prop_map(|text| ("port", text)),
        some(&["client", "server"]).prop_map(|text| ("role", text.to_owned())),
        some(&["web", "web*", "(default)"]).prop_map(|text| ("rule", text.to_owned())),
        some(&["web", "7", "8", "d*"]).prop_map(|text| ("netns", text.to_owned())),
        some(&["db", "*b*"]).prop_map(|text| ("comm", text.to_owned())),
        some(&["/system.slice", "/system.slice/web", "*/x"]).prop_map(|text| ("cgroup", text.to_owned())),
        some(&["fallback", "verdict", "policy"]).prop_map(|text| ("event", text.to_owned())),
        Just(("denied", String::new())),
    ]
}

fn condition(flag: &str, value: &str) -> Condition {
    match flag {
        "code" => Condition::Code(CodeFilter::parse(value).unwrap()),
        "peer" => Condition::Peer(parse_network(value).unwrap()),
        "local" => Condition::Local(parse_network(value).unwrap()),
        "port" => {
            let (first, last) = parse_ports(value).unwrap();
            Condition::Port(first, last)
        }
        "role" => Condition::Role(parse_role(value).unwrap()),
        "rule" => Condition::Rule(Pattern::new(value)),
        "netns" => Condition::Netns(Pattern::new(value)),
        "comm" => Condition::Comm(Pattern::new(value)),
        "cgroup" => Condition::Cgroup(Pattern::new(value)),
        "event" => Condition::Event(parse_kind(value).unwrap()),
        "denied" => Condition::Denied,
        other => panic!("{other}"),
    }
}

/// Whether a name fits, for the few patterns used here.
fn fits(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(_), Some(_)) => name.contains(pattern.trim_matches('*')),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// The meaning of one flag, over JSON.
fn naive(flag: &str, wanted: &str, event: &Value) -> bool {
    let text = |key: &str| event[key].as_str();
    let address = |key: &str| {
        let text = text(key)?;
        let address = text.parse::<std::net::SocketAddr>().map(|end| end.ip()).or_else(|_| text.parse());
        Some(address.unwrap().to_canonical())
    };
    let inside = |key: &str| {
        let network = wanted.parse::<ipnet::IpNet>().unwrap_or_else(|_| {
            ipnet::IpNet::from(wanted.parse::<std::net::IpAddr>().unwrap().to_canonical())
        });
        // `::/0` holds IPv4 addresses only where they are written within IPv6.
        let mapped = text(key).is_some_and(|text| text.contains("ffff:10.0.0.9"));
        address(key).is_some_and(|address| network.contains(&address) || (mapped && wanted == "::/0"))
    };
    match flag {
        "code" => {
            let (Some(own), peer) = (event["code"]["value"].as_u64(), event["peer_code"]["value"].as_u64())
            else {
                return false;
            };
            match wanted {
                "3" => (0x0300_0000..0x0400_0000).contains(&own),
                "0x0303/" => (0x0303_0000..0x0304_0000).contains(&own),
                "0x09/" => (0x0900_0000..0x0a00_0000).contains(&own),
                "0x05000000/0x03030001" => own == 0x0500_0000 && peer == Some(0x0303_0001),
                "NOSMCDEV" => own == 0x0303_0000,
                "4660" => own == 4660,
                _ => own == 0x0301_0000,
            }
        }
        "peer" | "local" => inside(flag),
        "port" => {
            let (first, last) = wanted.split_once('-').unwrap();
            let key = if text("role") == Some("client") { "peer" } else { "local" };
            let port =
                text(key).filter(|_| event["netns"].is_u64()).map(|end| end.rsplit_once(':').unwrap().1);
            port.is_some_and(|port| {
                (first.parse().unwrap()..=last.parse::<u16>().unwrap()).contains(&port.parse().unwrap())
            })
        }
        "role" => text("role") == Some(wanted),
        "rule" => ["denied_by", "by"].iter().any(|key| {
            event[key].is_object() && fits(wanted, event[key]["rule"].as_str().unwrap_or("(default)"))
        }),
        "netns" => {
            event["netns"].is_u64()
                && (fits(wanted, "7")
                    || fits(wanted, "8")
                    || text("netns_name").is_some_and(|name| fits(wanted, name)))
        }
        "comm" => event["owner"]["comm"].as_str().is_some_and(|name| fits(wanted, name)),
        "cgroup" => event["owner"]["cgroup"].as_str().is_some_and(|path| {
            let parts: Vec<_> = path.split('/').collect();
            (2..=parts.len()).any(|end| fits(wanted, &parts[..end].join("/")))
        }),
        "event" => text("event") == Some(wanted),
        "denied" => {
            event["denied_by"].is_object() || (event["verdict"] == "deny" && event["shadow"] == false)
        }
        other => panic!("{other}"),
    }
}

fn naive_filter(terms: &[(bool, (&str, String))], event: &Value) -> bool {
    if ["lost", "missed"].contains(&event["event"].as_str().unwrap()) {
        return true;
    }
    let mut flags: Vec<_> = terms.iter().map(|(_, (flag, _))| *flag).collect();
    flags.dedup();
    flags.iter().all(|flag| {
        let values =
            |wanted: bool| terms.iter().filter(move |(not, (name, _))| *not == wanted && name == flag);
        let holds = |(_, (flag, value)): &(bool, (&str, String))| naive(flag, value, event);
        let mut positive = values(false);
        let none_asked = values(false).count() == 0;
        (none_asked || positive.any(holds)) && !values(true).any(holds)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn filters_pass_what_their_meaning_says(
        value in events(),
        terms in proptest::collection::vec((proptest::bool::weighted(0.25), flags()), 0..5),
    ) {
        let filter = Filter::new(
            terms.iter().map(|(not, (flag, value))| Term { condition: condition(flag, value), not: *not }).collect(),
        );
        prop_assert_eq!(filter.passes(&event(&value)), naive_filter(&terms, &value), "{:?}\n{}", terms, value);
    }

    #[test]
    fn no_text_ends_the_program(text in ".{0,30}") {
        let _ = (CodeFilter::parse(&text), parse_network(&text), parse_ports(&text), parse_role(&text), parse_kind(&text));
    }
}

#[test]
fn classes_and_codes_are_told_apart() {
    let class = |value, mask| Ok(CodeFilter::Class { value, mask });
    assert_eq!(CodeFilter::parse("3"), class(0x0300_0000, 0xff00_0000));
    assert_eq!(CodeFilter::parse("0x0303/"), class(0x0303_0000, 0xffff_0000));
    assert_eq!(CodeFilter::parse("0303/"), class(0x0303_0000, 0xffff_0000));
    assert_eq!(CodeFilter::parse("0x030301/"), class(0x0303_0100, 0xffff_ff00));
    let code = |code, peer| Ok(CodeFilter::Code(CodeQuery { code, peer }));
    assert_eq!(CodeFilter::parse("33"), code(33, None));
    assert_eq!(CodeFilter::parse("0x05000000/NOUEID"), code(0x0500_0000, Some(0x0303_0008)));
    for wrong in ["0x/", "/", "0x3/", "0xzz/", "0x03010000/", "+3/", "nothing"] {
        assert!(CodeFilter::parse(wrong).is_err(), "{wrong}");
    }
    assert_eq!(parse_ports("80"), Ok((80, 80)));
    assert!(parse_ports("9-8").is_err() && parse_ports("x").is_err() && parse_ports("70000").is_err());
    assert!(parse_network("10.0.0.300").is_err());
}
