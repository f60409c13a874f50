//! What belongs to a volume from its beginning: attachment, key, engine, replicas with their places.

use serde_json::json;
use tether_crd::attachment::VolumeAttachmentSpec;
use tether_crd::engine::{EngineSpec, InstanceState};
use tether_crd::replica::ReplicaSpec;
use tether_crd::volume::{DataLocality, Robustness, State, conditions};
use tether_crd::{
    API_VERSION, Engine, FINALIZER, IntString, NAMESPACE, Replica, VolumeAttachment, condition, labels, names,
};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::draft::Draft;
use super::{Change, Kind, Part};
use crate::object::{Target, has_finalizer, is_deleting, name, uid};
use crate::placement::{self, NoPlace, Sibling, Spot, Wish};

const OBJECTS: Rule = Rule("volume-objects");
pub(super) const PLACEMENT: Rule = Rule("replica-placement");

/// What Longhorn says before the reason why a replica was not even made.
const PRECHECK_FAILED: &str = "precheck new replica failed: ";
/// What Longhorn says of a volume that begins with fewer replicas than it asks for.
const DEGRADED_CREATION: &str = "Reset schedulable due to allow volume creation with degraded availability";

/// Whether a volume was made what it is by this very decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Now,
    Before,
}

/// Makes what is missing.
pub(super) fn objects(draft: &mut Draft<'_>) -> Made {
    let volume = draft.volume();
    if !has_finalizer(volume, FINALIZER) {
        let mut all = volume.metadata.finalizers.clone().unwrap_or_default();
        all.push(FINALIZER.to_owned());
        let body = json!({ "metadata": { "finalizers": all } });
        let target = Target::of(volume);
        draft.first.push(Change::Patch { kind: Kind::Volume, part: Part::Object, target, body });
    }
    if draft.observed.attachment.is_none() {
        draft.fires(OBJECTS, Reason::VolumeCreated, "The volume gets its attachment, which holds the tickets.");
        draft.first.push(Change::CreateAttachment(Box::new(attachment(draft))));
    }
    if draft.status.state == State::Unset {
        draft.set_state(State::Creating);
    }
    let is_new = !draft.has_engine();
    if is_new {
        // The engine comes last: where there is one, the key is there too.
        draft.first.insert(0, Change::CreateKey { volume: Target::of(volume) });
        draft.fires(OBJECTS, Reason::VolumeCreated, "The volume gets its key, its engine and its replicas.");
    }
    place_waiting(draft);
    if never_started(draft) {
        first_replicas(draft);
    }
    if is_new {
        let engine = engine(draft, 0);
        draft.add_engine(engine);
        if draft.replicas.is_empty() {
            draft.set_robustness(Robustness::Faulted);
        }
    }
    own(draft);
    if is_new { Made::Now } else { Made::Before }
}

/// No engine ever ran, so that all replicas are equally empty.
fn never_started(draft: &Draft<'_>) -> bool {
    draft.record().is_none() && draft.status.current_node_id.is_empty() && draft.status.state != State::Attaching
}

/// Makes the replicas that the volume begins with, as far as there are places.
fn first_replicas(draft: &mut Draft<'_>) {
    let wanted = usize::try_from(draft.volume().spec.number_of_replicas).unwrap_or(0);
    let held =
        draft.replicas.iter().filter(|replica| !replica.is_leaving() && replica.spec.failed_at.is_empty()).count();
    for _ in held..wanted {
        let mut replica = replica(draft);
        match locality(draft) {
            // Its place is where the volume gets attached first.
            Locality::Later => {}
            Locality::Node(only_node) => {
                if !find_place(draft, &mut replica, only_node, PRECHECK_FAILED) {
                    return;
                }
            }
        }
        draft.add_replica(replica);
    }
}

enum Locality {
    /// Not before it is known where the volume is attached.
    Later,
    /// On that node, or anywhere.
    Node(Option<String>),
}

fn locality(draft: &Draft<'_>) -> Locality {
    let spec = &draft.volume().spec;
    match (spec.data_locality, spec.node_id.as_str()) {
        (DataLocality::Disabled, _) => Locality::Node(None),
        (_, "") => Locality::Later,
        (DataLocality::StrictLocal, node) => Locality::Node(Some(node.to_owned())),
        (DataLocality::BestEffort, _) => Locality::Node(None),
    }
}

/// Gives a place to replicas that have none.
fn place_waiting(draft: &mut Draft<'_>) {
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        if replica.is_scheduled() || replica.is_leaving() || !replica.spec.failed_at.is_empty() {
            continue;
        }
        let only_node = match locality(draft) {
            Locality::Later => continue,
            Locality::Node(Some(node)) => Some(node),
            Locality::Node(None) => Some(replica.spec.hard_node_affinity.clone()).filter(|node| !node.is_empty()),
        };
        let mut changed = draft.replicas[index].clone();
        if find_place(draft, &mut changed, only_node, "") {
            draft.replicas[index] = changed;
        }
    }
}

