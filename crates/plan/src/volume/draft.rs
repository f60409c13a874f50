//! What is being decided: copies of a volume's objects that rules change, and in the end the difference.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};

use jiff::Timestamp;
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tether_crd::condition::{self, rfc3339};
use tether_crd::engine::{FENCED, INSTANCE_CREATION, InstanceState, ReplicaMode};
use tether_crd::volume::{Record, Robustness, State, VolumeStatus};
use tether_crd::{Difference, Engine, Replica, Volume, labels};
use tether_model::reason::Reason;
use tether_model::report::{Rule, Subject};

use super::{Change, Kind, Observed, Part};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, is_deleting, name, subject};
use crate::placement::Host;

/// An object that rules may change. It is copied by the first of them that does.
#[derive(Clone, Debug)]
pub(super) struct Item<'a, K: Clone> {
    /// As it was seen; none: it is new.
    was: Option<&'a K>,
    now: Cow<'a, K>,
    is_deleted: bool,
}

impl<'a, K: Clone> Item<'a, K> {
    fn seen(was: &'a K) -> Self {
        Self { was: Some(was), now: Cow::Borrowed(was), is_deleted: false }
    }

    fn new(now: K) -> Self {
        Self { was: None, now: Cow::Owned(now), is_deleted: false }
    }

    /// To be deleted.
    pub(super) fn delete(&mut self) {
        self.is_deleted = true;
    }

    /// What it was, if any rule touched it.
    fn touched(&self) -> Option<&'a K> {
        self.was.filter(|_| matches!(self.now, Cow::Owned(_)))
    }
}

impl<K: Clone> Deref for Item<'_, K> {
    type Target = K;

    fn deref(&self) -> &K {
        &self.now
    }
}

impl<K: Clone> DerefMut for Item<'_, K> {
    fn deref_mut(&mut self) -> &mut K {
        self.now.to_mut()
    }
}

impl<K: Clone + Metadata<Ty = ObjectMeta>> Item<'_, K> {
    /// Whether it is on its way out, or will be.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_deleted || is_deleting(&**self)
    }
}

impl Item<'_, Replica> {
    /// It failed: it is not used until somebody decides to.
    pub(super) fn fail(&mut self, now: Timestamp) {
        self.spec.failed_at = rfc3339(now);
        self.spec.last_failed_at = rfc3339(now);
        self.spec.desire_state = InstanceState::Stopped;
    }
}

/// The state of a decision.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) observed: &'a Observed<'a>,
    pub(super) now: Timestamp,
    pub(super) status: VolumeStatus,
    pub(super) engines: Vec<Item<'a, Engine>>,
    pub(super) replicas: Vec<Item<'a, Replica>>,
    pub(super) plan: Plan<Change>,
    /// Made before anything else.
    pub(super) first: Vec<Change>,
    /// Made after everything else.
    pub(super) last: Vec<Change>,
    random: u64,
}

impl<'a> Draft<'a> {
    pub(super) fn new(observed: &'a Observed<'a>, now: Timestamp) -> Self {
        let mut replicas: Vec<_> = observed.replicas.iter().map(|replica| Item::seen(*replica)).collect();
        replicas.sort_by(|a, b| name(&**a).cmp(name(&**b)));
        Self {
            observed,
            now,
            status: observed.volume.status.clone(),
            engines: observed.engines.iter().map(|engine| Item::seen(*engine)).collect(),
            replicas,
            plan: Plan::default(),
            first: Vec::new(),
            last: Vec::new(),
            random: observed.seed,
        }
    }

