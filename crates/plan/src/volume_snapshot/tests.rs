//! The life of a snapshot, step by step: what is decided for the wish and for what the driver has.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, SecretReference};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_crd::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};

use super::content::{self, Change as ContentChange};
use super::snapshot::{self, Change, Observed, content_name, let_go, protected};
use super::{
    BEING_CREATED, BEING_DELETED, BOUND_FINALIZER, CONTENT_FINALIZER, DEFAULT_CLASS, DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE, SOURCE_FINALIZER,
};
use crate::Plan;

const DRIVER: &str = "d.io";

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn merged(mut value: Value, more: Value) -> Value {
    fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                more.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
            }
            (into, more) => *into = more,
        }
    }
    merge(&mut value, more);
    value
}

fn wish(more: Value) -> VolumeSnapshot {
    let source = json!({"persistentVolumeClaimName": "data"});
    let metadata =
        json!({"name": "s", "namespace": "ns", "uid": "u", "finalizers": [SOURCE_FINALIZER, BOUND_FINALIZER]});
    of(merged(json!({"metadata": metadata, "spec": {"source": source, "volumeSnapshotClassName": "c"}}), more))
}

fn deleted() -> Value {
    json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
}

fn held(more: Value) -> VolumeSnapshotContent {
    let reference = json!({"name": "s", "namespace": "ns", "uid": "u"});
    of(merged(
        json!({
            "metadata": {"name": "snapcontent-u", "uid": "cu", "finalizers": [CONTENT_FINALIZER]},
            "spec": {
                "volumeSnapshotRef": reference, "deletionPolicy": "Delete", "driver": DRIVER,
                "volumeSnapshotClassName": "c", "source": {"volumeHandle": "v"},
            },
        }),
        more,
    ))
}

fn ready() -> Value {
    json!({"status": {
        "snapshotHandle": "snap://v/1", "readyToUse": true, "creationTime": 1_000_000_000, "restoreSize": 1 << 30,
    }})
}

fn class(name: &str, more: Value) -> VolumeSnapshotClass {
    let parameters = json!({
        "type": "snap",
        "csi.storage.k8s.io/snapshotter-secret-name": "key-of-${volumesnapshot.name}",
        "csi.storage.k8s.io/snapshotter-secret-namespace": "${volumesnapshot.namespace}",
        "csi.storage.k8s.io/snapshotter-list-secret-name": "${volumesnapshotcontent.name}",
        "csi.storage.k8s.io/snapshotter-list-secret-namespace": "lists",
    });
    let plain =
        json!({"metadata": {"name": name}, "driver": DRIVER, "deletionPolicy": "Delete", "parameters": parameters});
    of(merged(plain, more))
}

fn claim(phase: &str) -> PersistentVolumeClaim {
    of(json!({"metadata": {"name": "data", "namespace": "ns", "uid": "pu"}, "status": {"phase": phase}}))
}

fn volume(driver: &str, claim: &str) -> PersistentVolume {
    of(json!({"metadata": {"name": "pv"}, "spec": {
        "claimRef": {"uid": claim}, "csi": {"driver": driver, "volumeHandle": "v"}, "volumeMode": "Block",
    }}))
}

/// A snapshot with all that belongs to it.
struct World {
    snapshot: VolumeSnapshot,
    content: Option<VolumeSnapshotContent>,
    classes: Vec<VolumeSnapshotClass>,
    claim: Option<PersistentVolumeClaim>,
    volume: Option<PersistentVolume>,
    is_source: bool,
}

impl World {
    fn new(snapshot: VolumeSnapshot) -> Self {
        let (claim, volume) = (Some(claim("Bound")), Some(volume(DRIVER, "pu")));
        Self { snapshot, content: None, classes: vec![class("c", json!({}))], claim, volume, is_source: false }
    }

    fn with(snapshot: VolumeSnapshot, content: VolumeSnapshotContent) -> Self {
        Self { content: Some(content), ..Self::new(snapshot) }
    }

    fn plan(&self) -> Plan<Change> {
        let observed = Observed {
            snapshot: &self.snapshot,
            content: self.content.as_ref(),
            classes: self.classes.iter().collect(),
            claim: self.claim.as_ref(),
            volume: self.volume.as_ref(),
            is_source: self.is_source,
        };
        snapshot::decide(DRIVER, &observed, Timestamp::UNIX_EPOCH)
    }

    /// The error that the snapshot is told.
    fn error(&self) -> String {
        let changes = self.plan().changes;
        let [Change::SetStatus { status, .. }] = changes.as_slice() else { panic!("{changes:?}") };
        assert_eq!(status.ready_to_use, Some(false));
        status.error.as_ref().and_then(|error| error.message.clone()).unwrap()
    }
}