/// Gives the replica a place, or says why there is none.
pub(super) fn find_place(
    draft: &mut Draft<'_>,
    replica: &mut Replica,
    only_node: Option<String>,
    prefix: &str,
) -> bool {
    let is_local = only_node.is_some();
    match place(draft, only_node) {
        Ok(Spot { node, disk, disk_path }) => {
            let words = format!("The replica goes to node {node:?}, disk {disk_path:?}.");
            draft.plan.fires(PLACEMENT, about(replica), Reason::ReplicaPlaced, words);
            let labels = replica.metadata.labels.get_or_insert_default();
            labels.insert(labels::NODE.into(), node.clone());
            labels.insert(labels::DISK_UUID.into(), disk.clone());
            (replica.spec.node_id, replica.spec.disk_id, replica.spec.disk_path) = (node, disk, disk_path);
            true
        }
        Err(no_place) => {
            refuse(draft, &no_place, is_local, prefix);
            false
        }
    }
}

fn about(replica: &Replica) -> Subject {
    Subject::new("Replica", NAMESPACE, name(replica))
}

/// Finds a place for one more replica of the volume.
pub(super) fn place(draft: &Draft<'_>, only_node: Option<String>) -> Result<Spot, NoPlace> {
    let volume = draft.volume();
    let spec = &volume.spec;
    let wish = Wish {
        size: spec.size.0,
        actual_size: draft.status.actual_size,
        node_selector: spec.node_selector.iter().cloned().collect(),
        disk_selector: spec.disk_selector.iter().cloned().collect(),
        topology: spec.topology_requirement.iter().map(|t| (t.zone.clone(), t.region.clone())).collect(),
        only_node,
        prefer_node: preferred_node(draft),
    };
    let policy = draft.observed.settings.policy(volume);
    let mut promised = draft.observed.promised.clone();
    let mut siblings = Vec::new();
    for replica in &draft.replicas {
        if !replica.is_scheduled() || replica.is_leaving() {
            continue;
        }
        if draft.observed.replicas.iter().all(|seen| name(*seen) != name(&**replica)) {
            *promised.entry(replica.spec.disk_id.clone()).or_default() += replica.spec.volume_size.0;
        }
        if replica.spec.failed_at.is_empty() || super::rebuild::is_waited_for(draft, replica) {
            siblings.push(Sibling {
                node: replica.spec.node_id.clone(),
                disk: replica.spec.disk_id.clone(),
                is_evicting: replica.spec.eviction_requested,
            });
        }
    }
    placement::place(&wish, &policy, draft.observed.hosts, &promised, &siblings)
}

/// With best-effort locality one replica is to be where the volume is attached.
fn preferred_node(draft: &Draft<'_>) -> Option<String> {
    let spec = &draft.volume().spec;
    let is_local = |node: &str| draft.replicas.iter().any(|replica| replica.spec.node_id == node);
    let wanted = spec.data_locality == DataLocality::BestEffort && !spec.node_id.is_empty() && !is_local(&spec.node_id);
    wanted.then(|| spec.node_id.clone())
}

fn refuse(draft: &mut Draft<'_>, no_place: &NoPlace, is_local: bool, prefix: &str) {
    let reason = if is_local { Reason::LocalReplicaSchedulingFailure } else { Reason::ReplicaSchedulingFailure };
    let message = format!("{prefix}{}", no_place.summary());
    for refusal in &no_place.refusals {
        let node = Subject::new("Node", NAMESPACE, &refusal.node);
        let words = match &refusal.disk {
            Some(disk) => format!("Disk {disk}: {}.", refusal.words),
            None => format!("The node is not possible: {}.", refusal.words),
        };
        draft.plan.blocked(PLACEMENT, node, refusal.reason, words);
    }
    draft.blocked(PLACEMENT, reason, format!("No place for a replica: {message} ({no_place})."));
    draft.warn(reason, format!("{message}: {no_place}"));
    let conditions = &mut draft.status.conditions;
    condition::set(conditions, conditions::SCHEDULED, condition::FALSE, reason.code(), &message, draft.now);
}

/// The Scheduled condition, if nothing was refused.
pub(super) fn condition(draft: &mut Draft<'_>) {
    let refused = draft.plan.report.findings.iter().any(|finding| {
        let failed = [Reason::ReplicaSchedulingFailure, Reason::LocalReplicaSchedulingFailure];
        finding.rule == PLACEMENT && failed.contains(&finding.reason)
    });
    let usable = draft.replicas.iter().filter(|replica| !replica.is_leaving() && replica.spec.failed_at.is_empty());
    let (placed, waiting): (Vec<_>, Vec<_>) = usable.partition(|replica| replica.is_scheduled());
    let wanted = usize::try_from(draft.volume().spec.number_of_replicas).unwrap_or(0);
    let message = if refused {
        let begins = never_started(draft) && draft.observed.settings.allow_degraded_creation && !placed.is_empty();
        if !begins {
            return;
        }
        DEGRADED_CREATION
    } else if placed.len() + waiting.len() < wanted {
        // Whether there is a place is known only when one is looked for.
        return;
    } else {
        ""
    };
    let conditions = &mut draft.status.conditions;
    condition::set(conditions, conditions::SCHEDULED, condition::TRUE, "", message, draft.now);
}

