//! What this program can do on the kernel that was looked at.

use super::{Ability, Feature, Seen, State};
use crate::kernel::{hooks, trial::Trial};

fn ability(id: &str, what: &str, (state, detail): (State, Option<String>)) -> Ability {
    Ability { id: id.to_owned(), what: what.to_owned(), state, detail }
}

type Found = (State, Option<String>);

/// What was found of a feature.
fn found(features: &[Feature], id: &str) -> Found {
    let feature = features.iter().find(|feature| feature.id == id);
    feature.map_or((State::Unknown, None), |feature| (feature.state, feature.detail.clone()))
}

/// Works if all of these are there; else it is missing what the first one says that is not.
fn needs(features: &[Feature], ids: &[&str]) -> Found {
    let lacking = ids.iter().find_map(|id| {
        let feature = features.iter().find(|feature| feature.id == *id)?;
        let since = feature.since.as_ref().map(|since| format!(" ({since})")).unwrap_or_default();
        let why = feature.detail.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        (feature.state != State::Yes)
            .then(|| (feature.state, Some(format!("needs: {}{since}{why}", feature.what))))
    });
    lacking.unwrap_or((State::Yes, None))
}

pub(super) fn abilities(seen: &Seen, features: &[Feature]) -> Vec<Ability> {
    let hs_ctrl = enforce_hs_ctrl(seen, features);
    let tc = enforce_tc(seen, features);
    let fallbacks = told(seen, hooks::NO_FALLBACKS, Some(fallback_way(features)));
    let names = rule_names(&[&hs_ctrl, &tc], &fallbacks);
    let mut abilities = vec![
        ability("enforce-hs-ctrl", "enforce by hs-ctrl", hs_ctrl),
        ability("enforce-tc", "enforce by tc", tc),
        ability("fallback-events", "show fallbacks as they happen", fallbacks),
        ability("rule-names", "name the rule that refused", names),
        ability("owners", "tell whose a connection is", told(seen, hooks::NO_OWNERS, None)),
        ability(
            "owners-unconnected",
            "tell whose an unconnected socket is",
            told(seen, hooks::NO_OWNERS_OF_UNUSED, None),
        ),
        ability(
            "option-roles",
            "tell which side fell back by an option",
            told(seen, hooks::NO_OPTIONS, None),
        ),
        ability(
            "connection-details",
            "tell version and device of a connection that fails",
            told(seen, hooks::NO_SETUPS, None),
        ),
        ability(
            "client-errors",
            "show handshakes that clients fail",
            told(seen, hooks::NO_CLIENT_FAILURES, None),
        ),
        ability(
            "server-errors",
            "show handshakes that servers fail",
            told(seen, hooks::NO_SERVER_FAILURES, None),
        ),
        ability("link-down", "show links that go down", told(seen, hooks::NO_LINKS, None)),
        ability("convert-bpf", "convert sockets by bpf", convert_bpf(seen, features)),
        ability("convert-sysctl", "convert whole namespaces by sysctl", needs(features, &["tcp2smc"])),
        ability("convert-preload", "convert commands by preload", convert_preload(seen)),
    ];
    for (id, what, needed) in SHOWN {
        abilities.push(ability(id, what, needs(features, needed)));
    }
    abilities
}

/// What `show` and `set` need.
const SHOWN: [(&str, &str, &[&str]); 14] = [
    ("show-sockets", "show sockets", &["smc-diag"]),
    ("show-pnet", "show and set pnet", &["genl-pnet"]),
    ("show-info", "show info", &["genl-1"]),
    ("show-linkgroups", "show linkgroups", &["genl-2", "genl-4"]),
    ("show-links", "show links", &["genl-3"]),
    ("show-devices", "show devices", &["genl-5", "genl-6"]),
    ("show-stats", "show stats", &["genl-7"]),
    ("show-fallbacks", "show fallbacks", &["genl-8"]),
    ("show-ueid", "show ueid", &["genl-9"]),
    ("set-ueid", "set ueid", &["genl-10", "genl-11", "genl-12"]),
    ("show-seid", "show seid", &["genl-13"]),
    ("set-seid", "set seid", &["genl-14", "genl-15"]),
    ("show-hs-limit", "show hs-limit", &["genl-16"]),
    ("set-hs-limit", "set hs-limit", &["genl-17", "genl-18"]),
];

/// The result of a trial, where it was made.
fn tried(seen: &Seen, of: fn(&Trial) -> &Result<(), String>) -> Found {
    match seen.trial().map(of) {
        Ok(Ok(())) => (State::Yes, None),
        Ok(Err(why)) => (State::No, Some(why.clone())),
        Err(why) => (State::Unknown, Some(why)),
    }
}

fn enforce_hs_ctrl(seen: &Seen, features: &[Feature]) -> Found {
    match needs(features, &["smc", "hs-ctrl"]) {
        (State::Yes, _) => match tried(seen, |trial| &trial.hs_ctrl) {
            (State::Yes, _) => (State::Yes, Some("the kernel takes both members".to_owned())),
            other => other,
        },
        lacking => lacking,
    }
}

