//! What stands between a machine and the world: events in, effects out, one thread.
//!
//! A [`Machine`] is told what happened and says what is to be done; it owns no descriptor, reads no clock
//! and draws no random number of its own. Two hosts run it: [`crate::ring`] on io_uring, and a simulator
//! with a faulty network and disk. Whatever a host does, it keeps these rules:
//!
//! - One event at a time; the effects of one event are taken before the next event is delivered.
//! - After a machine closed a connection, no event about it arrives any more. After `Closed` or
//!   `ConnectFailed` its id is void, and effects that name it are ignored.
//! - Bytes sent on a connection arrive in order or the connection ends.
//! - A file operation is answered exactly once. Operations are not ordered among themselves.
//! - A peer that does not take what was sent is not listened to any further (see [`MAX_BACKLOG_BYTES`]).

mod address;
mod inbox;
mod io;
mod listening;

pub use address::{Address, ParseAddressError};
pub use inbox::{Alignment, Inbox};
pub use io::{
    Broken, ConnId, DeviceId, DeviceRead, DeviceSource, Io, IoEffect, IoEvent, ListenerId, Randomness, Time, TimerId,
};

pub use listening::{Listened, Listening};

/// Output queued on one connection above which nothing more is received from it: one NBD request of the
/// largest size (32 MiB is refused well before), or some hundred small ones. It bounds what a client costs
/// that sends requests and does not read replies.
pub const MAX_BACKLOG_BYTES: usize = 8 << 20;

/// One question of another thread, to be answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// One call to the outside (the record), to be returned once, however late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// A deterministic state machine: the same events at the same times give the same effects.
pub trait Machine {
    /// What other threads ask of it, and what they get.
    type Command;
    type Answer;
    /// What it asks of the outside, and what it gets.
    type Call;
    type Return;

    fn handle(&mut self, event: Event<'_, Self>, now: Time, out: &mut Effects<Self>);

    /// How many requests it works on: where they come one by one, a host does well to look for what comes next.
    fn in_hand(&self) -> usize {
        0
    }
}

/// What happened.
#[derive(Debug)]
pub enum Event<'a, M: Machine + ?Sized> {
    /// The first event, once.
    Started,
    /// Sockets, files, timers.
    Io(IoEvent<'a>),
    /// Another thread asks.
    Command { id: CommandId, command: M::Command },
    /// A call came back.
    Returned { id: CallId, value: M::Return },
}

/// What is to be done, in order.
#[derive(Debug)]
pub struct Effects<M: Machine + ?Sized> {
    /// Sockets, files, timers: the part that submachines are given.
    pub io: Io,
    answers: Vec<(CommandId, M::Answer)>,
    calls: Vec<(CallId, M::Call)>,
    next_call: u64,
    finished: Option<Finish>,
}

/// Why a machine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It was asked to.
    Done,
    /// It cannot go on; the text is for the operator.
    Failed(String),
}

impl<M: Machine + ?Sized> Effects<M> {
    pub fn new(randomness: Randomness) -> Self {
        Self { io: Io::new(randomness), answers: Vec::new(), calls: Vec::new(), next_call: 0, finished: None }
    }

    /// Answers a command.
    pub fn answer(&mut self, id: CommandId, answer: M::Answer) {
        self.answers.push((id, answer));
    }

    /// Calls the outside; [`Event::Returned`] comes with the id.
    pub fn call(&mut self, call: M::Call) -> CallId {
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.calls.push((id, call));
        id
    }

    /// Ends the loop after the effects of this event.
    pub fn finish(&mut self, how: Finish) {
        self.finished.get_or_insert(how);
    }

    /// For hosts: the answers given since the last time.
    pub fn take_answers(&mut self) -> impl Iterator<Item = (CommandId, M::Answer)> + '_ {
        self.answers.drain(..)
    }

    /// For hosts: the calls made since the last time.
    pub fn take_calls(&mut self) -> impl Iterator<Item = (CallId, M::Call)> + '_ {
        self.calls.drain(..)
    }

    /// For hosts: whether the machine ended.
    pub fn finished(&self) -> Option<&Finish> {
        self.finished.as_ref()
    }
}
