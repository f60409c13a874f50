//! What becomes of a wish for a snapshot: its content, and what it is told of it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use tether_crd::volume_snapshot::{
    API_VERSION, SnapshotError, SnapshotReference, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent,
    VolumeSnapshotContentSource, VolumeSnapshotContentSpec, VolumeSnapshotStatus,
};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{
    BEING_DELETED, BOUND_FINALIZER, CONTENT_FINALIZER, DEFAULT_CLASS, DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE,
    SOURCE_FINALIZER, secrets,
};
use crate::Plan;
use crate::attacher::set_finalizers;
use crate::binding::{claim_phase, claim_ref};
use crate::event::Event;
use crate::object::{Target, annotation, is_deleting, name, namespace, subject, uid};

const SNAPSHOT: Rule = Rule("volume-snapshot");
const FINALIZERS: [&str; 2] = [SOURCE_FINALIZER, BOUND_FINALIZER];

/// What the decision looks at.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub snapshot: &'a VolumeSnapshot,
    /// The one that the snapshot names, or that is made for it ([`content_name`]).
    pub content: Option<&'a VolumeSnapshotContent>,
    pub classes: Vec<&'a VolumeSnapshotClass>,
    /// The claim that it is of, and that one's volume.
    pub claim: Option<&'a PersistentVolumeClaim>,
    pub volume: Option<&'a PersistentVolume>,
    /// A claim is being filled from it.
    pub is_source: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Adds the finalizers: [`protected`].
    Protect {
        snapshot: Target,
    },
    /// Removes the finalizers: [`let_go`].
    LetGo {
        snapshot: Target,
    },
    CreateContent(Box<VolumeSnapshotContent>),
    /// The content gets the snapshot's uid.
    Bind {
        content: Target,
        uid: String,
    },
    SetStatus {
        snapshot: Target,
        status: Box<VolumeSnapshotStatus>,
    },
    /// Says on the content that its snapshot is deleted, and deletes it if `delete`.
    ReleaseContent {
        content: Target,
        mark: bool,
        delete: bool,
    },
}

/// The name of the content that is made for a snapshot.
pub fn content_name(snapshot: &VolumeSnapshot) -> String {
    match &snapshot.spec.source.volume_snapshot_content_name {
        Some(named) => named.clone(),
        None => format!("snapcontent-{}", uid(snapshot)),
    }
}

/// Decides about one snapshot.
pub fn decide(driver: &str, observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let snapshot = observed.snapshot;
    if !is_ours(driver, observed) {
        plan.rests(SNAPSHOT, subject(snapshot), Reason::OtherDriver, "It is of another driver's volume.");
    } else if is_deleting(snapshot) {
        remove(&mut plan, observed);
    } else {
        protect(&mut plan, snapshot);
        match observed.content {
            Some(content) => follow(&mut plan, observed, content, now),
            None => create(&mut plan, driver, observed, now),
        }
    }
    plan
}

/// Content, class and volume all name the driver; the first of them that is there counts. If none is left of one that is
/// being deleted, there is nothing that any driver could still have to do.
fn is_ours(driver: &str, observed: &Observed<'_>) -> bool {
    if let Some(content) = observed.content {
        return content.spec.driver == driver;
    }
    if let Some(wanted) = &observed.snapshot.spec.volume_snapshot_class_name
        && let Some(class) = observed.classes.iter().find(|class| name(**class) == wanted)
    {
        return class.driver == driver;
    }
    let is_of_none = observed.claim.is_none() || observed.volume.is_none();
    handle(driver, observed).is_some() || (is_of_none && is_deleting(observed.snapshot))
}

/// The driver's id of the claim's volume.
fn handle(driver: &str, observed: &Observed<'_>) -> Option<String> {
    let claim = observed.claim.filter(|claim| claim_phase(claim) == "Bound")?;
    let volume = observed.volume?;
    let bound = claim_ref(volume).is_some_and(|held| held.uid.as_deref() == Some(uid(claim)));
    let csi = volume.spec.as_ref()?.csi.as_ref().filter(|csi| bound && csi.driver == driver)?;
    Some(csi.volume_handle.clone())
}

/// The patch by which a snapshot is kept until its content is gone; `None` if it is.
pub fn protected(meta: &ObjectMeta) -> Option<Value> {
    let mut all = meta.finalizers.clone().unwrap_or_default();
    for finalizer in FINALIZERS {
        if !all.iter().any(|held| held == finalizer) {
            all.push(finalizer.to_owned());
        }
    }
    set_finalizers(meta, &all)
}

