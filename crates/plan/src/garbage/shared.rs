//! Values that many objects have in common, each held once.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Beyond so many, those that nobody has any more are looked for and dropped.
const LOOK_AT: usize = 1_024;

/// The values, as long as somebody has them.
#[derive(Debug)]
pub(super) struct Shared<T: ?Sized> {
    held: BTreeSet<Arc<T>>,
    look_at: usize,
}

impl<T: ?Sized> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { held: self.held.clone(), look_at: self.look_at }
    }
}

impl<T: ?Sized + Ord> Default for Shared<T> {
    fn default() -> Self {
        Self { held: BTreeSet::new(), look_at: LOOK_AT }
    }
}

impl<T: ?Sized + Ord> Shared<T> {
    /// The value that everybody has who has one like this.
    pub(super) fn get<'v>(&mut self, value: &'v T) -> Arc<T>
    where
        Arc<T>: Borrow<T> + From<&'v T>,
    {
        if let Some(held) = self.held.get(value) {
            return held.clone();
        }
        if self.held.len() >= self.look_at {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.look_at = LOOK_AT.max(self.held.len() * 2);
        }
        let new: Arc<T> = value.into();
        self.held.insert(new.clone());
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_one_and_what_nobody_has_goes() {
        let mut shared = Shared::<str>::default();
        let kept = shared.get("kept");
        assert!(Arc::ptr_eq(&kept, &shared.get("kept")));
        for number in 0..LOOK_AT * 3 {
            shared.get(&number.to_string());
        }
        assert!(shared.held.len() <= LOOK_AT, "{}", shared.held.len());
        assert!(Arc::ptr_eq(&kept, &shared.get("kept")));
    }
}
