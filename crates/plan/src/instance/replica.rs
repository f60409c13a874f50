//! A replica's process follows its object.

use jiff::Timestamp;
use tether_crd::engine::{INSTANCE_CREATION, InstanceState};
use tether_crd::replica::ReplicaStatus;
use tether_crd::{FINALIZER, Replica, names};
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::told::{self, CREATION_FAILED};
use super::{Manager, Process, ProcessState, observed_state};
use crate::Plan;
use crate::object::{Target, has_finalizer, is_deleting, name, subject};

const PROCESS: Rule = Rule("replica-process");
const STATUS: Rule = Rule("replica-status");
const REMOVAL: Rule = Rule("replica-removal");

/// One replica of this node.
#[derive(Clone, Debug)]
pub struct ReplicaObserved<'a> {
    pub replica: &'a Replica,
    pub manager: Manager,
    pub manager_name: &'a str,
    pub process: Option<&'a Process>,
    /// Other objects of this node for the same directory, and thus for the same process: a migration's twins.
    pub twins: Vec<&'a Replica>,
    /// What came of the last attempt to start it.
    pub start_error: Option<&'a str>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum ReplicaChange {
    Start,
    Stop,
    /// Delete its directory.
    RemoveData {
        directory: String,
    },
    SetStatus {
        replica: Target,
        status: Box<ReplicaStatus>,
    },
    RemoveFinalizer {
        replica: Target,
    },
}

/// Decides about one replica.
pub fn decide_replica(observed: &ReplicaObserved<'_>, now: Timestamp) -> Plan<ReplicaChange> {
    let replica = observed.replica;
    let mut plan = Plan::default();
    let wanted = is_wanted(replica);
    // It runs for another: for this one it is as if it did not.
    let lent = !wanted && observed.twins.iter().any(|twin| is_wanted(twin));
    let runs = observed.process.is_some_and(|p| matches!(p.state, ProcessState::Starting | ProcessState::Running));
    let old = replica.status.current_state;
    if observed.manager == Manager::Known {
        let never_ran = !replica.status.started && old != InstanceState::Error;
        match (wanted, observed.process) {
            // One that failed is for the volume to decide about: it is told to stop, and then perhaps to start again. One
            // that ended in order was told to by somebody who is not here any more: it is as if it had never been.
            (true, found) if never_ran && found.is_none_or(|found| found.state == ProcessState::Stopped) => {
                plan.acts(PROCESS, subject(replica), Reason::Started, "It is to run.", ReplicaChange::Start);
            }
            (false, Some(_)) if !lent => {
                plan.acts(PROCESS, subject(replica), Reason::BeingDeleted, "It is not to run.", ReplicaChange::Stop);
            }
            _ => plan.rests(PROCESS, subject(replica), Reason::UpToDate, "Nothing is to be started or stopped."),
        }
    }
    if is_deleting(replica) && has_finalizer(replica, FINALIZER) {
        remove(&mut plan, observed, runs);
        return plan;
    }
    let process = observed.process.filter(|_| !lent);
    let status = status(observed, process, wanted, now);
    if status == replica.status {
        plan.rests(STATUS, subject(replica), Reason::UpToDate, "The status tells how it is.");
    } else {
        let change = ReplicaChange::SetStatus { replica: Target::of(replica), status: Box::new(status) };
        plan.acts(STATUS, subject(replica), Reason::StatusFollows, "The status follows the process.", change);
    }
    if !runs {
        // What ended is told before its manager forgets it: the manager may be about to end as well, and not answer.
        plan.changes.sort_by_key(|change| matches!(change, ReplicaChange::Stop));
    }
    plan
}

fn is_wanted(replica: &Replica) -> bool {
    replica.spec.desire_state == InstanceState::Running && !is_deleting(replica)
}

