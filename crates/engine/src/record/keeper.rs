//! The thread that waits for the record, so that the event loop does not.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use tether_replication::engine::CasOutcome;
use tether_replication::record::{Change, Record};

use super::RecordStore;
use crate::host::CallId;

/// What an engine asks of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordCall {
    /// What is there.
    Load,
    /// Make it, unless there is one.
    Create(Record),
    Change(Change),
    /// The engine serves. Nothing comes back.
    Served,
    /// The volume has grown: the kernel's device learns it. Nothing comes back.
    DeviceGrown,
    /// The kernel's device is to go.
    DetachDevice,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordReturn {
    /// The record, if there is one; or why that is not known.
    Loaded(Result<Option<Record>, String>),
    /// What there is now.
    Created(Result<Record, String>),
    Changed(CasOutcome),
    /// The device is gone, or why not.
    Detached(Result<(), String>),
}

/// What is done around the start of an engine, on the keeper's thread.
pub trait Witness: Send {
    /// The thread has begun; nothing was asked yet.
    fn begin(&mut self);
    /// An engine is about to take the volume from whoever holds `current`; the record is locked.
    fn before_start(&mut self, current: &Record) -> Result<(), String>;
    /// It has: `record` says so.
    fn after_start(&mut self, record: &Record);
    /// The engine is named as standby: `record` says so.
    fn stood_by(&mut self, record: &Record);
    /// The engine serves: whoever held the volume before is out.
    fn served(&mut self);
    fn device_grown(&mut self);
    /// Answers by itself, since it may take long.
    fn detach_device(&mut self, answer: Box<dyn FnOnce(Result<(), String>) + Send>);
}

/// The sending side of the thread. The thread ends when this is dropped and what it works on is done.
pub struct Keeper {
    calls: Sender<(CallId, RecordCall)>,
}

impl Keeper {
    /// Starts the thread. Calls are few (an engine has one change of the record under way at a time), so the
    /// channel needs no bound of its own.
    pub fn start(
        store: Box<dyn RecordStore>,
        mut witness: impl Witness + 'static,
        answer: impl Fn(CallId, RecordReturn) + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        thread::Builder::new().name("record".to_owned()).spawn(move || {
            witness.begin();
            for (id, call) in receiver {
                match call {
                    RecordCall::Served => witness.served(),
                    RecordCall::DeviceGrown => witness.device_grown(),
                    RecordCall::DetachDevice => {
                        let answer = answer.clone();
                        witness.detach_device(Box::new(move |result| answer(id, RecordReturn::Detached(result))));
                    }
                    call => answer(id, run(&*store, &mut witness, call)),
                }
            }
        })?;
        Ok(Self { calls: sender })
    }

    pub fn call(&self, id: CallId, call: RecordCall) {
        // The thread ends only after this sender.
        let _ = self.calls.send((id, call));
    }
}

fn run(store: &dyn RecordStore, witness: &mut impl Witness, call: RecordCall) -> RecordReturn {
    match call {
        RecordCall::Load => RecordReturn::Loaded(store.load()),
        RecordCall::Create(record) => RecordReturn::Created(store.create(&record)),
        RecordCall::Change(change) => {
            let starts = matches!(change, Change::Start { .. } | Change::Promote { .. });
            let mut before = |current: &Record| if starts { witness.before_start(current) } else { Ok(()) };
            let outcome = store.change(&change, &mut before);
            witnessed(&change, &outcome, witness);
            RecordReturn::Changed(outcome)
        }
        RecordCall::Served | RecordCall::DeviceGrown | RecordCall::DetachDevice => RecordReturn::Detached(Ok(())),
    }
}

/// Tells the witness what the record says now. A change that is refused because it had been made already, by an attempt
/// whose answer was lost, has been made.
fn witnessed(change: &Change, outcome: &CasOutcome, witness: &mut impl Witness) {
    let (CasOutcome::Applied(record) | CasOutcome::Refused { current: record, .. }) = outcome else { return };
    match change {
        Change::Start { holder } | Change::Promote { standby: holder } if record.holder == *holder => {
            witness.after_start(record);
        }
        Change::SetStandby { standby, .. } if record.standby == Some(*standby) => witness.stood_by(record),
        _ => {}
    }
}
