//! Volumes, with their engines, replicas and tickets.

use std::collections::BTreeMap;

use kube::Client;
use serde_json::{Value, json};
use tether_crd::engine::InstanceState;
use tether_crd::volume::{CloneState, Robustness, State, conditions as types};
use tether_crd::{Engine, NAMESPACE, Replica, Volume, VolumeAttachment, labels, names};

use super::{Links, all, api, conditions, one, volume_attachment};
use crate::actions;
use crate::error::RequestError;

/// Fields of the spec that are shown as they are.
const SPEC: [&str; 36] = [
    "size",
    "frontend",
    "disableFrontend",
    "fromBackup",
    "restoreVolumeRecurringJob",
    "dataSource",
    "cloneMode",
    "dataLocality",
    "staleReplicaTimeout",
    "image",
    "backingImage",
    "lastAttachedBy",
    "revisionCounterDisabled",
    "snapshotDataIntegrity",
    "unmapMarkSnapChainRemoved",
    "backupCompressionMethod",
    "backupBlockSize",
    "replicaSoftAntiAffinity",
    "replicaZoneSoftAntiAffinity",
    "replicaDiskSoftAntiAffinity",
    "dataEngine",
    "snapshotMaxCount",
    "snapshotMaxSize",
    "freezeFilesystemForSnapshot",
    "backupTargetName",
    "diskSelector",
    "nodeSelector",
    "topologyRequirement",
    "numberOfReplicas",
    "replicaAutoBalance",
    "rebuildConcurrentSyncLimit",
    "accessMode",
    "offlineRebuilding",
    "migratable",
    "encrypted",
    "nodeID",
];
/// Fields of the status that are shown as they are.
const STATUS: [&str; 11] = [
    "state",
    "robustness",
    "currentImage",
    "lastBackup",
    "lastBackupAt",
    "restoreRequired",
    "restoreInitiated",
    "kubernetesStatus",
    "cloneStatus",
    "shareEndpoint",
    "shareState",
];

/// What belongs to a volume.
#[derive(Default)]
struct Parts {
    engines: Vec<Engine>,
    replicas: Vec<Replica>,
    attachment: Option<VolumeAttachment>,
}

pub(crate) async fn list(client: &Client, links: &Links) -> Result<Vec<Value>, RequestError> {
    let volumes = all::<Volume>(client, "").await?;
    let mut parts: BTreeMap<String, Parts> = BTreeMap::new();
    for engine in all::<Engine>(client, "").await? {
        parts.entry(engine.spec.volume_name.clone()).or_default().engines.push(engine);
    }
    for replica in all::<Replica>(client, "").await? {
        parts.entry(replica.spec.volume_name.clone()).or_default().replicas.push(replica);
    }
    for attachment in all::<VolumeAttachment>(client, "").await? {
        let of_volume = parts.entry(attachment.spec.volume.clone()).or_default();
        of_volume.attachment = Some(attachment);
    }
    let name = |volume: &Volume| volume.metadata.name.clone().unwrap_or_default();
    Ok(volumes.iter().map(|volume| resource(links, volume, &parts.remove(&name(volume)).unwrap_or_default())).collect())
}

pub(crate) async fn get(client: &Client, links: &Links, name: &str) -> Result<Value, RequestError> {
    let volume: Volume = one(client, "volume", name).await?;
    let labelled = format!("{}={name}", labels::VOLUME);
    let parts = Parts {
        engines: all(client, &labelled).await?,
        replicas: all(client, &labelled).await?,
        attachment: api::<VolumeAttachment>(client).get_opt(name).await?,
    };
    Ok(resource(links, &volume, &parts))
}