fn remove(plan: &mut Plan<ReplicaChange>, observed: &ReplicaObserved<'_>, runs: bool) {
    let replica = observed.replica;
    if let Some(twin) = observed.twins.iter().find(|twin| !is_deleting(**twin)) {
        let words = format!("Replica {} stands for the same data, which stays.", name(*twin));
        let change = ReplicaChange::RemoveFinalizer { replica: Target::of(replica) };
        plan.acts(REMOVAL, subject(replica), Reason::BeingDeleted, words, change);
        return;
    }
    if runs || observed.manager != Manager::Known {
        let words = "Its data is removed once it is known that nothing runs on it.";
        plan.blocked(REMOVAL, subject(replica), Reason::BeingDeleted, words);
        return;
    }
    let spec = &replica.spec;
    if !spec.disk_path.is_empty() && !spec.data_directory_name.is_empty() {
        let directory = names::data_path(&spec.disk_path, &spec.data_directory_name);
        let change = ReplicaChange::RemoveData { directory };
        plan.acts(REMOVAL, subject(replica), Reason::BeingDeleted, "Its data goes with it.", change);
    }
    let change = ReplicaChange::RemoveFinalizer { replica: Target::of(replica) };
    plan.acts(REMOVAL, subject(replica), Reason::BeingDeleted, "Nothing of it is left.", change);
}

