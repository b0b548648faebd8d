//! The flags that choose events. `--not` in front of one turns it round, so that their order on the command line counts.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::tail::Pattern;
use crate::tail::filter::{
    CodeFilter, Condition, Filter, FilterError, Term, parse_kind, parse_network, parse_ports, parse_role,
};

/// The chosen events.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct FilterArguments {
    pub(in super::super) filter: Filter,
    /// Whether kinds of events were named.
    pub(in super::super) names_kinds: bool,
}

/// What one use of a flag gives.
type Values = Vec<Condition>;

struct Flag {
    name: &'static str,
    value: &'static str,
    help: &'static str,
    /// Reads one value.
    read: fn(&str) -> Result<Condition, FilterError>,
    /// Whether commas part values; names may have commas in them.
    list: bool,
}

const FLAGS: [Flag; 10] = [
    Flag {
        name: "code",
        value: "CODE",
        help: "Only with this code: 0x03010000, PEERNOSMC, with the peer's 0x05000000/0x03030001, or a class: 0x0303/, 3",
        read: |text| CodeFilter::parse(text).map(Condition::Code),
        list: true,
    },
    Flag {
        name: "peer",
        value: "NETWORK",
        help: "Only where the other end has this address, or one of this network",
        read: |text| parse_network(text).map(Condition::Peer),
        list: true,
    },
    Flag {
        name: "local",
        value: "NETWORK",
        help: "Only where this host has this address, or one of this network",
        read: |text| parse_network(text).map(Condition::Local),
        list: true,
    },
    Flag {
        name: "port",
        value: "PORT",
        help: "Only of the service at this port, or range of ports",
        read: |text| parse_ports(text).map(|(first, last)| Condition::Port(first, last)),
        list: true,
    },
    Flag {
        name: "role",
        value: "ROLE",
        help: "Only where this host is the client, or the server",
        read: |text| parse_role(text).map(Condition::Role),
        list: true,
    },
    Flag {
        name: "rule",
        value: "NAME",
        help: "Only what this rule denied or decided; (default) is the default, and * stands for anything",
        read: |text| Ok(Condition::Rule(Pattern::new(text))),
        list: false,
    },
    Flag {
        name: "netns",
        value: "NAME",
        help: "Only of this network namespace: its name, the number of its inode or its cookie",
        read: |text| Ok(Condition::Netns(Pattern::new(text))),
        list: false,
    },
    Flag {
        name: "comm",
        value: "NAME",
        help: "Only of programs of this name (of the thread, 15 bytes); * stands for anything",
        read: |text| Ok(Condition::Comm(Pattern::new(text))),
        list: false,
    },
    Flag {
        name: "cgroup",
        value: "PATH",
        help: "Only of programs in this cgroup or below it; * stands for anything",
        read: |text| Ok(Condition::Cgroup(Pattern::new(text.trim_end_matches('/')))),
        list: false,
    },
    Flag {
        name: "event",
        value: "KIND",
        help: "Only of this kind: fallback, verdict, handshake_error, link_down, policy, suppressed",
        read: |text| parse_kind(text).map(Condition::Event),
        list: true,
    },
];

const HEADING: &str = "Filters (values of one are alternatives, different ones all have to hold)";

impl Flag {
    fn values(&self, text: &str) -> Result<Values, FilterError> {
        let parts: Vec<_> = if self.list { text.split(',').collect() } else { vec![text] };
        if parts.iter().any(|part| part.trim().is_empty()) {
            return Err(FilterError::Empty);
        }
        parts.into_iter().map(self.read).collect()
    }

    fn argument(&'static self) -> Arg {
        Arg::new(self.name)
            .long(self.name)
            .value_name(self.value)
            .help(self.help)
            .help_heading(HEADING)
            .action(ArgAction::Append)
            .value_parser(|text: &str| self.values(text))
    }
}