    pub(super) fn volume(&self) -> &'a Volume {
        self.observed.volume
    }

    pub(super) fn name(&self) -> &'a str {
        name(self.observed.volume)
    }

    pub(super) fn subject(&self) -> Subject {
        subject(self.observed.volume)
    }

    /// Who may write, and which replicas hold everything; none until an engine ran for the first time.
    pub(super) fn record(&self) -> Option<&'a Record> {
        self.observed.volume.status.record.as_ref()
    }

    /// Whether the replica holds every acknowledged write. Before the first start all are equally empty.
    pub(super) fn is_in_sync(&self, replica: &Replica) -> bool {
        self.record().is_none_or(|record| record.in_sync.contains(&replica.spec.data_directory_name))
    }

    pub(super) fn host(&self, node: &str) -> Option<&'a Host> {
        self.observed.hosts.get(node)
    }

    /// Whether what runs on the node can neither be asked nor told.
    pub(super) fn is_down(&self, node: &str) -> bool {
        self.host(node).is_none_or(|host| host.is_down)
    }

    /// The state of a process, as far as it can be known: its node may not answer.
    fn state_on(&self, node: &str, state: InstanceState) -> InstanceState {
        match state {
            InstanceState::Stopped | InstanceState::Error => state,
            _ if !node.is_empty() && self.is_down(node) => InstanceState::Unknown,
            _ => state,
        }
    }

    pub(super) fn replica_state(&self, replica: &Replica) -> InstanceState {
        self.state_on(&replica.spec.node_id, replica.status.current_state)
    }

    /// Whether nothing of the replica runs that somebody could still reach in order to stop it.
    pub(super) fn is_replica_stopped(&self, replica: &Replica) -> bool {
        let state = self.replica_state(replica);
        state == InstanceState::Stopped || (!replica.spec.node_id.is_empty() && self.is_down(&replica.spec.node_id))
    }

    pub(super) fn has_engine(&self) -> bool {
        !self.engines.is_empty()
    }

    /// The engine that counts: the active one. Its place among the engines.
    pub(super) fn current(&self) -> usize {
        let position = |wanted: &dyn Fn(&Item<'_, Engine>) -> bool| {
            self.engines.iter().position(|engine| !engine.is_leaving() && wanted(engine))
        };
        position(&|engine| engine.spec.active).or_else(|| position(&|_| true)).unwrap_or(0)
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engines[self.current()]
    }

    pub(super) fn engine_mut(&mut self) -> &mut Engine {
        let current = self.current();
        &mut self.engines[current]
    }

    pub(super) fn engine_state(&self) -> InstanceState {
        let engine = self.engine();
        self.state_on(&engine.spec.node_id, engine.status.current_state)
    }

    /// The engine that stood by and took the volume over before anybody decided that it should: the record names it.
    pub(super) fn promoted(&self) -> Option<usize> {
        let holder = self.record()?.holder.as_deref().filter(|holder| !holder.is_empty())?;
        let current = self.current();
        let holds = |engine: &Item<'_, Engine>| !engine.is_leaving() && engine.status.uuid == holder;
        self.engines.iter().position(holds).filter(|index| *index != current)
    }

    /// The engine says that it is fenced, and the record that says by whom was not seen yet: two watches are not in step.
    pub(super) fn is_being_taken_over(&self) -> bool {
        let engine = self.server();
        let told = condition::find(&engine.status.conditions, INSTANCE_CREATION);
        let is_fenced = engine.status.current_state == InstanceState::Error && told.is_some_and(|c| c.reason == FENCED);
        let holds = self.record().is_some_and(|record| record.holder.as_ref() == Some(&engine.status.uuid));
        let stands_by = self.engines.iter().any(|other| !other.spec.active && !other.is_leaving());
        is_fenced && holds && stands_by
    }

    /// The engine that has the volume.
    pub(super) fn server(&self) -> &Engine {
        &self.engines[self.promoted().unwrap_or_else(|| self.current())]
    }

    pub(super) fn server_state(&self) -> InstanceState {
        let engine = self.server();
        self.state_on(&engine.spec.node_id, engine.status.current_state)
    }

    /// What the engine that has the volume may do with a replica; none: it does not know it.
    pub(super) fn mode(&self, replica: &Replica) -> Option<ReplicaMode> {
        let server = self.server();
        let modes = &server.status.replica_mode_map;
        if replica.spec.engine_name == name(server) {
            return modes.get(name(replica)).copied();
        }
        // It knows the replica by its twin.
        let twin = self.replicas.iter().find(|other| {
            other.spec.engine_name == name(server) && other.spec.data_directory_name == replica.spec.data_directory_name
        });
        twin.and_then(|twin| modes.get(name(&**twin)).copied()).or_else(|| modes.get(name(replica)).copied())
    }

    /// Whether the engine that has the volume runs and has a replica that it reads and writes.
    pub(super) fn is_serving(&self) -> bool {
        self.server_state() == InstanceState::Running
            && self.server().status.replica_mode_map.values().any(|mode| *mode == ReplicaMode::ReadWrite)
    }

    /// The next random number.
    pub(super) fn random(&mut self) -> u32 {
        // SplitMix64: a seed becomes a sequence.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 32) as u32
    }

    pub(super) fn add_replica(&mut self, replica: Replica) {
        self.replicas.push(Item::new(replica));
    }

    pub(super) fn add_engine(&mut self, engine: Engine) {
        self.engines.push(Item::new(engine));
    }

    /// Something becomes of the volume, and somebody is told.
    pub(super) fn tell(&mut self, reason: Reason, note: impl Into<String>) {
        self.plan.tells(Event::normal(self.observed.volume, reason, note));
    }

    pub(super) fn warn(&mut self, reason: Reason, note: impl Into<String>) {
        self.plan.tells(Event::warning(self.observed.volume, reason, note));
    }

    pub(super) fn fires(&mut self, rule: Rule, reason: Reason, words: impl Into<String>) {
        self.plan.fires(rule, self.subject(), reason, words);
    }

    pub(super) fn rests(&mut self, rule: Rule, reason: Reason, words: impl Into<String>) {
        self.plan.rests(rule, self.subject(), reason, words);
    }

    pub(super) fn blocked(&mut self, rule: Rule, reason: Reason, words: impl Into<String>) {
        self.plan.blocked(rule, self.subject(), reason, words);
    }

    pub(super) fn waits(&mut self, rule: Rule, reason: Reason, words: impl Into<String>, until: Timestamp) {
        self.plan.waits(rule, self.subject(), reason, words, until);
    }

    pub(super) fn set_state(&mut self, state: State) {
        if self.status.state != state {
            self.status.state = state;
            self.status.state_changed_at = rfc3339(self.now);
        }
    }

    pub(super) fn set_robustness(&mut self, robustness: Robustness) {
        self.status.robustness = robustness;
        if robustness == Robustness::Degraded {
            if self.status.last_degraded_at.is_empty() {
                self.status.last_degraded_at = rfc3339(self.now);
            }
        } else {
            self.status.last_degraded_at = String::new();
        }
    }

    /// The difference, in the order in which it is to be written.
    pub(super) fn into_plan(mut self) -> Plan<Change> {
        let mut changes = std::mem::take(&mut self.first);
        for replica in &self.replicas {
            changes.extend(replica_change(replica));
        }
        // One that goes, goes before another takes its place: at no moment two of them count.
        let (leaving, staying): (Vec<_>, Vec<_>) = self.engines.iter().partition(|engine| engine.is_deleted);
        for engine in leaving.into_iter().chain(staying) {
            changes.extend(engine_change(engine));
        }
        let volume = self.observed.volume;
        let mut status = std::mem::take(&mut self.status).since(&volume.status);
        // The record belongs to the engines, who change it by compare-and-swap.
        status.remove("record");
        if !status.is_empty() {
            let body = json!({ "status": status });
            changes.push(Change::Patch { kind: Kind::Volume, part: Part::Status, target: Target::of(volume), body });
        }
        changes.append(&mut self.last);
        // Rules that ask for a change of their own have put it here.
        changes.append(&mut self.plan.changes);
        self.plan.changes = changes;
        self.plan
    }
}