fn status(observed: &ReplicaObserved<'_>, process: Option<&Process>, wanted: bool, now: Timestamp) -> ReplicaStatus {
    let replica = observed.replica;
    let old = &replica.status;
    // What is not wanted any more, and known to be gone, did not fail.
    let started = old.started && (wanted || observed.manager == Manager::Unknown);
    let state = observed_state(observed.manager, process, started, old.current_state);
    let mut status = ReplicaStatus { current_state: state, ..old.clone() };
    status.owner_id.clone_from(&replica.spec.node_id);
    status.started = started || state == InstanceState::Running;
    match (state, process) {
        (InstanceState::Running, Some(process)) => {
            observed.manager_name.clone_into(&mut status.instance_manager_name);
            status.current_image.clone_from(&replica.spec.image);
            (status.ip, status.storage_ip) = (process.ip.clone(), process.ip.clone());
            status.port = i64::from(process.port);
            status.uuid.clone_from(&process.uid);
            status.starting = false;
        }
        (InstanceState::Unknown, _) => {}
        (state, _) => {
            (status.ip, status.storage_ip, status.port) = (String::new(), String::new(), 0);
            status.starting = state == InstanceState::Starting;
            if state == InstanceState::Stopped {
                status.instance_manager_name.clear();
                (status.uuid, status.current_image) = (String::new(), String::new());
            }
        }
    }
    let failure = match state {
        InstanceState::Error => process.map(|process| process.reason.as_str()),
        InstanceState::Stopped if wanted => observed.start_error,
        _ => None,
    };
    let failure = failure.map(|why| (CREATION_FAILED, why));
    told::tell(&mut status.conditions, INSTANCE_CREATION, failure, now);
    status
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn replica() -> Replica {
        let mut replica = Replica::default();
        replica.metadata.name = Some("v1-r-1".into());
        replica.metadata.finalizers = Some(vec![FINALIZER.into()]);
        replica.spec.node_id = "node-1".into();
        replica.spec.disk_path = "/d".into();
        replica.spec.data_directory_name = "v1-0001".into();
        replica
    }

    fn process(state: ProcessState) -> Process {
        Process { uid: "u".into(), state, reason: "why".into(), ip: "127.1.0.1".into(), port: 9000 }
    }

    fn step(replica: &mut Replica, manager: Manager, process: Option<&Process>) -> Vec<String> {
        let observed =
            ReplicaObserved { replica, manager, manager_name: "im", process, twins: Vec::new(), start_error: None };
        let plan = decide_replica(&observed, Timestamp::UNIX_EPOCH);
        let mut told = Vec::new();
        for change in plan.changes {
            match change {
                ReplicaChange::SetStatus { status, .. } => replica.status = *status,
                ReplicaChange::RemoveData { directory } => told.push(format!("remove {directory}")),
                ReplicaChange::Start => told.push("start".into()),
                ReplicaChange::Stop => told.push("stop".into()),
                ReplicaChange::RemoveFinalizer { .. } => told.push("let go".into()),
            }
        }
        told
    }

    /// Rows of Longhorn's tests of its instance handler.
    #[test]
    fn a_replica_starts_runs_and_stops() {
        let mut replica = replica();
        assert_eq!(step(&mut replica, Manager::Known, None), Vec::<String>::new());
        assert_eq!(replica.status.current_state, InstanceState::Stopped);
        replica.spec.desire_state = InstanceState::Running;
        assert_eq!(step(&mut replica, Manager::Known, None), ["start"]);
        assert_eq!(replica.status.current_state, InstanceState::Stopped);
        step(&mut replica, Manager::Known, Some(&process(ProcessState::Running)));
        let status = &replica.status;
        assert_eq!(
            (status.current_state, status.ip.as_str(), status.port),
            (InstanceState::Running, "127.1.0.1", 9000)
        );
        assert!(status.started && !status.starting);
        replica.spec.desire_state = InstanceState::Stopped;
        assert_eq!(step(&mut replica, Manager::Known, Some(&process(ProcessState::Running))), ["stop"]);
        step(&mut replica, Manager::Known, None);
        let status = &replica.status;
        assert_eq!((status.current_state, status.started, status.port), (InstanceState::Stopped, false, 0));
        assert_eq!(status.instance_manager_name, "");
    }

    #[test]
    fn what_ran_is_in_error_when_its_manager_is_gone_and_unknown_while_nobody_answers() {
        let mut replica = replica();
        replica.spec.desire_state = InstanceState::Running;
        step(&mut replica, Manager::Known, Some(&process(ProcessState::Running)));
        step(&mut replica, Manager::Unknown, None);
        assert_eq!((replica.status.current_state, replica.status.port), (InstanceState::Unknown, 9000));
        step(&mut replica, Manager::Down, None);
        assert_eq!(replica.status.current_state, InstanceState::Error);
        assert_eq!(
            step(&mut replica, Manager::Known, None),
            Vec::<String>::new(),
            "it is not started behind anybody's back"
        );
        replica.spec.desire_state = InstanceState::Stopped;
        step(&mut replica, Manager::Unknown, None);
        assert_ne!(replica.status.current_state, InstanceState::Stopped, "nobody knows that");
        step(&mut replica, Manager::Known, None);
        assert_eq!(replica.status.current_state, InstanceState::Stopped);
    }

    /// The volume waits for this, and the manager may never answer again.
    #[test]
    fn what_ended_and_is_not_wanted_is_called_stopped_before_the_manager_is_asked_to_forget_it() {
        let mut replica = replica();
        replica.status.started = true;
        replica.status.current_state = InstanceState::Error;
        let ended = process(ProcessState::Stopped);
        let observed = ReplicaObserved {
            replica: &replica,
            manager: Manager::Known,
            manager_name: "im",
            process: Some(&ended),
            twins: Vec::new(),
            start_error: None,
        };
        let changes = decide_replica(&observed, Timestamp::UNIX_EPOCH).changes;
        let [ReplicaChange::SetStatus { status, .. }, ReplicaChange::Stop] = changes.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!(status.current_state, InstanceState::Stopped);
    }

    #[test]
    fn data_goes_only_when_nothing_runs_on_it() {
        let mut replica = replica();
        replica.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(step(&mut replica, Manager::Unknown, None), Vec::<String>::new());
        assert_eq!(step(&mut replica, Manager::Known, Some(&process(ProcessState::Running))), ["stop"]);
        assert_eq!(step(&mut replica, Manager::Known, None), ["remove /d/replicas/v1-0001", "let go"]);
    }

    #[test]
    fn twins_share_a_process_and_its_data() {
        let (mut one, mut other) = (replica(), replica());
        other.metadata.name = Some("v1-r-2".into());
        other.spec.desire_state = InstanceState::Running;
        let running = process(ProcessState::Running);
        let told = |replica: &Replica, twin: &Replica| {
            let observed = ReplicaObserved {
                replica,
                manager: Manager::Known,
                manager_name: "im",
                process: Some(&running),
                twins: vec![twin],
                start_error: None,
            };
            let changes = decide_replica(&observed, Timestamp::UNIX_EPOCH).changes;
            changes.iter().map(|change| format!("{change:?}")).collect::<Vec<_>>().join(" ")
        };
        assert!(!told(&one, &other).split(' ').any(|word| word == "Stop"), "the other one wants the process");
        one.spec.desire_state = InstanceState::Running;
        assert!(told(&one, &other).contains("current_state: Running"));
        one.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let told_of_deleted = told(&one, &other);
        assert!(told_of_deleted.contains("RemoveFinalizer") && !told_of_deleted.contains("RemoveData"));
        other.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(told(&one, &other), "Stop", "nobody wants it any more, and then its data goes");
    }
}
