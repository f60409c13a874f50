//! A pod's life on its node, told as a kubelet tells it, for a node that runs no containers.
//!
//! ```text
//!   bound ──► volumes not mounted ──► running ──► being deleted ──► finished, removed
//!                (Pending)                              (Succeeded, then deleted without grace)
//! ```
//!
//! In the embedded cluster a pod is a place where volumes get mounted: no image is pulled and nothing is
//! executed. Its statuses are what kubectl, controllers and `kubectl wait` need to go on; container ids stay
//! empty, because there are no containers.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use crate::Plan;
use crate::event::Event;
use crate::object::{Target, is_deleting, subject};
use crate::pod::{condition, is_finished, phase};

const TERMINATION: Rule = Rule("pod-termination");
const VOLUMES: Rule = Rule("pod-volumes");
const STATUS: Rule = Rule("pod-status");

/// The first look comes soon: a claim is often bound a moment after its pod.
const FIRST_RETRY: SignedDuration = SignedDuration::from_secs(1);
/// A kubelet's longest pause between two attempts to mount.
const LAST_RETRY: SignedDuration = SignedDuration::from_secs(122);

/// One pod that is bound to this node, and what the node knows beside it.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub pod: &'a Pod,
    /// The volumes of the pod that are not mounted, each with the reason.
    pub unmounted: Vec<Unmounted>,
    /// The node's address. Pods have no network of their own, so it is theirs too.
    pub address: &'a str,
}

/// A volume that a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmounted {
    pub volume: String,
    pub why: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Write this as the pod's status.
    SetStatus { pod: Target, status: Box<PodStatus> },
    /// Delete the pod without grace: its containers have ended.
    Remove { pod: Target },
}

/// What the containers of a pod are doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Containers {
    /// With the reason that their state gives.
    Waiting(&'static str),
    Running,
    Ended,
}

/// Decides about one pod.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let pod = observed.pod;
    let mut plan = Plan::default();
    if is_deleting(pod) {
        if !is_finished(pod) {
            let words = "The pod is being deleted; its containers have ended.";
            set_status(&mut plan, observed, TERMINATION, Reason::BeingDeleted, words, Containers::Ended, now);
        }
        let words = "The pod is being deleted and nothing of it is left on the node.";
        plan.acts(TERMINATION, subject(pod), Reason::BeingDeleted, words, Change::Remove { pod: Target::of(pod) });
    } else if is_finished(pod) {
        plan.rests(STATUS, subject(pod), Reason::PodCompleted, "The pod has finished.");
    } else if let Some(first) = observed.unmounted.first() {
        wait(&mut plan, observed, first, now);
    } else {
        let words = "Every volume of the pod is mounted.";
        set_status(&mut plan, observed, STATUS, Reason::Started, words, Containers::Running, now);
    }
    plan
}

fn wait(plan: &mut Plan<Change>, observed: &Observed<'_>, first: &Unmounted, now: Timestamp) {
    let names: Vec<_> = observed.unmounted.iter().map(|unmounted| unmounted.volume.as_str()).collect();
    let words = format!(
        "Unable to attach or mount volumes: unmounted volumes=[{}]: volume {:?}: {}",
        names.join(" "),
        first.volume,
        first.why
    );
    plan.tells(Event::warning(observed.pod, Reason::FailedMount, words.clone()));
    let until = now + retry_in(observed.pod, now);
    plan.waits(VOLUMES, subject(observed.pod), Reason::FailedMount, words.clone(), until);
    // A pod that ran before (its node restarted, say) keeps its phase: Kubernetes never goes back to Pending.
    if phase(observed.pod) != "Running" {
        let has_init =
            observed.pod.spec.as_ref().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some());
        let waiting = Containers::Waiting(if has_init { "PodInitializing" } else { "ContainerCreating" });
        set_status(plan, observed, STATUS, Reason::FailedMount, &words, waiting, now);
    }
}

/// As long again as it has waited already, so that pauses double without anybody counting them.
fn retry_in(pod: &Pod, now: Timestamp) -> SignedDuration {
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, |time| time.0);
    now.duration_since(since).clamp(FIRST_RETRY, LAST_RETRY)
}

