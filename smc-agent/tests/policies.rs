//! The policies that people copy do what they say, and judge flows as their test files expect.
use smc_agent::policy::{Limits, compile, explain, flow_tests, load, parse_flow};
use smc_agent_common::Role;
use std::path::{Path, PathBuf};

fn policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies")
}

#[test]
fn every_example_passes_its_tests_without_a_warning() {
    let mut count = 0;
    for entry in std::fs::read_dir(policies()).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        count += 1;
        let test = policies().join("tests").join(file.file_name().unwrap());
        let report = flow_tests::run(&test, &Limits::default()).unwrap_or_else(|error| panic!("{error}"));
        assert!(report.failed.is_empty(), "{}", report.failed[0]);
        assert!(report.warnings.is_empty(), "{}", report.warnings[0]);
        assert!(report.passed > 0);
    }
    assert!(count >= 5);
}

#[test]
fn a_decision_is_explained() {
    let policy = load(&[policies().join("shadow-rollout.yaml")], &Limits::default()).unwrap().policy;
    let table = compile(&policy, 1, &Limits::default()).unwrap();
    let explained = |flow, role| {
        let text = explain(&policy, &table, &parse_flow(flow, role).unwrap()).to_string();
        text.replace(&format!("{}/", policies().display()), "")
    };
    assert_eq!(
        explained("10.0.0.1 -> 10.0.0.2:5432", Role::Client),
        "10.0.0.1 -> 10.0.0.2:5432 (client): allow by rule `proven` (shadow-rollout.yaml:14)\n  \
         not `candidate` (shadow-rollout.yaml:8): matches, would allow, and only reports (mode: shadow)"
    );
    assert_eq!(
        explained("192.0.2.1 -> 10.0.0.2:80", Role::Server),
        "192.0.2.1 -> 10.0.0.2:80 (server): deny by default, no rule matches\n  \
         not `candidate` (shadow-rollout.yaml:8): port 80 is not among its ports\n  \
         not `proven` (shadow-rollout.yaml:14): port 80 is not among its ports"
    );
}

#[test]
fn a_test_file_tells_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let policy = "version: 1\ndefault: deny\nrules: [{name: web, action: allow, port: 443}]\n";
    std::fs::write(folder.path().join("p.yaml"), policy).unwrap();
    let run = |text: &str| {
        let file = folder.path().join("test.yaml");
        std::fs::write(&file, text).unwrap();
        let said = match flow_tests::run(&file, &Limits::default()) {
            Ok(report) => report.failed.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
            Err(error) => error.to_string(),
        };
        said.replace(&format!("{}/", folder.path().display()), "")
    };
    assert_eq!(
        run("policy: p.yaml\nflows:\n  - {flow: '::1 -> [::1]:443', role: client, expect: deny}\n  \
             - {flow: '::1 -> [::1]:80', role: server, expect: deny, rule: web}\n"),
        "test.yaml:3: ::1 -> [::1]:443 (client): expected deny, got allow by `web`\n\
         test.yaml:4: ::1 -> [::1]:80 (server): expected deny by `web`, got deny by default"
    );
    insta::assert_snapshot!("policy_missing", run("policy: q.yaml\nflows: []\n"));
    insta::assert_snapshot!(
        "test_file_wrong",
        run("policy: [p.yaml, [x]]\nflowz: []\nflows:\n  - {flow: '::1', role: both, expect: deny}\n  \
             - {flow: '::1 -> [::1]:1', rule: [a]}\n")
    );
}
