//! What the supervisor knows of its children: an event comes in, effects come out.
//!
//! ```text
//!   stopped ──started──► starting ──ready──► ready
//!      ▲                    │  ▲               │
//!      │                 exited└───started───┐ │exited
//!      │                    ▼                │ ▼
//!      └──────stopped─── waiting (back-off) ─┘
//! ```

use jiff::Timestamp;

use super::child::Event;
use crate::cluster::{ComponentState, Phase, Status};

/// What is to be done about an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect {
    WriteStatus,
    /// For whoever watches `tether up`.
    Say(String),
    /// The node's condition is to show that its agent does not run.
    NodeAgentDown {
        node: String,
        message: String,
    },
}

#[derive(Debug)]
pub(super) struct State {
    status: Status,
}

impl State {
    pub(super) fn new(status: Status) -> Self {
        Self { status }
    }

    pub(super) fn status(&self) -> &Status {
        &self.status
    }

    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.status.phase = phase;
    }

    pub(super) fn is_ready(&self, index: usize) -> bool {
        self.status.components[index].state == ComponentState::Ready
    }

    pub(super) fn all_ready(&self) -> bool {
        (0..self.status.components.len()).all(|index| self.is_ready(index))
    }

    /// Whether every child from `first` on has stopped.
    pub(super) fn all_stopped_from(&self, first: usize) -> bool {
        self.status.components[first..].iter().all(|component| component.state == ComponentState::Stopped)
    }

    /// Names and states of those that are not ready.
    pub(super) fn not_ready(&self) -> Vec<String> {
        let late = self.status.components.iter().filter(|component| component.state != ComponentState::Ready);
        late.map(|component| match &component.last_exit {
            None => format!("{} is {}", component.name, component.state.word()),
            Some(exit) => format!("{} is {} ({exit})", component.name, component.state.word()),
        })
        .collect()
    }

    pub(super) fn apply(&mut self, index: usize, event: Event, now: Timestamp) -> Vec<Effect> {
        let component = &mut self.status.components[index];
        let mut effects = vec![Effect::WriteStatus];
        component.since = now;
        match event {
            Event::Started { pid } => {
                component.state = ComponentState::Starting;
                component.pid = Some(pid);
            }
            Event::Ready => {
                component.state = ComponentState::Ready;
                if component.restarts > 0 {
                    effects.push(Effect::Say(format!("{} is ready again", component.name)));
                }
            }
            Event::Exited { how, restart_in, node } => {
                component.state = ComponentState::Waiting;
                component.pid = None;
                component.restarts += 1;
                component.last_exit = Some(format!("{how} at {now:.0}"));
                let message = format!("{how}; restart {} in {restart_in:?}", component.restarts);
                effects.push(Effect::Say(format!("{}: {message}", component.name)));
                if let Some(node) = node {
                    effects.push(Effect::NodeAgentDown { node, message: format!("the agent ended: {message}") });
                }
            }
            Event::Stopped => {
                component.state = ComponentState::Stopped;
                component.pid = None;
            }
        }
        effects
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn state() -> State {
        State::new(Status::new(["apiserver", "node-1"].map(str::to_owned), at(0)))
    }

    fn crash() -> Event {
        let restart_in = Duration::from_millis(500);
        Event::Exited { how: "killed by signal 9".into(), restart_in, node: Some("node-1".into()) }
    }

    #[test]
    fn a_cluster_is_ready_when_every_child_is() {
        let mut state = state();
        state.apply(0, Event::Started { pid: 7 }, at(1));
        state.apply(0, Event::Ready, at(2));
        assert!(state.is_ready(0) && !state.all_ready());
        assert_eq!(state.not_ready(), ["node-1 is stopped"]);
        state.apply(1, Event::Started { pid: 8 }, at(2));
        assert_eq!(state.apply(1, Event::Ready, at(3)), [Effect::WriteStatus]);
        assert!(state.all_ready());
    }

    #[test]
    fn a_crash_is_told_counted_and_shown_at_the_node() {
        let mut state = state();
        state.apply(1, Event::Started { pid: 8 }, at(1));
        state.apply(1, Event::Ready, at(1));
        let effects = state.apply(1, crash(), at(2));
        let message = "the agent ended: killed by signal 9; restart 1 in 500ms".to_owned();
        let down = Effect::NodeAgentDown { node: "node-1".into(), message };
        assert_eq!(effects[2], down);
        let component = &state.status().components[1];
        assert_eq!((component.state, component.pid, component.restarts), (ComponentState::Waiting, None, 1));
        assert_eq!(component.last_exit.as_deref(), Some("killed by signal 9 at 1970-01-01T00:00:02Z"));
        state.apply(1, Event::Started { pid: 9 }, at(3));
        let effects = state.apply(1, Event::Ready, at(4));
        assert_eq!(effects[1], Effect::Say("node-1 is ready again".into()));
    }

    #[test]
    fn stopping_is_complete_when_the_last_has_stopped() {
        let mut state = state();
        for index in [0, 1] {
            state.apply(index, Event::Started { pid: 7 }, at(1));
        }
        state.apply(1, Event::Stopped, at(2));
        assert!(state.all_stopped_from(1) && !state.all_stopped_from(0));
        state.apply(0, Event::Stopped, at(2));
        assert!(state.all_stopped_from(0));
    }
}
