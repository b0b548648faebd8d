//! How ends of connections are printed.

use std::time::Duration;

use serde_json::{Map, Value, json};
use smc_agent_tests::pair::{End, Report};

/// One line for people.
pub(crate) fn text(name: &str, end: &End) -> String {
    format!(
        "{name}: {} reason={:#010x} peer_diagnosis={:#010x} {} -> {}",
        end.mode, end.reason, end.peer_diagnosis, end.local, end.peer
    )
}

/// The same for programs; codes are numbers.
pub(crate) fn json(end: &End) -> Value {
    json!({
        "mode": end.mode.to_string(),
        "reason": end.reason,
        "peer_diagnosis": end.peer_diagnosis,
        "local": end.local.to_string(),
        "peer": end.peer.to_string(),
    })
}

/// Prints one end of a connection of `serve` or `connect`.
pub(crate) fn print(name: &str, report: &Report, connect: Option<Duration>, as_json: bool) {
    if as_json {
        let mut object = Map::new();
        object.insert(name.to_owned(), json(&report.end));
        if let Some(connect) = connect {
            object.insert("connect_us".to_owned(), microseconds(connect));
        }
        object.insert("intact".to_owned(), report.problem.is_none().into());
        object.insert("problems".to_owned(), report.problem.iter().cloned().collect());
        println!("{}", Value::Object(object));
    } else {
        let connect = connect.map(|connect| format!(" connect={}us", connect.as_micros()));
        let data =
            report.problem.as_ref().map_or_else(|| "intact".to_owned(), |text| format!("DAMAGED: {text}"));
        println!("{}{} data={data}", text(name, &report.end), connect.unwrap_or_default());
    }
}

/// A duration in whole microseconds.
pub(crate) fn microseconds(duration: Duration) -> Value {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).into()
}
