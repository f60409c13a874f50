//! The disks of a node: which of them can be used, and what they hold.
//!
//! A disk is a directory with a file in it that names it (`longhorn-disk.cfg`). A path is only where a disk is found:
//! if another file system is mounted there, or none, the name differs or is missing, and the disk is not used.
//!
//! ```text
//!   nothing recorded ── no file ──► a new disk: name it ──► ready
//!                    ── a file  ──► a known disk, adopted ─► ready
//!   recorded         ── no file, or another name ─────────► not ready: DiskFilesystemChanged
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use tether_crd::condition::{self, Condition};
use tether_crd::node::{DiskSpec, DiskStatus, conditions, reasons};
use tether_crd::settings::{self, Settings};
use tether_crd::{Node, Replica};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::object::{Target, name, subject};
use crate::placement::{Disk, Policy, space};

const DISK: Rule = Rule("disk");
const STATUS: Rule = Rule("disk-status");

/// Free space is told in steps, so that a volume that is written to does not make its node write its status all the time.
const AVAILABLE_STEP_BYTES: i64 = 100 << 20;

/// What was found at the path of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name in its file; `None`: there is no such file.
    pub uuid: Option<String>,
    /// Identifies the file system.
    pub fsid: String,
    /// `ext4`, say; empty if it has no well-known name.
    pub filesystem: String,
    pub available: i64,
    pub maximum: i64,
}

/// What the agent of a node looks at.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub node: &'a Node,
    /// By disk; the reason where a path could not be read.
    pub found: &'a BTreeMap<String, Result<Found, String>>,
    /// Those of the node.
    pub replicas: Vec<&'a Replica>,
    pub settings: &'a Settings,
    pub instance_manager: &'a str,
    /// Names for disks that have none, by disk.
    pub new_uuids: &'a BTreeMap<String, String>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Name the disk. Its status is looked at again afterwards.
    Name { disk: String, path: String, uuid: String },
    /// Write the status of all disks; `gone` are those that are in it and not on the node any more.
    SetStatus { node: Target, disks: BTreeMap<String, DiskStatus>, gone: Vec<String> },
}

/// Decides about all disks of a node.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let node = observed.node;
    let mut plan = Plan::default();
    let mut disks = BTreeMap::new();
    let mut owners: BTreeMap<String, String> = BTreeMap::new();
    for (disk, spec) in &node.spec.disks {
        let old = node.status.disk_status.get(disk).cloned().unwrap_or_default();
        let verdict = look(observed, disk, spec, &old, &mut owners);
        if let Verdict::New(uuid) = &verdict {
            let change = Change::Name { disk: disk.clone(), path: spec.path.clone(), uuid: uuid.clone() };
            plan.acts(DISK, subject(node), Reason::ObjectMissing, format!("Disk {disk} is new."), change);
        }
        disks.insert(disk.clone(), status(observed, disk, spec, old, verdict, now));
    }
    let gone: Vec<String> =
        node.status.disk_status.keys().filter(|disk| !node.spec.disks.contains_key(*disk)).cloned().collect();
    if disks == node.status.disk_status {
        plan.rests(STATUS, subject(node), Reason::UpToDate, "The status tells how the disks are.");
    } else {
        let change = Change::SetStatus { node: Target::of(node), disks, gone };
        plan.acts(STATUS, subject(node), Reason::StatusFollows, "The disks are not what the status says.", change);
    }
    plan
}

/// What a disk turned out to be.
enum Verdict<'a> {
    Ready {
        uuid: String,
        found: &'a Found,
    },
    /// It is to be named; used from the next look on.
    New(String),
    Not {
        reason: &'static str,
        message: String,
    },
}

fn look<'a>(
    observed: &'a Observed<'_>,
    disk: &str,
    spec: &DiskSpec,
    old: &DiskStatus,
    owners: &mut BTreeMap<String, String>,
) -> Verdict<'a> {
    let changed = |message: String| Verdict::Not { reason: reasons::DISK_FILESYSTEM_CHANGED, message };
    let path = &spec.path;
    let found = match observed.found.get(disk) {
        Some(Ok(found)) => found,
        Some(Err(why)) => {
            let message = format!("Disk {disk}({path}) on node {} is not ready: {why}", name(observed.node));
            return Verdict::Not { reason: reasons::NO_DISK_INFO, message };
        }
        None => {
            let message = format!("Disk {disk}({path}) was not looked at yet");
            return Verdict::Not { reason: reasons::NO_DISK_INFO, message };
        }
    };
    if let Some(owner) = owners.get(&found.fsid) {
        return changed(format!("Disk {disk}({path}) has same file system ID {} as disk {owner}", found.fsid));
    }
    owners.insert(found.fsid.clone(), disk.to_owned());
    match (&found.uuid, old.disk_uuid.as_str()) {
        (None, "") => Verdict::New(observed.new_uuids.get(disk).cloned().unwrap_or_default()),
        (None, _) => changed(format!(
            "Disk {disk}({path}) is not ready: cannot find disk config file, maybe due to a mount error"
        )),
        (Some(uuid), "") => Verdict::Ready { uuid: uuid.clone(), found },
        (Some(uuid), recorded) if uuid == recorded => Verdict::Ready { uuid: uuid.clone(), found },
        (Some(uuid), recorded) => changed(format!(
            "Disk {disk}({path}) is not ready: record diskUUID doesn't match the one on the disk ({recorded} and {uuid})"
        )),
    }
}

