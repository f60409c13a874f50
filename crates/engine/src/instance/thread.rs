//! A machine on a thread of its own, and the way to reach it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use tokio::sync::watch;

use crate::host::{Finish, Machine};
use crate::ring::{AskError, Calls, Host, Remote, RingError, door};

/// How an instance ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Stopped,
    /// It could not go on.
    Failed(String),
    /// A defect; the others go on.
    Panicked(String),
}

impl Ended {
    fn without_a_word() -> Self {
        Self::Panicked("the thread is gone".to_owned())
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped"),
            Self::Failed(why) => write!(f, "failed: {why}"),
            Self::Panicked(why) => write!(f, "panicked: {why}"),
        }
    }
}

/// Why a question was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskFailed {
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("the instance ended before it answered ({0})")]
    Ended(String),
}

/// A running machine.
pub struct Instance<M: Machine> {
    remote: Remote<M>,
    ended: watch::Receiver<Option<Ended>>,
}

impl<M: Machine + 'static> Instance<M>
where
    M::Command: Send,
    M::Answer: Send,
    M::Return: Send,
{
    /// Starts a thread that makes the machine and runs it. Fails if it cannot be made.
    pub fn start<E: Send + 'static>(
        name: &str,
        make: impl FnOnce() -> Result<M, E> + Send + 'static,
        calls: impl FnOnce(Remote<M>) -> std::io::Result<Calls<M>> + Send + 'static,
        finished: impl FnOnce(M, &Ended) + Send + 'static,
    ) -> Result<Self, StartError<E>> {
        let (remote, door) = door().map_err(StartError::Thread)?;
        let (result, ended) = watch::channel(None);
        let (made, is_made) = mpsc::sync_channel(1);
        let inner = remote.clone();
        let run = move || {
            let machine = match make() {
                Ok(machine) => machine,
                Err(error) => return drop(made.send(Err(StartError::Make(error)))),
            };
            let calls = match calls(inner) {
                Ok(calls) => calls,
                Err(error) => return drop(made.send(Err(StartError::Thread(error)))),
            };
            let mut host = match Host::new(machine, door, calls) {
                Ok(host) => host,
                Err(error) => return drop(made.send(Err(StartError::Ring(error)))),
            };
            let _ = made.send(Ok(()));
            let how = match catch_unwind(AssertUnwindSafe(|| host.run())) {
                Ok(Ok(Finish::Done)) => Ended::Stopped,
                Ok(Ok(Finish::Failed(why))) => Ended::Failed(why),
                Ok(Err(error)) => Ended::Failed(error.to_string()),
                Err(panic) => Ended::Panicked(panic_text(&*panic)),
            };
            let machine = host.into_machine();
            if !matches!(how, Ended::Panicked(_)) {
                finished(machine, &how);
            }
            result.send_replace(Some(how));
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(StartError::Thread)?;
        let started = is_made.recv().unwrap_or_else(|_| Err(StartError::Panicked));
        started.map(|()| Self { remote, ended })
    }

    /// Asks and does not wait.
    pub fn ask(&self, command: M::Command, answer: impl FnOnce(M::Answer) + Send + 'static) -> Result<(), AskFailed> {
        if let Some(ended) = self.ended() {
            return Err(AskFailed::Ended(ended.to_string()));
        }
        Ok(self.remote.ask(command, Box::new(answer))?)
    }

    /// Asks and waits.
    pub fn get(&self, command: M::Command) -> Result<M::Answer, AskFailed> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.ask(command, move |answer| drop(sender.send(answer)))?;
        receiver.recv().map_err(|_| self.lost())
    }

    /// Asks from a task.
    pub async fn get_async(&self, command: M::Command) -> Result<M::Answer, AskFailed> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.ask(command, move |answer| drop(sender.send(answer)))?;
        receiver.await.map_err(|_| self.lost())
    }

    fn lost(&self) -> AskFailed {
        AskFailed::Ended(self.ended().map_or_else(|| "it is ending".to_owned(), |ended| ended.to_string()))
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<Ended> {
        let told = self.ended.borrow().clone();
        // A thread that ended without a word panicked while it cleaned up.
        told.or_else(|| self.ended.has_changed().is_err().then(Ended::without_a_word))
    }

    /// Waits for its end.
    pub async fn wait_ended(&self) -> Ended {
        let mut ended = self.ended.clone();
        let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(Ended::without_a_word)
    }
}

/// Why an instance did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    #[error("{0}")]
    Make(E),
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    #[error(transparent)]
    Ring(RingError),
    #[error("the instance panicked while it was made")]
    Panicked,
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned())
}
