//! How often things happen: counts and rates by code, peer, port, owner and rule.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::filter::{decider_of, service_port};
use crate::trace::FallbackCounts;
use crate::trace::event::{Connection, Event, Kind};

/// Version of the JSON form.
pub const VERSION: u32 = 1;
/// Seconds that a rate is taken over.
const WINDOW: usize = 10;
/// Values that are counted one by one for each property; those that come later are counted together.
pub const DISTINCT: usize = 4096;
const PROPERTIES: usize = Property::ALL.len();

/// What is counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Property {
    /// The code, with the peer's if it gave one.
    Code,
    /// The other end's address.
    Peer,
    /// The port that the service is at.
    Port,
    /// Name of the thread that made the connection, and its cgroup.
    Owner,
    /// The rule that denied.
    Rule,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Code, Self::Peer, Self::Port, Self::Owner, Self::Rule];

    /// As it is written.
    pub fn word(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Peer => "peer",
            Self::Port => "port",
            Self::Owner => "owner",
            Self::Rule => "rule",
        }
    }
}

/// A value of a property with its counts.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The value; of a code its number, and the peer's behind a slash.
    pub value: String,
    /// How often.
    pub count: u64,
    /// How often a second: over the last 10 seconds on a live screen, else over the whole time; `null` if that was
    /// shorter than a second.
    pub per_second: Option<f64>,
}

/// The values of one property, the most frequent first.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Section {
    /// The property.
    pub by: Property,
    /// Its values.
    pub rows: Vec<Row>,
    /// Those that were too many to be counted one by one, together.
    pub others: u64,
}

/// Counts and rates.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Top {
    /// 1
    pub version: u32,
    /// From when on was counted; `null` if nothing was.
    pub from: Option<Timestamp>,
    /// Until when.
    pub to: Option<Timestamp>,
    /// Events that were counted.
    pub counted: u64,
    /// Of them fallbacks.
    pub fallbacks: u64,
    /// Of them handshakes that failed.
    pub handshake_errors: u64,
    /// Of them verdicts, where these were asked for.
    pub verdicts: u64,
    /// Of them denied by the policy.
    pub denied: u64,
    /// Events that the kernel held back; they are in none of the counts.
    pub suppressed: u64,
    /// Events that the kernel lost; they are in none of the counts.
    pub lost: u64,
    /// Events that this program did not get; they are in none of the counts.
    pub missed: u64,
    /// What the kernel itself counted of this network namespace; `null` where it could not be asked.
    pub kernel: Option<FallbackCounts>,
    /// By property.
    pub sections: Vec<Section>,
}

/// Counts of single seconds, the last [`WINDOW`] of them.
#[derive(Clone, Debug, Default)]
struct Tally {
    count: u64,
    /// The second of the newest slot, and the slots by their second modulo their number.
    newest: i64,
    slots: [u32; WINDOW],
}

impl Tally {
    fn add(&mut self, second: i64) {
        self.count += 1;
        self.turn(second);
        // Older than the window: of the count, not of the rate.
        if self.newest - second < WINDOW_SECONDS {
            let slot = &mut self.slots[slot(second)];
            *slot = slot.saturating_add(1);
        }
    }

    /// Forgets the seconds that have left the window.
    fn turn(&mut self, second: i64) {
        let passed = (second - self.newest).clamp(0, WINDOW_SECONDS);
        for second in second - passed + 1..=second {
            self.slots[slot(second)] = 0;
        }
        self.newest = self.newest.max(second);
    }

    /// Events of the last seconds before `second`, that one included.
    fn recent(&self, second: i64) -> u64 {
        let within = |at: i64| second - at < WINDOW_SECONDS && at <= second;
        let seconds = (self.newest - WINDOW_SECONDS + 1)..=self.newest;
        seconds.filter(|at| within(*at)).map(|at| u64::from(self.slots[slot(at)])).sum()
    }
}

const WINDOW_SECONDS: i64 = 10;

fn slot(second: i64) -> usize {
    usize::try_from(second.rem_euclid(WINDOW_SECONDS)).unwrap_or_default()
}

/// Counts events as they come.
#[derive(Clone, Debug)]
pub struct Counts {
    verdicts: bool,
    top: Top,
    tables: [HashMap<String, Tally>; PROPERTIES],
    others: [u64; PROPERTIES],
}

impl Counts {
    /// Nothing yet; with `verdicts`, those are counted as well: of a connection that was denied both its verdict and its
    /// fallback.
    pub fn new(verdicts: bool) -> Self {
        let top = Top {
            version: VERSION,
            from: None,
            to: None,
            counted: 0,
            fallbacks: 0,
            handshake_errors: 0,
            verdicts: 0,
            denied: 0,
            suppressed: 0,
            lost: 0,
            missed: 0,
            kernel: None,
            sections: Vec::new(),
        };
        Self { verdicts, top, tables: Default::default(), others: [0; PROPERTIES] }
    }

