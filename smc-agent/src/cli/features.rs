//! `smc-agent features`.

use std::process::ExitCode;

use clap::Args;

use super::{Failure, Output, print, print_json};
use crate::features::{Report, State};

#[derive(Debug, Args)]
pub(super) struct FeaturesArguments {
    /// How to write the result
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Have the kernel load the module smc first, as `run` does
    #[arg(long)]
    load_module: bool,
}

pub(super) fn features(arguments: &FeaturesArguments) -> Result<ExitCode, Failure> {
    let report = Report::read(arguments.load_module);
    match arguments.output {
        Output::Json => print_json(&report)?,
        Output::Text => print(format_args!("{}", text(&report)))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report) -> String {
    let mut lines = vec![format!("kernel {}", report.kernel)];
    if !report.missing_capabilities.is_empty() {
        let missing = report.missing_capabilities.join(" and ");
        lines.push(format!("not all is known: {missing} missing (run it as root)"));
    }
    let detail =
        |detail: &Option<String>| detail.as_ref().map(|text| format!("  {text}")).unwrap_or_default();
    lines.push(String::new());
    lines.push(format!("{:5}  {:52}  since", "has", ""));
    for feature in &report.features {
        let since = feature.since.as_deref().unwrap_or("-");
        let line =
            format!("{:5}  {:52}  {since:13}{}", word(feature.state), feature.what, detail(&feature.detail));
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
    lines.push("can".to_owned());
    for ability in &report.abilities {
        let line = format!("{:5}  {:52}{}", word(ability.state), ability.what, detail(&ability.detail));
        lines.push(line.trim_end().to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}

fn word(state: State) -> &'static str {
    match state {
        State::Yes => "yes",
        State::No => "no",
        State::Loadable => "later",
        State::Unknown => "?",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::{Ability, Feature};

    #[test]
    fn each_state_has_its_word() {
        let feature = |id: &str, since: Option<&str>, state, detail: Option<&str>| Feature {
            id: id.to_owned(),
            what: format!("thing {id}"),
            since: since.map(str::to_owned),
            state,
            detail: detail.map(str::to_owned),
        };
        let ability = |id: &str, state, detail: Option<&str>| Ability {
            id: id.to_owned(),
            what: format!("do {id}"),
            state,
            detail: detail.map(str::to_owned),
        };
        let report = Report {
            version: 1,
            kernel: "6.12.48".to_owned(),
            missing_capabilities: vec!["CAP_NET_ADMIN".to_owned()],
            features: vec![
                feature("a", Some("4.11"), State::Yes, Some("module a, loaded")),
                feature("b", Some("5.15 on s390x"), State::No, None),
                feature("c", None, State::Loadable, Some("not loaded")),
                feature("d", Some("6.6"), State::Unknown, Some("not known without CAP_NET_ADMIN")),
            ],
            abilities: vec![
                ability("x", State::Yes, None),
                ability("y", State::No, Some("no thing b (5.15 on s390x)")),
            ],
        };
        insta::assert_snapshot!("features", text(&report));
    }
}
