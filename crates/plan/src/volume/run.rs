//! Opening and closing: the volume's state follows its wish, replicas and engine follow the volume's state.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use tether_crd::condition::{self, time};
use tether_crd::engine::{EngineSpec, INSTANCE_CREATION, INSTANCE_REMOVAL, InstanceState};
use tether_crd::volume::{Robustness, State};
use tether_crd::{Engine, Replica};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::draft::{Draft, Item};
use super::health;
use super::state::{self, Action, Current, Position};
use crate::instance::because;
use crate::object::name;

const STATE: Rule = Rule("volume-state");
const ENGINE_START: Rule = Rule("engine-start");
const CLOSING: Rule = Rule("volume-close");

/// How long an engine waits for a replica that holds everything but does not start, when another one runs. Long enough
/// for a process that starts on a busy node, so that an ordinary attach begins with all replicas; short beside the time in
/// which somebody would miss the volume.
pub const REPLICA_START_PATIENCE: SignedDuration = SignedDuration::from_secs(5);

/// How long a volume that leaves waits for its replicas to end; an ordinary one takes milliseconds. One whose agent says nothing
/// does not keep the volume where it was until its node is known to be down: a replica that still runs is no danger, since it
/// serves nobody but the engine of the newest epoch, and its agent ends it when it can.
pub const REPLICA_STOP_PATIENCE: SignedDuration = SignedDuration::from_secs(5);

/// Does what the volume's state asks for, and moves the state on.
pub(super) fn follow(draft: &mut Draft<'_>) {
    draft.status.frontend_disabled = draft.volume().spec.disable_frontend;
    let (wanted, current) = (draft.volume().spec.node_id.clone(), draft.status.current_node_id.clone());
    let position = Position {
        wanted: &wanted,
        current: &current,
        state: draft.status.state,
        is_migrating: draft.volume().is_migratable() && !draft.status.current_migration_node_id.is_empty(),
        is_open: is_open(draft),
        is_closed: is_closed(draft),
    };
    let (action, next, node) = state::next(&position);
    match action {
        Action::Open => open(draft),
        Action::Close => close(draft),
    }
    match node {
        Current::Keep => {}
        Current::Set => draft.status.current_node_id.clone_from(&wanted),
        Current::Clear => draft.status.current_node_id.clear(),
    }
    announce(draft, next, &wanted, &current);
}

fn announce(draft: &mut Draft<'_>, next: State, wanted: &str, current: &str) {
    let volume = draft.name();
    let was = draft.status.state;
    let (reason, words) = match next {
        State::Attaching => (Reason::Attaching, format!("The volume is wanted on node {wanted:?}.")),
        State::Attached => (Reason::Attached, format!("The volume is attached to node {wanted:?}.")),
        State::Detached => (Reason::Detached, "Nothing of the volume runs, and nothing is to.".to_owned()),
        _ => (Reason::Detaching, "The volume is not wanted where it is.".to_owned()),
    };
    if was == next {
        draft.rests(STATE, reason, words);
        return;
    }
    draft.fires(STATE, reason, words);
    draft.set_state(next);
    match next {
        State::Attached => draft.tell(reason, format!("volume {volume} has been attached to {wanted}")),
        // A volume that is new, and never was anywhere, is not said to leave.
        State::Detached if draft.record().is_some() || !current.is_empty() => {
            draft.tell(reason, format!("volume {volume} has been detached"));
        }
        _ => {}
    }
}

/// The engine serves where it is wanted.
fn is_open(draft: &Draft<'_>) -> bool {
    draft.is_serving() && draft.engine().spec.node_id == draft.volume().spec.node_id
}

