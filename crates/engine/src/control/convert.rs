//! Between the words of instances and those of the control API.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::proto;
use crate::engine_server;
use crate::replica_server;

impl From<engine_server::Info> for proto::EngineInfo {
    fn from(info: engine_server::Info) -> Self {
        Self {
            volume: info.volume,
            size: info.size,
            phase: info.phase,
            holder: info.holder,
            epoch: info.epoch,
            generation: info.generation,
            in_sync: info.in_sync,
            standby: info.standby.unwrap_or_default(),
            suspended: info.suspended.unwrap_or_default(),
            replicas: info.replicas.into_iter().map(Into::into).collect(),
            nbd: info.nbd,
            line: info.line.unwrap_or_default(),
            scrub: info.scrub.map(|scrub| proto::Scrub {
                done: scrub.done,
                total: scrub.total,
                different: scrub.different,
            }),
            peer: info.peer.unwrap_or_default(),
            clients: info.clients as u64,
            requests_in_flight: info.requests_in_flight as u64,
            events: info.events,
            device: info.device.unwrap_or_default(),
            device_error: info.device_error.unwrap_or_default(),
        }
    }
}

impl From<engine_server::MemberInfo> for proto::EngineReplica {
    fn from(member: engine_server::MemberInfo) -> Self {
        let resync = member.resync.map(|progress| proto::Resync {
            done: progress.done,
            total: progress.total,
            copied: progress.copied,
        });
        Self {
            name: member.name,
            address: member.address,
            in_sync: member.in_sync,
            connected: member.connected,
            resync,
            last_error: member.last_error.unwrap_or_default(),
        }
    }
}

impl From<tether_store::volume::ImageHash> for proto::SnapshotHash {
    fn from(hash: tether_store::volume::ImageHash) -> Self {
        Self {
            method: hash.method,
            checksum: hash.checksum,
            change_time: hash.change_time,
            last_hashed_at: hash.last_hashed_at,
            silently_corrupted: hash.silently_corrupted,
        }
    }
}

impl From<replica_server::Info> for proto::ReplicaInfo {
    fn from(info: replica_server::Info) -> Self {
        Self {
            name: info.name,
            volume: info.volume,
            size: info.size,
            epoch: info.epoch,
            active_regions: info.active_regions,
            doubtful: info.doubtful,
            out_of_sync: info.out_of_sync.unwrap_or_default(),
            connections: info.connections as u64,
            index_bytes: info.index_bytes as u64,
        }
    }
}

/// A snapshot as replicas write it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    name: String,
    parent: String,
    children: Vec<String>,
    removed: bool,
    user_created: bool,
    created: String,
    size: u64,
    labels: BTreeMap<String, String>,
    live: bool,
}

/// Snapshots from a replica's JSON.
pub(super) fn snapshots(text: &str) -> Result<Vec<proto::Snapshot>, serde_json::Error> {
    let all: Vec<Shown> = serde_json::from_str(text)?;
    let convert = |shown: Shown| proto::Snapshot {
        name: shown.name,
        parent: shown.parent,
        children: shown.children,
        removed: shown.removed,
        user_created: shown.user_created,
        created: shown.created,
        size: shown.size,
        labels: shown.labels.into_iter().collect(),
        live: shown.live,
    };
    Ok(all.into_iter().map(convert).collect())
}
