//! One volume with its tickets, as tests speak of it; plans are carried out on it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde_json::json;
use tether_crd::attachment::{Owner, Ticket, TicketStatus};
use tether_crd::engine::{InstanceState, ReplicaMode};
use tether_crd::settings::Settings;
use tether_crd::volume::{AccessMode, Robustness, State};
use tether_crd::{Engine, Node, Volume, VolumeAttachment};
use tether_plan::Plan;
use tether_plan::tickets::{Change, Observed, OwnerSeen, decide};

pub(crate) const CSI: &str = "csi-attacher";
pub(crate) const API: &str = "longhorn-api";
pub(crate) const SNAPSHOT: &str = "snapshot-controller";
pub(crate) const BACKUP: &str = "backup-controller";
pub(crate) const CLONE: &str = "volume-clone-controller";
pub(crate) const RESTORE: &str = "volume-restore-controller";
pub(crate) const EXPANSION: &str = "volume-expansion-controller";
pub(crate) const EVICTION: &str = "volume-eviction-controller";
pub(crate) const SHARE: &str = "share-manager-controller";

#[derive(Clone)]
pub(crate) struct World {
    pub(crate) volume: Volume,
    pub(crate) attachment: VolumeAttachment,
    pub(crate) engines: Vec<Engine>,
    pub(crate) nodes: BTreeMap<String, Node>,
    pub(crate) cordoned: BTreeSet<String>,
    pub(crate) owners: BTreeMap<String, OwnerSeen>,
    pub(crate) settings: Settings,
    /// Tickets that came just now; the others have been there for long.
    pub(crate) new: BTreeSet<String>,
    pub(crate) now: Timestamp,
}

/// What tickets are about, and nothing else.
impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (spec, status) = (&self.volume.spec, &self.volume.status);
        writeln!(
            f,
            "to {:?} migrating to {:?}, {} on {:?} migrating to {:?}, {}, rwx {}, migratable {}, frontend disabled {}",
            spec.node_id,
            spec.migration_node_id,
            status.state,
            status.current_node_id,
            status.current_migration_node_id,
            status.robustness,
            spec.access_mode == AccessMode::ReadWriteMany,
            spec.migratable,
            spec.disable_frontend,
        )?;
        for ticket in self.attachment.spec.attachment_tickets.values() {
            writeln!(f, "{} {} to {} {:?}", ticket.id, ticket.kind, ticket.node_id, ticket.parameters)?;
        }
        let engines: Vec<&str> = self.engines.iter().map(|engine| engine.spec.node_id.as_str()).collect();
        writeln!(f, "engines on {engines:?}")
    }
}

/// A volume that is detached, with three nodes that are ready.
pub(crate) fn detached() -> World {
    let metadata = json!({"name": "v1", "namespace": "longhorn-system", "uid": "u1", "resourceVersion": "1"});
    let mut volume: Volume = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
    volume.status.state = State::Detached;
    let attachment = json!({"metadata": metadata, "spec": {"volume": "v1"}});
    let mut world = World {
        volume,
        attachment: serde_json::from_value(attachment).unwrap(),
        engines: Vec::new(),
        nodes: BTreeMap::new(),
        cordoned: BTreeSet::new(),
        owners: BTreeMap::new(),
        settings: Settings::default(),
        new: BTreeSet::new(),
        now: "2026-01-01T12:00:00Z".parse().unwrap(),
    };
    for node in ["node1", "node2", "node3"] {
        world = world.node(node, "True", "");
    }
    world
}

/// A volume that is attached to a node, healthy and shown there.
pub(crate) fn attached(node: &str) -> World {
    let mut world = detached();
    world.attach(node);
    world
}

impl World {
    pub(crate) fn node(mut self, name: &str, ready: &str, reason: &str) -> Self {
        let node = json!({"metadata": {"name": name}, "status": {"conditions": [
            {"type": "Ready", "status": ready, "reason": reason},
        ]}});
        self.nodes.insert(name.to_owned(), serde_json::from_value(node).unwrap());
        self
    }

