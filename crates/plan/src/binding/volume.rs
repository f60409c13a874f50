//! What becomes of a volume.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{BOUND_BY_CONTROLLER, Change, PROVISIONED_BY, claim_ref, matching, volume_name, volume_phase};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, annotation, name, subject, uid};

const PHASE: Rule = Rule("volume-phase");

/// What is known of the claim that a volume points to.
#[derive(Clone, Copy, Debug)]
pub enum Claim<'a> {
    Found(&'a PersistentVolumeClaim),
    /// It was not seen, or seen with another uid; it may exist all the same.
    Unknown,
    /// The API server has no such claim.
    Gone,
}

/// Decides about one volume.
pub fn decide(volume: &PersistentVolume, claim: Claim<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let wanted = claim_ref(volume).and_then(|r| r.uid.as_deref()).filter(|uid| !uid.is_empty());
    let Some(wanted) = wanted else {
        phase(&mut plan, volume, "Available", "No claim has the volume.");
        return plan;
    };
    let released = matches!(volume_phase(volume), "Released" | "Failed");
    match claim {
        Claim::Found(claim) if uid(claim) == wanted => claimed(&mut plan, volume, claim),
        Claim::Found(_) | Claim::Unknown if !released => {
            let reference = claim_ref(volume).expect("a volume with a claim's uid must point to a claim");
            let part = |field: &Option<String>| field.clone().unwrap_or_default();
            let question = Change::CheckClaim { namespace: part(&reference.namespace), name: part(&reference.name) };
            plan.asks(PHASE, subject(volume), Reason::ClaimNotSeen, "The volume's claim was not seen.", question);
        }
        _ => release(&mut plan, volume, "The claim of the volume is gone."),
    }
    plan
}

fn claimed(plan: &mut Plan<Change>, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
    let bound_to = volume_name(claim);
    if bound_to == name(volume) {
        phase(plan, volume, "Bound", "The claim and the volume point to each other.");
    } else if bound_to.is_empty() && !matching::same_mode(volume, claim) {
        let (pv, pvc) = (name(volume), name(claim));
        let note = format!(
            "Cannot bind PersistentVolume to requested PersistentVolumeClaim {pvc:?} due to incompatible volumeMode."
        );
        plan.blocked(PHASE, subject(volume), Reason::VolumeMismatch, note.clone());
        plan.tells(Event::warning(volume, Reason::VolumeMismatch, note));
        let note = format!(
            "Cannot bind PersistentVolume {pv:?} to requested PersistentVolumeClaim due to incompatible volumeMode."
        );
        plan.tells(Event::warning(claim, Reason::VolumeMismatch, note));
    } else if bound_to.is_empty() {
        plan.blocked(PHASE, subject(volume), Reason::Binding, "The claim does not point back yet.");
    } else if annotation(volume, PROVISIONED_BY).is_some() && policy(volume) == "Delete" {
        // Made for a claim that meanwhile took another volume: nobody else may have it.
        release(plan, volume, "The claim that the volume was made for is bound to another one.");
    } else {
        let keep_name = annotation(volume, BOUND_BY_CONTROLLER).is_none();
        let change = Change::ClearClaimRef { volume: Target::of(volume), keep_name };
        let words = format!("The claim is bound to {bound_to:?}.");
        plan.acts(PHASE, subject(volume), Reason::ClaimBoundElsewhere, words, change);
        if volume_phase(volume) != "Available" {
            plan.changes.push(Change::SetVolumePhase { volume: Target::of(volume), phase: "Available" });
        }
    }
}

/// The volume is Released; who made it deletes it, if its policy says so.
fn release(plan: &mut Plan<Change>, volume: &PersistentVolume, words: &str) {
    match policy(volume) {
        "Retain" | "Delete" if volume_phase(volume) == "Failed" => {
            plan.rests(PHASE, subject(volume), Reason::UpToDate, "The volume is Failed.");
        }
        "Retain" | "Delete" => phase(plan, volume, "Released", words),
        _ => {
            // Recycling was removed from Kubernetes; a volume that asks for it cannot be reclaimed.
            let note = "Volume has unrecognized PersistentVolumeReclaimPolicy";
            if volume_phase(volume) != "Failed" {
                plan.tells(Event::warning(volume, Reason::VolumeUnknownReclaimPolicy, note));
            }
            phase(plan, volume, "Failed", note);
        }
    }
}

fn policy(volume: &PersistentVolume) -> &str {
    volume.spec.as_ref().and_then(|s| s.persistent_volume_reclaim_policy.as_deref()).unwrap_or("Retain")
}

fn phase(plan: &mut Plan<Change>, volume: &PersistentVolume, phase: &'static str, words: &str) {
    if volume_phase(volume) == phase {
        plan.rests(PHASE, subject(volume), Reason::UpToDate, words);
    } else {
        let change = Change::SetVolumePhase { volume: Target::of(volume), phase };
        plan.acts(PHASE, subject(volume), Reason::StatusFollows, words, change);
    }
}
