//! Containers that are processes: their runs, what each is doing, and when one is run again.
//!
//! ```text
//!   not started ──► running ──► ended ──┬─► for good (Never, or success with OnFailure)
//!                      ▲                └─► again: at once, then after 10 s, 20 s … 300 s
//!                      └───────────────────────┘
//! ```
//!
//! The pause before a restart follows from the runs themselves, so nobody has to remember it: a run that lasted long
//! enough forgives those before it, as in a kubelet.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, PodSpec};

/// A kubelet's pauses between restarts.
const FIRST_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const LAST_PAUSE: SignedDuration = SignedDuration::from_secs(300);
/// A container that ran this long starts over with its pauses: twice the longest one, as in a kubelet.
const FORGIVEN: SignedDuration = SignedDuration::from_mins(10);

/// What is known of the runs of a pod's containers, by container: oldest first, old ones forgotten.
pub type Runs = BTreeMap<String, Vec<Run>>;

/// One run of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// From 0; the number of restarts.
    pub attempt: u32,
    /// `None` while it is being started.
    pub started_at: Option<Timestamp>,
    /// It was asked to end.
    pub stopping: bool,
    /// How it ended; `None` while it runs.
    pub end: Option<End>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub finished_at: Timestamp,
    pub exit_code: i32,
    pub signal: Option<i32>,
    /// As a kubelet says it: `Completed`, `Error`, `StartError`, `ContainerStatusUnknown`.
    pub reason: String,
    pub message: Option<String>,
}

/// What one container is doing.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Doing<'a> {
    Waiting {
        reason: &'static str,
        message: Option<String>,
    },
    /// Since then; for one without a process, since its status says so.
    Running(Option<Timestamp>),
    /// With the end of its process, if it had one.
    Ended(Option<&'a Run>),
}

/// What is to become of a container.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next<'a> {
    /// It has no process to run: an image alone.
    Pretend,
    Start {
        attempt: u32,
    },
    Runs(&'a Run),
    /// It ended and is run again then.
    Again {
        at: Timestamp,
        pause: SignedDuration,
        run: &'a Run,
    },
    Over(&'a Run),
}

/// Whether the container says what to execute. What an image would execute is not known without pulling it.
pub fn is_process(container: &Container) -> bool {
    container.command.as_ref().is_some_and(|command| !command.is_empty())
}

/// A container that is started before the others and runs beside them.
pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Whether some process of the pod runs, or is being started.
pub fn is_alive(runs: &Runs) -> bool {
    runs.values().flatten().any(|run| run.end.is_none())
}

/// What is to become of a container, given its runs and when a container like it is run again.
pub(super) fn next<'a>(container: &Container, runs: &'a Runs, again: Again) -> Next<'a> {
    if !is_process(container) {
        return Next::Pretend;
    }
    let runs = runs.get(&container.name).map(Vec::as_slice).unwrap_or_default();
    let Some(last) = runs.last() else { return Next::Start { attempt: 0 } };
    let Some(end) = &last.end else { return Next::Runs(last) };
    let wanted = match again {
        Again::Always => true,
        Again::OnFailure => end.exit_code != 0,
        Again::Never => false,
    };
    if !wanted {
        return Next::Over(last);
    }
    let pause = pause(runs);
    Next::Again { at: end.finished_at + pause, pause, run: last }
}

/// When a container that ended is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    Always,
    OnFailure,
    Never,
}

impl Again {
    /// The pod's policy.
    pub(super) fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    /// An init container that succeeded is done, whatever the pod's policy.
    pub(super) fn of_init(spec: &PodSpec, container: &Container) -> Self {
        match (is_sidecar(container), Self::of(spec)) {
            (true, _) => Self::Always,
            (false, Self::Never) => Self::Never,
            (false, _) => Self::OnFailure,
        }
    }
}

/// The pause after the last of `runs`: none the first time, then doubled with every run that did not last.
fn pause(runs: &[Run]) -> SignedDuration {
    let mut pause = None;
    for run in runs {
        let Some(end) = &run.end else { continue };
        let lasted = run.started_at.map_or(SignedDuration::ZERO, |start| start.duration_until(end.finished_at));
        pause = match pause {
            _ if lasted >= FORGIVEN => Some(SignedDuration::ZERO),
            None => Some(if run.attempt == 0 { SignedDuration::ZERO } else { FIRST_PAUSE }),
            Some(SignedDuration::ZERO) => Some(FIRST_PAUSE),
            Some(pause) => Some((pause * 2).min(LAST_PAUSE)),
        };
    }
    pause.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn run(attempt: u32, from: i64, to: i64) -> Run {
        let end = End { finished_at: second(to), exit_code: 1, signal: None, reason: "Error".into(), message: None };
        Run { attempt, started_at: Some(second(from)), stopping: false, end: Some(end) }
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_a_long_run_forgives() {
        let quick = |count: u32| (0..count).map(|n| run(n, 0, 1)).collect::<Vec<_>>();
        let pauses: Vec<_> = (1..=8).map(|count| pause(&quick(count)).as_secs()).collect();
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
        let mut runs = quick(5);
        runs.push(run(5, 10, 10 + 600));
        assert_eq!(pause(&runs).as_secs(), 0);
        runs.push(run(6, 700, 701));
        assert_eq!(pause(&runs).as_secs(), 10);
    }

    #[test]
    fn what_is_next_follows_the_policy() {
        let process = Container { name: "app".into(), command: Some(vec!["true".into()]), ..Default::default() };
        assert_eq!(next(&Container::default(), &Runs::new(), Again::Always), Next::Pretend);
        assert_eq!(next(&process, &Runs::new(), Again::Never), Next::Start { attempt: 0 });
        let ended = |code: i32| {
            let mut run = run(0, 0, 5);
            run.end.as_mut().unwrap().exit_code = code;
            Runs::from([("app".to_owned(), vec![run])])
        };
        let over = |code: i32, again: Again| matches!(next(&process, &ended(code), again), Next::Over(_));
        let table = [
            (Again::Always, 0, false),
            (Again::Always, 1, false),
            (Again::OnFailure, 0, true),
            (Again::OnFailure, 1, false),
            (Again::Never, 1, true),
        ];
        for (again, code, expected) in table {
            assert_eq!(over(code, again), expected, "{again:?} {code}");
        }
        let mut running = ended(0);
        running.get_mut("app").unwrap()[0].end = None;
        assert!(is_alive(&running) && matches!(next(&process, &running, Again::Always), Next::Runs(_)));
    }
}
