//! The names of the protocol: epochs, engine processes, sessions, members, moments.

use std::fmt;
use std::sync::Arc;

/// How many replicas of one volume an engine can know at a time: a set of them is a [`Slots`] word.
pub const MAX_MEMBERS: usize = 16;

/// Longest name of a replica, in bytes: a Kubernetes object name.
pub const MAX_MEMBER_NAME_BYTES: usize = 253;

/// Which start of an engine: minted by compare-and-swap, never twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// How often the record changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// One connection of an engine to one replica; grows within an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// The uid of one engine *process*: a restarted process is another holder. Zero is nobody.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(pub u128);

/// The uid of a volume, so that a replica of another one is never taken for a member.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u128);

/// One boot of a host: when it changes, writes that were not flushed may be gone.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u128);

impl Holder {
    /// No engine: the holder of a volume that was never attached.
    pub const NOBODY: Self = Self(0);
}

macro_rules! numbers {
    ($($name:ident),+) => {$(
        impl $name {
            /// The one after this.
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )+};
}

macro_rules! uids {
    ($($name:ident),+) => {$(
        /// The usual form of a UUID.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let (a, b, c) = ((self.0 >> 96) as u32, (self.0 >> 80) as u16, (self.0 >> 64) as u16);
                let (d, e) = ((self.0 >> 48) as u16, self.0 as u64 & 0xffff_ffff_ffff);
                write!(f, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )+};
}

numbers!(Epoch, Generation, Session);
uids!(Holder, VolumeId, BootId);

/// The name of a replica, as the record spells it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(Arc<str>);

impl MemberId {
    /// A name, or nothing if it is empty or longer than [`MAX_MEMBER_NAME_BYTES`].
    pub fn new(name: &str) -> Option<Self> {
        (1..=MAX_MEMBER_NAME_BYTES).contains(&name.len()).then(|| Self(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A place in an engine's table of replicas; stays with a [`MemberId`] for the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u8);

/// A set of [`Slot`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots(pub u16);

impl Slots {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// The set of one.
    pub const fn one(slot: Slot) -> Self {
        Self(1 << slot.0)
    }

    /// Whether `slot` is in it.
    pub const fn has(self, slot: Slot) -> bool {
        self.0 >> slot.0 & 1 == 1
    }

    /// Whether nothing is in it.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether everything in `other` is in this set.
    pub const fn holds(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// What is in either.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in this set and not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// What is in both.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Adds one.
    pub fn insert(&mut self, slot: Slot) {
        self.0 |= 1 << slot.0;
    }

    /// Takes one out.
    pub fn remove(&mut self, slot: Slot) {
        self.0 &= !(1 << slot.0);
    }

    /// The smallest, if any.
    pub fn first(self) -> Option<Slot> {
        (self.0 != 0).then(|| Slot(self.0.trailing_zeros() as u8))
    }

    /// In ascending order.
    pub fn iter(self) -> impl Iterator<Item = Slot> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let slot = rest.first()?;
            rest.remove(slot);
            Some(slot)
        })
    }
}

impl FromIterator<Slot> for Slots {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::NONE;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

/// A moment on the host's clock that also runs while it is suspended (`CLOCK_BOOTTIME`), in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A span of time, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// So many milliseconds.
    pub const fn millis(millis: u64) -> Self {
        Self(millis * 1000)
    }
}

impl Time {
    /// The moment `span` later.
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// How long ago `earlier` was; zero if it is still to come.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_reads_as_a_uuid() {
        let holder = Holder(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        assert_eq!("01234567-89ab-cdef-0123-456789abcdef", holder.to_string());
    }

    #[test]
    fn a_member_has_a_name_of_bounded_length() {
        assert_eq!(None, MemberId::new(""));
        assert_eq!(None, MemberId::new(&"r".repeat(MAX_MEMBER_NAME_BYTES + 1)));
        assert_eq!("r", MemberId::new("r").unwrap().as_str());
    }

    #[test]
    fn slots_are_a_set() {
        let both: Slots = [Slot(3), Slot(0)].into_iter().collect();
        assert_eq!(vec![Slot(0), Slot(3)], both.iter().collect::<Vec<_>>());
        assert!(both.holds(Slots::one(Slot(3))) && !Slots::one(Slot(3)).holds(both));
        assert_eq!(Slots::one(Slot(0)), both.without(Slots::one(Slot(3))));
    }
}