    pub(crate) fn without_node(mut self, name: &str) -> Self {
        self.nodes.remove(name);
        self
    }

    /// A ticket that wants the frontend.
    pub(crate) fn ticket(self, id: &str, kind: &str, node: &str) -> Self {
        self.ticket_with(id, kind, node, Some("false"))
    }

    pub(crate) fn ticket_with(mut self, id: &str, kind: &str, node: &str, disable_frontend: Option<&str>) -> Self {
        let parameters = disable_frontend.map(|value| ("disableFrontend".to_owned(), value.to_owned()));
        let ticket = Ticket {
            id: id.to_owned(),
            kind: kind.into(),
            node_id: node.to_owned(),
            parameters: parameters.into_iter().collect(),
            ..Ticket::default()
        };
        self.attachment.spec.attachment_tickets.insert(id.to_owned(), ticket);
        self
    }

    pub(crate) fn owned(mut self, ticket: &str, uid: &str, seen: Option<OwnerSeen>) -> Self {
        let owner = Owner { kind: "Snapshot".into(), name: "s1".into(), uid: uid.into(), ..Owner::default() };
        self.attachment.spec.attachment_tickets.get_mut(ticket).unwrap().owner = Some(owner);
        self.owners.extend(seen.map(|seen| (uid.to_owned(), seen)));
        self
    }

    pub(crate) fn without_ticket(mut self, id: &str) -> Self {
        self.attachment.spec.attachment_tickets.remove(id).unwrap();
        self
    }

