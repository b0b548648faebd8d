//! Any text as a policy: it is a policy that compiles and judges, or a list of findings that can be shown.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use smc_agent::policy::{Limits, LoadError, compile, explain, load_text, parse_flow};
use smc_agent_common::Role;

fuzz_target!(|text: &str| {
    match load_text(Path::new("/nonexistent/p.yaml"), text, &Limits::default()) {
        Ok(loaded) => {
            if let Ok(table) = compile(&loaded.policy, 1, &Limits::default()) {
                for (flow, role) in [("10.0.0.1 -> 192.0.2.7:443", Role::Client), ("::1 -> [::]:65535", Role::Server)] {
                    let flow = parse_flow(flow, role).unwrap();
                    let explanation = explain(&loaded.policy, &table, &flow);
                    assert_eq!(explanation.verdict, table.decide(&flow).verdict.into());
                    let _ = explanation.to_string();
                }
            }
            loaded.warnings.iter().for_each(|finding| drop(finding.to_string()));
        }
        Err(LoadError::Invalid(findings)) => {
            assert!(!findings.is_empty());
            findings.iter().for_each(|finding| drop(finding.to_string()));
        }
        Err(error @ LoadError::Unreadable { .. }) => panic!("{error}"),
    }
});