    /// Says from when on is counted, if not from the first event on.
    pub fn begin(&mut self, from: Timestamp) {
        self.top.from = Some(from);
    }

    /// What the kernel itself counted.
    pub fn compare(&mut self, kernel: Option<FallbackCounts>) {
        self.top.kernel = kernel;
    }

    /// Events that are known to be missing.
    pub fn miss(&mut self, count: u64) {
        self.top.missed += count;
    }

    /// Counts an event.
    pub fn add(&mut self, event: &Event) {
        let top = &mut self.top;
        match &event.kind {
            Kind::Fallback { denied_by, .. } => {
                top.fallbacks += 1;
                top.denied += u64::from(denied_by.is_some());
            }
            Kind::HandshakeError { .. } => top.handshake_errors += 1,
            Kind::Verdict { verdict, shadow, .. } if self.verdicts => {
                top.verdicts += 1;
                top.denied += u64::from(verdict == "deny" && !shadow);
            }
            Kind::Suppressed { count, .. } => top.suppressed += count,
            Kind::Lost { count } => top.lost += count,
            Kind::Missed { count } => top.missed += count,
            Kind::Verdict { .. } | Kind::LinkDown { .. } | Kind::Policy { .. } => {}
        }
        let Some(connection) = event.connection().filter(|_| self.verdicts || !is_verdict(event)) else {
            return;
        };
        top.counted += 1;
        top.from = Some(top.from.map_or(event.time, |from| from.min(event.time)));
        top.to = Some(top.to.map_or(event.time, |to| to.max(event.time)));
        let second = event.time.as_second();
        for ((property, table), others) in
            Property::ALL.into_iter().zip(&mut self.tables).zip(&mut self.others)
        {
            let Some(value) = value_of(property, connection, &event.kind) else { continue };
            if let Some(tally) = table.get_mut(&value) {
                tally.add(second);
            } else if table.len() < DISTINCT {
                let mut tally = Tally { newest: second, ..Tally::default() };
                tally.add(second);
                table.insert(value, tally);
            } else {
                *others += 1;
            }
        }
    }

    /// The counts, with rates of the last seconds before `now`.
    pub fn live(&self, by: &[Property], rows: usize, now: Timestamp) -> Top {
        let second = now.as_second();
        let rate = |tally: &Tally| Some(to_f64(tally.recent(second)) / to_f64(WINDOW as u64));
        Top { to: Some(now), sections: self.sections(by, rows, &rate), ..self.top.clone() }
    }

    /// The counts, with rates of the whole time: to `to`, or the last event.
    pub fn total(&self, by: &[Property], rows: usize, to: Option<Timestamp>) -> Top {
        let to = to.or(self.top.to);
        let period = self.top.from.zip(to).map(|(from, to)| to.duration_since(from).as_secs_f64());
        let rate =
            |tally: &Tally| period.filter(|period| *period >= 1.0).map(|period| to_f64(tally.count) / period);
        Top { to, sections: self.sections(by, rows, &rate), ..self.top.clone() }
    }