/// Which node looks after the volume, for those who ask for work to be done near it.
fn own(draft: &mut Draft<'_>) {
    let wanted = &draft.volume().spec.node_id;
    let ready = |node: &str| draft.host(node).is_some_and(|host| host.not_ready.is_none());
    let owner = if !wanted.is_empty() {
        wanted.clone()
    } else if ready(&draft.status.owner_id) {
        return;
    } else {
        let with_replica = draft.replicas.iter().map(|replica| replica.spec.node_id.as_str());
        let all = draft.observed.hosts.keys().map(String::as_str);
        match with_replica.chain(all).find(|node| ready(node)) {
            Some(node) => node.to_owned(),
            None => return,
        }
    };
    draft.status.owner_id = owner;
}

fn owned(draft: &Draft<'_>, name: String, node: &str) -> ObjectMeta {
    let volume = draft.volume();
    let mut map = std::collections::BTreeMap::from([(labels::VOLUME.to_owned(), draft.name().to_owned())]);
    if !node.is_empty() {
        map.insert(labels::NODE.to_owned(), node.to_owned());
    }
    ObjectMeta {
        name: Some(name),
        namespace: Some(NAMESPACE.to_owned()),
        labels: Some(map),
        finalizers: Some(vec![FINALIZER.to_owned()]),
        owner_references: Some(vec![OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: "Volume".to_owned(),
            name: draft.name().to_owned(),
            uid: uid(volume).to_owned(),
            block_owner_deletion: None,
            controller: None,
        }]),
        ..Default::default()
    }
}

fn attachment(draft: &Draft<'_>) -> VolumeAttachment {
    VolumeAttachment {
        metadata: owned(draft, draft.name().to_owned(), ""),
        spec: VolumeAttachmentSpec { volume: draft.name().to_owned(), ..Default::default() },
        ..Default::default()
    }
}

/// An engine that does not run yet.
pub(super) fn engine(draft: &Draft<'_>, number: u32) -> Engine {
    let spec = &draft.volume().spec;
    Engine {
        metadata: owned(draft, names::engine(draft.name(), number), ""),
        spec: EngineSpec {
            volume_name: draft.name().to_owned(),
            volume_size: spec.size,
            image: spec.image.clone(),
            desire_state: InstanceState::Stopped,
            data_engine: spec.data_engine,
            frontend: spec.frontend,
            active: true,
            revision_counter_disabled: spec.revision_counter_disabled,
            snapshot_max_count: spec.snapshot_max_count,
            snapshot_max_size: spec.snapshot_max_size,
            rebuild_concurrent_sync_limit: spec.rebuild_concurrent_sync_limit,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// A replica that has no place yet and does not run.
pub(super) fn replica(draft: &mut Draft<'_>) -> Replica {
    let (random, directory) = (draft.random(), draft.random());
    let spec = &draft.volume().spec;
    let engine = match draft.engines.first() {
        Some(_) => name(draft.engine()).to_owned(),
        None => names::engine(draft.name(), 0),
    };
    Replica {
        metadata: owned(draft, names::replica(draft.name(), random), ""),
        spec: ReplicaSpec {
            volume_name: draft.name().to_owned(),
            volume_size: IntString(spec.size.0),
            image: spec.image.clone(),
            desire_state: InstanceState::Stopped,
            data_engine: spec.data_engine,
            engine_name: engine,
            active: true,
            data_directory_name: names::data_directory(draft.name(), directory),
            backing_image: spec.backing_image.clone(),
            revision_counter_disabled: spec.revision_counter_disabled,
            snapshot_max_count: spec.snapshot_max_count,
            snapshot_max_size: spec.snapshot_max_size,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// A second object for the copy that `spec` describes.
pub(super) fn twin(draft: &mut Draft<'_>, spec: ReplicaSpec) -> Replica {
    let random = draft.random();
    let mut metadata = owned(draft, names::replica(draft.name(), random), &spec.node_id);
    metadata.labels.get_or_insert_default().insert(labels::DISK_UUID.into(), spec.disk_id.clone());
    Replica { metadata, spec, ..Default::default() }
}

/// Whether the volume's attachment is there to take a ticket.
pub(super) fn ticket_target(draft: &Draft<'_>) -> Option<Target> {
    draft.observed.attachment.filter(|attachment| !is_deleting(*attachment)).map(Target::of)
}
