//! The stream of events: what the ring buffer has, and what it lacks.

use std::{collections::BTreeMap, io, net::Ipv6Addr, time::Duration};

use aya::Ebpf;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smc_agent_common as common;
use thiserror::Error;
use tokio::time::Instant;
use tracing::debug;

use super::{
    builder::{Builder, RuleNames},
    event::{Code, Event, Kind, Side},
    history::HistorySize,
    reader::EventReader,
};
use crate::kernel::hooks::{EventMaps, HooksError, Totals};

/// Events that are held back are counted so long after the last event: they belong to a second that began with one.
const AFTER_THE_SECOND: Duration = Duration::from_millis(1100);

/// Why events cannot be read.
#[derive(Debug, Error)]
pub enum SourceError {
    /// A map could not be used.
    #[error(transparent)]
    Hooks(#[from] HooksError),
    /// The ring buffer could not be waited for.
    #[error("wait for events: {0}")]
    Io(#[from] io::Error),
}

/// What became of the events since the agent started. `produced` is `received + pending + suppressed + lost`, each of which is
/// counted by itself; `unaccounted` is what they differ by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EventStats {
    /// Version of this form.
    pub version: u32,
    /// The run, as in events.
    pub run: u64,
    /// Events that the kernel side had.
    pub produced: u64,
    /// Those of them that were read from the buffer: each is an event of the stream.
    pub received: u64,
    /// Those of them that are in the buffer still, as the buffer itself says.
    pub pending: u64,
    /// Those of them that `--event-rate` held back.
    pub suppressed: u64,
    /// Those of them that found the buffer full.
    pub lost: u64,
    /// What is missing from `produced`: 0, but for events that happened while the numbers were read.
    #[serde(default)]
    pub unaccounted: i64,
    /// Events of the stream, which has further ones of the agent's own: the number of the last.
    pub published: u64,
    /// The last events, for those who ask later.
    pub history: HistorySize,
    /// Readers of the control socket's stream at present.
    pub readers: u64,
    /// The kernel's own count; `None` where it has none (before 5.14) or cannot be asked.
    pub fallbacks: Option<FallbackCounts>,
}

/// Fallbacks of this network namespace as the kernel itself counts them, against those that the stream had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FallbackCounts {
    /// Fallbacks from before the agent started.
    pub before_start: u64,
    /// Fallbacks since.
    pub since_start: u64,
    /// Those of them that the stream had.
    pub shown: u64,
    /// Those of them that it had not: lost, held back, or not seen at all.
    pub not_shown: u64,
}

/// Reads events, and keeps account of them.
pub struct EventSource {
    reader: EventReader,
    maps: EventMaps,
    builder: Builder,
    /// Totals when this began, so that what is received from then on adds up.
    base: Totals,
    last: Totals,
    held_back: BTreeMap<common::RateKey, u64>,
    limited: bool,
    look_again: Option<Instant>,
    received: u64,
    /// Fallbacks of this program's own network namespace.
    shown: u64,
}

impl EventSource {
    /// Reads from the maps of `ebpf`; with `limited`, the kernel side may hold events back. Within a tokio runtime.
    pub fn new(ebpf: &mut Ebpf, limited: bool) -> Result<Self, SourceError> {
        let (ring, maps) = EventMaps::take(ebpf)?;
        let reader = EventReader::new(ring)?;
        // An earlier agent may have left records, which are this one's to read: they count as produced since the start.
        let taken = reader.taken();
        let base = maps.totals()?;
        let base = Totals { produced: taken + base.lost + base.suppressed, ..base };
        Ok(Self {
            reader,
            held_back: maps.suppressed()?,
            maps,
            builder: Builder::new(),
            base,
            last: base,
            limited,
            look_again: None,
            received: 0,
            shown: 0,
        })
    }

    /// Goes on with an object that was loaded again with the same pinned maps. What that object does not pin begins anew.
    pub fn renew(&mut self, ebpf: &mut Ebpf) -> Result<(), SourceError> {
        let (_, maps) = EventMaps::take(ebpf)?;
        self.held_back = maps.suppressed()?;
        self.maps = maps;
        Ok(())
    }

    /// Owners in verdicts from before now are not to be believed: to be called once they are recorded.
    pub fn believe_owners_from_now(&mut self) {
        self.builder.believe_owners_from_now();
    }

