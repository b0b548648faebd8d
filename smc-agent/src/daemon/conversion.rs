//! The agent's part in conversion: puts a policy's rules into force, and follows what their names lead to.

use std::time::Duration;

use tracing::{info, warn};

use super::watch::Watch;
use crate::{
    convert::{self, ConvertError, ConvertRecord, Mechanism, check_sysctl, followed, resolution},
    enforce::Places,
    policy::Policy,
};

/// How often names are looked up again that lead nowhere: a namespace is mounted after its file is made, which no change tells.
const RETRY: Duration = Duration::from_secs(1);

/// What rules name, as it was when they were put into force.
#[derive(Default)]
pub(super) struct Conversion {
    watch: Option<Watch>,
    resolved: Vec<Option<(u64, u64)>>,
    /// Why not all is converted that is to be.
    problem: Option<String>,
}

/// Refuses rules that this kernel's mechanism cannot do. That there is none is not the policy's fault.
pub(super) fn check(places: &Places, policy: &Policy) -> Result<(), ConvertError> {
    let Some(convert) = policy.convert().filter(|convert| convert.converts()) else { return Ok(()) };
    if convert::mechanism(places) == Ok(Mechanism::Sysctl) {
        let mut record = ConvertRecord::default();
        record.set_policy(Some(convert));
        check_sysctl(&record)?;
    }
    Ok(())
}

impl Conversion {
    /// Puts the rules of a policy into force, with the switches that there are.
    pub(super) fn apply(&mut self, places: &Places, policy: &Policy) {
        // Most policies say nothing of it, and nothing is touched then.
        if policy.convert().is_none() && !places.convert_record().exists() {
            return;
        }
        let result = convert::change(places, |record| {
            record.set_policy(policy.convert());
            Ok(())
        });
        match result {
            Ok(record) => {
                self.problem = None;
                if let Some(mechanism) = record.mechanism {
                    info!(
                        "converting sockets by {mechanism}, {} rules; sockets that exist already stay as they are",
                        record.rules.len()
                    );
                    for warning in convert::warnings(None) {
                        warn!("conversion: {warning}");
                    }
                }
                self.follow(&record);
                // What changed between the look-up of names and the watch would be missed.
                if self.watch.is_some()
                    && let Err(error) = convert::change(places, |_| Ok(()))
                {
                    warn!("conversion: {error}");
                }
            }
            Err(error) => {
                warn!("conversion is not as the policy says: {error}");
                self.problem = Some(error.to_string());
                self.follow(&ConvertRecord::default());
            }
        }
    }

    /// Watches what rules name from now on.
    fn follow(&mut self, record: &ConvertRecord) {
        self.watch = None;
        self.resolved = resolution(record);
        if self.resolved.is_empty() || record.mechanism != Some(Mechanism::Bpf) {
            return;
        }
        let files = followed(record);
        match Watch::new(files.iter().map(std::path::PathBuf::as_path)) {
            Ok(watch) => self.watch = Some(watch),
            Err(error) => {
                warn!("programs and namespaces that rules of conversion name are not followed: {error}");
            }
        }
    }

    /// Waits until what rules name may be something else; for ever if they name nothing that can.
    pub(super) async fn changed(&mut self) {
        match &mut self.watch {
            Some(watch) if self.resolved.iter().any(Option::is_none) => {
                // Over time, not a change: fine as well.
                let _ = tokio::time::timeout(RETRY, watch.changed()).await;
            }
            Some(watch) => watch.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Puts the rules into force anew if their names lead elsewhere by now.
    pub(super) fn refresh(&mut self, places: &Places) {
        let record = match ConvertRecord::read(places) {
            Ok(record) => record,
            Err(error) => {
                warn!("conversion: {error}");
                return;
            }
        };
        if resolution(&record) == self.resolved {
            return;
        }
        match convert::change(places, |_| Ok(())) {
            Ok(record) => {
                info!("rules of conversion follow programs or namespaces that have changed");
                self.follow(&record);
            }
            Err(error) => warn!("conversion does not follow a change: {error}"),
        }
    }

    /// Why not all is converted that is to be.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }
}
