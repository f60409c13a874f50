//! A pod's life on its node, told as a kubelet tells it, for a node whose containers are processes of the host.
//!
//! ```text
//!   bound ──► volumes not mounted ──► init containers ──► running ──► being deleted ──► ended, removed
//!                (Pending)              (Pending)             │  ▲        SIGTERM, then SIGKILL at the deadline
//!                                                             ▼  │ restart, after a pause
//!                                                           ended ──► Succeeded or Failed
//! ```
//!
//! In the embedded cluster no image is pulled. A container that says what to execute (`command`) is run as a process;
//! one that does not, an image alone, counts as running as long as its pod does. What kubectl, controllers and
//! `kubectl wait` need to go on is there either way.
//!
//! The decision knows processes by their runs ([`runs`]), which the agent finds again after it was restarted itself.

mod launch;
mod runs;
mod status;
#[cfg(test)]
mod tests;
pub mod volume;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

pub use self::launch::{Launch, LaunchError, Mount, References, Sources, field, launch, references};
use self::runs::{Again, Doing, Next, is_sidecar, next};
pub use self::runs::{End, Run, Runs, is_alive, is_process};
use self::status::Picture;
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, is_deleting, name, namespace, subject, uid};
use crate::pod::{is_finished, phase};

const TERMINATION: Rule = Rule("pod-termination");
const VOLUMES: Rule = Rule("pod-volumes");
const CONTAINERS: Rule = Rule("pod-containers");
const STATUS: Rule = Rule("pod-status");

/// The first look comes soon: a claim is often bound a moment after its pod, and nobody tells a node of it.
const FIRST_RETRY: SignedDuration = SignedDuration::from_millis(100);
/// What takes longer than this is told.
const PATIENCE: SignedDuration = SignedDuration::from_secs(1);
/// A kubelet's longest pause between two attempts to mount.
const LAST_RETRY: SignedDuration = SignedDuration::from_secs(122);

/// One pod that is bound to this node, and what the node knows beside it.
#[derive(Clone, Debug)]
pub struct Observed<'a> {
    pub pod: &'a Pod,
    /// The volumes of the pod that are not mounted, each with the reason.
    pub unmounted: Vec<Unmounted>,
    /// The volumes of the pod of which something is left on the node.
    pub mounted: Vec<String>,
    /// The node's address. Pods have no network of their own, so it is theirs too.
    pub address: &'a str,
    /// The processes of the pod's containers.
    pub runs: Runs,
    /// Containers that cannot be started as they are, each with the reason: a Secret that its environment comes from
    /// does not exist, say.
    pub unready: BTreeMap<String, String>,
}

/// A volume that a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmounted {
    pub volume: String,
    pub why: String,
    pub obstacle: Obstacle,
}

/// What a pod waits for with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Its turn: it is being attached or mounted, and whoever does that tells of failures.
    Progress,
    /// Something that has to change first: a claim that is not bound.
    Claim,
}

/// Whether a pod needs its volumes: it is to run, or something of it still does.
pub fn needs_volumes(pod: &Pod, runs: &Runs) -> bool {
    is_alive(runs) || !(is_deleting(pod) || is_finished(pod))
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Run the container. The status is not touched: it follows what came of this.
    Start { container: String, attempt: u32 },
    /// Ask the container's process to end.
    Terminate { container: String },
    /// End the container's process.
    Kill { container: String },
    /// Write this as the pod's status.
    SetStatus { pod: Target, status: Box<PodStatus> },
    /// Delete the pod without grace: its containers have ended.
    Remove { pod: Target },
}

/// Decides about one pod.
pub fn decide(observed: &Observed<'_>, now: Timestamp) -> Plan<Change> {
    let pod = observed.pod;
    let mut plan = Plan::default();
    if is_deleting(pod) {
        finish(&mut plan, observed, now);
    } else if is_finished(pod) {
        kill(&mut plan, observed, "The pod has finished, and this process of it is still there.");
        plan.rests(STATUS, subject(pod), Reason::PodCompleted, "The pod has finished.");
    } else if let Some(first) = observed.unmounted.first()
        && !is_alive(&observed.runs)
    {
        wait(&mut plan, observed, first, now);
    } else {
        go_on(&mut plan, observed, now);
    }
    plan
}