fn resource(links: &Links, volume: &Volume, parts: &Parts) -> Value {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let (spec, status) = (json!(volume.spec), json!(volume.status));
    let mut fields = json!({"name": name, "namespace": NAMESPACE});
    for field in SPEC {
        fields[field] = spec[field].clone();
    }
    for field in STATUS {
        fields[field] = status[field].clone();
    }
    let not_ready = not_ready(volume, &parts.replicas);
    fields["created"] = json!(volume.metadata.creation_timestamp);
    fields["standby"] = volume.spec.standby.into();
    fields["conditions"] = conditions(&volume.status.conditions);
    fields["ready"] = not_ready.is_none().into();
    fields["notReadyMessage"] = not_ready.unwrap_or_default().into();
    fields["controllers"] = parts.engines.iter().map(controller).collect();
    let engine = parts.engines.iter().find(|engine| engine.spec.active).or(parts.engines.first());
    fields["replicas"] = parts.replicas.iter().map(|one| replica(one, engine)).collect();
    fields["volumeAttachment"] = parts.attachment.as_ref().map_or(Value::Null, volume_attachment::fields);
    for empty in ["backupStatus", "restoreStatus", "purgeStatus", "rebuildStatus", "recurringJobSelector"] {
        fields[empty] = json!([]);
    }
    links.member("volume", "volumes", name, &actions::available(volume), fields)
}

fn controller(engine: &Engine) -> Value {
    let (spec, status) = (&engine.spec, &engine.status);
    json!({
        "name": engine.metadata.name,
        "hostId": spec.node_id,
        "address": status.ip,
        "running": status.current_state == InstanceState::Running,
        "image": spec.image,
        "currentImage": status.current_image,
        "instanceManagerName": status.instance_manager_name,
        "size": status.current_size,
        "actualSize": status.snapshots.values().filter_map(|snapshot| snapshot.size.parse::<i64>().ok()).sum::<i64>().to_string(),
        "endpoint": status.endpoint,
        "lastRestoredBackup": status.last_restored_backup,
        "requestedBackupRestore": spec.requested_backup_restore,
        "isExpanding": status.is_expanding,
        "lastExpansionError": status.last_expansion_error,
        "lastExpansionFailedAt": status.last_expansion_failed_at,
        "unmapMarkSnapChainRemovedEnabled": status.unmap_mark_snap_chain_removed_enabled,
    })
}

fn replica(replica: &Replica, engine: Option<&Engine>) -> Value {
    let (spec, status) = (&replica.spec, &replica.status);
    let name = replica.metadata.name.as_deref().unwrap_or_default();
    let mode = engine.and_then(|engine| engine.status.replica_mode_map.get(name));
    json!({
        "name": name,
        "hostId": spec.node_id,
        "address": status.ip,
        "running": status.current_state == InstanceState::Running,
        "image": spec.image,
        "currentImage": status.current_image,
        "instanceManagerName": status.instance_manager_name,
        "diskID": spec.disk_id,
        "diskPath": spec.disk_path,
        "dataPath": names::data_path(&spec.disk_path, &spec.data_directory_name),
        "mode": mode.map_or("", |mode| mode.as_str()),
        "failedAt": spec.failed_at,
        "dataEngine": spec.data_engine,
    })
}

/// Why the volume cannot be used by a workload now.
fn not_ready(volume: &Volume, replicas: &[Replica]) -> Option<String> {
    let status = &volume.status;
    if volume.spec.node_id.is_empty() && status.state != State::Detached {
        return Some(format!("waiting for the volume to fully detach. current state: {}", status.state));
    }
    let unplaced = replicas.iter().any(|replica| !replica.is_scheduled());
    if status.state == State::Detached && volume.condition(types::SCHEDULED) != "True" && unplaced {
        return Some("volume is currently in detached state with some un-schedulable replicas".to_owned());
    }
    if status.robustness == Robustness::Faulted {
        return Some("volume is faulted".to_owned());
    }
    let copied = [CloneState::Unset, CloneState::Completed, CloneState::CopyCompletedAwaitingHealthy];
    if !volume.spec.data_source.is_empty() && !copied[1..].contains(&status.clone_status.state) {
        return Some("volume has not finished cloning data".to_owned());
    }
    status.restore_required.then(|| "waiting for the restore to complete".to_owned())
}
