//! Objects of snapshots: made for what the engine has, completed where something is missing.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use tether_crd::snapshot::SnapshotSpec;
use tether_crd::{API_VERSION, FINALIZER, NAMESPACE, Snapshot, Volume, labels};
use tether_model::reason::Reason;

use super::{Change, Look, MIRROR, OBJECT, VOLUME_HEAD};
use crate::Plan;
use crate::object::{Target, has_finalizer, name, subject, uid};

/// The finalizer keeps the object until the engine has let the snapshot go; without an owner it would outlive its volume.
pub(super) fn adopt(plan: &mut Plan<Change>, look: &Look<'_>, snapshot: &Snapshot) {
    let Some(volume) = look.volume else { return };
    let meta = &snapshot.metadata;
    let labelled =
        meta.labels.as_ref().and_then(|all| all.get(labels::VOLUME)).is_some_and(|held| held == name(volume));
    let owned = meta.owner_references.iter().flatten().any(|owner| owner.uid == uid(volume));
    if has_finalizer(snapshot, FINALIZER) && labelled && owned {
        return;
    }
    let change = Change::Adopt {
        snapshot: Target::of(snapshot),
        volume: name(volume).to_owned(),
        volume_uid: uid(volume).to_owned(),
    };
    plan.acts(OBJECT, subject(snapshot), Reason::ContentDiffers, "It belongs to its volume.", change);
}

/// Makes objects for snapshots that the engine has and nobody asked for here: of an adopted volume, or the system's own.
pub(super) fn mirror(plan: &mut Plan<Change>, look: &Look<'_>) {
    let (Some(volume), Some(engine)) = (look.volume, look.engine) else { return };
    if look.is_migrating || look.serving_node().is_none() {
        return;
    }
    let held: BTreeSet<&str> = look.snapshots.iter().map(|snapshot| name(*snapshot)).collect();
    for (snapshot, info) in &engine.status.snapshots {
        let shown = snapshot == VOLUME_HEAD || info.removed || held.contains(snapshot.as_str());
        if shown || !is_object_name(snapshot) {
            continue;
        }
        let words = format!("The engine has snapshot {snapshot:?}.");
        let made = Change::Create(Box::new(object(volume, snapshot)));
        plan.acts(MIRROR, subject(volume), Reason::SnapshotFound, words, made);
    }
}

/// A name that Longhorn allows and Kubernetes does not cannot be shown.
fn is_object_name(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'.';
    let ends = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253 && name.bytes().all(inner) && ends(name.bytes().next()) && ends(name.bytes().last())
}

fn object(volume: &Volume, snapshot: &str) -> Snapshot {
    Snapshot {
        metadata: ObjectMeta {
            name: Some(snapshot.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: Some([(labels::VOLUME.to_owned(), name(volume).to_owned())].into()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            owner_references: Some(vec![owner(name(volume), uid(volume))]),
            ..Default::default()
        },
        spec: SnapshotSpec { volume: name(volume).to_owned(), create_snapshot: false, ..Default::default() },
        ..Default::default()
    }
}

/// A volume as the owner of its snapshots.
pub fn owner(volume: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: "Volume".to_owned(),
        name: volume.to_owned(),
        uid: uid.to_owned(),
        block_owner_deletion: None,
        controller: None,
    }
}
