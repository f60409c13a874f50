//! Engines, replicas, snapshots, nodes and settings.

use std::collections::BTreeMap;

use super::{Operation, Refusal, Related, Review, old};
use crate::settings::default_value;
use crate::{Engine, Node, Replica, Setting, Snapshot};

/// A volume has one engine, and a second while it migrates.
pub(super) fn engine_count(engine: &Engine, related: &Related) -> Result<(), Refusal> {
    let Some(volume) = &related.volume else { return Ok(()) };
    let name = &engine.spec.volume_name;
    let most = if volume.is_migratable() { 2 } else { 1 };
    let others = related.engines.iter().filter(|other| other.metadata.name != engine.metadata.name).count();
    if others < most {
        return Ok(());
    }
    let message = format!("volume {name} has {others} engines already, and cannot have more than {most}");
    Err(Refusal::new("spec.volumeName", message))
}

/// The only good copy of a volume that is to stay is not deleted.
pub(super) fn last_replica(replica: &Replica, related: &Related) -> Result<(), Refusal> {
    let Some(volume) = &related.volume else { return Ok(()) };
    let spared = volume.metadata.deletion_timestamp.is_some() || !replica.is_healthy();
    // A migration's twin is the same copy, which stays as long as one object stands for it.
    let another = |other: &Replica| other.metadata.name != replica.metadata.name && other.is_healthy();
    if spared || related.replicas.iter().any(another) {
        return Ok(());
    }
    let name = replica.metadata.name.as_deref().unwrap_or_default();
    let message = format!(
        "cannot delete replica {name}: it is the only healthy replica of volume {}; delete the volume, or wait for another replica",
        replica.spec.volume_name
    );
    Err(Refusal::new("spec.volumeName", message))
}

pub(super) fn snapshot(review: &Review<'_>, snapshot: &Snapshot, related: &Related) -> Result<(), Refusal> {
    let volume = &snapshot.spec.volume;
    if review.operation == Operation::Create {
        return match related.volume {
            Some(_) => Ok(()),
            None => Err(Refusal::new("spec.volume", format!("volume {volume:?} does not exist"))),
        };
    }
    let before: Snapshot = old(review)?;
    if before.spec.volume == *volume {
        return Ok(());
    }
    let message = format!("cannot be changed from {:?} to {volume:?}", before.spec.volume);
    Err(Refusal::new("spec.volume", message))
}

pub(super) fn node(node: &Node) -> Result<(), Refusal> {
    let mut paths: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, disk) in &node.spec.disks {
        let field = |field: &str| format!("spec.disks[{name}].{field}");
        let path = disk.path.trim_end_matches('/');
        if !disk.path.starts_with('/') {
            return Err(Refusal::new(field("path"), format!("{:?} is not an absolute path", disk.path)));
        }
        if let Some(other) = paths.insert(path, name) {
            return Err(Refusal::new(field("path"), format!("{:?} is the path of disk {other} already", disk.path)));
        }
        if disk.storage_reserved < 0 {
            return Err(Refusal::new(field("storageReserved"), format!("{} is below zero", disk.storage_reserved)));
        }
    }
    Ok(())
}

/// A setting keeps the kind of its default: a flag, a number, or any text.
pub(super) fn setting(setting: &Setting) -> Result<(), Refusal> {
    let name = setting.metadata.name.as_deref().unwrap_or_default();
    let each = |text: &str| -> Vec<String> {
        let by_engine: Option<BTreeMap<String, String>> = serde_json::from_str(text).ok();
        by_engine.map_or_else(|| vec![text.to_owned()], |by_engine| by_engine.into_values().collect())
    };
    let default = each(default_value(name)).into_iter().next().unwrap_or_default();
    for value in each(&setting.value) {
        let wrong = if default.parse::<bool>().is_ok() {
            value.parse::<bool>().err().map(|_| "true or false")
        } else if default.parse::<i64>().is_ok() {
            value.parse::<u64>().err().map(|_| "a whole number, not below zero")
        } else {
            None
        };
        if let Some(right) = wrong {
            return Err(Refusal::new("value", format!("{value:?} cannot be the value of {name}; it must be {right}")));
        }
    }
    Ok(())
}