fn status(
    observed: &Observed<'_>,
    disk: &str,
    spec: &DiskSpec,
    old: DiskStatus,
    verdict: Verdict<'_>,
    now: Timestamp,
) -> DiskStatus {
    let mut status = DiskStatus {
        disk_name: disk.to_owned(),
        disk_path: spec.path.clone(),
        disk_type: spec.disk_type,
        disk_driver: spec.disk_driver.clone(),
        instance_manager_name: observed.instance_manager.to_owned(),
        ..old
    };
    let node = name(observed.node);
    let set = |conditions: &mut Vec<Condition>, kind: &str, status: &str, reason: &str, message: &str| {
        condition::set(conditions, kind, status, reason, message, now)
    };
    match verdict {
        Verdict::Ready { uuid, found } => {
            status.disk_uuid = uuid;
            status.filesystem_type.clone_from(&found.filesystem);
            status.storage_maximum = found.maximum;
            status.storage_available = found.available / AVAILABLE_STEP_BYTES * AVAILABLE_STEP_BYTES;
            // A migration's twin stands for data that is counted already.
            let mine = |replica: &&&Replica| replica.spec.disk_id == status.disk_uuid && replica.spec.active;
            let scheduled = observed.replicas.iter().filter(mine);
            status.scheduled_replica = scheduled.map(|r| (name(*r).to_owned(), r.spec.volume_size.0)).collect();
            status.storage_scheduled = status.scheduled_replica.values().sum();
            let message = format!("Disk {disk}({}) on node {node} is ready", spec.path);
            set(&mut status.conditions, conditions::READY, condition::TRUE, "", &message);
            let (value, reason, message) = match pressure(observed.settings, spec, &status) {
                Some(why) => (condition::FALSE, reasons::DISK_PRESSURE, why),
                None => (condition::TRUE, "", format!("Disk {disk}({}) on node {node} is schedulable", spec.path)),
            };
            set(&mut status.conditions, conditions::SCHEDULABLE, value, reason, &message);
        }
        Verdict::New(_) | Verdict::Not { .. } => {
            let (reason, message) = match verdict {
                Verdict::Not { reason, message } => (reason, message),
                _ => (reasons::NO_DISK_INFO, format!("Disk {disk}({}) is being prepared", spec.path)),
            };
            (status.storage_available, status.storage_maximum, status.storage_scheduled) = (0, 0, 0);
            status.scheduled_replica.clear();
            set(&mut status.conditions, conditions::READY, condition::FALSE, reason, &message);
            let words = format!("Disk {disk}({}) on node {node} is not ready", spec.path);
            set(&mut status.conditions, conditions::SCHEDULABLE, condition::FALSE, reasons::DISK_NOT_READY, &words);
        }
    }
    status
}

