//! The status of a pod, in a kubelet's words.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::runs::{Doing, Run, Runs, is_process, is_sidecar};
use super::{Observed, waits};
use crate::object::uid;
use crate::pod::condition;

/// What a pod and its containers are doing.
#[derive(Clone, Debug)]
pub(super) struct Picture<'a> {
    pub phase: &'static str,
    /// Every init container has done its work.
    pub initialized: bool,
    /// In the order of the specification.
    pub init: Vec<Doing<'a>>,
    pub main: Vec<Doing<'a>>,
}

impl<'a> Picture<'a> {
    /// Nothing was started yet.
    pub fn waiting(spec: Option<&PodSpec>) -> Self {
        let has_init = spec.is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
        let all = |containers: &[Container]| containers.iter().map(|_| waits(reason)).collect();
        Self {
            phase: "Pending",
            initialized: !has_init,
            init: spec.and_then(|spec| spec.init_containers.as_deref()).map(all).unwrap_or_default(),
            main: spec.map(|spec| all(&spec.containers)).unwrap_or_default(),
        }
    }

    /// Everything has ended.
    pub fn over(spec: Option<&PodSpec>, runs: &'a Runs) -> Self {
        let ended = |container: &Container| Doing::Ended(runs.get(&container.name).and_then(|runs| runs.last()));
        let failed = |doing: &Doing<'_>| match doing {
            Doing::Ended(Some(Run { end: Some(end), .. })) => end.exit_code != 0,
            Doing::Ended(_) | Doing::Waiting { .. } | Doing::Running(_) => false,
        };
        let main: Vec<_> = spec.iter().flat_map(|spec| &spec.containers).map(ended).collect();
        let init = spec.iter().flat_map(|spec| spec.init_containers.iter().flatten()).map(ended).collect();
        let phase = if main.iter().any(failed) { "Failed" } else { "Succeeded" };
        Self { phase, initialized: true, init, main }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, "Succeeded" | "Failed")
    }
}

/// The status, with every time kept that says when something began that goes on.
pub(super) fn status(observed: &Observed<'_>, picture: &Picture<'_>, now: &Time) -> PodStatus {
    let pod = observed.pod;
    let spec = pod.spec.clone().unwrap_or_default();
    let old = pod.status.clone().unwrap_or_default();
    let address = (picture.phase != "Pending").then(|| observed.address.to_owned());
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let statuses = |containers: &[Container], doing: &[Doing<'_>], old: Option<&[ContainerStatus]>| {
        let pairs = containers.iter().zip(doing);
        pairs.map(|(container, doing)| container_status(pod, container, old, doing, &observed.runs, now)).collect()
    };
    PodStatus {
        phase: Some(picture.phase.into()),
        observed_generation: pod.metadata.generation,
        start_time: old.start_time.clone().or_else(|| Some(now.clone())),
        host_ip: Some(observed.address.into()),
        host_ips: Some(vec![HostIP { ip: observed.address.into() }]),
        pod_ip: old.pod_ip.clone().or_else(|| address.clone()),
        pod_ips: old.pod_ips.clone().or_else(|| address.map(|ip| vec![PodIP { ip }])),
        container_statuses: Some(statuses(&spec.containers, &picture.main, old.container_statuses.as_deref())),
        init_container_statuses: (!init.is_empty()).then(|| {
            let mut all: Vec<ContainerStatus> = statuses(init, &picture.init, old.init_container_statuses.as_deref());
            for ((status, container), doing) in all.iter_mut().zip(init).zip(&picture.init) {
                status.ready |= matches!(doing, Doing::Ended(_)) && !is_sidecar(container);
            }
            all
        }),
        conditions: Some(conditions(pod, &spec, picture, now)),
        ..old
    }
}

/// Whether the status says that the container waits to be run again.
pub(super) fn is_backing_off(pod: &Pod, container: &str) -> bool {
    let status = pod.status.as_ref();
    let main = status.and_then(|status| status.container_statuses.as_deref()).unwrap_or_default();
    let init = status.and_then(|status| status.init_container_statuses.as_deref()).unwrap_or_default();
    let mut all = main.iter().chain(init);
    all.any(|status| {
        let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
        status.name == container && waiting.and_then(|w| w.reason.as_deref()) == Some("CrashLoopBackOff")
    })
}

fn container_status(
    pod: &Pod,
    container: &Container,
    old: Option<&[ContainerStatus]>,
    doing: &Doing<'_>,
    runs: &Runs,
    now: &Time,
) -> ContainerStatus {
    let old = old.unwrap_or_default().iter().find(|status| status.name == container.name);
    let old_state = old.and_then(|status| status.state.clone()).unwrap_or_default();
    let running_since = old_state.running.as_ref().and_then(|running| running.started_at.clone());
    let state = match doing {
        Doing::Waiting { reason, message } => {
            let waiting = ContainerStateWaiting { reason: Some((*reason).to_owned()), message: message.clone() };
            ContainerState { waiting: Some(waiting), ..Default::default() }
        }
        Doing::Running(since) => {
            let started_at = since.map(seconds).or(running_since).or_else(|| Some(now.clone()));
            ContainerState { running: Some(ContainerStateRunning { started_at }), ..Default::default() }
        }
        Doing::Ended(Some(run)) => ended(pod, container, run),
        Doing::Ended(None) => {
            let ended = ContainerStateTerminated {
                exit_code: 0,
                reason: Some("Completed".to_owned()),
                started_at: running_since.or_else(|| Some(now.clone())),
                finished_at: Some(now.clone()),
                ..Default::default()
            };
            ContainerState { terminated: old_state.terminated.or(Some(ended)), ..Default::default() }
        }
    };
    let runs = runs.get(&container.name).map(Vec::as_slice).unwrap_or_default();
    let is_running = matches!(doing, Doing::Running(_));
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        container_id: runs.last().map(|run| container_id(pod, container, run)),
        ready: is_running,
        started: Some(is_running),
        restart_count: runs.last().map_or(old.map_or(0, |status| status.restart_count), |run| run.attempt as i32),
        state: Some(state),
        last_state: Some(last_state(pod, container, doing, runs)),
        ..Default::default()
    }
}

