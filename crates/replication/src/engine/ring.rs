//! Requests that wait for an answer, by ascending id: the oldest is found at once, nothing is allocated per request.

use std::collections::VecDeque;

/// Values under consecutive numbers, taken out in any order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ring<T> {
    /// Number of the first entry.
    base: u64,
    entries: VecDeque<Option<T>>,
    len: usize,
}

impl<T> Ring<T> {
    pub(super) fn new() -> Self {
        Self { base: 0, entries: VecDeque::new(), len: 0 }
    }

    /// Puts a value in and returns its number.
    pub(super) fn push(&mut self, value: T) -> u64 {
        self.entries.push_back(Some(value));
        self.len += 1;
        self.base + self.entries.len() as u64 - 1
    }

    /// Takes the value of a number out.
    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let at = usize::try_from(number.checked_sub(self.base)?).ok()?;
        let value = self.entries.get_mut(at)?.take()?;
        self.len -= 1;
        while matches!(self.entries.front(), Some(None)) {
            self.entries.pop_front();
            self.base += 1;
        }
        if self.entries.is_empty() {
            // Numbers are unique within a session and a session ends with everything that waits in it.
            self.base = 0;
        }
        Some(value)
    }

    /// The oldest value.
    pub(super) fn oldest(&self) -> Option<&T> {
        self.entries.front().and_then(Option::as_ref)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes everything out, oldest first.
    pub(super) fn drain(&mut self) -> Vec<T> {
        (self.base, self.len) = (0, 0);
        std::mem::take(&mut self.entries).into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_out_in_any_order_and_the_oldest_is_known() {
        let mut ring = Ring::new();
        assert_eq!([0, 1, 2], ["a", "b", "c"].map(|value| ring.push(value)));
        assert_eq!(Some("b"), ring.take(1));
        assert_eq!(None, ring.take(1));
        assert_eq!((Some(&"a"), 2), (ring.oldest(), ring.len()));
        assert_eq!(Some("a"), ring.take(0));
        assert_eq!(Some(&"c"), ring.oldest());
        assert_eq!(3, ring.push("d"));
        assert_eq!(vec!["c", "d"], ring.drain());
        assert!(ring.len() == 0 && ring.take(2).is_none());
    }
}