/// Why nothing more fits on the disk, not even something of no size: what placement would say.
fn pressure(settings: &Settings, spec: &DiskSpec, status: &DiskStatus) -> Option<String> {
    let policy = Policy {
        minimal_available_percent: settings.number(settings::STORAGE_MINIMAL_AVAILABLE_PERCENTAGE),
        over_provisioning_percent: settings.number(settings::STORAGE_OVER_PROVISIONING_PERCENTAGE),
        ..Policy::default()
    };
    let disk = Disk {
        available: status.storage_available,
        maximum: status.storage_maximum,
        reserved: spec.storage_reserved,
        ..Disk::default()
    };
    space(&disk, &policy, status.storage_scheduled, 0, 0).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: i64 = 1 << 30;

    struct Lab {
        node: Node,
        found: BTreeMap<String, Result<Found, String>>,
        replicas: Vec<Replica>,
    }

    impl Lab {
        fn new() -> Self {
            let mut node = Node::default();
            node.metadata.name = Some("node-1".into());
            let spec = DiskSpec { path: "/d1".into(), storage_reserved: 10 * GIB, ..DiskSpec::default() };
            node.spec.disks.insert("d1".into(), spec);
            let found = Found {
                uuid: None,
                fsid: "f1".into(),
                filesystem: "ext4".into(),
                available: 80 * GIB + 5,
                maximum: 100 * GIB,
            };
            Self { node, found: BTreeMap::from([("d1".into(), Ok(found))]), replicas: Vec::new() }
        }

        fn disk(&mut self) -> &mut Found {
            self.found.get_mut("d1").unwrap().as_mut().unwrap()
        }

        /// Decides and applies until nothing is left to do.
        fn settle(&mut self) {
            for _ in 0..4 {
                let observed = Observed {
                    node: &self.node,
                    found: &self.found,
                    replicas: self.replicas.iter().collect(),
                    settings: &Settings::default(),
                    instance_manager: "im",
                    new_uuids: &BTreeMap::from([("d1".into(), "u1".into())]),
                };
                let plan = decide(&observed, Timestamp::UNIX_EPOCH);
                if plan.changes.is_empty() {
                    return;
                }
                for change in plan.changes {
                    match change {
                        Change::Name { disk, uuid, .. } => {
                            self.found.get_mut(&disk).unwrap().as_mut().unwrap().uuid = Some(uuid);
                        }
                        Change::SetStatus { disks, .. } => self.node.status.disk_status = disks,
                    }
                }
            }
            panic!("deciding never rests");
        }

        fn summary(&self) -> String {
            let disk = &self.node.status.disk_status["d1"];
            let words = disk.conditions.iter().map(|c| format!("{}={}/{}", c.kind, c.status, c.reason));
            format!("{} {}", disk.disk_uuid, words.collect::<Vec<_>>().join(" "))
        }
    }

    #[test]
    fn a_new_disk_is_named_and_then_ready() {
        let mut lab = Lab::new();
        lab.settle();
        assert_eq!(lab.summary(), "u1 Ready=True/ Schedulable=True/");
        let disk = &lab.node.status.disk_status["d1"];
        assert_eq!((disk.storage_available % AVAILABLE_STEP_BYTES, disk.storage_maximum), (0, 100 * GIB));
        lab.disk().available += 1;
        lab.settle();
    }

    #[test]
    fn what_a_disk_holds_is_told_and_too_much_of_it_is_pressure() {
        let mut lab = Lab::new();
        lab.settle();
        let mut replica = Replica::default();
        replica.metadata.name = Some("r1".into());
        replica.spec.disk_id = "u1".into();
        replica.spec.active = true;
        replica.spec.volume_size.0 = 91 * GIB;
        lab.replicas.push(replica);
        lab.settle();
        assert_eq!(lab.node.status.disk_status["d1"].scheduled_replica, BTreeMap::from([("r1".into(), 91 * GIB)]));
        assert_eq!(lab.summary(), "u1 Ready=True/ Schedulable=False/DiskPressure", "90 GiB may be promised");
        lab.replicas.clear();
        lab.disk().available = 20 * GIB;
        lab.settle();
        assert_eq!(lab.summary(), "u1 Ready=True/ Schedulable=False/DiskPressure", "a quarter has to stay free");
        for (available, maximum) in [(0, 100 * GIB), (5, 100 * GIB), (0, 0)] {
            (lab.disk().available, lab.disk().maximum) = (available, maximum);
            lab.settle();
            assert_eq!(lab.summary(), "u1 Ready=True/ Schedulable=False/DiskPressure", "{available} of {maximum}");
            let message = &lab.node.status.disk_status["d1"].conditions[1].message;
            assert!(message.contains("not known, or it is full"), "as placement says: {message}");
        }
    }

    #[test]
    fn another_disk_in_its_place_is_not_used() {
        for (uuid, words) in [(Some("u2".to_owned()), "doesn't match"), (None, "cannot find disk config file")] {
            let mut lab = Lab::new();
            lab.settle();
            lab.disk().uuid = uuid;
            lab.settle();
            assert_eq!(lab.summary(), "u1 Ready=False/DiskFilesystemChanged Schedulable=False/DiskNotReady");
            let disk = &lab.node.status.disk_status["d1"];
            assert_eq!((disk.storage_available, disk.storage_maximum), (0, 0));
            assert!(disk.conditions[0].message.contains(words), "{}", disk.conditions[0].message);
        }
    }

    #[test]
    fn a_path_that_cannot_be_read_and_a_disk_that_is_gone() {
        let mut lab = Lab::new();
        lab.settle();
        lab.found.insert("d1".into(), Err("no such file".into()));
        lab.settle();
        assert_eq!(lab.summary(), "u1 Ready=False/NoDiskInfo Schedulable=False/DiskNotReady");
        lab.node.spec.disks.clear();
        lab.settle();
        assert!(lab.node.status.disk_status.is_empty());
    }

    #[test]
    fn two_paths_on_one_file_system_are_one_disk() {
        let mut lab = Lab::new();
        lab.node.spec.disks.insert("d2".into(), DiskSpec { path: "/d2".into(), ..DiskSpec::default() });
        let other = lab.found["d1"].clone();
        lab.found.insert("d2".into(), other);
        lab.settle();
        let ready = &lab.node.status.disk_status["d2"].conditions[0];
        assert!(ready.message.contains("has same file system ID"), "{}", ready.message);
    }
}
