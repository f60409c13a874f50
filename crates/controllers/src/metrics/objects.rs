//! What the objects of volumes say, as metrics: Longhorn's names where it has one, `tether_` where it has none.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use tether_crd::attachment::TicketType;
use tether_crd::condition::{self, Condition};
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::volume::{Robustness, State};
use tether_crd::{Node, VolumeAttachment};

use crate::longhorn::Longhorn;

/// States and robustnesses that a series of its own tells for each volume.
const STATES: [State; 6] =
    [State::Creating, State::Attached, State::Detached, State::Attaching, State::Detaching, State::Deleting];
const ROBUSTNESSES: [Robustness; 4] =
    [Robustness::Unknown, Robustness::Healthy, Robustness::Degraded, Robustness::Faulted];
/// Waiting tickets are counted by whether they wait longer than this.
const AGES_S: [i64; 4] = [0, 10, 60, 600];
/// A volume that is on its way somewhere for longer than this is stuck: many times what the longest step takes by design.
const STUCK_S: i64 = 120;

/// Everything that is told. Of what there are thousands of it is no more than that.
pub(super) struct Objects {
    volumes: Vec<OfVolume>,
    engines: Vec<OfEngine>,
    replicas: Vec<OfReplica>,
    tickets: Tickets,
    nodes: Vec<Arc<Node>>,
}

struct OfVolume {
    name: String,
    node: String,
    pvc: String,
    pvc_namespace: String,
    size: i64,
    actual_size: i64,
    state: State,
    state_changed_at: String,
    robustness: Robustness,
}

struct OfEngine {
    name: String,
    node: String,
    volume: String,
    state: InstanceState,
    modes: BTreeMap<String, ReplicaMode>,
}

struct OfReplica {
    name: String,
    node: String,
    volume: String,
    state: InstanceState,
}

/// Tickets by type: all, and the ages of those that wait.
#[derive(Default)]
struct Tickets {
    all: BTreeMap<TicketType, u32>,
    waiting: BTreeMap<TicketType, Vec<i64>>,
}

impl Objects {
    /// What the caches hold, looked at one by one.
    pub(super) fn of(longhorn: &Longhorn, now: Timestamp) -> Self {
        let mut objects = Self {
            volumes: Vec::new(),
            engines: Vec::new(),
            replicas: Vec::new(),
            tickets: Tickets::default(),
            nodes: longhorn.nodes.list(),
        };
        let name = |meta: &ObjectMeta| meta.name.clone().unwrap_or_default();
        longhorn.volumes.each(|volume| {
            let (spec, status) = (&volume.spec, &volume.status);
            objects.volumes.push(OfVolume {
                name: name(&volume.metadata),
                node: status.current_node_id.clone(),
                pvc: status.kubernetes_status.pvc_name.clone(),
                pvc_namespace: status.kubernetes_status.namespace.clone(),
                size: spec.size.0,
                actual_size: status.actual_size,
                state: status.state,
                state_changed_at: status.state_changed_at.clone(),
                robustness: status.robustness,
            });
        });
        longhorn.engines.each(|engine| {
            objects.engines.push(OfEngine {
                name: name(&engine.metadata),
                node: engine.spec.node_id.clone(),
                volume: engine.spec.volume_name.clone(),
                state: engine.status.current_state,
                modes: engine.status.replica_mode_map.clone(),
            });
        });
        longhorn.replicas.each(|replica| {
            objects.replicas.push(OfReplica {
                name: name(&replica.metadata),
                node: replica.spec.node_id.clone(),
                volume: replica.spec.volume_name.clone(),
                state: replica.status.current_state,
            });
        });
        longhorn.attachments.each(|attachment| objects.tickets.count(attachment, now));
        objects
    }
}

impl Tickets {
    fn count(&mut self, attachment: &VolumeAttachment, now: Timestamp) {
        for ticket in attachment.spec.attachment_tickets.values() {
            *self.all.entry(ticket.kind.clone()).or_default() += 1;
            let status = attachment.status.attachment_ticket_statuses.get(&ticket.id);
            if status.is_some_and(|status| status.satisfied && status.generation == ticket.generation) {
                continue;
            }
            let since = status.and_then(|status| status.waiting.as_ref()).and_then(|why| age(&why.since, now));
            self.waiting.entry(ticket.kind.clone()).or_default().push(since.unwrap_or(0).max(0));
        }
    }
}

type Done = Result<(), fmt::Error>;
/// Labels of one series.
type Labels<'a> = Vec<(&'static str, &'a str)>;
/// Name and help of a family, and its value for a node.
type OfNode = (&'static str, &'static str, fn(&Node) -> i64);
/// The same for a disk of a node.
type OfDisk = (&'static str, &'static str, fn(&Node, &str) -> i64);