/// A flag without a value that may be repeated.
fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .help(help)
        .help_heading(HEADING)
        .action(ArgAction::Append)
        .num_args(0)
        .default_missing_value("true")
}

impl Args for FilterArguments {
    fn augment_args(command: Command) -> Command {
        command
            .args(FLAGS.iter().map(Flag::argument))
            .arg(switch("denied", "Only what the policy denied"))
            .arg(switch("not", "Turns the next filter round"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for FilterArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        // What was given and where; `None` is a `--not`.
        let mut given: Vec<(usize, Option<Values>)> = Vec::new();
        for flag in &FLAGS {
            let values = matches.get_many::<Values>(flag.name).into_iter().flatten();
            let places = matches.indices_of(flag.name).into_iter().flatten();
            given.extend(places.zip(values.cloned().map(Some)));
        }
        let places = |name: &str| matches.indices_of(name).into_iter().flatten().collect::<Vec<_>>();
        given.extend(places("denied").into_iter().map(|place| (place, Some(vec![Condition::Denied]))));
        given.extend(places("not").into_iter().map(|place| (place, None)));
        given.sort_by_key(|(place, _)| *place);

        let (mut terms, mut not) = (Vec::new(), false);
        for (_, values) in given {
            match values {
                None if not => return Err(misplaced()),
                None => not = true,
                Some(values) => {
                    terms.extend(values.into_iter().map(|condition| Term { condition, not }));
                    not = false;
                }
            }
        }
        if not {
            return Err(misplaced());
        }
        let names_kinds = terms.iter().any(|term| !term.not && matches!(term.condition, Condition::Event(_)));
        Ok(Self { filter: Filter::new(terms), names_kinds })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn misplaced() -> Error {
    Error::raw(
        ErrorKind::MissingRequiredArgument,
        "--not stands in front of the filter that it turns round\n",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Filter, Error> {
        let command = FilterArguments::augment_args(Command::new("x").no_binary_name(true));
        FilterArguments::from_arg_matches(&command.try_get_matches_from(words)?).map(|read| read.filter)
    }

    fn terms(words: &[&str]) -> Vec<(Condition, bool)> {
        let filter = read(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        filter.terms().iter().map(|term| (term.condition.clone(), term.not)).collect()
    }

    #[test]
    fn not_turns_the_next_filter_round() {
        let comm = |name: &str| Condition::Comm(Pattern::new(name));
        let port = |port: u16| Condition::Port(port, port);
        assert_eq!(
            terms(&["--comm", "a", "--not", "--comm=b", "--comm", "c,d"]),
            [(comm("a"), false), (comm("b"), true), (comm("c,d"), false)]
        );
        assert_eq!(
            terms(&["--not", "--port=80,443", "--denied", "--port", "1"]),
            [(port(80), true), (port(443), true), (Condition::Denied, false), (port(1), false)]
        );
        assert_eq!(
            terms(&["--denied", "--not", "--denied"]),
            [(Condition::Denied, false), (Condition::Denied, true)]
        );
        assert!(terms(&[]).is_empty());
    }

    #[test]
    fn what_is_wrong_is_told() {
        let error = |words: &[&str]| read(words).unwrap_err().to_string();
        for words in [&["--not"][..], &["--comm", "a", "--not"], &["--not", "--not", "--comm", "a"]] {
            assert!(
                error(words).contains("--not stands in front of the filter"),
                "{words:?}: {}",
                error(words)
            );
        }
        assert!(error(&["--code", "NOSUCH"]).contains("is no code"));
        assert!(error(&["--peer", "10.0.0.300"]).contains("is no address or network"));
        assert!(error(&["--port", "9-8"]).contains("is no port or range"));
        assert!(error(&["--role", "both"]).contains("client and server are"));
        assert!(error(&["--event", "x"]).contains("is no kind of event"));
        assert!(
            error(&["--code", "3,,4"]).contains("a value is empty")
                && error(&["--comm", ""]).contains("empty")
        );
    }
}