fn enforce_tc(seen: &Seen, features: &[Feature]) -> Found {
    let way = match (found(features, "tcx").0, found(features, "clsact").0) {
        (State::Yes, _) => Ok("by tcx"),
        (State::No, State::Yes) => Ok("by clsact"),
        (State::No, State::Loadable) => Ok("by clsact, whose module is loaded when it is wanted"),
        (State::No, _) => Err((State::No, Some("neither tcx (6.6) nor qdisc clsact".to_owned()))),
        _ => Err((State::Unknown, found(features, "tcx").1)),
    };
    match (way, tried(seen, |trial| &trial.tc)) {
        (Ok(way), (State::Yes, _)) => (State::Yes, Some(way.to_owned())),
        (Ok(_), other) | (Err(other), _) => other,
    }
}

/// Whether events of a kind come; `way` says how.
fn told(seen: &Seen, kind: &'static str, way: Option<String>) -> Found {
    if let Some((state, why)) = seen.without_smc() {
        return (state, Some(why));
    }
    if let Ok(features) = &seen.features
        && let Err(why) = &features.smc_offsets
    {
        return (State::No, Some(why.clone()));
    }
    let trial = match seen.trial() {
        Ok(trial) => trial,
        Err(why) => return (State::Unknown, Some(why)),
    };
    let Some(survey) = &trial.hooks else { return (State::No, trial.tc.clone().err()) };
    // What these record is removed with the owners of the connected, and not asked for without them.
    let depends: &[&str] = match kind {
        hooks::NO_OWNERS_OF_UNUSED | hooks::NO_OPTIONS => &[hooks::NO_OWNERS, kind],
        hooks::NO_SETUPS => &[hooks::NO_OWNERS, hooks::NO_SERVER_FAILURES, kind],
        _ => &[kind],
    };
    match survey.missing.iter().find(|missing| depends.contains(&missing.what)) {
        Some(missing) => (State::No, Some(missing.why.clone())),
        None => (State::Yes, way),
    }
}

fn fallback_way(features: &[Feature]) -> String {
    let tracepoint = found(features, "tracepoint-smc_switch_to_fallback").0 == State::Yes;
    if tracepoint { "by the tracepoint" } else { "by probes, after they happened" }.to_owned()
}

fn rule_names(enforce: &[&Found], fallbacks: &Found) -> Found {
    if fallbacks.0 != State::Yes {
        return fallbacks.clone();
    }
    if enforce.iter().any(|found| found.0 == State::Yes) {
        return (State::Yes, Some("in fallback events of connections that a rule refused".to_owned()));
    }
    let known = enforce.iter().all(|found| found.0 == State::No);
    let state = if known { State::No } else { State::Unknown };
    (state, Some("nothing is enforced, so that no rule refuses".to_owned()))
}

fn convert_bpf(seen: &Seen, features: &[Feature]) -> Found {
    match needs(features, &["ipproto-smc", "update-socket-protocol"]) {
        (State::Yes, _) => tried(seen, |trial| &trial.convert),
        lacking => lacking,
    }
}

fn convert_preload(seen: &Seen) -> Found {
    match seen.without_smc() {
        None => (State::Yes, Some("smc-agent exec --mech preload".to_owned())),
        // The first socket loads the module.
        Some((State::Unknown, _)) => {
            (State::Yes, Some("smc-agent exec --mech preload loads module smc".to_owned()))
        }
        Some((state, why)) => (state, Some(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feature(id: &str, state: State) -> Feature {
        Feature {
            id: id.to_owned(),
            what: format!("the thing {id}"),
            since: Some("6.9".to_owned()),
            state,
            detail: Some("so it was seen".to_owned()),
        }
    }

    #[test]
    fn the_first_thing_that_is_lacking_is_named() {
        let features = [feature("a", State::Yes), feature("b", State::No), feature("c", State::Unknown)];
        assert_eq!(needs(&features, &["a"]), (State::Yes, None));
        let (state, why) = needs(&features, &["a", "b", "c"]);
        assert_eq!((state, why.as_deref()), (State::No, Some("needs: the thing b (6.9): so it was seen")));
        assert_eq!(needs(&features, &["c", "b"]).0, State::Unknown);
    }

    #[test]
    fn a_rule_is_named_only_where_something_is_enforced() {
        let (yes, no, unknown) = ((State::Yes, None), (State::No, None), (State::Unknown, None));
        assert_eq!(rule_names(&[&no, &yes], &yes).0, State::Yes);
        assert_eq!(rule_names(&[&no, &no], &yes).0, State::No);
        assert_eq!(rule_names(&[&no, &unknown], &yes).0, State::Unknown);
        assert_eq!(rule_names(&[&yes, &yes], &no).0, State::No);
    }

    #[test]
    fn all_that_is_shown_needs_features_that_exist() {
        let known: Vec<String> =
            crate::netlink::smc::wanted_commands().iter().map(|it| format!("genl-{}", it.number)).collect();
        for (id, _, needed) in SHOWN {
            for need in needed {
                assert!(
                    known.iter().any(|known| known == need) || ["smc-diag", "genl-pnet"].contains(need),
                    "{id}: {need}"
                );
            }
        }
    }
}
