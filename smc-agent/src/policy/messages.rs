//! The exact words of every kind of finding.

use super::*;
use std::fmt::Write;

fn render(result: Result<Loaded, LoadError>, folder: &std::path::Path) -> String {
    let list = match result {
        Ok(loaded) => loaded.warnings,
        Err(LoadError::Invalid(list)) => list,
        Err(error) => return error.to_string(),
    };
    let mut text = String::new();
    for finding in list {
        writeln!(text, "{finding}").unwrap();
    }
    text.replace(&format!("{}/", folder.display()), "")
}

/// What is said of files with these contents; the policy is those whose names end in `.yaml`, by name.
fn said(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    render(load(&[folder.path().to_path_buf()], &Limits::default()), folder.path())
}

fn said_of(text: &str) -> String {
    said(&[("p.yaml", text)])
}

/// A policy around one rule.
fn rule(lines: &str) -> String {
    said_of(&format!("version: 1\ndefault: allow\nrules:\n  - name: r\n    action: deny\n{lines}"))
}

macro_rules! messages {
    ($($name:ident: $said:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!($said);
        }
    )*};
}

messages! {
    empty_file: said_of("");
    comment_only: said_of("# nothing\n");
    not_a_mapping: said_of("- a\n- b\n");
    not_yaml: said_of("version: 1\ndefault: allow\nrules: [\n");
    tab: said_of("version: 1\nrules:\n\t- name: r\n");
    unquoted_set: said_of("version: 1\ndefault: allow\nrules:\n  - {name: r, action: deny, peer: [@public]}\n");
    version_missing: said_of("default: allow\n");
    version_unknown: said_of("version: 2\ndefault: allow\n");
    default_missing: said_of("version: 1\nrules: []\n");
    default_wrong: said_of("version: 1\ndefault: alow\n");
    default_twice: said(&[("a.yaml", "version: 1\ndefault: allow\n"), ("b.yaml", "version: 1\ndefault: deny\n")]);
    unknown_top_key: said_of("version: 1\ndefault: allow\nrulez: []\nextra: 1\n");
    duplicate_top_key: said_of("version: 1\ndefault: allow\nversion: 1\n");
    rules_not_a_list: said_of("version: 1\ndefault: allow\nrules: {name: r}\n");
    rule_not_a_mapping: said_of("version: 1\ndefault: allow\nrules: [deny]\n");
    unknown_key: rule("    acton: deny\n    color: red\n");
    reserved: rule("    netns: blue\n") + &said_of("version: 1\ndefault: allow\nrules: [{name: r, action: auto}]\n");
    duplicate_key: rule("    port: 1\n    port: 2\n");
    no_name_no_action: said_of("version: 1\ndefault: allow\nrules:\n  - port: 1\n  - name: b\n");
    wrong_words: rule("    role: sever\n    mode: test\n    log: yes\n");
    nested_word: rule("    role: [client]\n");
    empty_lists: rule("    peer: []\n    local:\n    port: []\n");
    ports: rule("    port: [0, 70000, 8099-8000, http, 1-, -1, 80-90-100, 99999999999, [1]]\n");
    addresses: rule(
        "    peer:\n      - 10.0.0\n      - 10.0.0.0/33\n      - 2001:db8::/129\n      - 10.0.0.0/255.0.0.0\n      - 10.0.0.0/x\n      - 10.0.0.1-10.0.0.9\n      - '[::1]'\n      - 10.0.0.1:80\n      - fe80::1%eth0\n      - example.org\n      - {a: b}\n      - 01.2.3.4\n      - ''\n"
    );
    ipv6_in_flow_list: rule("    peer: [2001:db8::, 10.0.0.1]\n");
    host_bits: rule("    peer: [10.1.2.3/8, '2001:db8::1/32', '::ffff:10.0.0.1/104']\n");
    unknown_set: said_of(
        "version: 1\ndefault: allow\nsets:\n  public: [10.0.0.0/8]\nrules:\n  - {name: r, action: deny, peer: ['@pubic', '@other']}\n"
    );
    bad_sets: said_of(
        "version: 1\ndefault: allow\nsets:\n  '@a': [10.0.0.1]\n  b: ['@a']\n  c: {path: x}\n  d: {file: [x]}\n  e:\n  f: {}\n  g: [10.0.0.300]\n"
    );
    empty_set: said(&[
        ("p.yaml", "version: 1\ndefault: allow\nsets:\n  a: []\n  b: {file: b.txt}\nrules:\n  - {name: r, action: deny, peer: ['@a', '@b']}\n"),
        ("b.txt", "# none\n\n"),
    ]);
    duplicate_names: said(&[
        ("a.yaml", "version: 1\ndefault: allow\nsets: {s: [10.0.0.1]}\nrules: [{name: r, action: deny, port: 1}]\n"),
        ("b.yaml", "version: 1\nsets: {s: [10.0.0.2]}\nrules: [{name: r, action: deny, port: 2}]\n"),
    ]);
    set_file: said(&[
        ("p.yaml", "version: 1\ndefault: allow\nsets: {a: {file: a.txt}}\n"),
        ("a.txt", "10.0.0.0/8\n  10.0.0.0/40  # too long\n10.1.0.0/8\nnonsense\n"),
    ]);
    set_file_missing: said_of("version: 1\ndefault: allow\nsets:\n  a: {file: none.txt}\n");
    unreachable_rules: said_of(
        "version: 1\ndefault: allow\nsets: {s: [10.0.0.0/8, 11.0.0.0/8]}\nrules:\n  - {name: wide, action: deny, peer: '@s', port: 1-100}\n  - {name: narrow, action: allow, peer: 10.1.0.0/16, port: 80, role: client}\n  - {name: open, action: deny, peer: 10.1.0.0/16}\n  - {name: shadow, action: deny, mode: shadow}\n  - {name: all, action: allow}\n  - {name: late, action: deny, local: '::1'}\n"
    );
    many_errors: {
        let list = (0..60).map(|n| format!("10.0.0.{n}/99")).collect::<Vec<_>>().join("\n");
        said(&[("p.yaml", "version: 1\ndefault: allow\nsets: {a: {file: a.txt}}\n"), ("a.txt", &list)])
            .lines().rev().take(4).collect::<Vec<_>>().join("\n")
    };
    convert_words: said_of(
        "version: 1\ndefault: deny\nconvert:\n  default: yes\n  mode: x\n  rules:\n    - {name: a, action: allow, uid: 0}\n    - {name: b, uid: 0}\n    - {action: on, port: 1}\n    - {name: c, action: on, pid: 12}\n"
    );
    convert_values: said_of(
        "version: 1\ndefault: deny\nconvert:\n  rules:\n    - name: a\n      action: on\n      cgroup: [redis.service, /sys/fs/cgroup/x, /a/../b, '']\n      uid: [www-data, -1, 4294967295, 1.5]\n      gid: []\n      comm: ['', /usr/sbin/nginx, systemd-resolved, [x]]\n      exe: [nginx, /usr/sbin/]\n      netns: [a/b, ..]\n"
    );
    convert_limits: said_of(&format!(
        "version: 1\ndefault: deny\nconvert:\n  rules:\n    - {{name: a, action: on, cgroup: [{}, /{}]}}\n",
        "/x".repeat(32),
        "y".repeat(255)
    ));
    convert_too_many: said_of(&format!(
        "version: 1\ndefault: deny\nconvert:\n  rules:\n{}",
        (0..241).map(|n| format!("    - {{name: r{n}, action: off, uid: {n}}}\n")).collect::<Vec<_>>().concat()
    ));
    convert_no_mapping: said_of("version: 1\ndefault: deny\nconvert: on\n") + &said_of("version: 1\ndefault: deny\nconvert: {rules: {a: b}}\n");
    convert_twice: said(&[
        ("a.yaml", "version: 1\ndefault: deny\nconvert: {default: off, rules: [{name: r, action: on, uid: 1}]}\n"),
        ("b.yaml", "version: 1\nconvert: {default: off, rules: [{name: r, action: on, uid: 2}]}\n"),
    ]);
    convert_unreachable: said_of(
        "version: 1\ndefault: deny\nconvert:\n  rules:\n    - {name: a, action: off, cgroup: /a, uid: [1, 2]}\n    - {name: b, action: on, cgroup: /a/b, uid: 2, comm: x}\n    - {name: c, action: on, cgroup: /ab, uid: 2}\n    - {name: d, action: off}\n    - {name: e, action: on, exe: /bin/x}\n"
    );
    convert_without_listed_peers: said_of("version: 1\ndefault: allow\nconvert:\n  rules: [{name: a, action: on, uid: 1}]\n")
        + &said_of("version: 1\ndefault: deny\nrules: [{name: web, action: allow, port: 80, peer: [0.0.0.0/1, 128.0.0.0/1]}]\nconvert: {default: on}\n");
    convert_with_listed_peers: said_of("version: 1\ndefault: deny\nrules: [{name: lab, action: allow, peer: 10.0.0.0/8}]\nconvert: {default: on}\n")
        + &said_of("version: 1\ndefault: allow\nrules: [{name: lab, action: allow, peer: 10.0.0.0/8}, {name: rest, action: deny}]\nconvert: {default: on}\n")
        + &said_of("version: 1\ndefault: allow\nconvert: {rules: [{name: a, action: off}]}\n");
    long_line: said_of(&format!("version: 1\ndefault: allow\nsets: {{a: [{}10.0.0.0/99]}}\n", "10.0.0.1, ".repeat(60)));
}

