//! What lines look like.

use super::*;
use crate::trace::event::Event;

fn event(rest: &str) -> Event {
    let line = format!(
        r#"{{"version":1,"time":"2026-01-02T03:04:05.678901Z","monotonic":1,"run":1,"seq":1,{rest}}}"#
    );
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
}

const CONNECTION: &str = r#""netns":1,"netns_name":"blue","role":"client","local":"10.0.0.1:40312","peer":"192.0.2.7:6379",
    "service_port":6379,"owner":{"pid":17,"comm":"redis\u001b[31m\u202e","uid":0,"cgroup":"/a","container":null,"seen":"socket"}"#;

fn events() -> Vec<Event> {
    let code = r#"{"value":50397184,"name":"PEERNOSMC"}"#;
    vec![
        event(&format!(
            r#""event":"fallback",{CONNECTION},"code":{code},"peer_code":null,"denied_by":{{"rule":"no-\u001bredis","generation":3}}"#
        )),
        event(
            r#""event":"fallback","netns":1,"role":"server","local":"[2001:db8::1]:443","peer":"[2001:db8:1:2:3:4:5:6]:51844",
               "code":{"value":83886080,"name":"PEERDECL"},"peer_code":{"value":50528257,"name":"NOSMCDDEV"},"denied_by":null"#,
        ),
        event(&format!(
            r#""event":"verdict",{CONNECTION},"verdict":"deny","shadow":true,"by":{{"rule":null,"generation":3}}"#
        )),
        event(&format!(
            r#""event":"handshake_error",{CONNECTION},"error":{{"value":110,"name":"ETIMEDOUT"}},"peer_code":null"#
        )),
        event(
            r#""event":"link_down","netns":1,"netns_cookie":null,"netns_name":null,"device":"mlx\u001b5_0","port":1,
               "link_group":"00000100","link":1,"smc_version":2,"local_gid":"10.0.0.1","peer_gid":"::ffff:10.0.0.2","connections":3"#,
        ),
        event(r#""event":"policy","result":"reloaded","generation":4,"problems":[]"#),
        event(
            r#""event":"policy","result":"refused","generation":4,"problems":["p.yaml:1:1: error:\n\u001b[2J"]"#,
        ),
        event(r#""event":"lost","count":12"#),
        event(&format!(
            r#""event":"suppressed","code":{code},"peer":"192.0.2.7","role":"client","count":99"#
        )),
        event(r#""event":"missed","count":3"#),
    ]
}

fn all(look: Look) -> String {
    let mut columns = Columns::new(look);
    let mut text = columns.heading() + "\n";
    for event in events() {
        text += &(columns.line(&event) + "\n");
    }
    text
}

#[test]
fn lines_have_columns_that_grow() {
    insta::assert_snapshot!("wide", all(Look::default()));
    insta::assert_snapshot!("narrow", all(Look { colour: false, width: Some(80) }));
    let coloured = all(Look { colour: true, width: Some(200) });
    insta::assert_snapshot!("coloured", coloured.replace('\u{1b}', "ESC"));
    // Without its colours it is the same text.
    let mut plain = coloured;
    for colour in [31, 32, 33, 35, 36, 90, 0] {
        plain = plain.replace(&format!("\u{1b}[{colour}m"), "");
    }
    assert_eq!(plain, all(Look { colour: false, width: Some(200) }));
}

#[test]
fn nothing_from_outside_acts_on_a_terminal() {
    let text = all(Look::default());
    let acting = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
    assert_eq!(acting, None, "{text}");
    assert!(text.lines().count() == events().len() + 1, "{text}");
}

#[test]
fn advice_tells_what_to_do() {
    let text: Vec<_> = events().iter().map(|event| advice(event).join("\n")).collect();
    insta::assert_snapshot!("advice", text.join("\n--\n"));
}

#[test]
fn long_owners_are_cut_and_keep_their_number() {
    let long = CONNECTION.replace("redis", "a-long-name\\u001b\\u001b\\u001b");
    let event = event(&format!(
        r#""event":"verdict",{long},"verdict":"deny","shadow":true,"by":{{"rule":null,"generation":3}}"#
    ));
    let owner = owner_of(event.connection().unwrap());
    assert!(owner.ends_with("…[17]") && owner.width() <= OWNER, "{owner}");
}