/// Nothing runs that could still be told to stop. What is on a node that does not answer cannot: it is fenced by the
/// epoch of the next engine, and its agent stops it when the node is back.
fn is_closed(draft: &Draft<'_>) -> bool {
    // A twin has no process of its own.
    let mut replicas = draft.replicas.iter().filter(|replica| replica.spec.active);
    // Told to stop first: only what does not follow is given up.
    let is_left = |replica: &Item<'_, Replica>| {
        replica.spec.desire_state == InstanceState::Stopped && draft.now >= stop_patience(draft)
    };
    is_engine_stopped(draft) && replicas.all(|replica| draft.is_replica_stopped(replica) || is_left(replica))
}

/// Until when replicas are waited for that are to end.
fn stop_patience(draft: &Draft<'_>) -> Timestamp {
    let began = if draft.status.state == State::Detaching { time(&draft.status.state_changed_at) } else { None };
    began.unwrap_or(draft.now) + REPLICA_STOP_PATIENCE
}

fn is_engine_stopped(draft: &Draft<'_>) -> bool {
    draft.engine_state() == InstanceState::Stopped
}

/// Starts replicas, then the engine; later lets replicas join and leave.
fn open(draft: &mut Draft<'_>) {
    start_replicas(draft);
    if draft.promoted().is_some() {
        draft.rests(ENGINE_START, Reason::MigrationPromoted, "The engine that stood by has taken the volume over.");
        return;
    }
    let Some(members) = members(draft) else { return };
    let volume = draft.volume();
    let (wanted, frontend_disabled) = (volume.spec.node_id.clone(), draft.status.frontend_disabled);
    let engine = draft.engine();
    let held = engine.spec.node_id.clone();
    let runs = engine.spec.desire_state == InstanceState::Running;
    if !held.is_empty() && held != wanted && (runs || !is_engine_stopped(draft)) {
        let words = format!("engine is on node {held} vs volume on {wanted}, must detach first");
        draft.blocked(ENGINE_START, Reason::EngineStopping, words);
        return;
    }
    if !runs && !is_engine_stopped(draft) {
        draft.blocked(ENGINE_START, Reason::EngineStopping, "The engine that ran before has not ended yet.");
        return;
    }
    report_engine(draft, runs, &wanted);
    let frontend = volume.spec.frontend;
    let spec = EngineSpec {
        node_id: wanted,
        replica_address_map: members,
        desire_state: InstanceState::Running,
        log_requested: false,
        disable_frontend: frontend_disabled,
        frontend,
        ..draft.engine().spec.clone()
    };
    if spec != draft.engine().spec {
        draft.engine_mut().spec = spec;
    }
}

fn report_engine(draft: &mut Draft<'_>, runs: bool, wanted: &str) {
    if !runs {
        draft.fires(ENGINE_START, Reason::EngineStarting, format!("The engine starts on node {wanted:?}."));
    } else if draft.is_serving() {
        draft.rests(ENGINE_START, Reason::UpToDate, "The engine serves.");
    } else if draft.host(wanted).is_none_or(|host| host.is_down) {
        let words = format!("The engine is to start on node {wanted:?}, which is down.");
        draft.blocked(ENGINE_START, Reason::NodeUnavailable, words);
    } else if let Some(host) = draft.host(wanted).filter(|host| !host.can_launch()) {
        let words = format!("The instance manager of node {wanted:?} is {}.", host.manager.word());
        draft.blocked(ENGINE_START, Reason::InstanceManagerUnavailable, words);
    } else {
        let conditions = &draft.engine().status.conditions;
        let refused = condition::find(conditions, INSTANCE_CREATION).filter(|found| found.status == condition::FALSE);
        let why = refused.map(|found| format!(" The last attempt failed: {}.", found.message)).unwrap_or_default();
        let words = format!("The engine is starting on node {wanted:?}.{why}");
        draft.blocked(ENGINE_START, Reason::EngineStarting, words);
    }
}

