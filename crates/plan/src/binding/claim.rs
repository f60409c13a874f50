//! What becomes of a claim.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::api::storage::v1::StorageClass;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{
    BIND_COMPLETED, BOUND_BY_CONTROLLER, Change, NO_PROVISIONER, PRE_RESIZE_CAPACITY, SELECTED_NODE,
    STORAGE_PROVISIONER, claim_class, claim_phase, claim_ref, default_class, matching, names_class, points_to,
    reference_to, volume_name, volume_phase, waits_for_consumer,
};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, annotation, name, subject, uid};

const BIND: Rule = Rule("bind-claim");
const CLASS: Rule = Rule("default-storage-class");
const PROVISION: Rule = Rule("provision-volume");

/// A claim, and everything that it could be bound to.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub volumes: Vec<&'a PersistentVolume>,
    pub classes: Vec<&'a StorageClass>,
    /// Pods that use the claim and have no node yet.
    pub waiting_pods: Vec<String>,
}

impl<'a> Observed<'a> {
    fn volume(&self, wanted: &str) -> Option<&'a PersistentVolume> {
        self.volumes.iter().copied().find(|volume| name(*volume) == wanted)
    }

    fn class(&self) -> Option<&'a StorageClass> {
        self.classes.iter().copied().find(|class| name(*class) == claim_class(self.claim))
    }
}

/// Decides about one claim.
pub fn decide(observed: &Observed<'_>) -> Plan<Change> {
    let mut plan = Plan::default();
    let claim = observed.claim;
    if annotation(claim, BIND_COMPLETED).is_some() {
        bound(&mut plan, observed);
    } else if volume_name(claim).is_empty() {
        unbound(&mut plan, observed);
    } else {
        requested(&mut plan, observed);
    }
    plan
}

/// The claim was bound before: it stays so, or it is lost.
fn bound(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let claim = observed.claim;
    let volume = observed.volume(volume_name(claim));
    match volume {
        Some(volume) if claim_ref(volume).is_none_or(|r| r.uid.as_deref() == Some(uid(claim))) => {
            bind(plan, volume, claim);
        }
        Some(_) => {
            let note = "Two claims are bound to the same volume, this one is bound incorrectly";
            lost(plan, claim, Reason::ClaimMisbound, note);
        }
        None if volume_name(claim).is_empty() => {
            let note = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
            lost(plan, claim, Reason::ClaimLost, note);
        }
        None => {
            let note = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
            lost(plan, claim, Reason::ClaimLost, note);
        }
    }
}

fn lost(plan: &mut Plan<Change>, claim: &PersistentVolumeClaim, reason: Reason, note: &str) {
    if claim_phase(claim) == "Lost" {
        plan.rests(BIND, subject(claim), reason, note);
        return;
    }
    let change = Change::SetClaimStatus { claim: Target::of(claim), status: status("Lost") };
    plan.acts(BIND, subject(claim), reason, note, change);
    plan.tells(Event::warning(claim, reason, note));
}

/// The claim asks for one volume by name.
fn requested(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let claim = observed.claim;
    let wanted = volume_name(claim);
    let Some(volume) = observed.volume(wanted) else {
        plan.blocked(BIND, subject(claim), Reason::VolumeNotFound, format!("Volume {wanted:?} does not exist (yet)."));
        return pending(plan, claim);
    };
    if points_to(volume, claim) {
        return bind(plan, volume, claim);
    }
    if claim_ref(volume).is_some() {
        let note = format!("volume {wanted:?} already bound to a different claim.");
        plan.blocked(BIND, subject(claim), Reason::FailedBinding, note.clone());
        plan.tells(Event::warning(claim, Reason::FailedBinding, note));
        return pending(plan, claim);
    }
    match matching::check(volume, claim) {
        Ok(()) => bind(plan, volume, claim),
        Err(mismatch) => {
            let note = format!("Cannot bind to requested volume {wanted:?}: {mismatch}");
            plan.blocked(BIND, subject(claim), Reason::VolumeMismatch, note.clone());
            plan.tells(Event::warning(claim, Reason::VolumeMismatch, note));
            pending(plan, claim);
        }
    }
}

/// The claim takes any volume that fits, or one that is made for it.
fn unbound(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let claim = observed.claim;
    let waits = waits_for_consumer(observed.class());
    if let Some(volume) = matching::best(claim, observed.volumes.iter().copied(), None, waits) {
        return bind(plan, volume, claim);
    }
    if !names_class(claim) {
        if let Some(class) = default_class(observed.classes.iter().copied()) {
            let class = name(class).to_owned();
            let words = format!("The claim names no class; {class:?} is the default.");
            let change = Change::SetClass { claim: Target::of(claim), class };
            return plan.acts(CLASS, subject(claim), Reason::DefaultClassAssigned, words, change);
        }
        plan.rests(CLASS, subject(claim), Reason::NotConfigured, "There is no default storage class.");
    }
    if waits && annotation(claim, SELECTED_NODE).is_none() {
        let (reason, note) = consumer(&observed.waiting_pods);
        plan.blocked(BIND, subject(claim), reason, note.clone());
        plan.tells(Event::normal(claim, reason, note));
    } else if !claim_class(claim).is_empty() {
        provision(plan, observed);
    } else {
        let note = "no persistent volumes available for this claim and no storage class is set";
        plan.blocked(BIND, subject(claim), Reason::FailedBinding, note);
        plan.tells(Event::normal(claim, Reason::FailedBinding, note));
    }
    pending(plan, claim);
}