fn replica_change(item: &Item<'_, Replica>) -> Option<Change> {
    let Some(was) = item.was else {
        return (!item.is_deleted).then(|| Change::CreateReplica(Box::new((**item).clone())));
    };
    if item.is_deleted {
        let target = Target::of(was);
        return (!is_deleting(was)).then_some(Change::Delete { kind: Kind::Replica, target });
    }
    let spec = item.spec.since(&item.touched()?.spec);
    if spec.is_empty() {
        return None;
    }
    let mut body = json!({ "spec": spec });
    if was.spec.node_id != item.spec.node_id || was.spec.disk_id != item.spec.disk_id {
        let spec = &item.spec;
        body["metadata"]["labels"] = json!({ labels::NODE: spec.node_id, labels::DISK_UUID: spec.disk_id });
    }
    Some(Change::Patch { kind: Kind::Replica, part: Part::Object, target: Target::of(was), body })
}

fn engine_change(item: &Item<'_, Engine>) -> Vec<Change> {
    let Some(was) = item.was else {
        return if item.is_deleted { Vec::new() } else { vec![Change::CreateEngine(Box::new((**item).clone()))] };
    };
    if item.is_deleted {
        let target = Target::of(was);
        let delete = (!is_deleting(was)).then_some(Change::Delete { kind: Kind::Engine, target });
        return delete.into_iter().collect();
    }
    let mut changes = Vec::new();
    let Some(was) = item.touched() else { return changes };
    let patch = |part: Part, body: Value| Change::Patch { kind: Kind::Engine, part, target: Target::of(was), body };
    let spec = item.spec.since(&was.spec);
    if !spec.is_empty() {
        let mut body = json!({ "spec": spec });
        if was.spec.node_id != item.spec.node_id {
            // Agents watch for what carries the name of their node.
            body["metadata"]["labels"] = json!({ labels::NODE: item.spec.node_id });
        }
        changes.push(patch(Part::Object, body));
    }
    let status = item.status.since(&was.status);
    if !status.is_empty() {
        changes.push(patch(Part::Status, json!({ "status": status })));
    }
    changes
}