    /// Waits for events, and hands some of them to `take`. Nothing is lost if this is dropped while it waits.
    pub async fn next(
        &mut self,
        names: &mut dyn RuleNames,
        take: impl FnMut(Event),
    ) -> Result<(), SourceError> {
        self.next_of(|_| true, names, take).await
    }

    /// The same, of records that `wanted` says may be of interest; the others are numbered and counted, and nothing is made of
    /// them, which takes most of the time that an event takes.
    pub async fn next_of(
        &mut self,
        wanted: impl Fn(&common::Event) -> bool,
        names: &mut dyn RuleNames,
        mut take: impl FnMut(Event),
    ) -> Result<(), SourceError> {
        let Self { reader, builder, shown, .. } = self;
        let own = builder.namespaces.own();
        let mut is_first = true;
        let read = reader.read(|record| {
            if std::mem::take(&mut is_first) {
                builder.look_at_the_clock();
            }
            *shown +=
                u64::from(record.kind == common::EventKind::Fallback as u16 && Some(record.netns) == own);
            if !wanted(record) {
                builder.pass_over(record);
            } else if let Some(event) = builder.event(record, names) {
                take(event);
            } else {
                debug!("a record of unknown kind {}", record.kind);
            }
        });
        let look_again = self.look_again;
        tokio::select! {
            result = read => {
                let (count, is_empty) = result?;
                self.received += count;
                if self.limited && count > 0 {
                    self.look_again = Some(Instant::now() + AFTER_THE_SECOND);
                }
                // While there is more to read there is no time to look for what is not there.
                if is_empty {
                    self.tell_missing(&mut take)?;
                }
            }
            () = until(look_again) => {
                self.look_again = None;
                self.tell_missing(&mut take)?;
            }
        }
        Ok(())
    }

    /// The run, as in events.
    pub fn run(&self) -> u64 {
        self.builder.run()
    }

    /// An event of the agent's own, that happens now.
    pub fn own_event(&mut self, kind: Kind) -> Event {
        self.builder.now(kind)
    }

    /// Makes events of what was lost and held back since the last time.
    fn tell_missing(&mut self, take: &mut dyn FnMut(Event)) -> Result<(), SourceError> {
        let now = self.maps.totals()?;
        let last = std::mem::replace(&mut self.last, now);
        if now.lost > last.lost {
            take(self.builder.now(Kind::Lost { count: now.lost - last.lost }));
        }
        if now.suppressed > last.suppressed {
            let held_back = self.maps.suppressed()?;
            for (key, total) in &held_back {
                // An entry that was pushed out of the map begins again.
                let before = self.held_back.get(key).copied().filter(|before| before <= total).unwrap_or(0);
                if *total > before {
                    take(self.builder.now(suppressed(key, total - before)));
                }
            }
            self.held_back = held_back;
        }
        Ok(())
    }

    /// What became of events until now. Each number is counted where it arises: that they add up is a check.
    pub fn stats(&self) -> Result<EventStats, SourceError> {
        /// Looks until no event happened during one.
        const LOOKS: usize = 8;
        let mut stats = self.look()?;
        for _ in 1..LOOKS {
            if stats.unaccounted == 0 {
                break;
            }
            stats = self.look()?;
        }
        Ok(stats)
    }

    fn look(&self) -> Result<EventStats, SourceError> {
        let pending = self.reader.pending();
        let now = self.maps.totals()?;
        let lost = now.lost - self.base.lost;
        let suppressed = now.suppressed - self.base.suppressed;
        let produced = now.produced - self.base.produced;
        let accounted = self.received + pending + suppressed + lost;
        Ok(EventStats {
            version: super::event::VERSION,
            run: self.builder.run(),
            produced,
            received: self.received,
            pending,
            suppressed,
            lost,
            unaccounted: produced.cast_signed() - accounted.cast_signed(),
            published: self.builder.made(),
            ..EventStats::default()
        })
    }

    /// Fallbacks of this program's own network namespace that the stream had.
    pub fn shown(&self) -> u64 {
        self.shown
    }
}

fn suppressed(key: &common::RateKey, count: u64) -> Kind {
    let role = if key.role == common::Role::Client as u32 { Side::Client } else { Side::Server };
    let peer = Ipv6Addr::from(key.peer).to_canonical();
    Kind::Suppressed { code: Code::new(key.code), peer, role, count }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
