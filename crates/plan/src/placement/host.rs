//! What placement sees of a Longhorn Node and of its instance manager.

use jiff::Timestamp;
use tether_crd::condition::{self, Condition};
use tether_crd::instance_manager::{InstanceManagerState, POD_READY};
use tether_crd::node::{DiskStatus, DiskType, conditions, reasons};
use tether_crd::{InstanceManager, Node};

use super::{Disk, Host, Manager};
use crate::object::{is_deleting, name};

impl Host {
    pub fn of(node: &Node, manager: Option<&InstanceManager>) -> Self {
        let status = &node.status;
        let disks = node.spec.disks.iter().map(|(disk, spec)| {
            let unknown = DiskStatus::default();
            let seen = status.disk_status.get(disk).unwrap_or(&unknown);
            Disk {
                name: disk.clone(),
                uuid: seen.disk_uuid.clone(),
                path: spec.path.clone(),
                is_filesystem: spec.disk_type == DiskType::Filesystem,
                allows_scheduling: spec.allow_scheduling,
                is_evicting: spec.eviction_requested,
                // A disk without a uuid cannot be told from another that is mounted in its place.
                not_ready: not_true(&seen.conditions, conditions::READY)
                    .or_else(|| seen.disk_uuid.is_empty().then(|| "its uuid is not known yet".to_owned())),
                unschedulable: is_false(&seen.conditions, conditions::SCHEDULABLE),
                tags: spec.tags.iter().cloned().collect(),
                available: seen.storage_available,
                maximum: seen.storage_maximum,
                reserved: spec.storage_reserved,
            }
        });
        Self {
            name: name(node).to_owned(),
            zone: status.zone.clone(),
            region: status.region.clone(),
            is_deleting: is_deleting(node),
            is_down: node.is_down(),
            not_ready: not_true(&status.conditions, conditions::READY),
            unschedulable: is_false(&status.conditions, conditions::SCHEDULABLE),
            allows_scheduling: node.spec.allow_scheduling,
            is_evicting: node.spec.eviction_requested,
            is_cordoned: condition::find(&status.conditions, conditions::SCHEDULABLE).is_some_and(|found| {
                found.status == condition::FALSE && found.reason == reasons::KUBERNETES_NODE_CORDONED
            }),
            tags: node.spec.tags.iter().cloned().collect(),
            manager: manager.map_or(Manager::Missing, Manager::of),
            manager_since: manager.and_then(running_since),
            disks: disks.collect(),
        }
    }

    /// The disk with this uuid.
    pub fn disk(&self, uuid: &str) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.uuid == uuid)
    }

    /// Whether an engine or a replica that is to start there will be.
    pub fn can_launch(&self) -> bool {
        !self.is_down && self.manager.can_launch()
    }
}

impl Manager {
    pub fn of(manager: &InstanceManager) -> Self {
        match manager.status.current_state {
            _ if is_deleting(manager) => Self::Stopped,
            InstanceManagerState::Running => Self::Running,
            InstanceManagerState::Stopped => Self::Stopped,
            InstanceManagerState::Starting => Self::Starting,
            InstanceManagerState::Error => Self::Error,
            InstanceManagerState::Unknown => Self::Unknown,
        }
    }
}

/// Since when an instance manager runs; none if it does not.
pub fn running_since(manager: &InstanceManager) -> Option<Timestamp> {
    let ready = condition::find(&manager.status.conditions, POD_READY)?;
    condition::time(&ready.last_transition_time).filter(|_| ready.status == condition::TRUE)
}

/// Why the condition is not True; a missing one is not.
fn not_true(conditions: &[Condition], kind: &str) -> Option<String> {
    match condition::find(conditions, kind) {
        None => Some("its condition is not known yet".to_owned()),
        Some(found) if found.status == condition::TRUE => None,
        Some(found) => Some(words(found)),
    }
}

/// Why the condition is False; nobody may have said so yet.
fn is_false(conditions: &[Condition], kind: &str) -> Option<String> {
    condition::find(conditions, kind).filter(|found| found.status == condition::FALSE).map(words)
}

fn words(found: &Condition) -> String {
    let Condition { status, reason, message, .. } = found;
    match (reason.as_str(), message.as_str()) {
        ("", "") => format!("{} is {status}", found.kind),
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}, {message}"),
    }
}
