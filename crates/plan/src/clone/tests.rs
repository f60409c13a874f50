//! A clone and its source, step by step.

use super::*;
use tether_crd::engine::{InstanceState, ReplicaMode};

struct World {
    clone: Volume,
    attachment: VolumeAttachment,
    engine: Engine,
    source: Option<Volume>,
    source_attachment: VolumeAttachment,
    source_engine: Engine,
    replica: Replica,
    snapshots: Vec<Snapshot>,
    node: Node,
    now: Timestamp,
}

fn named<K: k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta> + Default>(
    name: &str,
) -> K {
    let mut object = K::default();
    object.metadata_mut().name = Some(name.into());
    object.metadata_mut().uid = Some(format!("{name}-uid"));
    object
}

fn world(data_source: &str) -> World {
    let mut clone: Volume = named("c");
    clone.spec.data_source = data_source.into();
    let mut engine: Engine = named("c-e-0");
    engine.spec.active = true;
    engine.spec.replica_address_map.insert("r".into(), "a:1".into());
    let mut source: Volume = named("v");
    source.status.owner_id = "node-1".into();
    let mut source_engine: Engine = named("v-e-0");
    source_engine.spec.active = true;
    source_engine.status.replica_mode_map.insert("v-r".into(), ReplicaMode::ReadWrite);
    let mut replica: Replica = named("v-r");
    replica.spec.node_id = "node-2".into();
    let mut node: Node = named("node-2");
    condition::set(&mut node.status.conditions, "Ready", condition::TRUE, "", "", Timestamp::UNIX_EPOCH);
    World {
        clone,
        attachment: named("c"),
        engine,
        source: Some(source),
        source_attachment: named("v"),
        source_engine,
        replica,
        snapshots: Vec::new(),
        node,
        now: Timestamp::UNIX_EPOCH,
    }
}

use tether_crd::condition;

impl World {
    fn attach_source(&mut self) {
        let source = self.source.as_mut().unwrap();
        source.spec.node_id = "node-1".into();
        source.status.state = State::Attached;
        self.source_engine.spec.node_id = "node-1".into();
        self.source_engine.status.current_state = InstanceState::Running;
    }

    fn tells(&mut self, state: &str, error: &str) {
        let snapshot_name = self.clone.status.clone_status.snapshot.clone();
        let progress =
            CloneProgress { state: state.into(), error: error.into(), snapshot_name, ..CloneProgress::default() };
        self.engine.status.clone_status = [("tcp://a:1".to_owned(), progress)].into();
    }

    fn step(&mut self) -> Vec<String> {
        let observed = Observed {
            volume: &self.clone,
            attachment: Some(&self.attachment),
            engines: vec![&self.engine],
            source: self.source.as_ref(),
            source_attachment: Some(&self.source_attachment),
            source_engines: vec![&self.source_engine],
            source_replicas: vec![&self.replica],
            source_snapshots: self.snapshots.iter().collect(),
            nodes: [("node-2", &self.node)].into(),
            running_managers: ["node-2"].into(),
        };
        let plan = decide(&observed, self.now);
        let mut told = Vec::new();
        for change in plan.changes {
            match change {
                Change::CreateSnapshot { name, volume, clone } => {
                    told.push(format!("snapshot of {volume}"));
                    let mut made: Snapshot = named(&name);
                    made.spec.volume = volume;
                    made.spec.labels.insert(FOR_CLONE.into(), clone);
                    self.snapshots.push(made);
                }
                Change::DeleteSnapshot { snapshot } => {
                    told.push("delete snapshot".to_owned());
                    self.snapshots.retain(|held| name(held) != snapshot.name);
                }
                Change::SetTicket { attachment, id, ticket } => {
                    let to = ticket.as_ref().map_or("nowhere".to_owned(), |ticket| ticket.node_id.clone());
                    told.push(format!("{} to {to}", attachment.name));
                    let held = if attachment.name == "c" { &mut self.attachment } else { &mut self.source_attachment };
                    held.spec.attachment_tickets.remove(&id);
                    held.spec.attachment_tickets.extend(ticket.map(|ticket| (id, *ticket)));
                }
                Change::Request { source, .. } => {
                    told.push(format!("fill {}", if source.is_empty() { "nothing" } else { "it" }));
                    self.engine.spec.requested_data_source = source;
                }
                Change::SetStatus { status, .. } => {
                    told.push(status.state.to_string());
                    self.clone.status.clone_status = status;
                }
            }
        }
        told
    }
}

