//! The sockets that a machine listens on, and who waits to hear where that is.

use std::collections::BTreeMap;

use super::{Address, CommandId, Io, ListenerId};

/// Listeners in the order in which they were made, and questions about them.
#[derive(Debug, Default)]
pub struct Listening {
    listeners: BTreeMap<ListenerId, Option<Address>>,
    failed: Option<String>,
    waiting: Vec<CommandId>,
}

/// Where a machine listens, or why it does not.
pub type Listened = Result<Vec<Address>, String>;

impl Listening {
    pub fn listen(&mut self, address: Address, io: &mut Io) -> ListenerId {
        let listener = io.listen(address);
        self.listeners.insert(listener, None);
        listener
    }

    /// The listener is there.
    pub fn is_at(&mut self, listener: ListenerId, local: Address) {
        self.listeners.insert(listener, Some(local));
    }

    /// The machine will not listen, or is of no use for another reason. The first one counts.
    pub fn fail(&mut self, why: &str) {
        self.failed.get_or_insert_with(|| why.to_owned());
    }

    pub fn ask(&mut self, id: CommandId) {
        self.waiting.push(id);
    }

    /// Whoever waits, and what they get, once it is known.
    pub fn answers(&mut self) -> Option<(Vec<CommandId>, Listened)> {
        let answer = match &self.failed {
            Some(why) => Err(why.clone()),
            None => Ok(self.listeners.values().cloned().collect::<Option<Vec<_>>>()?),
        };
        Some((std::mem::take(&mut self.waiting), answer))
    }

    /// Which one it is, counted in the order in which they were made.
    pub fn position(&self, listener: ListenerId) -> Option<usize> {
        self.listeners.keys().position(|known| *known == listener)
    }

    /// Where one listens.
    pub fn local(&self, listener: ListenerId) -> Option<&Address> {
        self.listeners.get(&listener).and_then(Option::as_ref)
    }

    /// Where all those listen that do.
    pub fn locals(&self) -> impl Iterator<Item = &Address> {
        self.listeners.values().flatten()
    }
}
