//! A pod from its first look to its last.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodReadinessGate};

use super::*;
use crate::pod::condition;

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
    pod.spec = Some(PodSpec { containers: vec![container("app")], node_name: Some("n1".into()), ..Default::default() });
    pod.status =
        Some(PodStatus { phase: Some("Pending".into()), qos_class: Some("BestEffort".into()), ..Default::default() });
    pod
}

fn observed(pod: &Pod) -> Observed<'_> {
    Observed {
        pod,
        unmounted: Vec::new(),
        mounted: Vec::new(),
        address: "127.0.0.2",
        runs: Runs::new(),
        unready: BTreeMap::new(),
    }
}

/// Decides, and gives the pod as it is after the plan; `None` if it was removed.
fn step(mut pod: Pod, now: &str) -> (Plan<Change>, Option<Pod>) {
    let plan = decide(&observed(&pod), at(now));
    for change in &plan.changes {
        match change {
            Change::SetStatus { status, .. } => pod.status = Some((**status).clone()),
            Change::Remove { .. } => return (plan, None),
            other => panic!("{other:?}"),
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
    let unmounted = vec![stuck("data", "PVC is not bound")];
    let plan = decide(&Observed { unmounted, ..observed(&pod) }, at(NOW));
    assert_eq!(plan.events, [], "a claim may be bound in a moment");
    let [Change::SetStatus { status, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    pod.status = Some((**status).clone());
    let expected =
        "Pending PodReadyToStartContainers=False Initialized=False Ready=False ContainersReady=False PodScheduled=True";
    assert_eq!(summary(&pod), expected);
    let waiting = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("PodInitializing"));
    let moved_on = Unmounted { obstacle: Obstacle::Progress, ..stuck("more", "not attached") };
    let unmounted = vec![moved_on, stuck("data", "PVC is not bound")];
    let plan = decide(&Observed { unmounted, ..observed(&pod) }, at(NOW) + SignedDuration::from_secs(2));
    let text = "Unable to attach or mount volumes: unmounted volumes=[more data], unattached volumes=[], \
                failed to process volumes=[data]: PVC is not bound";
    assert_eq!(plan.events[0].note, text);
    assert_eq!(
        condition(&pod, "Initialized").unwrap().message.as_deref(),
        Some("containers with incomplete status: [setup]")
    );
}

fn stuck(volume: &str, why: &str) -> Unmounted {
    Unmounted { volume: volume.into(), why: why.into(), obstacle: Obstacle::Claim }
}

#[test]
fn a_deleted_pod_stays_until_its_volumes_are_unmounted() {
    let (_, pod) = step(pod(), EARLIER);
    let mut pod = pod.unwrap();
    pod.metadata.deletion_timestamp = Some(Time(at(NOW)));
    let mounted = vec!["data".to_owned()];
    let plan = decide(&Observed { mounted: mounted.clone(), ..observed(&pod) }, at(NOW));
    let [Change::SetStatus { status, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    pod.status = Some((**status).clone());
    let plan = decide(&Observed { mounted, ..observed(&pod) }, at(NOW));
    assert_eq!(plan.changes, [], "{plan}");
    let plan = decide(&observed(&pod), at(NOW));
    assert!(matches!(plan.changes.as_slice(), [Change::Remove { .. }]), "{plan}");
}

#[test]
fn pauses_between_looks_grow_with_the_time_waited() {
    let unmounted = || vec![stuck("data", "PVC is not bound")];
    let mut pod = pod();
    let mut now = at(EARLIER);
    let mut pauses = Vec::new();
    for _ in 0..40 {
        let plan = decide(&Observed { unmounted: unmounted(), ..observed(&pod) }, now);
        if let Some(Change::SetStatus { status, .. }) = plan.changes.first() {
            pod.status = Some((**status).clone());
        }
        let until = plan.wake_at().unwrap();
        pauses.push(until.duration_since(now).as_millis());
        now = until;
    }
    assert_eq!(pauses[..7], [100, 100, 100, 100, 100, 125, 156]);
    assert_eq!(pauses[39], 122_000);
}

#[test]
fn a_running_pod_never_goes_back_to_pending() {
    let (_, pod) = step(pod(), EARLIER);
    let pod = pod.unwrap();
    let unmounted = vec![stuck("data", "lost")];
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

/// A pod with processes, and a clock: what was started runs, and ends when the test says so.
struct Life {
    pod: Pod,
    runs: Runs,
    now: Timestamp,
    events: Vec<String>,
    told: Vec<String>,
}

impl Life {
    fn new(policy: &str, init: &[&str], main: &[&str]) -> Self {
        let mut pod = pod();
        let process = |name: &&str| Container { command: Some(vec!["x".into()]), ..container(name) };
        let spec = pod.spec.as_mut().unwrap();
        spec.restart_policy = Some(policy.into());
        spec.containers = main.iter().map(process).collect();
        spec.init_containers = Some(init.iter().map(process).collect());
        Self { pod, runs: Runs::new(), now: at(EARLIER), events: Vec::new(), told: Vec::new() }
    }

    /// Decides and applies until there is nothing more to do now.
    fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..10 {
            let observed = Observed { runs: self.runs.clone(), ..observed(&self.pod) };
            let plan = decide(&observed, self.now);
            self.events.extend(plan.events.iter().map(|event| event.note.clone()));
            if plan.changes.is_empty() {
                return plan.wake_at();
            }
            let wake_at = plan.wake_at();
            let mut waits = true;
            for change in plan.changes {
                waits &= matches!(change, Change::Terminate { .. });
                self.apply(change);
            }
            if waits {
                return wake_at;
            }
        }
        panic!("deciding never rests: {:?}", self.told);
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::Start { container, attempt } => {
                self.told.push(format!("start {container} {attempt}"));
                let run = Run { attempt, started_at: Some(self.now), stopping: false, end: None };
                self.runs.entry(container).or_default().push(run);
            }
            Change::Terminate { container } => {
                self.told.push(format!("terminate {container}"));
                self.last(&container).stopping = true;
            }
            Change::Kill { container } => {
                self.told.push(format!("kill {container}"));
                self.end(&container, 137);
            }
            Change::SetStatus { status, .. } => self.pod.status = Some(*status),
            Change::Remove { .. } => {
                self.told.push("remove".to_owned());
                self.pod.spec = None;
                self.pod.metadata.deletion_timestamp = None;
                self.pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
            }
        }
    }

    fn last(&mut self, container: &str) -> &mut Run {
        self.runs.get_mut(container).unwrap().last_mut().unwrap()
    }

    fn end(&mut self, container: &str, exit_code: i32) {
        let finished_at = self.now;
        let reason = if exit_code == 0 { "Completed" } else { "Error" }.to_owned();
        self.last(container).end = Some(End { finished_at, exit_code, signal: None, reason, message: None });
    }

    fn state(&self, index: usize) -> ContainerStatus {
        self.pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[index].clone()
    }
}

#[test]
fn init_containers_run_in_turn_before_the_others() {
    let mut life = Life::new("Always", &["one", "two"], &["app", "log"]);
    life.settle();
    assert_eq!((life.told.as_slice(), phase(&life.pod)), (["start one 0".to_owned()].as_slice(), "Pending"));
    life.end("one", 0);
    life.settle();
    life.end("two", 0);
    life.settle();
    assert_eq!(life.told, ["start one 0", "start two 0", "start app 0", "start log 0"]);
    let expected =
        "Running PodReadyToStartContainers=True Initialized=True Ready=True ContainersReady=True PodScheduled=True";
    assert_eq!(summary(&life.pod), expected);
    assert_eq!(life.state(0).container_id.as_deref(), Some("tether://u1/app/0"));
}

#[test]
fn a_container_that_fails_is_run_again_after_pauses_that_grow() {
    let mut life = Life::new("Always", &[], &["app"]);
    life.settle();
    life.end("app", 3);
    life.settle();
    assert_eq!(life.told, ["start app 0", "start app 1"], "the first time at once");
    life.end("app", 3);
    let wake_at = life.settle().unwrap();
    assert_eq!(wake_at.duration_since(life.now).as_secs(), 10);
    let state = life.state(0);
    assert_eq!(state.state.unwrap().waiting.unwrap().reason.as_deref(), Some("CrashLoopBackOff"));
    assert_eq!((state.restart_count, state.last_state.unwrap().terminated.unwrap().exit_code), (1, 3));
    assert_eq!(phase(&life.pod), "Running", "a pod that ran never goes back to Pending");
    life.settle();
    assert_eq!(life.events.iter().filter(|note| note.starts_with("Back-off")).count(), 1, "told once");
    life.now = wake_at;
    life.settle();
    assert_eq!(life.told.last().unwrap(), "start app 2");
    assert_eq!(life.state(0).restart_count, 2);
}

#[test]
fn a_pod_whose_containers_end_for_good_succeeds_or_fails() {
    for (policy, codes, expected) in [
        ("Never", [0, 0], "Succeeded"),
        ("Never", [0, 9], "Failed"),
        ("OnFailure", [0, 0], "Succeeded"),
        ("OnFailure", [0, 9], "Running"),
        ("Always", [0, 0], "Running"),
    ] {
        let mut life = Life::new(policy, &[], &["app", "log"]);
        life.settle();
        life.end("app", codes[0]);
        life.end("log", codes[1]);
        life.settle();
        assert_eq!(phase(&life.pod), expected, "{policy} {codes:?}");
        assert!(life.settle().is_none(), "nothing is written twice");
    }
}

#[test]
fn an_init_container_that_fails_for_good_fails_the_pod() {
    let mut life = Life::new("Never", &["setup"], &["app"]);
    life.settle();
    life.end("setup", 1);
    life.settle();
    assert_eq!((phase(&life.pod), life.told.as_slice()), ("Failed", ["start setup 0".to_owned()].as_slice()));
}

#[test]
fn sidecars_start_first_and_end_last() {
    let mut life = Life::new("Never", &["proxy"], &["app"]);
    life.pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].restart_policy = Some("Always".into());
    life.settle();
    assert_eq!(life.told, ["start proxy 0", "start app 0"]);
    life.end("app", 0);
    life.settle();
    assert_eq!((life.told[2].as_str(), phase(&life.pod)), ("terminate proxy", "Running"));
    life.end("proxy", 143);
    life.settle();
    assert_eq!(phase(&life.pod), "Succeeded");
}

#[test]
fn a_deleted_pod_is_asked_to_end_then_killed_then_removed() {
    let mut life = Life::new("Always", &[], &["app", "log"]);
    life.settle();
    let deadline = life.now + SignedDuration::from_secs(30);
    life.pod.metadata.deletion_timestamp = Some(Time(deadline));
    assert_eq!(life.settle(), Some(deadline));
    assert_eq!(life.told[2..], ["terminate app", "terminate log"]);
    life.end("app", 143);
    assert_eq!(life.settle(), Some(deadline), "the other one is waited for, and not asked twice");
    life.now = deadline;
    life.settle();
    assert_eq!(life.told[4..], ["kill log", "remove"]);
}

#[test]
fn a_container_without_what_its_environment_needs_waits_and_says_so() {
    let life = Life::new("Always", &[], &["app"]);
    let unready = BTreeMap::from([("app".to_owned(), "secret \"key\" not found".to_owned())]);
    let plan = decide(&Observed { unready, ..observed(&life.pod) }, life.now);
    let [Change::SetStatus { status, .. }] = plan.changes.as_slice() else { panic!("{plan}") };
    let waiting = status.container_statuses.as_ref().unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"));
    assert_eq!(waiting.message.as_deref(), Some("secret \"key\" not found"));
    assert!(plan.wake_at().is_some());
}

#[test]
fn processes_of_a_finished_pod_are_killed() {
    let mut life = Life::new("Always", &[], &["app"]);
    life.settle();
    life.pod.status.as_mut().unwrap().phase = Some("Failed".into());
    life.settle();
    assert_eq!(life.told.last().unwrap(), "kill app");
}
