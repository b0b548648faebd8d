//! The policy, read anew while the agent runs.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use tracing::warn;

use super::{Agent, conversion, paths, release_memory};
use crate::{
    daemon::{
        status::{Reload, VERSION},
        watch::Watch,
    },
    policy::{self, LoadError, Loaded},
};

/// How often a policy that was refused is tried again, where its files are watched.
const RETRY: Duration = Duration::from_secs(5);

impl Agent {
    /// Reads the policy anew. One that is refused changes nothing.
    pub(super) fn reload(&mut self) -> Reload {
        self.manager.reloading();
        let result = self.load().and_then(|loaded| self.put_into_force(&loaded));
        release_memory();
        self.note(result)
    }

    /// Reads the policy anew after its files have changed. `None` if that is nothing new: the policy in force byte for
    /// byte, or one that was refused for the same reasons before.
    pub(super) fn reload_if_changed(&mut self) -> Option<Reload> {
        let generation = self.enforcer.generation();
        // Before it is read: what changes from here on comes as another change.
        self.watch_again(&[]);
        let result = self.load().and_then(|loaded| {
            self.watch_again(loaded.policy.files());
            if loaded.digest == self.digest { Ok(()) } else { self.put_into_force(&loaded) }
        });
        release_memory();
        let last = self.last_reload.as_ref();
        let news = match &result {
            // Back to what is in force after one that was refused is news too.
            Ok(()) => {
                self.enforcer.generation() != generation || last.is_some_and(|last| last.generation.is_none())
            }
            Err(problems) => last.is_none_or(|last| last.problems != *problems),
        };
        news.then(|| self.note(result))
    }

    /// Reads the policy; on failure, what is wrong with it.
    fn load(&self) -> Result<Loaded, Vec<String>> {
        let loaded = policy::load(&self.options.sources, &self.options.enforce.limits);
        let loaded = loaded.map_err(|error| match error {
            LoadError::Invalid(diagnostics) => diagnostics.iter().map(ToString::to_string).collect(),
            error @ LoadError::Unreadable { .. } => vec![error.to_string()],
        })?;
        for warning in &loaded.warnings {
            warn!("{warning}");
        }
        Ok(loaded)
    }

    fn put_into_force(&mut self, loaded: &Loaded) -> Result<(), Vec<String>> {
        let places = &self.options.enforce.places;
        conversion::check(places, &loaded.policy).map_err(|error| vec![error.to_string()])?;
        let result = self.enforcer.reload(&loaded.policy, &self.options.sources);
        result.map_err(|error| vec![error.to_string()])?;
        self.conversion.apply(places, &loaded.policy);
        self.digest = loaded.digest;
        Ok(())
    }

    /// Keeps what came of a reload for the status.
    fn note(&mut self, result: Result<(), Vec<String>>) -> Reload {
        let time = Timestamp::now();
        let reload = match result {
            Ok(()) => Reload {
                version: VERSION,
                time,
                generation: Some(self.enforcer.generation()),
                problems: Vec::new(),
            },
            Err(problems) => Reload { version: VERSION, time, generation: None, problems },
        };
        self.last_reload = Some(reload.clone());
        reload
    }

    /// Watches the files of the policy as they are now; `more` are known besides its sources.
    fn watch_again(&mut self, more: &[PathBuf]) {
        if let Some(watch) = &mut self.watch
            && let Err(error) = watch.renew(paths(&self.options.sources).chain(paths(more)))
        {
            warn!("changes to the policy may be missed: {error}");
        }
    }
}

/// Waits for a change to the policy's files; for ever if they are not watched. After one that was `last` refused, also
/// for a while only: what it lacks may be in a folder that nothing names as long as it is not valid.
pub(super) async fn changed(watch: &mut Option<Watch>, last: Option<&Reload>) {
    match watch {
        Some(watch) if last.is_some_and(|last| last.generation.is_none()) => {
            // Over time, not a change: fine as well.
            let _ = tokio::time::timeout(RETRY, watch.changed()).await;
        }
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