    /// The ticket was told that it is satisfied.
    pub(crate) fn told(mut self, id: &str) -> Self {
        let status = TicketStatus { id: id.to_owned(), satisfied: true, ..TicketStatus::default() };
        self.attachment.status.attachment_ticket_statuses.insert(id.to_owned(), status);
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Volume)) -> Self {
        change(&mut self.volume);
        self
    }

    pub(crate) fn migratable(self) -> Self {
        self.with(|volume| {
            volume.spec.migratable = true;
            volume.spec.access_mode = AccessMode::ReadWriteMany;
        })
    }

    pub(crate) fn shared(self) -> Self {
        self.with(|volume| volume.spec.access_mode = AccessMode::ReadWriteMany)
    }

    pub(crate) fn faulted(self) -> Self {
        self.with(|volume| volume.status.robustness = Robustness::Faulted)
    }

    pub(crate) fn cordon(mut self, node: &str) -> Self {
        self.cordoned.insert(node.to_owned());
        self
    }

    pub(crate) fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// A running engine with a good replica.
    pub(crate) fn run_engine(&mut self, node: &str) {
        let mut engine = Engine::default();
        engine.metadata.name = Some(format!("v1-e-{}", self.engines.len()));
        node.clone_into(&mut engine.spec.node_id);
        engine.spec.desire_state = InstanceState::Running;
        engine.status.current_state = InstanceState::Running;
        engine.status.replica_mode_map.insert("v1-r-1".to_owned(), ReplicaMode::ReadWrite);
        self.engines.push(engine);
    }

    fn attach(&mut self, node: &str) {
        let volume = &mut self.volume;
        node.clone_into(&mut volume.spec.node_id);
        node.clone_into(&mut volume.status.current_node_id);
        volume.status.state = State::Attached;
        volume.status.robustness = Robustness::Healthy;
        self.engines.clear();
        self.run_engine(node);
    }

    pub(crate) fn plan(&self) -> Plan<Change> {
        let text = String::as_str;
        let tickets = self.attachment.spec.attachment_tickets.keys();
        let observed = Observed {
            attachment: &self.attachment,
            volume: Some(&self.volume),
            engines: self.engines.iter().collect(),
            nodes: self.nodes.iter().map(|(name, node)| (text(name), node)).collect(),
            cordoned: self.cordoned.iter().map(text).collect(),
            owners: self.owners.iter().map(|(uid, seen)| (text(uid), *seen)).collect(),
            noticed: tickets.filter(|id| !self.new.contains(*id)).map(|id| (text(id), Timestamp::UNIX_EPOCH)).collect(),
            settings: &self.settings,
        };
        decide(&observed, self.now)
    }

    /// Decides and carries the plan out; what the report says.
    pub(crate) fn step(&mut self) -> String {
        let plan = self.plan();
        let report = plan.to_string();
        for change in plan.changes {
            self.carry_out(change);
        }
        report
    }

    fn carry_out(&mut self, change: Change) {
        let attachment = &mut self.attachment;
        match change {
            Change::Release { .. } => attachment.metadata.finalizers = None,
            Change::SetVolume { wish, .. } => {
                let spec = &mut self.volume.spec;
                (spec.node_id, spec.migration_node_id) = (wish.node, wish.migration_node);
                (spec.disable_frontend, spec.last_attached_by) = (wish.disable_frontend, wish.last_attached_by);
            }
            Change::Withdraw { tickets, .. } => {
                attachment.spec.attachment_tickets.retain(|id, _| !tickets.contains(id));
            }
            Change::SetStatus { statuses, .. } => {
                for (id, status) in statuses {
                    match status {
                        Some(status) => attachment.status.attachment_ticket_statuses.insert(id, status),
                        None => attachment.status.attachment_ticket_statuses.remove(&id),
                    };
                }
            }
        }
    }

    /// The volume controller, as far as it matters here: the volume does at once what its spec says.
    pub(crate) fn volume_controller(&mut self) {
        let (spec, status) = (self.volume.spec.clone(), &mut self.volume.status);
        let wanted = spec.node_id.as_str();
        match status.state {
            State::Attached if status.current_node_id == wanted => {
                if !spec.migration_node_id.is_empty() && status.current_migration_node_id.is_empty() {
                    status.current_migration_node_id.clone_from(&spec.migration_node_id);
                    self.run_engine(&spec.migration_node_id);
                } else if spec.migration_node_id.is_empty() && !status.current_migration_node_id.is_empty() {
                    status.current_migration_node_id.clear();
                    self.engines.retain(|engine| engine.spec.node_id == wanted);
                }
            }
            State::Attached if !wanted.is_empty() && status.current_migration_node_id == wanted => {
                wanted.clone_into(&mut status.current_node_id);
                status.current_migration_node_id.clear();
                self.engines.retain(|engine| engine.spec.node_id == wanted);
            }
            State::Attached => {
                status.state = State::Detaching;
                self.engines.clear();
            }
            State::Detaching => {
                status.state = State::Detached;
                status.robustness = Robustness::Unknown;
                status.current_node_id.clear();
                status.current_migration_node_id.clear();
            }
            State::Detached if !wanted.is_empty() => status.state = State::Attaching,
            State::Attaching if wanted.is_empty() => status.state = State::Detaching,
            State::Attaching => self.attach(wanted),
            _ => {}
        }
    }

    /// Lets both controllers work until neither has anything to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..50 {
            let before = (self.volume.clone(), self.attachment.clone());
            self.step();
            self.volume_controller();
            if before == (self.volume.clone(), self.attachment.clone()) {
                return;
            }
        }
        panic!("it does not settle: {self:#?}");
    }

    pub(crate) fn node_id(&self) -> &str {
        &self.volume.spec.node_id
    }

    pub(crate) fn status(&self, ticket: &str) -> &TicketStatus {
        &self.attachment.status.attachment_ticket_statuses[ticket]
    }

    /// `satisfied` or `waits`, reason and message of the condition, as the tables show them.
    pub(crate) fn told_of(&self, ticket: &str) -> String {
        let status = self.status(ticket);
        let [condition] = status.conditions.as_slice() else { panic!("one condition: {status:?}") };
        assert_eq!(condition.kind, "Satisfied");
        assert_eq!(condition.status, if status.satisfied { "True" } else { "False" });
        assert_eq!(status.waiting.is_none(), status.satisfied);
        let word = if status.satisfied { "satisfied" } else { "waits" };
        [word, &condition.reason, &condition.message]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" | ")
    }
}
