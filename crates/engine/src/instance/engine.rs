//! An engine: its event loop, and the thread that waits for its record.

use std::path::PathBuf;

use super::device::DeviceWitness;
use super::thread::{Instance, StartError};
use super::witness::{LineWitness, Witnesses};
use crate::device::place::{Name, Place};
use crate::engine_server::{EngineServer, Settings};
use crate::record::{Keeper, RecordStore};

/// What an engine is told.
pub struct EngineOptions {
    pub settings: Settings,
    /// Where the record is kept.
    pub record: Box<dyn RecordStore>,
    /// Where to attach a kernel device, and under which name.
    pub device: Option<(Place, Name)>,
    /// Where the line of the volume's engines at this place is kept; see [`crate::line`].
    pub line: Option<PathBuf>,
}

/// Why an engine did not start.
pub type StartEngineError = StartError<std::convert::Infallible>;

/// An engine that runs.
pub type EngineInstance = Instance<EngineServer>;

impl EngineInstance {
    pub fn open(options: EngineOptions) -> Result<Self, StartEngineError> {
        let thread_name = format!("engine {}", options.settings.volume);
        let EngineOptions { mut settings, record, device, line } = options;
        settings.line = line.is_some();
        let holder = settings.holder;
        let calls = move |remote: crate::ring::Remote<EngineServer>| {
            let back = remote.clone();
            let answer = move |id, value| back.returned(id, value);
            let witnesses = Witnesses {
                line: line.map(|path| LineWitness::new(path, holder, remote.clone())),
                device: device.map(|(place, name)| DeviceWitness::new(place, name, holder, remote)),
            };
            let keeper = Keeper::start(record, witnesses, answer)?;
            Ok(Box::new(move |id, call| keeper.call(id, call)) as _)
        };
        Self::start(&thread_name, move || Ok(EngineServer::new(settings)), calls, |_, _| {})
    }
}
