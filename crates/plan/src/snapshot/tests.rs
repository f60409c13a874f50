//! One volume, its engine and its snapshots: what is asked, carried out and shown, step by step.

use super::*;
use tether_crd::engine::ReplicaMode;
use tether_crd::{FINALIZER, labels, names};

struct World {
    volume: Volume,
    attachment: VolumeAttachment,
    engine: Engine,
    snapshots: Vec<Snapshot>,
}

fn world() -> World {
    let mut volume = Volume::default();
    volume.metadata.name = Some("v".into());
    volume.metadata.uid = Some("volume-uid".into());
    volume.spec.size.0 = 100;
    volume.status.owner_id = "node-1".into();
    let mut attachment = VolumeAttachment::default();
    attachment.metadata.name = Some("v".into());
    let mut engine = Engine::default();
    engine.metadata.name = Some("v-e-0".into());
    engine.spec.active = true;
    World { volume, attachment, engine, snapshots: Vec::new() }
}

impl World {
    fn wants(mut self, name: &str) -> Self {
        let mut snapshot = Snapshot::default();
        snapshot.metadata.name = Some(name.into());
        snapshot.metadata.uid = Some(format!("{name}-uid"));
        snapshot.spec.volume = "v".into();
        snapshot.spec.create_snapshot = true;
        self.snapshots.push(snapshot);
        self
    }

    fn runs(mut self) -> Self {
        self.engine.spec.node_id = "node-1".into();
        self.engine.spec.desire_state = InstanceState::Running;
        self.engine.status.current_state = InstanceState::Running;
        self.engine.status.replica_mode_map.insert("r".into(), ReplicaMode::ReadWrite);
        self.engine.status.snapshots.insert(VOLUME_HEAD.into(), SnapshotInfo::default());
        self
    }

    fn has(&mut self, name: &str, child: &str, removed: bool) {
        let info = SnapshotInfo {
            name: name.into(),
            children: [(child.to_owned(), true)].into(),
            removed,
            created: "2026-01-01T00:00:00Z".into(),
            size: "7".into(),
            ..SnapshotInfo::default()
        };
        self.engine.status.snapshots.insert(name.into(), info);
    }

    fn delete(&mut self, name: &str) {
        let snapshot = self.snapshot(name);
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        snapshot.metadata.deletion_timestamp = Some(time);
    }

    fn snapshot(&mut self, name: &str) -> &mut Snapshot {
        self.snapshots.iter_mut().find(|held| held.metadata.name.as_deref() == Some(name)).expect("a snapshot")
    }

    /// Decides, carries it out, and says in short what that was.
    fn step(&mut self) -> Vec<String> {
        let observed = Observed {
            volume: Some(&self.volume),
            attachment: Some(&self.attachment),
            engines: vec![&self.engine],
            snapshots: self.snapshots.iter().collect(),
        };
        let plan = decide(&observed, Timestamp::UNIX_EPOCH);
        let mut told = Vec::new();
        for change in plan.changes {
            match change {
                Change::Create(made) => {
                    told.push(format!("show {}", name(&*made)));
                    self.snapshots.push(*made);
                }
                Change::Adopt { snapshot, volume, volume_uid } => {
                    let held = self.snapshot(&snapshot.name);
                    held.metadata.finalizers.get_or_insert_default().push(FINALIZER.into());
                    held.metadata.labels.get_or_insert_default().insert(labels::VOLUME.into(), volume.clone());
                    held.metadata.owner_references.get_or_insert_default().push(owner(&volume, &volume_uid));
                    told.push(format!("adopt {}", snapshot.name));
                }
                Change::SetTicket { id, ticket, .. } => {
                    let tickets = &mut self.attachment.spec.attachment_tickets;
                    if let Some(ticket) = ticket {
                        told.push(format!("ticket {id} on {}", ticket.node_id));
                        tickets.insert(id, *ticket);
                    } else {
                        told.push(format!("no ticket {id}"));
                        tickets.remove(&id);
                    }
                }
                Change::HandOver { snapshot, node } => {
                    told.push(format!("hand {} to {}", snapshot.name, node.as_deref().unwrap_or("nobody")));
                    let labels = self.snapshot(&snapshot.name).metadata.labels.get_or_insert_default();
                    labels.remove(labels::NODE);
                    labels.extend(node.map(|node| (labels::NODE.to_owned(), node)));
                }
                Change::SetStatus { snapshot, status } => self.snapshot(&snapshot.name).status = *status,
                Change::RemoveFinalizer { snapshot } => {
                    told.push(format!("let {} go", snapshot.name));
                    self.snapshots.retain(|held| name(held) != snapshot.name);
                }
            }
        }
        told
    }
}

use crate::object::name;