fn of_content(content: &VolumeSnapshotContent, snapshot: Option<&VolumeSnapshot>) -> Vec<ContentChange> {
    let class = class("c", json!({}));
    content::decide(DRIVER, &content::Observed { content, class: Some(&class), snapshot }).changes
}

#[test]
fn a_snapshot_of_a_claim_is_protected_and_gets_its_content() {
    let plan = World::new(wish(json!({"metadata": {"finalizers": ["other"]}}))).plan();
    let [Change::Protect { .. }, Change::CreateContent(made)] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(made.metadata.name.as_deref(), Some("snapcontent-u"));
    assert_eq!(made.metadata.finalizers.as_deref(), Some(&[CONTENT_FINALIZER.to_owned()][..]));
    let spec = &made.spec;
    assert_eq!((spec.driver.as_str(), spec.deletion_policy.as_str()), (DRIVER, "Delete"));
    assert_eq!((spec.source.volume_handle.as_deref(), spec.source.snapshot_handle.as_deref()), (Some("v"), None));
    assert_eq!(spec.volume_snapshot_ref.uid.as_deref(), Some("u"));
    assert_eq!(spec.source_volume_mode.as_deref(), Some("Block"));
    assert_eq!(plan.events.len(), 1);
}

#[test]
fn without_a_class_the_only_default_one_of_the_driver_counts() {
    let default = || json!({"metadata": {"annotations": {DEFAULT_CLASS: "true"}}});
    let mut world = World::new(wish(json!({"spec": {"volumeSnapshotClassName": null}})));
    assert!(world.error().contains("has no default VolumeSnapshotClass"));
    world.classes.push(class("other", merged(default(), json!({"driver": "other.io"}))));
    assert!(world.error().contains("has no default"), "another driver's is not ours");
    world.classes.push(class("mine", default()));
    let changes = world.plan().changes;
    let [Change::CreateContent(made)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(made.spec.volume_snapshot_class_name.as_deref(), Some("mine"));
    world.classes.push(class("mine-too", default()));
    assert!(world.error().contains("2 default classes"));
}

#[test]
fn what_keeps_a_snapshot_from_being_made_is_said_once() {
    let mut world = World::new(wish(json!({})));
    world.claim = None;
    assert_eq!(world.error(), "the claim does not exist, or has no volume of this driver");
    world.claim = Some(claim("Pending"));
    assert_eq!(world.error(), "the claim does not exist, or has no volume of this driver");
    world.claim = Some(claim("Bound"));
    world.volume = Some(volume(DRIVER, "somebody-else"));
    assert_eq!(world.error(), "the claim does not exist, or has no volume of this driver");
    let told = json!({"status": {"readyToUse": false, "error": {"message": world.error()}}});
    world.snapshot = wish(told);
    assert_eq!(world.plan().changes, [], "it says so already");

    let named = json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}});
    assert_eq!(World::new(wish(named)).error(), "VolumeSnapshotContent x is missing");
    let lost = json!({"status": {"boundVolumeSnapshotContentName": "snapcontent-u"}});
    assert_eq!(World::new(wish(lost)).error(), "VolumeSnapshotContent is missing", "it is not made a second time");
}

#[test]
fn other_drivers_snapshots_are_left_alone() {
    let mut world = World::new(wish(json!({})));
    world.classes = vec![class("c", json!({"driver": "other.io"}))];
    assert_eq!(world.plan().changes, []);
    world.snapshot = wish(json!({"spec": {"volumeSnapshotClassName": null}}));
    world.volume = Some(volume("other.io", "pu"));
    assert_eq!(world.plan().changes, []);
    let theirs = held(json!({"spec": {"driver": "other.io"}}));
    assert_eq!(World::with(wish(deleted()), theirs.clone()).plan().changes, []);
    assert_eq!(of_content(&theirs, None), []);
}