    fn sections(&self, by: &[Property], most: usize, rate: &dyn Fn(&Tally) -> Option<f64>) -> Vec<Section> {
        let all = Property::ALL.into_iter().zip(&self.tables).zip(&self.others);
        let wanted = all.filter(|((property, _), _)| by.contains(property));
        wanted
            .map(|((by, table), others)| {
                let mut rows: Vec<_> = table
                    .iter()
                    .map(|(value, tally)| Row {
                        value: value.clone(),
                        count: tally.count,
                        per_second: rate(tally),
                    })
                    .collect();
                rows.sort_by(|a, b| (Reverse(a.count), &a.value).cmp(&(Reverse(b.count), &b.value)));
                rows.truncate(most);
                Section { by, rows, others: *others }
            })
            .collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
fn to_f64(number: u64) -> f64 {
    number as f64
}

fn is_verdict(event: &Event) -> bool {
    matches!(event.kind, Kind::Verdict { .. })
}

/// The value of a property; `None` where the event does not have it.
fn value_of(property: Property, connection: &Connection, kind: &Kind) -> Option<String> {
    match property {
        Property::Code => Some(match kind {
            Kind::Fallback { code, peer_code: Some(peer), .. } => {
                format!("{:#010x}/{:#010x}", code.value, peer.value)
            }
            Kind::Fallback { code, .. } => format!("{:#010x}", code.value),
            Kind::HandshakeError { error, .. } => match error {
                Some(error) => error.name.clone().unwrap_or_else(|| format!("error {}", error.value)),
                None => "unknown error".to_owned(),
            },
            Kind::Verdict { verdict, .. } => format!("verdict {verdict}"),
            _ => return None,
        }),
        Property::Peer => Some(connection.peer.ip().to_canonical().to_string()),
        Property::Port => Some(service_port(connection).to_string()),
        Property::Owner => Some(connection.owner.as_ref().map_or_else(
            || "(unknown)".to_owned(),
            |owner| match &owner.cgroup {
                Some(cgroup) => format!("{} {cgroup}", owner.comm),
                None => owner.comm.clone(),
            },
        )),
        Property::Rule => {
            decider_of(kind).map(|decider| decider.rule.clone().unwrap_or_else(|| "(default)".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(second: i64, rest: &str) -> Event {
        let time = Timestamp::from_second(1_700_000_000 + second).unwrap();
        let line = format!(r#"{{"version":1,"time":"{time}","monotonic":1,{rest}}}"#);
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn fallback(second: i64, peer: &str, rule: Option<&str>) -> Event {
        let by =
            rule.map_or_else(|| "null".to_owned(), |rule| format!(r#"{{"rule":"{rule}","generation":1}}"#));
        event(
            second,
            &format!(
                r#""event":"fallback","netns":1,"role":"client","local":"10.0.0.1:1","peer":"{peer}:80",
                   "code":{{"value":50397184,"name":"PEERNOSMC"}},"peer_code":null,"denied_by":{by}"#
            ),
        )
    }

    #[test]
    fn events_are_counted_by_every_property() {
        let mut counts = Counts::new(false);
        for second in 0..4 {
            counts.add(&fallback(second, "10.0.0.2", Some("web")));
        }
        counts.add(&fallback(4, "10.0.0.3", None));
        counts.add(&event(4, r#""event":"lost","count":7"#));
        counts.add(&event(4, r#""event":"missed","count":2"#));
        counts.miss(3);
        let now = Timestamp::from_second(1_700_000_004).unwrap();
        let top = counts.live(&Property::ALL, 10, now);
        assert_eq!((top.counted, top.fallbacks, top.denied, top.lost, top.missed), (5, 5, 4, 7, 5));
        let rows = |by: usize| -> Vec<_> {
            top.sections[by].rows.iter().map(|row| (row.value.as_str(), row.count, row.per_second)).collect()
        };
        assert_eq!(rows(0), [("0x03010000", 5, Some(0.5))]);
        assert_eq!(rows(1), [("10.0.0.2", 4, Some(0.4)), ("10.0.0.3", 1, Some(0.1))]);
        assert_eq!(rows(2), [("80", 5, Some(0.5))]);
        assert_eq!(rows(3), [("(unknown)", 5, Some(0.5))]);
        assert_eq!(rows(4), [("web", 4, Some(0.4))]);
        let total = counts.total(&[Property::Peer], 1, None);
        assert_eq!(total.sections.len(), 1);
        assert_eq!(
            total.sections[0].rows,
            [Row { value: "10.0.0.2".into(), count: 4, per_second: Some(1.0) }]
        );
    }

    #[test]
    fn values_without_end_are_counted_together() {
        let mut counts = Counts::new(false);
        for number in 0..DISTINCT + 10 {
            counts.add(&fallback(0, &format!("10.0.{}.{}", number / 256, number % 256), None));
        }
        counts.add(&fallback(0, "10.0.0.0", None));
        let top = counts.total(&[Property::Peer], usize::MAX, None);
        let section = &top.sections[0];
        assert_eq!((section.rows.len(), section.others), (DISTINCT, 10));
        assert_eq!((section.rows[0].value.as_str(), section.rows[0].count), ("10.0.0.0", 2));
        let listed: u64 = section.rows.iter().map(|row| row.count).sum();
        assert_eq!(listed + section.others, top.counted);
        assert_eq!(section.rows[0].per_second, None);
    }

    proptest! {
        #[test]
        fn rates_are_those_of_the_last_seconds(
            steps in proptest::collection::vec(-15_i64..25, 1..60), more in 0_i64..25,
        ) {
            let (mut second, mut seconds) = (1000, Vec::new());
            // As the first event of a value makes it.
            let mut tally = Tally { newest: second + steps[0], ..Tally::default() };
            for step in steps {
                second += step;
                tally.add(second);
                seconds.push(second);
            }
            let now = seconds.iter().max().unwrap() + more;
            let expected = seconds.iter().filter(|second| now - **second < WINDOW_SECONDS).count();
            prop_assert_eq!(tally.recent(now), expected as u64);
            prop_assert_eq!(tally.count, seconds.len() as u64);
        }
    }
}