#[test]
fn named_files_that_cannot_be_read_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.yaml");
    let error = load(std::slice::from_ref(&missing), &Limits::default()).unwrap_err();
    assert!(matches!(&error, LoadError::Unreadable { path, .. } if *path == missing));
    let error = load(&[folder.path().to_path_buf()], &Limits::default()).unwrap_err();
    assert!(error.to_string().ends_with("the directory holds no policy (*.yaml, *.yml)"), "{error}");
}

#[test]
fn text_that_is_not_utf8_is_located() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.yaml");
    std::fs::write(&file, b"version: 1\ndefault: \xff\n").unwrap();
    let said = render(load(&[file], &Limits::default()), folder.path());
    assert_eq!(said, "p.yaml:2:10: error: this is not UTF-8\n   = help: save the file as UTF-8\n");
}

#[test]
fn a_directory_is_read_in_order_and_without_hidden_names() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("..data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("b.yml"), "version: 1\nrules: [{name: second, action: deny, port: 2}]\n")
        .unwrap();
    std::os::unix::fs::symlink("..data/b.yml", folder.path().join("b.yml")).unwrap();
    let first = "version: 1\ndefault: allow\nsets: {s: ['::ffff:10.0.0.0/104']}\n\
                 rules: [{name: first, action: deny, peer: '@s', port: [8000-8099, 443]}]\n";
    std::fs::write(folder.path().join("a.yaml"), first).unwrap();
    std::fs::write(folder.path().join(".c.yaml"), "no policy").unwrap();
    std::fs::write(folder.path().join("d.txt"), "no policy").unwrap();
    let policy = load(&[folder.path().to_path_buf()], &Limits::default()).unwrap().policy;
    let names: Vec<_> = policy.rules().iter().map(|rule| rule.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert_eq!(policy.rules()[0].ports, Some(vec![443..=443, 8000..=8099]));
    assert_eq!(policy.sets()[0].addresses.v4(), [(0x0a00_0000, 0x0aff_ffff)]);
}