/// Tells replicas to run, where they can.
fn start_replicas(draft: &mut Draft<'_>) {
    let is_attached = draft.status.state == State::Attached;
    let begins = health::begins(draft);
    for index in 0..draft.replicas.len() {
        let replica = &draft.replicas[index];
        if !replica.is_scheduled() || replica.is_leaving() || !replica.spec.failed_at.is_empty() || !replica.spec.active
        {
            continue;
        }
        let Some(host) = draft.host(&replica.spec.node_id) else {
            let why = format!("its node {} does not exist", replica.spec.node_id);
            health::fail(draft, index, &why);
            continue;
        };
        if host.is_down {
            // An engine that serves finds out by itself which replicas it lost. One that never ran is unknown to it.
            let asked = replica.spec.desire_state == InstanceState::Running || replica.status.starting;
            let never_ran = asked
                && !replica.status.started
                && replica.spec.healthy_at.is_empty()
                && replica.status.current_state != InstanceState::Starting;
            if !is_attached || never_ran {
                let why = format!("its node {} is down", replica.spec.node_id);
                health::fail(draft, index, &why);
            }
        } else if host.can_launch() && replica.status.current_state == InstanceState::Stopped {
            draft.replicas[index].spec.desire_state = InstanceState::Running;
            if begins {
                // It is good from its first moment, and that need not be a write of its own.
                let now = draft.now;
                health::healthy(&mut draft.replicas[index], now);
            }
        }
    }
}

/// The addresses that the engine is to serve with; none: it does not start yet.
fn members(draft: &mut Draft<'_>) -> Option<tether_crd::volume::Words> {
    let engine = draft.engine();
    let runs = engine.spec.desire_state == InstanceState::Running;
    let held = engine.spec.replica_address_map.clone();
    let engine_name = name(engine).to_owned();
    let leaving: BTreeSet<String> = super::cleanup::surplus(draft).into_iter().collect();
    let (mut members, mut late) = (tether_crd::volume::Words::new(), Vec::new());
    for replica in &draft.replicas {
        let usable = replica.is_scheduled()
            && !replica.is_leaving()
            && replica.spec.failed_at.is_empty()
            && replica.spec.engine_name == engine_name
            // One that has yet to end, from the last time, is started again when it has.
            && (runs || replica.spec.desire_state == InstanceState::Running)
            && !leaving.contains(name(&**replica));
        if !usable {
            continue;
        }
        let status = &replica.status;
        if draft.replica_state(replica) == InstanceState::Running && !status.ip.is_empty() && status.port != 0 {
            members.insert(name(&**replica).to_owned(), address(&status.ip, status.port));
        } else if let Some(address) = held.get(name(&**replica)).filter(|_| runs) {
            // The engine gives up a member; until then it may come back as it was.
            members.insert(name(&**replica).to_owned(), address.clone());
        } else {
            late.push((name(&**replica).to_owned(), replica.spec.node_id.clone(), draft.is_in_sync(replica)));
        }
    }
    if runs {
        return Some(members);
    }
    if !is_enough(draft, &members, &late) {
        return None;
    }
    if draft.record().is_none() {
        // What is written from now on, they miss.
        let misses = |replica: &Replica| late.iter().any(|(late, ..)| late == name(replica));
        draft.replicas.iter_mut().filter(|replica| misses(replica)).for_each(|replica| replica.spec.healthy_at.clear());
    }
    Some(members)
}

