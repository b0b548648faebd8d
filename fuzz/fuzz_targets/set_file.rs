//! Any bytes as a set file: addresses, or findings that can be shown.
#![no_main]

use std::{cell::LazyCell, fs, path::Path};

use libfuzzer_sys::fuzz_target;
use smc_agent::policy::{Limits, LoadError, compile, load_text};

thread_local! {
    static FOLDER: LazyCell<tempfile::TempDir> = LazyCell::new(|| tempfile::tempdir_in("/dev/shm").unwrap());
}

fuzz_target!(|bytes: &[u8]| {
    FOLDER.with(|folder| {
        let text = "version: 1\ndefault: allow\nsets: {s: {file: s.txt}}\nrules: [{name: r, action: deny, peer: '@s'}]\n";
        fs::write(folder.path().join("s.txt"), bytes).unwrap();
        let policy: &Path = &folder.path().join("p.yaml");
        match load_text(policy, text, &Limits::default()) {
            Ok(loaded) => {
                let set = &loaded.policy.sets()[0].addresses;
                let table = compile(&loaded.policy, 1, &Limits::default()).unwrap();
                // The first and the last address of each prefix are in the set, by the table too.
                for prefix in set.to_prefixes().take(64) {
                    let text = prefix.to_string();
                    let address: std::net::IpAddr = text.split('/').next().unwrap().parse().unwrap();
                    assert!(set.contains(address));
                    let flow = smc_agent_common::Flow {
                        peer: address.into(),
                        local: smc_agent_common::Address::v4(1),
                        port: 1,
                        role: smc_agent_common::Role::Client,
                    };
                    assert_eq!(table.decide(&flow).rule, 0);
                }
            }
            Err(LoadError::Invalid(findings)) => findings.iter().for_each(|finding| drop(finding.to_string())),
            Err(error) => panic!("{error}"),
        }
    });
});
