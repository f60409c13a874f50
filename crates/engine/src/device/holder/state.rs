//! What a holder remembers, and whom it gives the device to.
//!
//! Requests that wait in the kernel were made while some engine had the volume, or none. A new engine may go on with
//! them only if no *other* engine could have acknowledged anything since: that is, if the engine that had the device
//! last is the one from which the newcomer took the volume in the record. Otherwise old writes would land on newer
//! data, and a file system that is mounted on the device would go on with what it remembers of a volume that has
//! changed. So then the device is over: everything pending fails, and a new device is made.
//!
//! An engine may be killed between taking the volume and taking the device; its successor would find somebody in the
//! record who never had the device. Therefore an engine says *before* its change of the record from whom it means to
//! take the volume. The change succeeds only on exactly that record, so if a later record names this engine as the
//! previous holder, its predecessor is known, and the line goes on through it.

use crate::line::Intents;

/// The engine that has the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub uid: String,
    pub pid: u32,
}

/// How a wish to have the device was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody ever had it.
    Fresh,
    /// The line of engines is unbroken.
    Resumed,
    Busy(Serving),
    Broken {
        last: String,
    },
}

/// What the holder of one device remembers.
#[derive(Clone, Debug, Default)]
pub struct State {
    last: Option<String>,
    serving: Option<Serving>,
    intents: Intents,
    /// Longest write that the first engine agreed on with the kernel.
    max_write: Option<u32>,
}

impl State {
    /// `uid` is about to take the volume from `previous`.
    pub fn intend(&mut self, uid: &str, previous: &str) {
        self.intents.intend(uid, previous);
    }

    /// `wish` has taken the volume from `previous` and asks for the device.
    pub fn take(&mut self, wish: Serving, previous: &str, max_write: u32) -> Decision {
        if let Some(serving) = &self.serving {
            return Decision::Busy(serving.clone());
        }
        let decision = match &self.last {
            None => Decision::Fresh,
            Some(last) if *last == wish.uid || self.intents.lead_to(previous, last) => Decision::Resumed,
            Some(last) => return Decision::Broken { last: last.clone() },
        };
        self.last = Some(wish.uid.clone());
        self.serving = Some(wish);
        self.intents.clear();
        self.max_write.get_or_insert(max_write);
        decision
    }

    /// The engine's connection is gone, and with it the engine.
    pub fn left(&mut self) {
        self.serving = None;
    }

    pub fn serving(&self) -> Option<&Serving> {
        self.serving.as_ref()
    }

    pub fn max_write(&self) -> Option<u32> {
        self.max_write
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(uid: &str) -> Serving {
        Serving { uid: uid.to_owned(), pid: 1 }
    }

    /// A holder whose device engine `a` had until it died.
    fn after_a() -> State {
        let mut state = State::default();
        assert_eq!(state.take(engine("a"), "nobody", 4096), Decision::Fresh);
        state.left();
        state
    }

    #[test]
    fn the_next_engine_goes_on_if_it_took_the_volume_from_the_last() {
        let mut state = after_a();
        assert_eq!(state.take(engine("b"), "a", 8192), Decision::Resumed);
        assert_eq!(state.max_write(), Some(4096), "the kernel was told once");
        assert_eq!(state.take(engine("c"), "b", 4096), Decision::Busy(engine("b")), "b lives");
        state.left();
        assert_eq!(state.take(engine("b"), "a", 4096), Decision::Resumed, "the same engine comes back");
    }

    #[test]
    fn an_engine_elsewhere_in_between_ends_the_device() {
        let mut state = after_a();
        let broken = Decision::Broken { last: "a".to_owned() };
        assert_eq!(state.take(engine("c"), "x", 4096), broken);
        state.intend("b", "x");
        assert_eq!(state.take(engine("c"), "b", 4096), broken, "b took the volume from x, not from a");
        assert_eq!(state.take(engine("c"), "nobody", 4096), broken);
    }

    #[test]
    fn engines_that_died_on_the_way_do_not_break_the_line() {
        let mut state = after_a();
        state.intend("b", "a");
        state.intend("c", "b");
        state.intend("d", "c");
        assert_eq!(state.take(engine("d"), "c", 4096), Decision::Resumed);
    }

    #[test]
    fn what_was_meant_last_counts() {
        let mut state = after_a();
        // b meant to take it from a, lost the race to x, and took it from x.
        state.intend("b", "a");
        state.intend("b", "x");
        assert_eq!(state.take(engine("c"), "b", 4096), Decision::Broken { last: "a".to_owned() });
    }
}
