//! How other threads reach a machine: a bounded channel, and an eventfd that wakes its loop.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::host::{CallId, Machine};

/// Commands that wait for one machine; more are refused at once, so that a stuck loop is noticed.
const WAITING_COMMANDS: usize = 1024;

/// What to do with the answer.
pub type Answerer<M> = Box<dyn FnOnce(<M as Machine>::Answer) + Send>;

pub(super) enum Letter<M: Machine> {
    Command { command: M::Command, answer: Answerer<M> },
    Returned { id: CallId, value: M::Return },
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("too many commands wait for this instance")]
    Busy,
    #[error("the instance has stopped")]
    Stopped,
}

/// The sending side, for any thread.
pub struct Remote<M: Machine> {
    sender: SyncSender<Letter<M>>,
    bell: Arc<Bell>,
}

struct Bell {
    eventfd: OwnedFd,
    /// Rung and not yet heard: no need to ring again.
    rung: AtomicBool,
}

impl<M: Machine> Clone for Remote<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), bell: self.bell.clone() }
    }
}

impl<M: Machine> Remote<M> {
    /// Gives the machine a command; `answer` is called on the machine's thread and must not block. It is
    /// dropped uncalled if the machine ends first.
    pub fn ask(&self, command: M::Command, answer: Answerer<M>) -> Result<(), AskError> {
        let result = self.sender.try_send(Letter::Command { command, answer });
        self.bell.ring();
        result.map_err(|error| match error {
            TrySendError::Full(_) => AskError::Busy,
            TrySendError::Disconnected(_) => AskError::Stopped,
        })
    }

    /// Gives back what a call asked for; waits for room, since it must not be lost.
    pub fn returned(&self, id: CallId, value: M::Return) {
        let _ = self.sender.send(Letter::Returned { id, value });
        self.bell.ring();
    }
}

impl Bell {
    fn ring(&self) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // The counter of an eventfd that is read on every ring cannot be full.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// The receiving side, for the loop.
pub(super) struct Mailbox<M: Machine> {
    receiver: Receiver<Letter<M>>,
    bell: Arc<Bell>,
}

pub(super) fn mailbox<M: Machine>() -> std::io::Result<(Remote<M>, Mailbox<M>)> {
    let (sender, receiver) = sync_channel(WAITING_COMMANDS);
    let bell = Arc::new(Bell { eventfd: eventfd(0, EventfdFlags::CLOEXEC)?, rung: AtomicBool::new(false) });
    Ok((Remote { sender, bell: bell.clone() }, Mailbox { receiver, bell }))
}

impl<M: Machine> Mailbox<M> {
    /// To be called when the bell was heard, before letters are taken.
    pub fn heard(&self) {
        self.bell.rung.store(false, Ordering::SeqCst);
    }

    pub fn take(&self) -> Option<Letter<M>> {
        self.receiver.try_recv().ok()
    }

    pub fn descriptor(&self) -> RawFd {
        let fd: BorrowedFd<'_> = self.bell.eventfd.as_fd();
        fd.as_raw_fd()
    }
}