fn one(family: &mut MetricEncoder<'_>, labels: &Labels<'_>, value: f64) -> Done {
    family.encode_family(&labels.as_slice())?.encode_gauge(&value)
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Writes all families.
pub(super) fn encode(objects: &Objects, now: Timestamp, encoder: &mut DescriptorEncoder<'_>) -> Done {
    volumes(objects, encoder)?;
    instances(objects, encoder)?;
    nodes(objects, encoder)?;
    disks(objects, encoder)?;
    tickets(objects, encoder)?;
    stuck(objects, now, encoder)
}

fn gauge<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn volumes(objects: &Objects, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let mut family = gauge(encoder, "longhorn_volume_capacity_bytes", "Size of the volume")?;
    for volume in &objects.volumes {
        one(&mut family, &of_volume(volume), volume.size as f64)?;
    }
    let mut family =
        gauge(encoder, "longhorn_volume_actual_size_bytes", "Bytes that the volume takes in each replica")?;
    for volume in &objects.volumes {
        one(&mut family, &of_volume(volume), volume.actual_size as f64)?;
    }
    let help = "Whether the volume is in this state, one series for each";
    let mut family = gauge(encoder, "longhorn_volume_state", help)?;
    for volume in &objects.volumes {
        for state in STATES {
            let mut labels = of_volume(volume);
            labels.push(("state", state.as_str()));
            one(&mut family, &labels, flag(volume.state == state))?;
        }
    }
    let help = "Whether the volume is this robust, one series for each";
    let mut family = gauge(encoder, "longhorn_volume_robustness", help)?;
    for volume in &objects.volumes {
        for robustness in ROBUSTNESSES {
            let mut labels = of_volume(volume);
            labels.push(("state", robustness.as_str()));
            one(&mut family, &labels, flag(volume.robustness == robustness))?;
        }
    }
    Ok(())
}

fn of_volume(volume: &OfVolume) -> Labels<'_> {
    vec![
        ("node", volume.node.as_str()),
        ("volume", volume.name.as_str()),
        ("pvc", volume.pvc.as_str()),
        ("pvc_namespace", volume.pvc_namespace.as_str()),
    ]
}

fn instances(objects: &Objects, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let mut family = gauge(encoder, "longhorn_engine_state", "1 for the state that the engine is in")?;
    for engine in &objects.engines {
        let mut labels = of_engine(engine);
        labels.push(("state", engine.state.as_str()));
        one(&mut family, &labels, 1.0)?;
    }
    let mut family = gauge(encoder, "longhorn_engine_replica_mode", "1 for what the engine may do with the replica")?;
    for engine in &objects.engines {
        for (replica, mode) in &engine.modes {
            let mut labels = of_engine(engine);
            labels.extend([("replica", replica.as_str()), ("mode", mode.as_str())]);
            one(&mut family, &labels, 1.0)?;
        }
    }
    let mut family = gauge(encoder, "longhorn_replica_state", "1 for the state that the replica is in")?;
    for replica in &objects.replicas {
        let labels = vec![
            ("node", replica.node.as_str()),
            ("replica", replica.name.as_str()),
            ("volume", replica.volume.as_str()),
            ("state", replica.state.as_str()),
        ];
        one(&mut family, &labels, 1.0)?;
    }
    Ok(())
}

fn of_engine(engine: &OfEngine) -> Labels<'_> {
    vec![("node", engine.node.as_str()), ("engine", engine.name.as_str()), ("volume", engine.volume.as_str())]
}

fn nodes(objects: &Objects, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let name = |node: &Arc<Node>| node.metadata.name.clone().unwrap_or_default();
    let mut family = gauge(encoder, "longhorn_node_count_total", "Nodes that there are")?;
    family.encode_gauge(&(objects.nodes.len() as f64))?;
    let mut family = gauge(encoder, "longhorn_node_status", "Whether the condition of the node holds")?;
    for node in &objects.nodes {
        let (name, allowed) = (name(node), node.spec.allow_scheduling);
        for condition in &node.status.conditions {
            one(&mut family, &of_condition(&[("node", &name)], condition), flag(condition.status == condition::TRUE))?;
        }
        let labels = vec![("node", name.as_str()), ("condition", "allowScheduling"), ("condition_reason", "")];
        one(&mut family, &labels, flag(allowed))?;
    }
    let measures: [OfNode; 4] = [
        ("longhorn_node_storage_capacity_bytes", "Size of the node's disks", |node| {
            node.status.disk_status.values().map(|disk| disk.storage_maximum).sum()
        }),
        ("longhorn_node_storage_usage_bytes", "What is taken of the node's disks", |node| {
            node.status.disk_status.values().map(|disk| disk.storage_maximum - disk.storage_available).sum()
        }),
        ("longhorn_node_storage_reservation_bytes", "What replicas leave alone on the node's disks", |node| {
            node.spec.disks.values().map(|disk| disk.storage_reserved).sum()
        }),
        ("longhorn_node_storage_scheduled_bytes", "What the node's replicas may grow to", |node| {
            node.status.disk_status.values().map(|disk| disk.storage_scheduled).sum()
        }),
    ];
    for (family, help, measure) in measures {
        let mut family = gauge(encoder, family, help)?;
        for node in &objects.nodes {
            one(&mut family, &vec![("node", name(node).as_str())], measure(node) as f64)?;
        }
    }
    Ok(())
}