/// An address as engines know replicas, and each other, by.
pub(super) fn address(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// Whether an engine may start with the replicas that run.
fn is_enough(draft: &mut Draft<'_>, members: &tether_crd::volume::Words, late: &[(String, String, bool)]) -> bool {
    let good = draft.replicas.iter().filter(|r| members.contains_key(name(&***r)) && draft.is_in_sync(r)).count();
    let missing: Vec<String> =
        late.iter().filter(|(.., in_sync)| *in_sync).map(|(name, node, _)| format!("{name} on node {node}")).collect();
    match (good, missing.as_slice()) {
        (1.., []) => true,
        (0, []) => {
            let words = "no healthy or scheduled replica for starting";
            draft.blocked(ENGINE_START, Reason::NoInSyncReplica, words);
            false
        }
        (0, missing) => {
            let words = format!("Waiting for a replica that holds every write: {}.", missing.join(", "));
            draft.blocked(ENGINE_START, Reason::ReplicasStarting, words);
            false
        }
        (_, missing) => {
            let until = patience(draft);
            let missing = missing.join(", ");
            if draft.now >= until {
                let words = format!("The engine starts without {missing}, which did not start in time.");
                draft.fires(ENGINE_START, Reason::ReplicaStartTooSlow, words);
                return true;
            }
            draft.waits(ENGINE_START, Reason::ReplicasStarting, format!("Waiting for {missing}."), until);
            false
        }
    }
}

/// Until when replicas that hold everything are waited for.
fn patience(draft: &Draft<'_>) -> Timestamp {
    let began = if draft.status.state == State::Attaching { time(&draft.status.state_changed_at) } else { None };
    began.unwrap_or(draft.now) + REPLICA_START_PATIENCE
}

/// Stops the engine, then the replicas.
fn close(draft: &mut Draft<'_>) {
    if draft.status.robustness != Robustness::Faulted {
        draft.set_robustness(Robustness::Unknown);
    }
    let is_faulted = draft.status.robustness == Robustness::Faulted;
    let held = draft.engine().spec.node_id.clone();
    draft.engine_mut().spec.desire_state = InstanceState::Stopped;
    // On no node, or on one that does not answer, there is no agent that could say so.
    if draft.is_down(&held) {
        fence(draft, &held);
    }
    if !is_engine_stopped(draft) {
        draft.engine_mut().spec.log_requested |= is_faulted;
        let why = why_it_stays(draft.engine());
        draft.blocked(CLOSING, Reason::EngineStopping, format!("The engine on node {held:?} is being stopped.{why}"));
        if !why.is_empty() {
            let volume = draft.name();
            draft.warn(Reason::EngineStopping, format!("volume {volume} cannot leave node {held}.{why}"));
        }
        return;
    }
    let spec = &mut draft.engine_mut().spec;
    spec.node_id.clear();
    spec.replica_address_map.clear();
    let mut running = Vec::new();
    for index in 0..draft.replicas.len() {
        draft.replicas[index].spec.desire_state = InstanceState::Stopped;
        let replica = &draft.replicas[index];
        if !draft.is_replica_stopped(replica) {
            running.push(name(&**replica).to_owned());
        }
    }
    if running.is_empty() {
        draft.rests(CLOSING, Reason::Detached, "Engine and replicas are stopped.");
    } else {
        let words = format!("Replicas are being stopped: {}.", running.join(", "));
        let until = stop_patience(draft);
        if draft.status.state == State::Detaching && draft.now < until {
            draft.waits(CLOSING, Reason::ReplicasStopping, words, until);
        } else {
            draft.blocked(CLOSING, Reason::ReplicasStopping, words);
        }
    }
}

/// Why an engine that is to end does not, as its agent says; empty if it does not say so.
pub(super) fn why_it_stays(engine: &Engine) -> String {
    let told = condition::find(&engine.status.conditions, INSTANCE_REMOVAL);
    because(told.filter(|found| found.status == condition::FALSE).map(|found| found.message.as_str()))
}

/// The engine's node does not answer: nobody there can say that the engine ended, and nobody has to. The next engine's
/// epoch keeps it from having any write acknowledged, and its agent ends it when the node is back.
fn fence(draft: &mut Draft<'_>, node: &str) {
    if is_engine_stopped(draft) {
        return;
    }
    let words = format!("Node {node:?} does not answer; its engine is fenced by the record and counts as stopped.");
    draft.fires(CLOSING, Reason::EngineFenced, words);
    let status = &mut draft.engine_mut().status;
    status.current_state = InstanceState::Stopped;
    status.started = false;
    status.starting = false;
    status.endpoint.clear();
    status.replica_mode_map.clear();
    status.current_replica_address_map.clear();
    (status.ip, status.storage_ip, status.port) = (String::new(), String::new(), 0);
}
