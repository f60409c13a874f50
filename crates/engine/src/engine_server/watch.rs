//! Who wants to know of changes: questions that wait until there is something to say.
//!
//! A watcher says which version of the engine's state it has seen; the answer comes with a newer one, at once or when
//! there is one. What changes all the time (how far a resync is) counts a few times a second only.

use super::EngineServer;
use super::settings::Answer;
use crate::host::{CommandId, Effects, Io, Time, TimerId};

/// Pause between two reports of progress: often enough for people, rare enough for an API server.
const PROGRESS_MS: u64 = 500;

/// Questions that wait at a time.
const MAX_WAITING: usize = 64;

/// Questions that wait, and what they wait for.
#[derive(Debug)]
pub(super) struct Watchers {
    pub version: u64,
    changed: bool,
    /// Somebody may wait for less than there is.
    stale: bool,
    waiting: Vec<(CommandId, u64)>,
    /// Set while progress is held back.
    pace: Option<TimerId>,
    /// Set while the record is waited for.
    silence: Option<TimerId>,
}

impl Default for Watchers {
    fn default() -> Self {
        // Whoever has seen nothing has something to see.
        Self { version: 1, changed: false, stale: false, waiting: Vec::new(), pace: None, silence: None }
    }
}

impl Watchers {
    /// Something that is told at once.
    pub fn change(&mut self) {
        (self.changed, self.stale) = (true, true);
    }

    /// Something that is told soon.
    pub fn progress(&mut self, now: Time, io: &mut Io) {
        if self.pace.is_none() {
            let timer = io.timer();
            io.set_timer(timer, now.plus_millis(PROGRESS_MS));
            self.pace = Some(timer);
        }
    }

    /// If the record has not answered then, that is worth telling.
    pub fn listen_for_silence(&mut self, until: Time, io: &mut Io) {
        let timer = *self.silence.get_or_insert_with(|| io.timer());
        io.set_timer(timer, until);
    }

    /// True if the timer was one of these.
    pub fn timer(&mut self, timer: TimerId) -> bool {
        let ours = self.pace.take_if(|pace| *pace == timer).is_some() || self.silence == Some(timer);
        if ours {
            self.change();
        }
        ours
    }
}

impl EngineServer {
    pub(super) fn watch(&mut self, id: CommandId, seen: u64, now: Time, out: &mut Effects<Self>) {
        if self.watchers.waiting.len() == MAX_WAITING {
            // Nobody says when they leave: the oldest question is most likely of one who left.
            let (oldest, _) = self.watchers.waiting.remove(0);
            out.answer(oldest, Answer::Info(Box::new(self.info(now))));
        }
        self.watchers.stale |= seen < self.watchers.version;
        self.watchers.waiting.push((id, seen));
    }

    /// Answers those who have not seen the present state.
    pub(super) fn tell_watchers(&mut self, now: Time, out: &mut Effects<Self>) {
        self.watchers.version += u64::from(std::mem::take(&mut self.watchers.changed));
        if !std::mem::take(&mut self.watchers.stale) || self.watchers.waiting.is_empty() {
            return;
        }
        let version = self.watchers.version;
        let info = self.info(now);
        self.watchers.waiting.retain(|(id, seen)| {
            let waits = *seen >= version;
            if !waits {
                out.answer(*id, Answer::Info(Box::new(info.clone())));
            }
            waits
        });
    }
}
