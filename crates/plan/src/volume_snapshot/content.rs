//! What the driver is asked for a content, and what the content says of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::SecretReference;
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{BEING_CREATED, BEING_DELETED, CONTENT_FINALIZER, secrets};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, annotation, has_finalizer, is_deleting, subject, uid};
use crate::secret::PREFIX;

const CONTENT: Rule = Rule("snapshot-content");

/// What is to be done for a content.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    AddFinalizer {
        content: Target,
    },
    /// The driver is to make it. The annotation [`BEING_CREATED`] comes before the call and goes after it.
    Create {
        content: Target,
        name: String,
        volume: String,
        parameters: BTreeMap<String, String>,
        secret: Option<SecretReference>,
    },
    /// The driver is asked whether it has it, and can use it.
    Check {
        content: Target,
        handle: String,
        secret: Option<SecretReference>,
    },
    /// The driver is to delete it.
    Delete {
        content: Target,
        handle: String,
        secret: Option<SecretReference>,
    },
    RemoveFinalizer {
        content: Target,
    },
}

/// What the decision looks at.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub content: &'a VolumeSnapshotContent,
    /// The class that it names, if there is such a one.
    pub class: Option<&'a VolumeSnapshotClass>,
    /// The snapshot that it names, if there is such a one.
    pub snapshot: Option<&'a VolumeSnapshot>,
}

/// Decides about one content of a driver.
pub fn decide(driver: &str, observed: &Observed<'_>) -> Plan<Change> {
    let Observed { content, class, .. } = *observed;
    let mut plan = Plan::default();
    let about = || subject(content);
    if content.spec.driver != driver {
        plan.rests(CONTENT, about(), Reason::OtherDriver, "It is another driver's.");
        return plan;
    }
    let target = || Target::of(content);
    let handle = content.status.snapshot_handle.clone().or_else(|| content.spec.source.snapshot_handle.clone());
    let handle = handle.filter(|handle| !handle.is_empty());
    if is_deleting(content) {
        if !has_finalizer(content, CONTENT_FINALIZER) {
            return plan;
        }
        match (content.spec.deletion_policy.as_str(), handle) {
            // Somebody deleted the content and not its snapshot, which still promises the data.
            _ if is_needed(observed) => {
                plan.blocked(CONTENT, about(), Reason::BeingDeleted, "Its snapshot is still there.");
            }
            ("Delete", Some(handle)) => match secrets::of_content(content) {
                Ok(secret) => {
                    let change = Change::Delete { content: target(), handle, secret };
                    plan.acts(CONTENT, about(), Reason::SnapshotDeleting, "The driver is to delete it.", change);
                }
                Err(words) => plan.blocked(CONTENT, about(), Reason::SnapshotDeleteError, words),
            },
            // Whether the driver made it is not known: the call is repeated, which tells its handle.
            ("Delete", None) if annotation(content, BEING_CREATED).is_some() => {
                create(&mut plan, content, class);
            }
            _ => {
                let change = Change::RemoveFinalizer { content: target() };
                plan.acts(CONTENT, about(), Reason::BeingDeleted, "Nothing of it is to be deleted.", change);
            }
        }
        return plan;
    }
    if !has_finalizer(content, CONTENT_FINALIZER) {
        let change = Change::AddFinalizer { content: target() };
        plan.acts(CONTENT, about(), Reason::ContentDiffers, "It is kept until the driver has deleted it.", change);
    }
    match handle {
        Some(_) if content.status.ready_to_use == Some(true) => {
            plan.rests(CONTENT, about(), Reason::SnapshotReady, "It can be used.");
        }
        Some(handle) => match secrets::for_list(class, content) {
            Ok(secret) => {
                let change = Change::Check { content: target(), handle, secret };
                plan.acts(CONTENT, about(), Reason::CreatingSnapshot, "The driver is asked how it is.", change);
            }
            Err(words) => unusable(&mut plan, content, words),
        },
        None => create(&mut plan, content, class),
    }
    plan
}

/// Whether the content's own snapshot is there, and is to stay.
fn is_needed(observed: &Observed<'_>) -> bool {
    let held = &observed.content.spec.volume_snapshot_ref.uid;
    let own = observed.snapshot.filter(|snapshot| held.as_deref() == Some(uid(*snapshot)));
    own.is_some_and(|snapshot| !is_deleting(snapshot)) && annotation(observed.content, BEING_DELETED).is_none()
}

fn create(plan: &mut Plan<Change>, content: &VolumeSnapshotContent, class: Option<&VolumeSnapshotClass>) {
    let about = subject(content);
    let Some(volume) = content.spec.source.volume_handle.clone() else {
        return plan.blocked(CONTENT, about, Reason::SnapshotCreateFailed, "It names neither volume nor snapshot.");
    };
    let named = content.spec.volume_snapshot_class_name.is_some();
    if named && class.is_none() {
        return plan.blocked(CONTENT, about, Reason::ObjectMissing, "Its class is not known.");
    }
    let secret = match secrets::of_content(content) {
        Ok(secret) => secret,
        Err(words) => return unusable(plan, content, words),
    };
    let all = class.map(|class| class.parameters.clone()).unwrap_or_default();
    let change = Change::Create {
        content: Target::of(content),
        // Asking twice makes one.
        name: format!("snapshot-{}", content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default()),
        volume,
        parameters: all.into_iter().filter(|(key, _)| !key.starts_with(PREFIX)).collect(),
        secret,
    };
    plan.acts(CONTENT, about, Reason::CreatingSnapshot, "The driver is to make it.", change);
}

/// The driver cannot be asked: what it would have to be shown is not named as it should be.
fn unusable(plan: &mut Plan<Change>, content: &VolumeSnapshotContent, words: String) {
    plan.tells(Event::warning(content, Reason::SnapshotCreateFailed, words.clone()));
    plan.blocked(CONTENT, subject(content), Reason::SnapshotCreateFailed, words);
}