/// A pod that is being deleted: its processes end, then it goes.
fn finish(plan: &mut Plan<Change>, observed: &Observed<'_>, now: Timestamp) {
    let pod = observed.pod;
    let deadline = pod.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    if is_alive(&observed.runs) {
        if now >= deadline {
            kill(plan, observed, "The pod is being deleted and its time to end by itself is over.");
        } else {
            terminate(plan, observed, |_| true);
            let words = "The pod's processes were asked to end; those that do not will be killed.";
            plan.waits(TERMINATION, subject(pod), Reason::Killing, words, deadline);
        }
        return;
    }
    if !is_finished(pod) {
        let words = "The pod is being deleted; its containers have ended.";
        let picture = Picture::over(pod.spec.as_ref(), &observed.runs);
        set_status(plan, observed, TERMINATION, Reason::BeingDeleted, words, &picture, now);
    }
    if !observed.mounted.is_empty() {
        let words = format!("mounted volumes=[{}]", observed.mounted.join(" "));
        plan.blocked(TERMINATION, subject(pod), Reason::VolumeStillMounted, words);
        return;
    }
    let words = "The pod is being deleted and nothing of it is left on the node.";
    plan.acts(TERMINATION, subject(pod), Reason::BeingDeleted, words, Change::Remove { pod: Target::of(pod) });
}

fn alive(runs: &Runs) -> impl Iterator<Item = (&String, &Run)> {
    runs.iter().flat_map(|(name, runs)| runs.iter().map(move |run| (name, run))).filter(|(_, run)| run.end.is_none())
}

fn kill(plan: &mut Plan<Change>, observed: &Observed<'_>, words: &str) {
    for (container, _) in alive(&observed.runs) {
        let change = Change::Kill { container: container.clone() };
        plan.acts(TERMINATION, subject(observed.pod), Reason::Killing, words, change);
    }
}

/// Asks processes to end that were not asked yet.
fn terminate(plan: &mut Plan<Change>, observed: &Observed<'_>, which: impl Fn(&str) -> bool) {
    for (container, run) in alive(&observed.runs) {
        if run.stopping || !which(container) {
            continue;
        }
        let words = format!("Stopping container {container}");
        plan.tells(Event::normal(observed.pod, Reason::Killing, words.clone()));
        let change = Change::Terminate { container: container.clone() };
        plan.acts(TERMINATION, subject(observed.pod), Reason::Killing, words, change);
    }
}

fn wait(plan: &mut Plan<Change>, observed: &Observed<'_>, first: &Unmounted, now: Timestamp) {
    let names = |which: fn(&Unmounted) -> bool| {
        let names = observed.unmounted.iter().filter(|unmounted| which(unmounted));
        names.map(|unmounted| unmounted.volume.as_str()).collect::<Vec<_>>().join(" ")
    };
    let stuck = observed.unmounted.iter().find(|unmounted| unmounted.obstacle == Obstacle::Claim);
    let words = format!(
        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], failed to process volumes=[{}]: {}",
        names(|_| true),
        names(|unmounted| unmounted.obstacle == Obstacle::Claim),
        stuck.unwrap_or(first).why
    );
    let waited = waited(observed.pod, now);
    // A claim is often bound a moment after its pod: that is no failure.
    if stuck.is_some() && waited >= PATIENCE {
        plan.tells(Event::warning(observed.pod, Reason::FailedMount, words.clone()));
    }
    if stuck.is_some() {
        let until = now + (waited / 4).clamp(FIRST_RETRY, LAST_RETRY);
        plan.waits(VOLUMES, subject(observed.pod), Reason::FailedMount, words.clone(), until);
    } else {
        plan.blocked(VOLUMES, subject(observed.pod), Reason::FailedMount, words.clone());
    }
    // A pod that ran before (its node restarted, say) keeps its phase: Kubernetes never goes back to Pending.
    if phase(observed.pod) != "Running" {
        let picture = Picture::waiting(observed.pod.spec.as_ref());
        set_status(plan, observed, STATUS, Reason::FailedMount, &words, &picture, now);
    }
}