fn of_condition<'a>(labels: &[(&'static str, &'a str)], condition: &'a Condition) -> Labels<'a> {
    // Longhorn's names of conditions begin with a small letter here.
    let kind = match condition.kind.as_str() {
        "Ready" => "ready",
        "Schedulable" => "schedulable",
        "MountPropagation" => "mountpropagation",
        other => other,
    };
    let mut all = labels.to_vec();
    all.extend([("condition", kind), ("condition_reason", condition.reason.as_str())]);
    all
}

fn disks(objects: &Objects, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let name = |node: &Arc<Node>| node.metadata.name.clone().unwrap_or_default();
    let mut family = gauge(encoder, "longhorn_disk_status", "Whether the condition of the disk holds")?;
    for node in &objects.nodes {
        let node_name = name(node);
        for (disk, status) in &node.status.disk_status {
            for condition in &status.conditions {
                let labels = of_condition(&[("node", &node_name), ("disk", disk)], condition);
                one(&mut family, &labels, flag(condition.status == condition::TRUE))?;
            }
        }
    }
    let measures: [OfDisk; 3] = [
        ("longhorn_disk_capacity_bytes", "Size of the disk", |node, disk| {
            node.status.disk_status[disk].storage_maximum
        }),
        ("longhorn_disk_usage_bytes", "What is taken of the disk", |node, disk| {
            let disk = &node.status.disk_status[disk];
            disk.storage_maximum - disk.storage_available
        }),
        ("longhorn_disk_reservation_bytes", "What replicas leave alone on the disk", |node, disk| {
            node.spec.disks.get(disk).map_or(0, |disk| disk.storage_reserved)
        }),
    ];
    for (family, help, measure) in measures {
        let mut family = gauge(encoder, family, help)?;
        for node in &objects.nodes {
            for disk in node.status.disk_status.keys() {
                let labels = vec![("node", node.metadata.name.as_deref().unwrap_or_default()), ("disk", disk.as_str())];
                one(&mut family, &labels, measure(node, disk) as f64)?;
            }
        }
    }
    Ok(())
}

/// Seconds since a time that an object names; none if it names none.
fn age(since: &str, now: Timestamp) -> Option<i64> {
    condition::time(since).map(|since| since.duration_until(now).as_secs())
}

fn tickets(objects: &Objects, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let Tickets { all, waiting } = &objects.tickets;
    let mut family = gauge(encoder, "tether_tickets", "Attachment tickets by type")?;
    for (kind, count) in all {
        one(&mut family, &vec![("type", kind.as_str())], f64::from(*count))?;
    }
    let help = "Attachment tickets that are not satisfied, by type, and for how many seconds at least";
    let mut family = gauge(encoder, "tether_tickets_waiting", help)?;
    for kind in all.keys() {
        for least in AGES_S {
            let ages = waiting.get(kind).map(Vec::as_slice).unwrap_or_default();
            let count = ages.iter().filter(|age| **age >= least).count();
            let least = least.to_string();
            one(&mut family, &vec![("type", kind.as_str()), ("seconds", least.as_str())], count as f64)?;
        }
    }
    let mut family = gauge(encoder, "tether_ticket_oldest_wait_seconds", "How long the oldest waiting ticket waits")?;
    for kind in all.keys() {
        let oldest = waiting.get(kind).and_then(|ages| ages.iter().max()).copied().unwrap_or(0);
        one(&mut family, &vec![("type", kind.as_str())], oldest as f64)?;
    }
    Ok(())
}

fn stuck(objects: &Objects, now: Timestamp, encoder: &mut DescriptorEncoder<'_>) -> Done {
    let help = "Volumes that are on their way somewhere for longer than two minutes; the value is for how many seconds";
    let mut family = gauge(encoder, "tether_volume_stuck_seconds", help)?;
    for volume in &objects.volumes {
        let state = volume.state;
        let moves = matches!(state, State::Creating | State::Attaching | State::Detaching | State::Deleting);
        let Some(seconds) = age(&volume.state_changed_at, now).filter(|age| moves && *age >= STUCK_S) else {
            continue;
        };
        one(&mut family, &vec![("volume", volume.name.as_str()), ("state", state.as_str())], seconds as f64)?;
    }
    Ok(())
}
