//! `smctest pair`.

use anyhow::Result;
use serde_json::json;
use smc_agent_tests::pair::{self, Pair};

use crate::arguments::Arguments;
use crate::report;

pub(crate) fn run(arguments: &Arguments) -> Result<bool> {
    let ends = pair::run(&Pair {
        server: arguments.server,
        client: arguments.client,
        address: arguments.address(),
        through: None,
        listening: arguments.listening.clone(),
        connecting: arguments.connecting.clone(),
        bytes: arguments.bytes,
        server_netns: arguments.server_netns.clone(),
        client_netns: arguments.client_netns.clone(),
        timeout: arguments.timeout,
    })?;
    if arguments.json {
        let object = json!({
            "client": report::json(&ends.client),
            "server": report::json(&ends.server),
            "connect_us": report::microseconds(ends.connect),
            "bytes": arguments.bytes,
            "intact": ends.intact,
            "problems": ends.problems,
        });
        println!("{object}");
    } else {
        println!("{}", report::text("client", &ends.client));
        println!("{}", report::text("server", &ends.server));
        let data = if ends.intact { "intact" } else { "DAMAGED" };
        println!("pair: connect={}us bytes={} data={data}", ends.connect.as_micros(), arguments.bytes);
        for problem in &ends.problems {
            println!("pair: {problem}");
        }
    }
    Ok(ends.intact)
}