#[test]
fn a_volume_is_copied_through_a_snapshot_that_is_made_for_it() {
    let mut world = world("vol://v");
    assert!(is_pending(&world.clone));
    assert_eq!(world.step(), ["v to node-1", "snapshot of v"]);
    assert_eq!(world.step(), Vec::<String>::new(), "the source is not attached yet");
    world.attach_source();
    world.snapshots[0].status.ready_to_use = true;
    assert_eq!(world.step(), ["c to node-2", "fill it", "initiated"]);
    assert_eq!(world.step(), Vec::<String>::new());
    world.tells(COMPLETE, "");
    assert_eq!(world.step(), ["copy-completed-awaiting-healthy"]);
    assert!(!is_pending(&world.clone));
    assert_eq!(world.step(), ["fill nothing", "c to nowhere", "v to nowhere", "delete snapshot"]);
    world.clone.status.robustness = Robustness::Healthy;
    assert_eq!(world.step(), ["completed"]);
    assert_eq!(world.step(), Vec::<String>::new());
}

#[test]
fn a_snapshot_that_was_asked_for_stays() {
    let mut world = world("snap://v/s1");
    world.attach_source();
    let mut snapshot: Snapshot = named("s1");
    snapshot.status.ready_to_use = true;
    world.snapshots.push(snapshot);
    assert_eq!(world.step(), ["v to node-1", "c to node-2", "fill it", "initiated"]);
    world.tells(COMPLETE, "");
    world.step();
    world.clone.status.robustness = Robustness::Healthy;
    world.step();
    world.step();
    assert_eq!((world.snapshots.len(), world.clone.status.clone_status.state), (1, CloneState::Completed));
}

#[test]
fn a_copy_that_failed_is_tried_again_later_and_later() {
    let mut world = world("vol://v");
    world.step();
    world.attach_source();
    world.snapshots[0].status.ready_to_use = true;
    world.step();
    world.tells(FAILED, "the disk is full");
    assert_eq!(world.step(), ["failed"]);
    assert_eq!(world.clone.status.clone_status.error, "the disk is full");
    assert_eq!(world.step(), ["fill nothing"], "the next order is heard as a new one");
    assert_eq!(world.step(), Vec::<String>::new());
    world.engine.status.clone_status.clear();
    world.now += FIRST_PAUSE;
    assert_eq!(world.step(), [""]);
    assert_eq!(world.step(), ["fill it", "initiated"]);
    world.tells(FAILED, "again");
    world.step();
    assert_eq!(world.clone.status.clone_status.attempt_count, 2);
    let next: Timestamp = world.clone.status.clone_status.next_allowed_attempt_at.parse().unwrap();
    assert_eq!(next, world.now + FIRST_PAUSE * 2);
}

#[test]
fn without_a_source_or_its_snapshot_there_is_nothing_to_copy() {
    let mut gone = world("vol://v");
    gone.source = None;
    assert_eq!(gone.step(), ["failed"]);
    let mut unknown = world("snap://v/none");
    unknown.attach_source();
    assert_eq!(unknown.step(), ["v to node-1", "failed"]);
}

#[test]
fn a_ticket_that_would_show_the_clone_is_made_good() {
    let mut world = world("snap://v/s1");
    world.attach_source();
    let mut snapshot: Snapshot = named("s1");
    snapshot.status.ready_to_use = true;
    world.snapshots.push(snapshot);
    world.step();
    let id = ticket_id(&world.clone);
    let ticket = world.attachment.spec.attachment_tickets.get_mut(&id).unwrap();
    ticket.parameters.insert(DISABLE_FRONTEND.to_owned(), "false".to_owned());
    assert_eq!(world.step(), ["c to node-2"]);
    assert!(is_own_ticket(&world.clone, &world.attachment.spec.attachment_tickets[&id]));
}

#[test]
fn the_copy_is_made_where_a_good_replica_of_the_source_is() {
    let mut world = world("vol://v");
    world.step();
    world.attach_source();
    world.snapshots[0].status.ready_to_use = true;
    world.source_engine.status.replica_mode_map.insert("v-r".into(), ReplicaMode::WriteOnly);
    assert_eq!(world.step(), Vec::<String>::new(), "what is being rebuilt is not read");
}