/// The patch by which a snapshot is kept no longer; `None` if it is not.
pub fn let_go(meta: &ObjectMeta) -> Option<Value> {
    let others = meta.finalizers.iter().flatten().filter(|held| !FINALIZERS.contains(&held.as_str()));
    set_finalizers(meta, &others.cloned().collect::<Vec<_>>())
}

fn protect(plan: &mut Plan<Change>, snapshot: &VolumeSnapshot) {
    if protected(&snapshot.metadata).is_some() {
        let change = Change::Protect { snapshot: Target::of(snapshot) };
        plan.acts(SNAPSHOT, subject(snapshot), Reason::ContentDiffers, "It is kept until its content is gone.", change);
    }
}

/// The class that it names, or the default one of the driver.
fn class<'a>(driver: &str, observed: &Observed<'a>) -> Result<&'a VolumeSnapshotClass, String> {
    if let Some(wanted) = &observed.snapshot.spec.volume_snapshot_class_name {
        let found = observed.classes.iter().copied().find(|class| name(*class) == wanted);
        return found.ok_or_else(|| format!("VolumeSnapshotClass {wanted:?} does not exist"));
    }
    let is_default =
        |class: &&&VolumeSnapshotClass| class.driver == driver && annotation(**class, DEFAULT_CLASS) == Some("true");
    let found: Vec<_> = observed.classes.iter().filter(is_default).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] => Err(format!("no class is named, and driver {driver} has no default VolumeSnapshotClass")),
        many => Err(format!("no class is named, and driver {driver} has {} default classes", many.len())),
    }
}

fn create(plan: &mut Plan<Change>, driver: &str, observed: &Observed<'_>, now: Timestamp) {
    let snapshot = observed.snapshot;
    if let Some(named) = &snapshot.spec.source.volume_snapshot_content_name {
        let words = format!("VolumeSnapshotContent {named} is missing");
        return fail(plan, snapshot, Reason::SnapshotContentMissing, words, now);
    }
    if snapshot.status.bound_volume_snapshot_content_name.is_some() {
        let words = "VolumeSnapshotContent is missing".to_owned();
        return fail(plan, snapshot, Reason::SnapshotContentMissing, words, now);
    }
    let (handle, class) = match (handle(driver, observed), class(driver, observed)) {
        (Some(handle), Ok(class)) => (handle, class),
        (None, _) => {
            let words = "the claim does not exist, or has no volume of this driver".to_owned();
            return fail(plan, snapshot, Reason::SnapshotContentCreationFailed, words, now);
        }
        (_, Err(words)) => return fail(plan, snapshot, Reason::SnapshotContentCreationFailed, words, now),
    };
    let secret = match secrets::of_class(class, &content_name(snapshot), snapshot) {
        Ok(secret) => secret,
        Err(words) => return fail(plan, snapshot, Reason::SnapshotContentCreationFailed, words, now),
    };
    let annotations = secret.map(|secret| {
        let pairs = [(DELETION_SECRET_NAME, secret.name), (DELETION_SECRET_NAMESPACE, secret.namespace)];
        pairs.map(|(key, value)| (key.to_owned(), value.unwrap_or_default())).into()
    });
    let mode = observed.volume.and_then(|volume| volume.spec.as_ref()?.volume_mode.clone());
    let content = VolumeSnapshotContent {
        metadata: ObjectMeta {
            name: Some(content_name(snapshot)),
            annotations,
            finalizers: Some(vec![CONTENT_FINALIZER.to_owned()]),
            ..Default::default()
        },
        spec: VolumeSnapshotContentSpec {
            volume_snapshot_ref: SnapshotReference {
                kind: Some("VolumeSnapshot".to_owned()),
                api_version: Some(API_VERSION.to_owned()),
                namespace: Some(namespace(snapshot).to_owned()),
                name: Some(name(snapshot).to_owned()),
                uid: Some(uid(snapshot).to_owned()),
                resource_version: snapshot.metadata.resource_version.clone(),
            },
            deletion_policy: class.deletion_policy.clone(),
            driver: driver.to_owned(),
            volume_snapshot_class_name: Some(name(class).to_owned()),
            source: VolumeSnapshotContentSource { volume_handle: Some(handle), snapshot_handle: None },
            source_volume_mode: mode,
        },
        ..Default::default()
    };
    let note =
        format!("Waiting for a snapshot {}/{} to be created by the CSI driver.", namespace(snapshot), name(snapshot));
    plan.tells(Event::normal(snapshot, Reason::CreatingSnapshot, note));
    let change = Change::CreateContent(Box::new(content));
    plan.acts(SNAPSHOT, subject(snapshot), Reason::CreatingSnapshot, "It gets its content.", change);
}

