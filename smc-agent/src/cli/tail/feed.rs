//! Where events come from: standard input, the agent that runs, or this program itself where none does.

use std::io::{self, BufRead as _};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::super::{Failure, privileges};
use super::intake::{Intake, Sink};
use crate::daemon::{ClientError, ObserveOptions, Observer};
use crate::tail::{AgentEvents, Query};

/// The pauses between looks for an agent that has gone.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Takes all of standard input.
pub(in super::super) fn from_stdin(intake: &mut Intake, sink: &mut impl Sink) -> Result<(), Failure> {
    for line in io::stdin().lock().split(b'\n') {
        intake.line(&String::from_utf8_lossy(&line?), sink)?;
    }
    Ok(())
}

/// Takes the events that the agent remembers. False if there is no agent.
pub(in super::super) async fn past(
    events: &AgentEvents,
    since: Option<Timestamp>,
    intake: &mut Intake,
    sink: &mut impl Sink,
) -> Result<bool, Failure> {
    let mut lines = match events.open(&Query { since, follow: false }).await {
        Ok(lines) => lines,
        Err(ClientError::NotRunning { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    while let Some(line) = lines.next().await? {
        intake.line(&line, sink)?;
    }
    Ok(true)
}

/// Takes the events to come, and waits for an agent that goes. If there was none so far (`has_agent`), sees them itself.
pub(in super::super) async fn future(
    events: &AgentEvents,
    begun: Timestamp,
    mut has_agent: bool,
    intake: &mut Intake,
    sink: &mut impl Sink,
) -> Result<(), Failure> {
    let mut gone = false;
    let mut pause = PAUSES.0;
    loop {
        let since = Some(intake.since().unwrap_or(begun));
        match events.open(&Query { since, follow: true }).await {
            Ok(mut lines) => {
                if std::mem::take(&mut gone) {
                    sink.tell("the agent is there again");
                }
                has_agent = true;
                pause = PAUSES.0;
                let reason = loop {
                    match lines.next().await {
                        Ok(Some(line)) => intake.line(&line, sink)?,
                        Ok(None) => break "it ended".to_owned(),
                        Err(error) => break error.to_string(),
                    }
                    if !lines.has_more() {
                        sink.idle()?;
                    }
                };
                gone = true;
                sink.tell(&format!("the agent has gone ({reason}); waiting for it to come back"));
            }
            Err(ClientError::NotRunning { .. }) if !has_agent => return alone(intake, sink).await,
            // Between its end and its next start, or in the midst of its end.
            Err(error) if is_gone(&error) => {
                if !std::mem::replace(&mut gone, true) {
                    sink.tell(&format!("the agent has gone ({error}); waiting for it to come back"));
                }
            }
            Err(error) => return Err(error.into()),
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Whether an agent that gives no answer may be there again later.
fn is_gone(error: &ClientError) -> bool {
    match error {
        ClientError::NotRunning { .. } | ClientError::Http(_) => true,
        // It is stopping.
        ClientError::Refused { status, .. } => status.as_u16() == 503,
        ClientError::NotPermitted { .. } | ClientError::Json(_) => false,
    }
}

/// Sees events without an agent.
async fn alone(intake: &mut Intake, sink: &mut impl Sink) -> Result<(), Failure> {
    privileges::require_for_events("seeing events without an agent")?;
    let mut observer = Observer::start(ObserveOptions { load_module: true, event_rate: 0 })?;
    sink.tell("no agent runs: seeing what happens from now on; no rules, and nothing of the past");
    for missing in observer.missing() {
        sink.tell(&format!("{}: {}", missing.what, missing.why));
    }
    loop {
        let mut seen = Vec::new();
        observer.next_of(|record| intake.may_pass(record), |event| seen.push(event)).await?;
        for event in seen {
            let line = serde_json::to_string(&event).map_err(io::Error::from)?;
            intake.event(event, &line, sink)?;
        }
        sink.idle()?;
    }
}