/// The end before the present state: of the run before this one, or of this one if it is to be run again.
fn last_state(pod: &Pod, container: &Container, doing: &Doing<'_>, runs: &[Run]) -> ContainerState {
    let current = usize::from(!matches!(doing, Doing::Waiting { .. }));
    let last = runs.iter().rev().skip(current).find(|run| run.end.is_some());
    last.filter(|_| is_process(container)).map(|run| ended(pod, container, run)).unwrap_or_default()
}

fn ended(pod: &Pod, container: &Container, run: &Run) -> ContainerState {
    let terminated = run.end.as_ref().map(|end| ContainerStateTerminated {
        exit_code: end.exit_code,
        signal: end.signal,
        reason: Some(end.reason.clone()),
        message: end.message.clone(),
        started_at: run.started_at.map(seconds),
        finished_at: Some(seconds(end.finished_at)),
        container_id: Some(container_id(pod, container, run)),
    });
    ContainerState { terminated, ..Default::default() }
}

fn container_id(pod: &Pod, container: &Container, run: &Run) -> String {
    format!("tether://{}/{}/{}", uid(pod), container.name, run.attempt)
}

/// As the API server keeps it: what is compared with what comes back must not have more.
fn seconds(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}

/// The conditions a kubelet writes, in its order, behind them those that others wrote.
fn conditions(pod: &Pod, spec: &PodSpec, picture: &Picture<'_>, now: &Time) -> Vec<PodCondition> {
    let containers_ready = containers_ready(spec, picture);
    let ready = if containers_ready.status == "True" { gates_ready(pod, spec) } else { containers_ready.clone() };
    let yes = |value: bool| if value { "True" } else { "False" };
    let begun = picture.phase == "Running" || picture.init.iter().any(|doing| !matches!(doing, Doing::Waiting { .. }));
    let ours = [
        ("PodReadyToStartContainers", verdict(yes(begun && !picture.is_over()), "", String::new())),
        ("Initialized", initialized(spec, picture)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", verdict("True", "", String::new())),
    ];
    let names: Vec<_> = ours.iter().map(|(name, _)| *name).collect();
    let mut all: Vec<_> = ours.into_iter().map(|(name, new)| transition(pod, name, new, now)).collect();
    let old = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    all.extend(old.iter().filter(|old| !names.contains(&old.type_.as_str())).cloned());
    all
}

/// A condition without its name and times.
fn verdict(status: &str, reason: &str, message: String) -> PodCondition {
    PodCondition {
        status: status.into(),
        reason: Some(reason.to_owned()).filter(|text| !text.is_empty()),
        message: Some(message).filter(|text| !text.is_empty()),
        ..Default::default()
    }
}

/// Gives `new` its name and the time since when its status is what it is.
fn transition(pod: &Pod, name: &str, mut new: PodCondition, now: &Time) -> PodCondition {
    let old = condition(pod, name).filter(|old| old.status == new.status);
    new.last_transition_time = old.and_then(|old| old.last_transition_time.clone()).or_else(|| Some(now.clone()));
    new.observed_generation = pod.metadata.generation;
    new.type_ = name.into();
    new
}

fn containers_ready(spec: &PodSpec, picture: &Picture<'_>) -> PodCondition {
    if picture.is_over() {
        let reason = if picture.phase == "Failed" { "PodFailed" } else { "PodCompleted" };
        return verdict("False", reason, String::new());
    }
    let unready = spec.containers.iter().zip(&picture.main).filter(|(_, doing)| !matches!(doing, Doing::Running(_)));
    let unready: Vec<_> = unready.map(|(container, _)| container.name.as_str()).collect();
    if unready.is_empty() {
        return verdict("True", "", String::new());
    }
    verdict("False", "ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
}

fn initialized(spec: &PodSpec, picture: &Picture<'_>) -> PodCondition {
    if picture.phase == "Succeeded" {
        return verdict("True", "PodCompleted", String::new());
    }
    if picture.initialized {
        return verdict("True", "", String::new());
    }
    let init = spec.init_containers.iter().flatten().zip(&picture.init);
    let incomplete = init.filter(|(container, doing)| match doing {
        Doing::Ended(run) => run.and_then(|run| run.end.as_ref()).is_some_and(|end| end.exit_code != 0),
        Doing::Running(_) => !is_sidecar(container),
        Doing::Waiting { .. } => true,
    });
    let names: Vec<_> = incomplete.map(|(container, _)| container.name.as_str()).collect();
    let text = format!("containers with incomplete status: [{}]", names.join(" "));
    verdict("False", "ContainersNotInitialized", text)
}

fn gates_ready(pod: &Pod, spec: &PodSpec) -> PodCondition {
    let gates = spec.readiness_gates.as_deref().unwrap_or_default();
    let unready = gates.iter().filter_map(|gate| match condition(pod, &gate.condition_type) {
        None => {
            Some(format!("corresponding condition of pod readiness gate {:?} does not exist.", gate.condition_type))
        }
        Some(found) if found.status != "True" => Some(format!(
            "the status of pod readiness gate {:?} is not \"True\", but {}",
            gate.condition_type, found.status
        )),
        Some(_) => None,
    });
    let unready: Vec<_> = unready.collect();
    if unready.is_empty() {
        return verdict("True", "", String::new());
    }
    verdict("False", "ReadinessGatesNotReady", unready.join(", "))
}
