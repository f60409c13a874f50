//! Namespace deletion: what is in the namespace goes first, then its finalizer `kubernetes`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, is_deleting, subject};

const CONTENT: Rule = Rule("namespace-content");

/// The finalizer in a namespace's spec that stands for this controller.
pub const FINALIZER: &str = "kubernetes";

/// What came of deleting the content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What is still there, by resource as conditions name it (`pods.`, `leases.coordination.k8s.io`).
    pub remaining: BTreeMap<String, usize>,
    /// How many of those have which finalizer.
    pub finalizers: BTreeMap<String, usize>,
    /// Which kinds could not be found out.
    pub discovery_failure: Option<String>,
    /// What could not be deleted or listed.
    pub failures: Vec<String>,
}

/// What is known of the content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing was tried yet.
    Unknown,
    Deleted(Outcome),
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Delete everything in the namespace, pods first, and count what remains.
    DeleteContent { namespace: Target },
    /// Replace phase and conditions in the status.
    SetStatus { namespace: Target, conditions: Vec<NamespaceCondition> },
    /// Set the finalizers of the spec by the `finalize` subresource.
    Finalize { namespace: Target, finalizers: Vec<String> },
}

/// Decides about one namespace.
pub fn decide(namespace: &Namespace, content: &Content, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let about = subject(namespace);
    if !is_deleting(namespace) {
        plan.rests(CONTENT, about, Reason::NotBeingDeleted, "The namespace is not being deleted.");
        return plan;
    }
    let finalizers = namespace.spec.as_ref().and_then(|s| s.finalizers.clone()).unwrap_or_default();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        plan.rests(CONTENT, about, Reason::ContentRemoved, "The content was removed; other finalizers remain.");
        return plan;
    }
    let target = Target::of(namespace);
    let Content::Deleted(outcome) = content else {
        set_status(&mut plan, namespace, None, now);
        let words = "The namespace is being deleted, and its content with it.";
        plan.asks(CONTENT, about, Reason::ContentUnknown, words, Change::DeleteContent { namespace: target });
        return plan;
    };
    set_status(&mut plan, namespace, Some(outcome), now);
    if let Some(failure) = outcome.discovery_failure.iter().chain(&outcome.failures).next() {
        plan.blocked(CONTENT, about, Reason::ContentDeletionFailed, failure.clone());
    } else if !outcome.remaining.is_empty() {
        plan.blocked(CONTENT, about, Reason::SomeResourcesRemain, remaining(outcome));
    } else {
        let finalizers = finalizers.into_iter().filter(|f| f != FINALIZER).collect();
        let change = Change::Finalize { namespace: target, finalizers };
        plan.acts(CONTENT, about, Reason::ContentRemoved, "All content successfully removed.", change);
    }
    plan
}

fn set_status(plan: &mut Plan<Change>, namespace: &Namespace, outcome: Option<&Outcome>, now: Timestamp) {
    let status = namespace.status.as_ref();
    let old = status.and_then(|s| s.conditions.clone()).unwrap_or_default();
    let conditions = outcome.map_or_else(|| old.clone(), |outcome| conditions(&old, outcome, now));
    if status.and_then(|s| s.phase.as_deref()) != Some("Terminating") || conditions != old {
        plan.changes.push(Change::SetStatus { namespace: Target::of(namespace), conditions });
        let words = "Phase and conditions say how far the deletion is.";
        plan.fires(CONTENT, subject(namespace), Reason::StatusFollows, words);
    }
}

/// The five conditions of a namespace that is being deleted, of which each is False when all is well.
fn conditions(old: &[NamespaceCondition], outcome: &Outcome, now: Timestamp) -> Vec<NamespaceCondition> {
    let failures = (!outcome.failures.is_empty()).then(|| {
        let mut failures = outcome.failures.clone();
        failures.sort();
        format!("Failed to delete all resource types, {} remaining: {}", failures.len(), failures.join(", "))
    });
    let finalizers = (!outcome.finalizers.is_empty()).then(|| {
        let each: Vec<String> =
            outcome.finalizers.iter().map(|(f, count)| format!("{f} in {count} resource instances")).collect();
        format!("Some content in the namespace has finalizers remaining: {}", each.join(", "))
    });
    let table = [
        (
            "NamespaceDeletionDiscoveryFailure",
            outcome.discovery_failure.clone().map(|message| (Reason::DiscoveryFailed, message)),
            (Reason::ResourcesDiscovered, "All resources successfully discovered"),
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            (Reason::ParsedGroupVersions, "All legacy kube types successfully parsed"),
        ),
        (
            "NamespaceDeletionContentFailure",
            failures.map(|message| (Reason::ContentDeletionFailed, message)),
            (Reason::ContentDeleted, "All content successfully deleted, may be waiting on finalization"),
        ),
        (
            "NamespaceContentRemaining",
            (!outcome.remaining.is_empty()).then(|| (Reason::SomeResourcesRemain, remaining(outcome))),
            (Reason::ContentRemoved, "All content successfully removed"),
        ),
        (
            "NamespaceFinalizersRemaining",
            finalizers.map(|message| (Reason::SomeFinalizersRemain, message)),
            (Reason::ContentHasNoFinalizers, "All content-preserving finalizers finished"),
        ),
    ];
    let mut conditions = old.to_vec();
    for (kind, trouble, (fine_reason, fine)) in table {
        let status = if trouble.is_some() { "True" } else { "False" };
        let (reason, message) = trouble.unwrap_or_else(|| (fine_reason, fine.to_owned()));
        let mut new = NamespaceCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.code().to_owned()),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        };
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            None => conditions.push(new),
            Some(old) => {
                if old.status == new.status {
                    new.last_transition_time.clone_from(&old.last_transition_time);
                }
                *old = new;
            }
        }
    }
    conditions
}

fn remaining(outcome: &Outcome) -> String {
    let each: Vec<String> = outcome
        .remaining
        .iter()
        .map(|(resource, count)| format!("{resource} has {count} resource instances"))
        .collect();
    format!("Some resources are remaining: {}", each.join(", "))
}
