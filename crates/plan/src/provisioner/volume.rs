//! When a volume that was made for a claim is deleted.

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, Driver, FINALIZER, VolumeChange};
use crate::Plan;
use crate::binding::{PROVISIONED_BY, volume_phase};
use crate::object::{Target, annotation, has_finalizer, is_deleting, subject};

const DELETE: Rule = Rule("delete-volume");

/// What the decision looks at.
#[derive(Clone, Copy, Debug)]
pub struct VolumeObserved<'a> {
    pub volume: &'a PersistentVolume,
    /// How many attachments name it.
    pub attachments: usize,
}

/// Decides whether the volume is to be deleted.
pub fn decide_volume(driver: &Driver, observed: &VolumeObserved<'_>) -> Plan<VolumeChange> {
    let mut plan = Plan::default();
    let volume = observed.volume;
    let about = || subject(volume);
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain");
    let csi = spec.and_then(|s| s.csi.as_ref()).filter(|csi| csi.driver == driver.name);
    if annotation(volume, PROVISIONED_BY) != Some(driver.name.as_str()) || csi.is_none() {
        plan.rests(DELETE, about(), Reason::OtherDriver, "It was not made by this driver.");
        return plan;
    }
    let is_free = matches!(volume_phase(volume), "Released" | "Failed");
    let Some(csi) = csi.filter(|_| policy == "Delete" && is_free) else {
        // A volume that is kept, or whose object a person deleted while a claim has it: nothing of it is deleted here.
        if is_deleting(volume) && has_finalizer(volume, FINALIZER) && policy != "Delete" {
            let change = VolumeChange::LetGo { volume: Target::of(volume) };
            plan.acts(DELETE, about(), Reason::BeingDeleted, "Its policy is to keep what it describes.", change);
        } else {
            plan.rests(
                DELETE,
                about(),
                Reason::InUse,
                format!("It is {}, with policy {policy}.", volume_phase(volume)),
            );
        }
        return plan;
    };
    if is_deleting(volume) && !has_finalizer(volume, FINALIZER) {
        plan.rests(DELETE, about(), Reason::BeingDeleted, "It is deleted; others keep its object.");
    } else if observed.attachments > 0 {
        let words = format!("{} attachments name it.", observed.attachments);
        plan.blocked(DELETE, about(), Reason::InUse, words);
    } else {
        let part = |key| annotation(volume, key).filter(|value| !value.is_empty()).map(str::to_owned);
        let secret = part(DELETION_SECRET_NAME)
            .map(|name| SecretReference { name: Some(name), namespace: part(DELETION_SECRET_NAMESPACE) });
        let change = VolumeChange::Delete { volume: Target::of(volume), handle: csi.volume_handle.clone(), secret };
        plan.acts(DELETE, about(), Reason::NotInUse, "Its claim is gone, and its policy is Delete.", change);
    }
    plan
}