#[test]
fn a_snapshot_says_what_its_content_says() {
    let world = World::with(wish(json!({})), held(ready()));
    let plan = world.plan();
    let [Change::SetStatus { status, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    assert_eq!(status.bound_volume_snapshot_content_name.as_deref(), Some("snapcontent-u"));
    assert_eq!((status.ready_to_use, status.restore_size.as_deref()), (Some(true), Some("1Gi")));
    assert_eq!(status.creation_time.as_deref(), Some("1970-01-01T00:00:01Z"));
    assert_eq!(plan.events.len(), 2, "created, and ready");
    let mut told = wish(json!({}));
    told.status = (**status).clone();
    assert_eq!(World::with(told, held(ready())).plan().changes, []);
}

#[test]
fn a_content_that_exists_becomes_its_snapshots_own() {
    let unbound = |name: &str| {
        held(json!({"metadata": {"name": "x"}, "spec": {"volumeSnapshotRef": {"name": name, "uid": null}}}))
    };
    let named = || wish(json!({"spec": {"source": {"volumeSnapshotContentName": "x"}}}));
    assert_eq!(content_name(&named()), "x");
    let changes = World::with(named(), unbound("s")).plan().changes;
    assert!(matches!(&changes[0], Change::Bind { uid, .. } if uid == "u"), "{changes:?}");
    assert!(World::with(named(), unbound("t")).error().contains("bound to another snapshot"));
    let other = held(json!({"spec": {"volumeSnapshotRef": {"uid": "another"}}}));
    assert!(World::with(wish(json!({})), other).error().contains("bound to another snapshot"));
}

#[test]
fn a_deleted_snapshot_goes_after_its_content_or_leaves_it_behind() {
    let released = |policy: &str, more: Value| {
        let content = held(merged(json!({"spec": {"deletionPolicy": policy}}), more));
        World::with(wish(deleted()), content).plan().changes
    };
    let marked = || json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
    let changes = released("Delete", json!({}));
    assert!(matches!(changes[..], [Change::ReleaseContent { mark: true, delete: true, .. }]), "{changes:?}");
    let changes = released("Delete", merged(marked(), deleted()));
    assert_eq!(changes, [], "the driver has yet to delete it");
    let changes = released("Retain", json!({}));
    assert!(
        matches!(changes[..], [Change::ReleaseContent { mark: true, delete: false, .. }, Change::LetGo { .. }]),
        "{changes:?}"
    );
    let changes = World::new(wish(deleted())).plan().changes;
    assert!(matches!(changes[..], [Change::LetGo { .. }]), "its content is gone: {changes:?}");
    // Of a content that somebody had made, or of a claim that is gone: no driver is named any more.
    let mut bare = World::new(wish(merged(deleted(), json!({"spec": {"volumeSnapshotClassName": null}}))));
    (bare.claim, bare.volume) = (None, None);
    let changes = bare.plan().changes;
    assert!(matches!(changes[..], [Change::LetGo { .. }]), "nothing else is left: {changes:?}");
    let mut source = World::with(wish(deleted()), held(ready()));
    source.is_source = true;
    assert_eq!(source.plan().changes, [], "a volume is being made from it");
}

#[test]
fn the_driver_makes_a_snapshot_once_and_is_asked_until_it_is_ready() {
    let changes = of_content(&held(json!({})), None);
    let [ContentChange::Create { name, volume, parameters, .. }] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((name.as_str(), volume.as_str()), ("snapshot-u", "v"));
    assert_eq!(parameters.keys().collect::<Vec<_>>(), ["type"], "what is for others is not passed on");
    let changes = of_content(&held(merged(ready(), json!({"status": {"readyToUse": false}}))), None);
    assert!(matches!(&changes[..], [ContentChange::Check { handle, .. }] if handle == "snap://v/1"), "{changes:?}");
    assert_eq!(of_content(&held(ready()), None), []);
    let given = json!({"spec": {"source": {"volumeHandle": null, "snapshotHandle": "snap://v/2"}}});
    let changes = of_content(&held(merged(given, json!({"metadata": {"finalizers": []}}))), None);
    let [ContentChange::AddFinalizer { .. }, ContentChange::Check { handle, .. }] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(handle, "snap://v/2");
}

#[test]
fn a_deleted_content_takes_its_snapshot_along_only_when_nobody_needs_it() {
    let going = |more: Value| held(merged(merged(ready(), deleted()), more));
    let delete = |changes: &[ContentChange]| matches!(changes, [ContentChange::Delete { .. }]);
    let let_go = |changes: &[ContentChange]| matches!(changes, [ContentChange::RemoveFinalizer { .. }]);
    let (stays, goes) = (wish(json!({})), wish(deleted()));
    let retain = || json!({"spec": {"deletionPolicy": "Retain"}});
    assert_eq!(of_content(&going(json!({})), Some(&stays)), [], "its snapshot still promises the data");
    assert_eq!(of_content(&going(retain()), Some(&stays)), []);
    assert!(delete(&of_content(&going(json!({})), Some(&goes))));
    assert!(delete(&of_content(&going(json!({})), None)));
    assert!(let_go(&of_content(&going(retain()), None)));
    let another = wish(json!({"metadata": {"uid": "of-the-same-name"}}));
    assert!(delete(&of_content(&going(json!({})), Some(&another))));
    let unbound = json!({"spec": {"volumeSnapshotRef": {"uid": null}}});
    assert!(delete(&of_content(&going(unbound), Some(&stays))), "it was never that one's");
    let told = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
    assert!(delete(&of_content(&going(told), Some(&stays))));
}

#[test]
fn a_snapshot_that_may_have_been_made_is_not_forgotten() {
    let marked = json!({"metadata": {"annotations": {BEING_CREATED: "yes", BEING_DELETED: "yes"}}});
    let changes = of_content(&held(merged(deleted(), marked)), None);
    assert!(matches!(changes[..], [ContentChange::Create { .. }]), "its handle is asked for: {changes:?}");
    let changes = of_content(&held(deleted()), None);
    assert!(matches!(changes[..], [ContentChange::RemoveFinalizer { .. }]), "nothing was begun: {changes:?}");
    assert_eq!(of_content(&held(merged(deleted(), json!({"metadata": {"finalizers": []}}))), None), []);
}

#[test]
fn calls_carry_the_secrets_that_the_class_named_when_the_content_was_made() {
    let pair = |secret: &Option<SecretReference>| {
        let secret = secret.clone().unwrap();
        format!("{}/{}", secret.namespace.unwrap(), secret.name.unwrap())
    };
    let plan = World::new(wish(json!({}))).plan();
    let Some(Change::CreateContent(made)) = plan.changes.last() else { panic!("{plan}") };
    let annotations = made.metadata.annotations.clone().unwrap();
    assert_eq!(annotations[DELETION_SECRET_NAME], "key-of-s");
    assert_eq!(annotations[DELETION_SECRET_NAMESPACE], "ns");

    let written = json!({"metadata": {"annotations": annotations}});
    let changes = of_content(&held(written.clone()), None);
    let [ContentChange::Create { secret, .. }] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(pair(secret), "ns/key-of-s");
    let changes = of_content(&held(merged(merged(ready(), deleted()), written)), None);
    let [ContentChange::Delete { secret, .. }] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(pair(secret), "ns/key-of-s", "also when class and snapshot are gone");
    let changes = of_content(&held(merged(ready(), json!({"status": {"readyToUse": false}}))), None);
    let [ContentChange::Check { secret, .. }] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(pair(secret), "lists/snapcontent-u");
    let changes = of_content(&held(json!({})), None);
    assert!(matches!(&changes[..], [ContentChange::Create { secret: None, .. }]), "made without one: {changes:?}");

    let mut world = World::new(wish(json!({})));
    world.classes = vec![class("c", json!({"parameters": {"csi.storage.k8s.io/snapshotter-secret-name": "${what}"}}))];
    assert!(world.error().contains("invalid tokens"), "{}", world.error());
    let empty = json!({"metadata": {"annotations": {DELETION_SECRET_NAME: "", DELETION_SECRET_NAMESPACE: "ns"}}});
    assert_eq!(of_content(&held(empty.clone()), None), [], "nobody knows which secret");
    assert_eq!(of_content(&held(merged(merged(ready(), deleted()), empty)), None), []);
}

/// The patches test the list that they replace: what others add or remove meanwhile is not lost.
#[test]
fn finalizers_of_others_are_kept() {
    let test = |held: Value| json!({"op": "test", "path": "/metadata/finalizers", "value": held});
    let write = |op: &str, all: Value| json!({"op": op, "path": "/metadata/finalizers", "value": all});
    let steps = |patch: Option<Value>| patch.map(|patch| patch.as_array().unwrap()[1..].to_vec());
    let meta = |finalizers: Value| wish(json!({"metadata": {"finalizers": finalizers}})).metadata;
    let ours = || json!([SOURCE_FINALIZER, BOUND_FINALIZER]);
    assert_eq!(steps(protected(&meta(Value::Null))), Some(vec![test(Value::Null), write("add", ours())]));
    let with_other = json!(["other", BOUND_FINALIZER, SOURCE_FINALIZER]);
    let patch = steps(protected(&meta(json!(["other", BOUND_FINALIZER]))));
    assert_eq!(patch, Some(vec![test(json!(["other", BOUND_FINALIZER])), write("replace", with_other.clone())]));
    assert_eq!(protected(&meta(with_other.clone())), None);
    let patch = steps(let_go(&meta(with_other.clone())));
    assert_eq!(patch, Some(vec![test(with_other), write("replace", json!(["other"]))]));
    assert_eq!(let_go(&meta(json!(["other"]))), None);
    assert_eq!(let_go(&meta(Value::Null)), None);
}
