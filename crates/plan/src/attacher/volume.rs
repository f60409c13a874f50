//! When a volume's object is no longer kept.

use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::Value;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::Driver;
use super::names::finalizer;
use super::patches::remove_finalizer;
use crate::Plan;
use crate::object::{Target, has_finalizer, is_deleting, subject};

const RELEASE: Rule = Rule("release-volume");

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeChange {
    RemoveFinalizer { volume: Target, patch: Value },
}

/// Whether a change of the volume can matter.
pub fn is_volume_of_interest(driver: &Driver, volume: &PersistentVolume) -> bool {
    !driver.trivial && is_deleting(volume) && has_finalizer(volume, &finalizer(&driver.name))
}

/// Lets a volume go that is being deleted and that no attachment names; `attachments` counts those of any driver.
pub fn decide_volume(driver: &Driver, volume: &PersistentVolume, attachments: usize) -> Plan<VolumeChange> {
    let mut plan = Plan::default();
    let about = || subject(volume);
    if !is_volume_of_interest(driver, volume) {
        plan.rests(RELEASE, about(), Reason::NotBeingDeleted, "It is not being deleted, or not kept by this driver.");
    } else if attachments > 0 {
        let words = format!("{attachments} attachments name it.");
        plan.blocked(RELEASE, about(), Reason::InUse, words);
    } else if let Some(patch) = remove_finalizer(&volume.metadata, &finalizer(&driver.name)) {
        let change = VolumeChange::RemoveFinalizer { volume: Target::of(volume), patch };
        plan.acts(RELEASE, about(), Reason::NotInUse, "No attachment names it.", change);
    }
    plan
}