fn set_status(
    plan: &mut Plan<Change>,
    observed: &Observed<'_>,
    rule: Rule,
    reason: Reason,
    words: &str,
    containers: Containers,
    now: Timestamp,
) {
    let pod = observed.pod;
    let status = status(observed, containers, &Time(now));
    if pod.status.as_ref() == Some(&status) {
        plan.rests(rule, subject(pod), Reason::UpToDate, "The status says so already.");
        return;
    }
    let change = Change::SetStatus { pod: Target::of(pod), status: Box::new(status) };
    plan.acts(rule, subject(pod), reason, words, change);
}

/// The status, with every time kept that says when something began that goes on.
fn status(observed: &Observed<'_>, containers: Containers, now: &Time) -> PodStatus {
    let pod = observed.pod;
    let spec = pod.spec.clone().unwrap_or_default();
    let old = pod.status.clone().unwrap_or_default();
    let name = match containers {
        Containers::Waiting(_) => "Pending",
        Containers::Running => "Running",
        Containers::Ended => "Succeeded",
    };
    let address = (!matches!(containers, Containers::Waiting(_))).then(|| observed.address.to_owned());
    PodStatus {
        phase: Some(name.into()),
        observed_generation: pod.metadata.generation,
        start_time: old.start_time.clone().or_else(|| Some(now.clone())),
        host_ip: Some(observed.address.into()),
        host_ips: Some(vec![HostIP { ip: observed.address.into() }]),
        pod_ip: old.pod_ip.clone().or_else(|| address.clone()),
        pod_ips: old.pod_ips.clone().or_else(|| address.map(|ip| vec![PodIP { ip }])),
        container_statuses: Some(container_statuses(
            &spec.containers,
            old.container_statuses.as_deref(),
            containers,
            now,
        )),
        init_container_statuses: spec.init_containers.as_deref().filter(|all| !all.is_empty()).map(|all| {
            let old = old.init_container_statuses.as_deref();
            init_container_statuses(all, old, containers, now)
        }),
        conditions: Some(conditions(pod, &spec, containers, now)),
        ..old
    }
}

fn container_statuses(
    containers: &[Container],
    old: Option<&[ContainerStatus]>,
    doing: Containers,
    now: &Time,
) -> Vec<ContainerStatus> {
    containers.iter().map(|container| container_status(container, old, doing, now)).collect()
}

/// Init containers have succeeded once the pod runs; those that restart (sidecars) run beside the others.
fn init_container_statuses(
    containers: &[Container],
    old: Option<&[ContainerStatus]>,
    doing: Containers,
    now: &Time,
) -> Vec<ContainerStatus> {
    let one = |container: &Container| {
        let sidecar = container.restart_policy.as_deref() == Some("Always");
        let doing = if doing == Containers::Running && !sidecar { Containers::Ended } else { doing };
        let mut status = container_status(container, old, doing, now);
        status.ready = status.ready || (doing == Containers::Ended && !sidecar);
        status
    };
    containers.iter().map(one).collect()
}

