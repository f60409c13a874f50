//! The thread that waits for the record, so that the event loop does not.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use tether_replication::engine::CasOutcome;
use tether_replication::record::{Change, Record};

use super::file::RecordFile;
use crate::host::CallId;

/// What an engine asks of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordCall {
    /// What is there.
    Load,
    /// Make it, unless there is one.
    Create(Record),
    Change(Change),
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordReturn {
    /// The record, if there is one; or why that is not known.
    Loaded(Result<Option<Record>, String>),
    /// What there is now.
    Created(Result<Record, String>),
    Changed(CasOutcome),
}

/// The sending side of the thread. The thread ends when this is dropped and what it works on is done.
pub struct Keeper {
    calls: Sender<(CallId, RecordCall)>,
}

impl Keeper {
    /// Starts the thread. Calls are few (an engine has one change of the record under way at a time), so the
    /// channel needs no bound of its own.
    pub fn start(file: RecordFile, answer: impl Fn(CallId, RecordReturn) + Send + 'static) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name("record".to_owned()).spawn(move || {
            for (id, call) in receiver {
                answer(id, run(&file, call));
            }
        })?;
        Ok(Self { calls: sender })
    }

    pub fn call(&self, id: CallId, call: RecordCall) {
        // The thread ends only after this sender.
        let _ = self.calls.send((id, call));
    }
}

fn run(file: &RecordFile, call: RecordCall) -> RecordReturn {
    match call {
        RecordCall::Load => RecordReturn::Loaded(file.load().map_err(|error| error.to_string())),
        RecordCall::Create(record) => RecordReturn::Created(file.create(&record).map_err(|error| error.to_string())),
        RecordCall::Change(change) => RecordReturn::Changed(file.change(&change)),
    }
}