#[test]
fn a_snapshot_of_a_detached_volume_attaches_it_and_lets_it_go() {
    let mut world = world().wants("s1");
    let ticket = names::ticket("snapshot-controller", "s1");
    assert_eq!(world.step(), ["adopt s1".to_owned(), format!("ticket {ticket} on node-1")]);
    assert_eq!(world.snapshot("s1").status.error, "waits for the volume to be attached");
    assert_eq!(world.step(), Vec::<String>::new(), "nothing is done twice");
    let mut world = world.runs();
    assert_eq!(world.step(), ["hand s1 to node-1"]);
    world.has("s1", VOLUME_HEAD, false);
    assert_eq!(world.step(), [format!("no ticket {ticket}"), "hand s1 to nobody".to_owned()]);
    let status = world.snapshot("s1").status.clone();
    assert!(status.ready_to_use && status.error.is_empty());
    assert_eq!((status.size, status.restore_size), (7, 100));
    assert_eq!(world.step(), Vec::<String>::new());
    world.volume.spec.size.0 = 200;
    world.step();
    assert_eq!(world.snapshot("s1").status.restore_size, 100, "it is as large as the volume was");
}

#[test]
fn a_deleted_snapshot_goes_when_the_engine_does_not_have_it_any_more() {
    let mut world = world().wants("s1").runs();
    world.has("s1", "s2", false);
    world.step();
    world.delete("s1");
    let ticket = names::ticket("snapshot-controller", "s1");
    assert_eq!(world.step(), [format!("ticket {ticket} on node-1"), "hand s1 to node-1".to_owned()]);
    world.has("s1", "s2", true);
    assert_eq!(world.step(), Vec::<String>::new());
    assert!(world.snapshot("s1").status.mark_removed);
    world.engine.status.snapshots.remove("s1");
    assert_eq!(world.step(), [format!("no ticket {ticket}"), "let s1 go".to_owned()]);
}

#[test]
fn the_base_of_what_is_written_waits_for_the_next_snapshot() {
    let mut world = world().wants("s1").runs();
    world.has("s1", VOLUME_HEAD, false);
    world.step();
    world.delete("s1");
    world.step();
    world.has("s1", VOLUME_HEAD, true);
    assert_eq!(world.step().len(), 2, "ticket and order are taken back");
    world.has("s1", "s2", true);
    assert_eq!(world.step().len(), 2, "now it can go");
}

#[test]
fn one_that_was_never_made_just_goes() {
    let mut world = world().wants("s1");
    world.step();
    world.delete("s1");
    let ticket = names::ticket("snapshot-controller", "s1");
    assert_eq!(world.step(), [format!("no ticket {ticket}"), "let s1 go".to_owned()]);
}

#[test]
fn what_the_engine_has_is_shown_and_what_it_lost_is_told() {
    let mut world = world().runs();
    world.has("found", VOLUME_HEAD, false);
    world.has("Not A Name", VOLUME_HEAD, false);
    assert_eq!(world.step(), ["show found"]);
    world.step();
    assert!(world.snapshot("found").status.ready_to_use && !world.snapshot("found").spec.create_snapshot);
    world.engine.status.snapshots.remove("found");
    world.step();
    let status = &world.snapshot("found").status;
    assert!(!status.ready_to_use && status.error.contains("does not have"), "{status:?}");
}

#[test]
fn nothing_is_handed_over_while_the_volume_moves() {
    let mut world = world().wants("s1").runs();
    world.volume.spec.migration_node_id = "node-2".into();
    let told = world.step();
    assert!(told.iter().all(|words| !words.starts_with("hand")), "{told:?}");
    assert!(world.snapshot("s1").status.error.contains("migration"));
}

#[test]
fn a_wish_to_revert_is_for_one_run_of_an_engine_that_shows_nothing() {
    let mut world = world().wants("s1").runs();
    world.has("s1", VOLUME_HEAD, false);
    world.step();
    world.engine.status.uuid = "run-1".into();
    assert_eq!(revert_request(&world.engine), None, "somebody may be using it");
    world.engine.spec.disable_frontend = true;
    let wish = revert_request(&world.engine).unwrap().to_owned();
    world.snapshot("s1").metadata.annotations = Some([(REVERT_REQUESTED.to_owned(), wish)].into());
    assert_eq!(world.step(), ["hand s1 to node-1"]);
    world.engine.status.uuid = "run-2".into();
    assert_eq!(world.step(), ["hand s1 to nobody"], "what was written since is kept");
}

/// It would show something that the source never was; a copy of the copy waits with it.
#[test]
fn a_volume_that_is_being_copied_into_has_no_snapshots_yet() {
    let mut world = world().wants("s").runs();
    world.volume.spec.data_source = "vol://w".into();
    world.volume.status.clone_status.state = tether_crd::volume::CloneState::Initiated;
    world.step();
    let labelled = |world: &World| world.snapshots[0].metadata.labels.iter().flatten().any(|(l, _)| l == labels::NODE);
    assert!(!labelled(&world), "no engine is told to make it");
    let error = &world.snapshots[0].status.error;
    assert!(
        error.starts_with("waits for the volume to be complete: volume v is made as a copy of volume w"),
        "{error}"
    );
    world.volume.status.clone_status.state = tether_crd::volume::CloneState::Completed;
    world.step();
    assert!(labelled(&world));
}