fn container_status(
    container: &Container,
    old: Option<&[ContainerStatus]>,
    doing: Containers,
    now: &Time,
) -> ContainerStatus {
    let old = old.unwrap_or_default().iter().find(|status| status.name == container.name);
    let old_state = old.and_then(|status| status.state.clone()).unwrap_or_default();
    let running_since = old_state.running.as_ref().and_then(|running| running.started_at.clone());
    let state = match doing {
        Containers::Waiting(reason) => {
            let reason = Some(reason.to_owned());
            ContainerState { waiting: Some(ContainerStateWaiting { reason, message: None }), ..Default::default() }
        }
        Containers::Running => {
            let started_at = running_since.or_else(|| Some(now.clone()));
            ContainerState { running: Some(ContainerStateRunning { started_at }), ..Default::default() }
        }
        Containers::Ended => {
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
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        ready: doing == Containers::Running,
        started: Some(doing == Containers::Running),
        restart_count: old.map_or(0, |status| status.restart_count),
        state: Some(state),
        last_state: Some(ContainerState::default()),
        ..Default::default()
    }
}

/// The conditions a kubelet writes, in its order, behind them those that others wrote.
fn conditions(pod: &Pod, spec: &PodSpec, doing: Containers, now: &Time) -> Vec<PodCondition> {
    let containers_ready = containers_ready(spec, doing);
    let ready = if containers_ready.status == "True" { gates_ready(pod, spec) } else { containers_ready.clone() };
    let yes = |value: bool| if value { "True" } else { "False" };
    let ours = [
        ("PodReadyToStartContainers", verdict(yes(doing == Containers::Running), "", String::new())),
        ("Initialized", initialized(spec, doing)),
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

fn containers_ready(spec: &PodSpec, doing: Containers) -> PodCondition {
    match doing {
        Containers::Running => verdict("True", "", String::new()),
        Containers::Ended => verdict("False", "PodCompleted", String::new()),
        Containers::Waiting(_) => {
            let names = names(&spec.containers);
            verdict("False", "ContainersNotReady", format!("containers with unready status: [{names}]"))
        }
    }
}

fn initialized(spec: &PodSpec, doing: Containers) -> PodCondition {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    match doing {
        Containers::Ended => verdict("True", "PodCompleted", String::new()),
        Containers::Waiting(_) if !init.is_empty() => {
            let text = format!("containers with incomplete status: [{}]", names(init));
            verdict("False", "ContainersNotInitialized", text)
        }
        Containers::Waiting(_) | Containers::Running => verdict("True", "", String::new()),
    }
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

fn names(containers: &[Container]) -> String {
    containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodReadinessGate;

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";
    const EARLIER: &str = "2026-01-01T00:00:00Z";

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn container(name: &str) -> Container {
        Container { name: name.into(), image: Some("example/web:1".into()), ..Default::default() }
    }

    fn pod() -> Pod {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("default".into());
        pod.metadata.uid = Some("u1".into());
        pod.metadata.generation = Some(1);
        pod.spec =
            Some(PodSpec { containers: vec![container("app")], node_name: Some("n1".into()), ..Default::default() });
        pod.status = Some(PodStatus {
            phase: Some("Pending".into()),
            qos_class: Some("BestEffort".into()),
            ..Default::default()
        });
        pod
    }

    fn observed(pod: &Pod) -> Observed<'_> {
        Observed { pod, unmounted: Vec::new(), address: "127.0.0.2" }
    }

    /// Decides, and gives the pod as it is after the plan; `None` if it was removed.
    fn step(mut pod: Pod, now: &str) -> (Plan<Change>, Option<Pod>) {
        let plan = decide(&observed(&pod), at(now));
        for change in &plan.changes {
            match change {
                Change::SetStatus { status, .. } => pod.status = Some((**status).clone()),
                Change::Remove { .. } => return (plan, None),
            }
        }
        (plan, Some(pod))
    }

    fn summary(pod: &Pod) -> String {
        let conditions = pod.status.as_ref().unwrap().conditions.as_deref().unwrap_or_default();
        let conditions = conditions.iter().map(|c| format!("{}={}", c.type_, c.status)).collect::<Vec<_>>().join(" ");
        format!("{} {conditions}", phase(pod))
    }

    #[test]
    fn a_bound_pod_runs_and_then_nothing_more_is_written() {
        let (_, pod) = step(pod(), EARLIER);
        let pod = pod.unwrap();
        let expected =
            "Running PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True";
        assert_eq!(summary(&pod), expected);
        let status = pod.status.as_ref().unwrap();
        assert_eq!(status.qos_class.as_deref(), Some("BestEffort"), "what others wrote stays");
        assert_eq!(status.container_statuses.as_ref().unwrap()[0].container_id, None, "there is no container");
        let (plan, _) = step(pod, NOW);
        assert_eq!(plan.changes, [], "{plan}");
    }

    #[test]
    fn init_containers_end_and_sidecars_run() {
        let mut pod = pod();
        let sidecar = Container { restart_policy: Some("Always".into()), ..container("proxy") };
        pod.spec.as_mut().unwrap().init_containers = Some(vec![container("setup"), sidecar]);
        let (_, pod) = step(pod, NOW);
        let statuses = pod.unwrap().status.unwrap().init_container_statuses.unwrap();
        let state = |index: usize| statuses[index].state.clone().unwrap();
        assert_eq!(state(0).terminated.unwrap().reason.as_deref(), Some("Completed"));
        assert!(state(1).running.is_some());
        assert!(statuses.iter().all(|status| status.ready));
    }

    #[test]
    fn a_deleted_pod_ends_and_is_removed() {
        let (_, pod) = step(pod(), EARLIER);
        let mut pod = pod.unwrap();
        pod.metadata.deletion_timestamp = Some(Time(at(NOW)));
        let plan = decide(&observed(&pod), at(NOW));
        let [Change::SetStatus { status, .. }, Change::Remove { pod: target }] = plan.changes.as_slice() else {
            panic!("{plan}");
        };
        assert_eq!(target.uid, "u1");
        assert_eq!(status.phase.as_deref(), Some("Succeeded"));
        let ended = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!(ended.started_at, Some(Time(at(EARLIER))));
        assert_eq!(ended.finished_at, Some(Time(at(NOW))));
    }

    #[test]
    fn a_pod_that_a_finalizer_holds_is_not_finished_twice() {
        let mut pod = pod();
        pod.metadata.deletion_timestamp = Some(Time(at(NOW)));
        pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
        let plan = decide(&observed(&pod), at(NOW));
        assert!(matches!(plan.changes.as_slice(), [Change::Remove { .. }]), "{plan}");
    }

    #[test]
    fn a_pod_waits_for_its_volumes_and_says_for_which() {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().init_containers = Some(vec![container("setup")]);
        let unmounted = vec![Unmounted { volume: "data".into(), why: "no driver".into() }];
        let plan = decide(&Observed { unmounted, ..observed(&pod) }, at(NOW));
        let [Change::SetStatus { status, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
        pod.status = Some((**status).clone());
        let expected = "Pending PodReadyToStartContainers=False Initialized=False Ready=False ContainersReady=False PodScheduled=True";
        assert_eq!(summary(&pod), expected);
        let waiting = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().waiting.unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("PodInitializing"));
        let text = "Unable to attach or mount volumes: unmounted volumes=[data]: volume \"data\": no driver";
        assert_eq!(plan.events[0].note, text);
        assert_eq!(
            condition(&pod, "Initialized").unwrap().message.as_deref(),
            Some("containers with incomplete status: [setup]")
        );
    }

    #[test]
    fn pauses_between_attempts_double() {
        let unmounted = || vec![Unmounted { volume: "data".into(), why: "no driver".into() }];
        let mut pod = pod();
        let mut now = at(EARLIER);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let plan = decide(&Observed { unmounted: unmounted(), ..observed(&pod) }, now);
            if let Some(Change::SetStatus { status, .. }) = plan.changes.first() {
                pod.status = Some((**status).clone());
            }
            let until = plan.wake_at().unwrap();
            pauses.push(until.duration_since(now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 1, 2, 4, 8, 16, 32, 64, 122, 122]);
    }

    #[test]
    fn a_running_pod_never_goes_back_to_pending() {
        let (_, pod) = step(pod(), EARLIER);
        let pod = pod.unwrap();
        let unmounted = vec![Unmounted { volume: "data".into(), why: "lost".into() }];
        let plan = decide(&Observed { unmounted, ..observed(&pod) }, at(NOW));
        assert_eq!(plan.changes, [], "{plan}");
        assert_eq!(plan.events.len(), 1);
    }

    #[test]
    fn readiness_gates_hold_ready_back_and_foreign_conditions_stay() {
        let mut pod = pod();
        pod.spec.as_mut().unwrap().readiness_gates =
            Some(vec![PodReadinessGate { condition_type: "www.example.com/up".into() }]);
        let (_, pod) = step(pod, EARLIER);
        let mut pod = pod.unwrap();
        assert_eq!(condition(&pod, "Ready").unwrap().reason.as_deref(), Some("ReadinessGatesNotReady"));
        let up = PodCondition { type_: "www.example.com/up".into(), status: "True".into(), ..Default::default() };
        pod.status.as_mut().unwrap().conditions.as_mut().unwrap().push(up.clone());
        let (_, pod) = step(pod, NOW);
        let pod = pod.unwrap();
        let ready = condition(&pod, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.last_transition_time.clone()), ("True", Some(Time(at(NOW)))));
        assert_eq!(condition(&pod, "Initialized").unwrap().last_transition_time, Some(Time(at(EARLIER))));
        assert_eq!(condition(&pod, "www.example.com/up"), Some(&up));
    }

    #[test]
    fn a_pod_marked_not_ready_while_the_node_was_away_is_ready_again() {
        let (_, pod) = step(pod(), EARLIER);
        let mut pod = pod.unwrap();
        let conditions = pod.status.as_mut().unwrap().conditions.as_mut().unwrap();
        conditions.iter_mut().find(|c| c.type_ == "Ready").unwrap().status = "False".into();
        let (_, pod) = step(pod, NOW);
        assert_eq!(condition(&pod.unwrap(), "Ready").unwrap().status, "True");
    }

    #[test]
    fn a_finished_pod_rests() {
        for finished in ["Succeeded", "Failed"] {
            let mut pod = pod();
            pod.status.as_mut().unwrap().phase = Some(finished.into());
            assert_eq!(decide(&observed(&pod), at(NOW)).changes, []);
        }
    }
}