/// How long the pod has been here.
fn waited(pod: &Pod, now: Timestamp) -> SignedDuration {
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map_or(now, |time| time.0);
    now.duration_since(since)
}

/// As long again as it has waited already, so that pauses double without anybody counting them.
fn retry_in(pod: &Pod, now: Timestamp) -> SignedDuration {
    waited(pod, now).clamp(PATIENCE, LAST_RETRY)
}

/// A pod that may run: init containers one after the other, then all the others.
fn go_on(plan: &mut Plan<Change>, observed: &Observed<'_>, now: Timestamp) {
    let default = PodSpec::default();
    let spec = observed.pod.spec.as_ref().unwrap_or(&default);
    let mut look = Look { plan, observed, now, starts: false };
    let (init, gate) = look.init_containers(spec);
    let main: Vec<Doing<'_>> = match gate {
        Gate::Open => spec.containers.iter().map(|c| look.container(c, Again::of(spec))).collect(),
        Gate::Closed | Gate::Failed => spec.containers.iter().map(|_| waits("PodInitializing")).collect(),
    };
    if look.starts {
        return;
    }
    let over = gate == Gate::Open && main.iter().all(|doing| matches!(doing, Doing::Ended(_)));
    if over && is_alive(&observed.runs) {
        terminate(plan, observed, |_| true);
        return;
    }
    let succeeded = |doing: &Doing<'_>| match doing {
        Doing::Ended(run) => run.and_then(|run| run.end.as_ref()).is_none_or(|end| end.exit_code == 0),
        Doing::Waiting { .. } | Doing::Running(_) => false,
    };
    let ran = |name: &str| observed.runs.get(name).is_some_and(|runs| !runs.is_empty());
    let phase = match gate {
        Gate::Failed => "Failed",
        Gate::Open if over && main.iter().all(succeeded) => "Succeeded",
        Gate::Open if over => "Failed",
        Gate::Open if main.iter().any(|doing| !matches!(doing, Doing::Waiting { .. })) => "Running",
        Gate::Open if spec.containers.iter().any(|container| ran(&container.name)) => "Running",
        Gate::Open | Gate::Closed => "Pending",
    };
    let words = match phase {
        "Running" => "Every volume of the pod is mounted.",
        "Pending" => "Containers of the pod have yet to start.",
        _ => "Every container of the pod has ended.",
    };
    let reason = if phase == "Running" { Reason::Started } else { Reason::StatusFollows };
    let picture = Picture { phase, initialized: gate == Gate::Open, init, main };
    set_status(plan, observed, STATUS, reason, words, &picture, now);
}

fn waits(reason: &'static str) -> Doing<'static> {
    Doing::Waiting { reason, message: None }
}

/// Whether the containers of a pod may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Open,
    /// An init container has yet to succeed.
    Closed,
    /// An init container failed for good.
    Failed,
}

/// One look at the containers of a pod.
struct Look<'a, 'p> {
    plan: &'p mut Plan<Change>,
    observed: &'a Observed<'a>,
    now: Timestamp,
    /// Something is started, after which the pod is looked at again.
    starts: bool,
}

