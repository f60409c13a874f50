//! Deletion of a CustomResourceDefinition: its instances go first, then its finalizer.

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, has_finalizer, is_deleting, subject};

const INSTANCES: Rule = Rule("custom-resource-instances");

/// The finalizer that keeps a definition until its instances are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// What is known of the instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instances {
    /// Nothing was tried yet.
    Unknown,
    /// They were told to go; so many are still there.
    Deleted { remaining: usize },
    /// They could not be deleted or counted.
    Failed { message: String },
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Delete all instances and count what remains.
    DeleteInstances { definition: Target },
    /// Replace the conditions of the definition's status.
    SetConditions { definition: Target, conditions: Vec<CustomResourceDefinitionCondition> },
    /// Remove [`FINALIZER`].
    Finalize { definition: Target },
}

/// Decides about one definition.
pub fn decide(definition: &CustomResourceDefinition, instances: &Instances, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let about = subject(definition);
    if !is_deleting(definition) || !has_finalizer(definition, FINALIZER) {
        plan.rests(INSTANCES, about, Reason::NotBeingDeleted, "The definition is not waiting for its instances to go.");
        return plan;
    }
    let target = Target::of(definition);
    match instances {
        Instances::Unknown => {
            let message = "CustomResource deletion is in progress";
            terminating(&mut plan, definition, "True", Reason::InstanceDeletionInProgress, message, now);
            let change = Change::DeleteInstances { definition: target };
            plan.asks(INSTANCES, about, Reason::InstanceDeletionInProgress, message, change);
        }
        Instances::Failed { message } => {
            let message = format!("could not delete instances: {message}");
            terminating(&mut plan, definition, "True", Reason::InstanceDeletionFailed, &message, now);
            plan.blocked(INSTANCES, about, Reason::InstanceDeletionFailed, message);
        }
        Instances::Deleted { remaining: 0 } => {
            let message = "removed all instances";
            terminating(&mut plan, definition, "False", Reason::InstanceDeletionCompleted, message, now);
            let change = Change::Finalize { definition: target };
            plan.acts(INSTANCES, about, Reason::InstanceDeletionCompleted, message, change);
        }
        Instances::Deleted { remaining } => {
            let words = format!("{remaining} instances are still there, waiting for their finalizers.");
            plan.blocked(INSTANCES, about, Reason::InstanceDeletionInProgress, words);
        }
    }
    plan
}

fn terminating(
    plan: &mut Plan<Change>,
    definition: &CustomResourceDefinition,
    status: &str,
    reason: Reason,
    message: &str,
    now: Timestamp,
) {
    let mut conditions = definition.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut new = CustomResourceDefinitionCondition {
        type_: "Terminating".into(),
        status: status.into(),
        reason: Some(reason.code().into()),
        message: Some(message.into()),
        last_transition_time: Some(Time(now)),
        observed_generation: None,
    };
    match conditions.iter_mut().find(|c| c.type_ == new.type_) {
        None => conditions.push(new),
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time = old.last_transition_time.clone();
            }
            if *old == new {
                return;
            }
            *old = new;
        }
    }
    plan.changes.push(Change::SetConditions { definition: Target::of(definition), conditions });
}
