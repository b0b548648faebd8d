//! `smc-agent policy …` as users run it: what it writes, and its exit codes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

const POLICY: &str = "\
version: 1
default: allow
sets: {lab: {file: lab.txt}}
rules:
  - {name: lab, action: deny, peer: '@lab', port: 443}
  - {name: all, action: deny, role: server}
";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("p.yaml", POLICY);
    write("lab.txt", "10.20.0.0/16\n192.0.2.7\n");
    write("open.yaml", "version: 1\ndefault: allow\nrules: []\n");
    write("odd.yaml", "version: 1\ndefault: allow\nrules: [{name: r, action: deny, peer: 10.1.2.3/8}]\n");
    write(
        "convert.yaml",
        "version: 1\ndefault: deny\nconvert:\n  rules:\n    - {name: agents, action: off, uid: [0, 994]}\n    \
         - {name: web, action: on, comm: nginx, netns: blue}\n    - {name: rest, action: on, cgroup: /system.slice}\n",
    );
    write("bad.yaml", "version: 1\ndefault: allow\nrules: [{name: r, acton: deny}]\n");
    let flow = |expect: &str| {
        format!(
            "policy: p.yaml\nflows:\n  - {{flow: '10.0.0.1 -> 10.20.0.1:443', role: client, expect: {expect}}}\n"
        )
    };
    write("good-test.yaml", &flow("deny"));
    write("bad-test.yaml", &flow("allow"));
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smc-agent"))
        .args(["--state-dir", "state", "--pin-dir", "pins/none", "policy"])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// What a command did: exit code, standard output, standard error.
fn did(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "$ policy {}\nexit {}\n--- out\n{}--- err\n{}",
        arguments.join(" "),
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr)
    )
}

fn json(folder: &Path, code: i32, arguments: &[&str]) -> serde_json::Value {
    let output = run(folder, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["version"], 1);
    value
}

#[test]
fn check_says_whether_a_policy_is_valid() {
    let folder = folder();
    let folder = folder.path();
    insta::assert_snapshot!("check_valid", did(folder, &["check", "p.yaml"]));
    insta::assert_snapshot!("check_odd", did(folder, &["check", "odd.yaml"]));
    insta::assert_snapshot!("check_bad", did(folder, &["check", "bad.yaml"]));
    insta::assert_snapshot!("check_memory", did(folder, &["check", "p.yaml", "--max-table-memory", "1M"]));
    insta::assert_snapshot!("check_missing", did(folder, &["check", "none.yaml"]));
    let good = json(folder, 0, &["check", "p.yaml", "-o", "json"]);
    assert_eq!((&good["valid"], &good["summary"]["rules"]), (&true.into(), &2.into()));
    assert_eq!(good["summary"]["prefixes"], 2);
    let bad = json(folder, 1, &["check", "bad.yaml", "-o", "json"]);
    assert_eq!((&bad["valid"], &bad["summary"]), (&false.into(), &serde_json::Value::Null));
    insta::assert_snapshot!("check_bad_json", serde_json::to_string_pretty(&bad["diagnostics"]).unwrap());
    assert_eq!(
        json(folder, 1, &["check", "p.yaml", "--max-table-memory", "1K", "-o", "json"])["valid"],
        false
    );
}

#[test]
fn explain_names_the_rule() {
    let folder = folder();
    let folder = folder.path();
    let flow = "10.0.0.1 -> 192.0.2.7:443";
    insta::assert_snapshot!("explain_rule", did(folder, &["explain", "p.yaml", "--flow", flow]));
    insta::assert_snapshot!(
        "explain_server",
        did(folder, &["explain", "p.yaml", "--flow", flow, "--role", "server"])
    );
    insta::assert_snapshot!("explain_bad_flow", did(folder, &["explain", "p.yaml", "--flow", "10.0.0.1"]));
    let object = json(folder, 0, &["explain", "p.yaml", "--flow", flow, "-o", "json"]);
    assert_eq!((&object["verdict"], &object["rule"]), (&"deny".into(), &"lab".into()));
    let object = json(folder, 0, &["explain", "p.yaml", "--flow", "10.0.0.1 -> 10.0.0.2:80", "-o", "json"]);
    assert_eq!((&object["verdict"], &object["rule"]), (&"allow".into(), &serde_json::Value::Null));
    assert_eq!(run(folder, &["explain", "bad.yaml", "--flow", flow]).status.code(), Some(1));
    assert_eq!(run(folder, &["explain", "--flow", flow]).status.code(), Some(2));
    assert_eq!(run(folder, &["explain", "p.yaml", "--running", "--flow", flow]).status.code(), Some(2));
}

