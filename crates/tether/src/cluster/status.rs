//! What `tether up` tells other commands about its processes: a file, replaced whenever something changes.

use std::fs;
use std::io;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Layout;
use super::marker::write_atomically;

/// The format of the file; readers of another one say that they cannot tell.
const FORMAT: u32 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    Starting,
    Ready,
    Stopping,
}

/// The cluster's processes at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    pub(crate) format: u32,
    pub(crate) phase: Phase,
    /// The process of `tether up`.
    pub(crate) pid: u32,
    pub(crate) started_at: Timestamp,
    pub(crate) components: Vec<Component>,
}

/// One process that `tether up` keeps running.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) state: ComponentState,
    pub(crate) pid: Option<u32>,
    pub(crate) restarts: u32,
    pub(crate) last_exit: Option<String>,
    /// Since when the state is what it is.
    pub(crate) since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ComponentState {
    /// Runs, and has not said yet that it is ready.
    Starting,
    Ready,
    /// Has ended, and waits to be started again.
    Waiting,
    Stopped,
}

impl ComponentState {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
        }
    }
}

impl Status {
    pub(crate) fn new(components: impl IntoIterator<Item = String>, now: Timestamp) -> Self {
        let component = |name| Component {
            name,
            state: ComponentState::Stopped,
            pid: None,
            restarts: 0,
            last_exit: None,
            since: now,
        };
        Self {
            format: FORMAT,
            phase: Phase::Starting,
            pid: std::process::id(),
            started_at: now,
            components: components.into_iter().map(component).collect(),
        }
    }

    pub(crate) fn write(&self, layout: &Layout) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("a status must serialize") + "\n";
        write_atomically(&layout.status(), text.as_bytes(), 0o600)
    }

    /// The status of the cluster that runs in this directory, as far as this version can read it.
    pub(crate) fn read(layout: &Layout) -> Option<Self> {
        let status: Self = serde_json::from_str(&fs::read_to_string(layout.status()).ok()?).ok()?;
        (status.format == FORMAT).then_some(status)
    }
}