fn fail(plan: &mut Plan<Change>, snapshot: &VolumeSnapshot, reason: Reason, words: String, now: Timestamp) {
    plan.tells(Event::warning(snapshot, reason, words.clone()));
    let same = snapshot.status.error.as_ref().and_then(|error| error.message.as_deref()) == Some(words.as_str());
    plan.blocked(SNAPSHOT, subject(snapshot), reason, words.clone());
    if !same {
        let error = SnapshotError { time: Some(rfc3339(now)), message: Some(words) };
        let status = VolumeSnapshotStatus { ready_to_use: Some(false), error: Some(error), ..snapshot.status.clone() };
        plan.changes.push(Change::SetStatus { snapshot: Target::of(snapshot), status: Box::new(status) });
    }
}

fn follow(plan: &mut Plan<Change>, observed: &Observed<'_>, content: &VolumeSnapshotContent, now: Timestamp) {
    let snapshot = observed.snapshot;
    let held = &content.spec.volume_snapshot_ref;
    let same = held.name.as_deref() == Some(name(snapshot)) && held.namespace.as_deref() == Some(namespace(snapshot));
    if !same || held.uid.as_deref().is_some_and(|held| !held.is_empty() && held != uid(snapshot)) {
        let words = format!("VolumeSnapshotContent {} is bound to another snapshot", name(content));
        return fail(plan, snapshot, Reason::SnapshotContentMisbound, words, now);
    }
    if held.uid.as_deref().is_none_or(str::is_empty) {
        let change = Change::Bind { content: Target::of(content), uid: uid(snapshot).to_owned() };
        plan.acts(SNAPSHOT, subject(snapshot), Reason::ContentDiffers, "The content becomes its own.", change);
    }
    let told = &content.status;
    let status = VolumeSnapshotStatus {
        bound_volume_snapshot_content_name: Some(name(content).to_owned()),
        creation_time: told.creation_time.map(time),
        ready_to_use: Some(told.ready_to_use.unwrap_or(false)),
        restore_size: told.restore_size.map(crate::provisioner::binary),
        error: told.error.clone().filter(|_| told.ready_to_use != Some(true)),
    };
    if status == snapshot.status {
        plan.rests(SNAPSHOT, subject(snapshot), Reason::UpToDate, "It says what its content says.");
        return;
    }
    let label = format!("{}/{}", namespace(snapshot), name(snapshot));
    if snapshot.status.creation_time.is_none() && status.creation_time.is_some() {
        let note = format!("Snapshot {label} was successfully created by the CSI driver.");
        plan.tells(Event::normal(snapshot, Reason::SnapshotCreated, note));
    }
    if snapshot.status.ready_to_use != Some(true) && status.ready_to_use == Some(true) {
        let note = format!("Snapshot {label} is ready to use.");
        plan.tells(Event::normal(snapshot, Reason::SnapshotReady, note));
    }
    let change = Change::SetStatus { snapshot: Target::of(snapshot), status: Box::new(status) };
    plan.acts(SNAPSHOT, subject(snapshot), Reason::StatusFollows, "It says what its content says.", change);
}

fn remove(plan: &mut Plan<Change>, observed: &Observed<'_>) {
    let snapshot = observed.snapshot;
    let about = || subject(snapshot);
    if observed.is_source {
        plan.blocked(SNAPSHOT, about(), Reason::InUse, "A volume is being made from it.");
        return;
    }
    let ours = observed.content.filter(|content| {
        let held = content.spec.volume_snapshot_ref.uid.as_deref();
        held == Some(uid(snapshot))
    });
    if let Some(content) = ours {
        let delete = content.spec.deletion_policy == "Delete";
        let mark = annotation(content, BEING_DELETED).is_none();
        if mark || (delete && !is_deleting(content)) {
            let target = Target::of(content);
            let change = Change::ReleaseContent { content: target, mark, delete: delete && !is_deleting(content) };
            plan.acts(SNAPSHOT, about(), Reason::SnapshotDeleting, "Its content goes first.", change);
        }
        if delete {
            plan.blocked(SNAPSHOT, about(), Reason::SnapshotDeleting, "Its content is still there.");
            return;
        }
    }
    if let_go(&snapshot.metadata).is_some() {
        let change = Change::LetGo { snapshot: Target::of(snapshot) };
        plan.acts(SNAPSHOT, about(), Reason::BeingDeleted, "Nothing of it is left.", change);
    }
}

fn time(nanoseconds: i64) -> String {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).map(rfc3339).unwrap_or_default()
}

fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
