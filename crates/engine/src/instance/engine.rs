//! An engine: its event loop, and the thread that waits for its record.

use std::path::PathBuf;

use super::thread::{Instance, StartError};
use crate::engine_server::{EngineServer, Settings};
use crate::record::{Keeper, RecordFile};

/// What an engine is told.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    pub settings: Settings,
    /// File that holds the record.
    pub record: PathBuf,
}

/// Why an engine did not start.
pub type StartEngineError = StartError<std::convert::Infallible>;

/// An engine that runs.
pub type EngineInstance = Instance<EngineServer>;

impl EngineInstance {
    pub fn open(options: EngineOptions) -> Result<Self, StartEngineError> {
        let thread_name = format!("engine {}", options.settings.volume);
        let file = RecordFile::new(options.record, options.settings.volume.clone());
        let settings = options.settings;
        let calls = move |remote: crate::ring::Remote<EngineServer>| {
            let keeper = Keeper::start(file, move |id, value| remote.returned(id, value))?;
            Ok(Box::new(move |id, call| keeper.call(id, call)) as _)
        };
        Self::start(&thread_name, move || Ok(EngineServer::new(settings)), calls, |_, _| {})
    }
}