fn consumer(waiting_pods: &[String]) -> (Reason, String) {
    match waiting_pods {
        [] => (Reason::WaitForFirstConsumer, "waiting for first consumer to be created before binding".to_owned()),
        [pod] => (Reason::WaitForPodScheduled, format!("waiting for pod {pod} to be scheduled")),
        pods => (Reason::WaitForPodScheduled, format!("waiting for pods {} to be scheduled", pods.join(","))),
    }
}

/// Asks the provisioner of the claim's class for a volume, by annotation.
fn provision(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let claim = observed.claim;
    let failed = |plan: &mut Plan<Change>, note: String| {
        plan.blocked(PROVISION, subject(claim), Reason::ProvisioningFailed, note.clone());
        plan.tells(Event::warning(claim, Reason::ProvisioningFailed, note));
    };
    let Some(class) = observed.class() else {
        return failed(plan, format!("storageclass.storage.k8s.io {:?} not found", claim_class(claim)));
    };
    let provisioner = class.provisioner.as_str();
    if provisioner == NO_PROVISIONER {
        return failed(plan, format!("no volume plugin matched name: {provisioner}"));
    }
    let note = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    if annotation(claim, STORAGE_PROVISIONER) == Some(provisioner) {
        plan.blocked(PROVISION, subject(claim), Reason::ExternalProvisioning, note.clone());
    } else {
        let change = Change::SetProvisioner { claim: Target::of(claim), provisioner: provisioner.to_owned() };
        plan.acts(PROVISION, subject(claim), Reason::ExternalProvisioning, note.clone(), change);
    }
    plan.tells(Event::normal(claim, Reason::ExternalProvisioning, note));
}

/// The claim has no volume, and its status says so.
fn pending(plan: &mut Plan<Change>, claim: &PersistentVolumeClaim) {
    let held = claim.status.as_ref();
    let clean = held.is_some_and(|s| s.access_modes.is_none() && s.capacity.is_none());
    if claim_phase(claim) != "Pending" || !clean {
        plan.changes.push(Change::SetClaimStatus { claim: Target::of(claim), status: status("Pending") });
        plan.fires(BIND, subject(claim), Reason::StatusFollows, "The claim is Pending.");
    }
}

fn status(phase: &str) -> PersistentVolumeClaimStatus {
    PersistentVolumeClaimStatus { phase: Some(phase.into()), ..Default::default() }
}

/// The steps of a binding that are still missing, the volume's first.
fn bind(plan: &mut Plan<Change>, volume: &PersistentVolume, claim: &PersistentVolumeClaim) {
    let before = plan.changes.len();
    let pointed = points_to(volume, claim);
    if !pointed || claim_ref(volume).is_none_or(|r| r.uid.as_deref() != Some(uid(claim))) {
        let mark = !pointed && annotation(volume, BOUND_BY_CONTROLLER).is_none();
        let claim = reference_to(claim);
        plan.changes.push(Change::SetClaimRef { volume: Target::of(volume), claim, mark });
    }
    if volume_phase(volume) != "Bound" {
        plan.changes.push(Change::SetVolumePhase { volume: Target::of(volume), phase: "Bound" });
    }
    let named = volume_name(claim) == name(volume);
    if !named || annotation(claim, BIND_COMPLETED).is_none() {
        let mark = !named && annotation(claim, BOUND_BY_CONTROLLER).is_none();
        let volume = name(volume).to_owned();
        plan.changes.push(Change::SetVolumeName { claim: Target::of(claim), volume, mark });
    }
    let status = bound_status(volume, claim);
    if claim.status.as_ref() != Some(&status) {
        plan.changes.push(Change::SetClaimStatus { claim: Target::of(claim), status });
    }
    if plan.changes.len() == before {
        plan.rests(BIND, subject(claim), Reason::UpToDate, format!("The claim is bound to {:?}.", name(volume)));
    } else {
        plan.fires(BIND, subject(claim), Reason::Binding, format!("The claim is bound to {:?}.", name(volume)));
    }
}

/// A bound claim's status: the access modes of its volume, and its capacity from the moment of binding.
fn bound_status(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolumeClaimStatus {
    let mut status = claim.status.clone().unwrap_or_default();
    let spec = volume.spec.as_ref();
    status.access_modes = spec.and_then(|s| s.access_modes.clone());
    if status.phase.as_deref() != Some("Bound") {
        status.phase = Some("Bound".into());
        status.capacity = spec.and_then(|s| s.capacity.clone());
        status.current_volume_attributes_class_name = spec.and_then(|s| s.volume_attributes_class_name.clone());
        if let (Some(before), Some(capacity)) = (annotation(volume, PRE_RESIZE_CAPACITY), status.capacity.as_mut()) {
            let before = k8s_openapi::apimachinery::pkg::api::resource::Quantity(before.to_owned());
            capacity.insert("storage".into(), before);
        }
    }
    status
}
