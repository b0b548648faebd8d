//! What happens in the kernel while the agent runs: interfaces, network namespaces and module smc come and go, and somebody may
//! clear a selection.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};
use tracing::{info, warn};

use super::{Agent, Reconciliation};
use crate::{
    enforce::Backend,
    kernel::features::{Features, Smc},
    netlink::{link::LinkChange, module::ModuleChange},
    trace::EventSource,
};

/// How often network namespaces are looked for, and selections held.
const LOOK: Duration = Duration::from_secs(1);
/// How often it is looked whether somebody has cleared the one selection, where it is only to be told.
const LOOK_ONLY: Duration = Duration::from_secs(10);

impl Agent {
    /// Follows the kernel's news about interfaces of the network namespace of that number; `None` is the agent's own.
    pub(super) fn follow(&mut self, namespace: Option<i32>, changes: Vec<LinkChange>) {
        for change in changes {
            match change {
                LinkChange::Present(interface) => {
                    if let Err(error) = self.enforcer.cover(namespace, &interface) {
                        warn!("interface {} is not covered: {error}", interface.name);
                    }
                }
                LinkChange::Gone(interface) => self.enforcer.uncover(namespace, &interface),
                LinkChange::Namespaces => self.look_again(),
                LinkChange::Lost => {
                    self.look_again();
                    self.enforcer.cover_all();
                }
            }
        }
    }

    /// When it is to be looked whether namespaces have come, and whether the policy is still asked; `None`: never.
    pub(super) fn looking(&self) -> Option<Interval> {
        let place = &self.options.enforce.place;
        let period = match self.enforcer.backend() {
            _ if place.scope.has_others() => LOOK,
            Backend::HsCtrl if place.hold => LOOK,
            Backend::HsCtrl => LOOK_ONLY,
            Backend::Tc | Backend::Observe => return None,
        };
        let mut look = tokio::time::interval(period);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick comes at once.
        look.reset();
        Some(look)
    }

    pub(super) fn look_again(&mut self) {
        if let Err(error) = self.enforcer.look_again() {
            warn!("network namespaces may be without the policy: {error}");
        }
    }

    /// Takes into account that module smc was loaded or removed.
    pub(super) fn renew(&mut self, change: ModuleChange, source: &mut EventSource) {
        // That the agent's own start loaded it is told too.
        if change == ModuleChange::Loaded && self.features.smc != Smc::Absent {
            return;
        }
        let features = match Features::of_running_kernel(false) {
            Ok(features) => features,
            Err(error) => {
                warn!("module smc was loaded or removed, and the kernel cannot be looked at again: {error}");
                return;
            }
        };
        let is_there = features.smc != Smc::Absent;
        if !is_there {
            info!("module smc was removed: no connection can use SMC");
        }
        let backend = self.enforcer.backend();
        if let Err(error) = self.enforcer.renew(&features) {
            warn!("what module smc brought is not used: {error}");
            return;
        }
        self.features = features;
        if self.enforcer.backend() != backend {
            info!("enforcing by {} from now on", self.enforcer.backend());
        }
        // Before its maps are taken: programs that are loaded refer to them.
        self.start_tracing();
        source.believe_owners_from_now();
        if let Err(error) = source.renew(self.enforcer.ebpf_mut()) {
            warn!("events that are held back are not counted any more: {error}");
        }
        self.reconciliation = Reconciliation::start(is_there);
        if is_there {
            info!("module smc was loaded, and is watched");
        }
    }
}

/// Waits until it is time to look; for ever if it never is.
pub(super) async fn next_look(look: &mut Option<Interval>) {
    match look {
        Some(look) => {
            look.tick().await;
        }
        None => std::future::pending().await,
    }
}