impl<'a> Look<'a, '_> {
    fn init_containers(&mut self, spec: &PodSpec) -> (Vec<Doing<'a>>, Gate) {
        let runs = &self.observed.runs;
        let ran = |container: &Container| runs.get(&container.name).is_some_and(|runs| !runs.is_empty());
        // Once others have run, init containers are history.
        let passed = spec.containers.iter().any(ran);
        let over = spec.containers.iter().all(|c| matches!(next(c, runs, Again::of(spec)), Next::Over(_)));
        let ended = |container: &Container| {
            runs.get(&container.name).and_then(|runs| runs.last()).filter(|run| run.end.is_some())
        };
        let mut gate = Gate::Open;
        let mut all = Vec::new();
        for container in spec.init_containers.iter().flatten() {
            let sidecar = is_sidecar(container);
            let doing = match gate {
                Gate::Open if passed && !sidecar => {
                    Doing::Ended(runs.get(&container.name).and_then(|runs| runs.last()))
                }
                Gate::Open if !is_process(container) && !sidecar => Doing::Ended(None),
                // A sidecar serves the others; there is nobody left to serve.
                Gate::Open if over && ended(container).is_some() => Doing::Ended(ended(container)),
                Gate::Open => self.container(container, Again::of_init(spec, container)),
                Gate::Closed | Gate::Failed => waits("PodInitializing"),
            };
            let failed = |run: &Run| run.end.as_ref().is_some_and(|end| end.exit_code != 0);
            gate = match (&doing, gate) {
                (_, Gate::Closed | Gate::Failed) => gate,
                (Doing::Ended(Some(run)), _) if failed(run) && !passed => Gate::Failed,
                (Doing::Ended(_), _) => Gate::Open,
                (Doing::Running(_), _) if sidecar => Gate::Open,
                (Doing::Running(_) | Doing::Waiting { .. }, _) if passed => Gate::Open,
                (Doing::Running(_) | Doing::Waiting { .. }, _) => Gate::Closed,
            };
            all.push(doing);
        }
        (all, gate)
    }

    /// Starts the container if it is time; what it is doing.
    fn container(&mut self, container: &Container, again: Again) -> Doing<'a> {
        let observed = self.observed;
        match next(container, &observed.runs, again) {
            Next::Pretend => Doing::Running(None),
            Next::Runs(run) if run.started_at.is_some() => Doing::Running(run.started_at),
            Next::Runs(_) => waits("ContainerCreating"),
            Next::Over(run) => Doing::Ended(Some(run)),
            Next::Start { attempt } => self.start(container, attempt),
            Next::Again { at, run, .. } if at <= self.now => self.start(container, run.attempt + 1),
            Next::Again { at, pause, .. } => self.back_off(container, at, pause),
        }
    }

    fn start(&mut self, container: &Container, attempt: u32) -> Doing<'a> {
        let pod = self.observed.pod;
        if let Some(why) = self.observed.unready.get(&container.name) {
            let until = self.now + retry_in(pod, self.now);
            let words = format!("Container {} cannot be started: {why}", container.name);
            self.plan.waits(CONTAINERS, subject(pod), Reason::CreateContainerConfigError, words, until);
            return Doing::Waiting { reason: "CreateContainerConfigError", message: Some(why.clone()) };
        }
        self.starts = true;
        let words = format!("Started container {}", container.name);
        self.plan.tells(Event::normal(pod, Reason::Started, words.clone()));
        let change = Change::Start { container: container.name.clone(), attempt };
        self.plan.acts(CONTAINERS, subject(pod), Reason::Started, words, change);
        waits("ContainerCreating")
    }

    fn back_off(&mut self, container: &Container, at: Timestamp, pause: SignedDuration) -> Doing<'a> {
        let pod = self.observed.pod;
        let who = format!("{}_{}({})", name(pod), namespace(pod), uid(pod));
        let note = format!("Back-off restarting failed container {} in pod {who}", container.name);
        if !status::is_backing_off(pod, &container.name) {
            self.plan.tells(Event::warning(pod, Reason::BackOff, note.clone()));
        }
        self.plan.waits(CONTAINERS, subject(pod), Reason::BackOff, note, at);
        let message = format!("back-off {}s restarting failed container={} pod={who}", pause.as_secs(), container.name);
        Doing::Waiting { reason: "CrashLoopBackOff", message: Some(message) }
    }
}

fn set_status(
    plan: &mut Plan<Change>,
    observed: &Observed<'_>,
    rule: Rule,
    reason: Reason,
    words: &str,
    picture: &Picture<'_>,
    now: Timestamp,
) {
    let pod = observed.pod;
    let status = status::status(observed, picture, &Time(now));
    if pod.status.as_ref() == Some(&status) {
        plan.rests(rule, subject(pod), Reason::UpToDate, "The status says so already.");
        return;
    }
    let change = Change::SetStatus { pod: Target::of(pod), status: Box::new(status) };
    plan.acts(rule, subject(pod), reason, words, change);
}