#[test]
fn diff_tells_what_changes() {
    let folder = folder();
    let folder = folder.path();
    insta::assert_snapshot!("diff", did(folder, &["diff", "p.yaml", "open.yaml"]));
    insta::assert_snapshot!("diff_one", did(folder, &["diff", "p.yaml"]));
    insta::assert_snapshot!("diff_three", did(folder, &["diff", "--running", "p.yaml", "open.yaml"]));
    let object = json(folder, 0, &["diff", "p.yaml", "p.yaml", "-o", "json"]);
    assert_eq!(object["changes"], serde_json::json!([]));
    assert_eq!(run(folder, &["diff", "p.yaml", "bad.yaml"]).status.code(), Some(1));
    assert_eq!(run(folder, &["diff", "p.yaml", "none.yaml"]).status.code(), Some(2));
}

#[test]
fn test_tells_what_differs() {
    let folder = folder();
    let folder = folder.path();
    insta::assert_snapshot!("test_good", did(folder, &["test", "good-test.yaml"]));
    insta::assert_snapshot!("test_bad", did(folder, &["test", "good-test.yaml", "bad-test.yaml"]));
    insta::assert_snapshot!("test_wrong", did(folder, &["test", "open.yaml"]));
    let object = json(folder, 1, &["test", "good-test.yaml", "bad-test.yaml", "-o", "json"]);
    assert_eq!((&object["passed"], &object["failed"]), (&1.into(), &1.into()));
    assert_eq!(object["files"][1]["failed"][0]["rule"], "lab");
    assert_eq!(run(folder, &["test", "none.yaml"]).status.code(), Some(2));
}

#[test]
fn without_a_policy_in_force_nothing_runs() {
    let folder = folder();
    // Who may not look gets 4, everybody else 1.
    let root = nix::unistd::geteuid().is_root();
    for arguments in [
        &["show"][..],
        &["explain", "--running", "--flow", "::1 -> [::1]:1"],
        &["diff", "--running", "p.yaml"],
    ] {
        let code = run(folder.path(), arguments).status.code();
        assert_eq!(code, Some(if root { 1 } else { 4 }), "{arguments:?}");
    }
    assert_eq!(run(folder.path(), &["show", "--no"]).status.code(), Some(2));
}

#[test]
fn explain_says_whose_sockets_are_converted() {
    let folder = folder();
    let explain = |socket: &str| did(folder.path(), &["explain", "convert.yaml", "--socket", socket]);
    insta::assert_snapshot!("explain_socket_rule", explain("comm=nginx,uid=33,netns=blue"));
    insta::assert_snapshot!("explain_socket_default", explain("comm=nginx,uid=33,cgroup=/user.slice"));
    insta::assert_snapshot!(
        "explain_socket_life_line",
        explain("comm=sshd,uid=1,cgroup=/system.slice/ssh.service")
    );
    insta::assert_snapshot!("explain_socket_wrong", explain("comm=nginx,user=33"));
    insta::assert_snapshot!(
        "explain_socket_and_flow",
        did(
            folder.path(),
            &["explain", "convert.yaml", "--socket", "uid=1", "--flow", "10.0.0.1 -> 10.0.0.2:1"]
        )
    );
}

#[test]
fn the_checked_in_schemas_are_those_of_the_commands() {
    use smc_agent::policy::{Check, ConvertExplanation, Diff, Explanation, flow_tests::Report};
    let schemas = [
        ("check", schemars::schema_for!(Check)),
        ("explain", schemars::schema_for!(Explanation)),
        ("explain-socket", schemars::schema_for!(ConvertExplanation)),
        ("diff", schemars::schema_for!(Diff)),
        ("test", schemars::schema_for!(Report)),
    ];
    for (command, schema) in schemas {
        let path = format!("{}/../docs/schema/policy-{command}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            fs::write(&path, &text).unwrap();
        }
        let checked_in = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(checked_in, text, "run this test with UPDATE_SCHEMA=1 and commit {path}");
    }
}
