//! The record: who may write a volume and which replicas hold all of it, changed only by compare-and-swap.
//!
//! A [`Change`] is what an engine (or a controller) asks for; [`Record::apply`] says whether it is legal on the
//! record as it stands *now* and what comes out. Whoever holds the record (the API server behind a client, a
//! file under a lock) reads it, applies the change and replaces it only if it is still the version that was
//! read. The result, never a cached copy, is what an engine goes by.
//!
//! Every change of a holder compares generation **and** holder. The generation alone would let an engine act on
//! a record that another one holds by now; the holder alone would let a delayed change of its own undo a later.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::ids::{Epoch, Generation, Holder, MemberId};

/// What the API server keeps of a volume for this protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// The newest start of an engine.
    pub epoch: Epoch,
    /// The engine process that minted it.
    pub holder: Holder,
    /// Who held the volume before; decides whether a device may hand its pending requests to a new engine.
    pub previous: Holder,
    /// The replicas that hold every acknowledged write.
    pub in_sync: BTreeSet<MemberId>,
    /// How often this record changed.
    pub generation: Generation,
    /// The engine that may be promoted: the target of a live migration.
    pub standby: Option<Holder>,
    /// The holder stopped in order, and every engine before it is out.
    pub released: bool,
    /// The predecessor had released the volume when the holder took it: there is no lease to wait for.
    pub alone: bool,
}

/// A change of the record that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A new engine process takes the volume.
    Start { holder: Holder },
    /// The holder removes members; `keep` is what stays.
    Shrink { by: Holder, at: Generation, keep: BTreeSet<MemberId> },
    /// The holder takes a member in.
    Grow { by: Holder, at: Generation, member: MemberId },
    /// The holder changes nothing but the generation, so that an earlier change of its own that may still be on
    /// its way cannot apply any more.
    Settle { by: Holder, at: Generation },
    /// The holder stopped and says so.
    Release { by: Holder, at: Generation },
    /// A migration begins: `standby` may be promoted. Legal only on the record on which that was decided, so that
    /// a late repetition cannot undo a rollback.
    SetStandby { standby: Holder, at: Generation },
    /// A migration is rolled back before promotion.
    ClearStandby { standby: Holder },
    /// The standby takes the volume: the start of an engine that is legal only while the record names it.
    Promote { standby: Holder },
}

/// Why a change is not legal on the record as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refusal {
    /// The record moved on.
    #[error("the record is at generation {actual}, not {expected}")]
    Generation { expected: Generation, actual: Generation },
    /// Another engine holds the volume.
    #[error("engine {actual} holds the volume, not {expected}")]
    Holder { expected: Holder, actual: Holder },
    /// Nobody could ever serve again.
    #[error("the last in-sync replica is never removed")]
    LastMember,
    /// Members only leave by a shrink and only enter by a grow.
    #[error("a shrink keeps some of the recorded members, and no others")]
    NotASubset,
    /// It is in the set already.
    #[error("the replica is in sync already")]
    AlreadyInSync,
    /// Somebody else is the standby, or nobody is.
    #[error("the record does not name {expected} as standby")]
    NotStandby { expected: Holder },
    /// A migration is under way.
    #[error("engine {standby} is standby already")]
    StandbyExists { standby: Holder },
    /// An engine process mints its epoch once.
    #[error("engine {holder} holds the volume already; a new process has a new uid")]
    SameHolder { holder: Holder },
}

impl Record {
    /// The record of a new volume: nobody holds it, all of its replicas are equally empty.
    pub fn new(in_sync: impl IntoIterator<Item = MemberId>) -> Self {
        Self { in_sync: in_sync.into_iter().collect(), ..Self::default() }
    }

    /// The record after `change`, or why the change is not legal.
    pub fn apply(&self, change: &Change) -> Result<Self, Refusal> {
        let mut next = self.clone();
        next.generation = self.generation.next();
        match change {
            Change::Start { holder } => self.start(&mut next, *holder)?,
            Change::Promote { standby } => {
                self.names_standby(*standby)?;
                self.start(&mut next, *standby)?;
                next.standby = None;
            }
            Change::Shrink { by, at, keep } => {
                self.expect(*by, *at)?;
                if keep.is_empty() {
                    return Err(Refusal::LastMember);
                }
                if !keep.is_subset(&self.in_sync) {
                    return Err(Refusal::NotASubset);
                }
                next.in_sync.clone_from(keep);
            }
            Change::Grow { by, at, member } => {
                self.expect(*by, *at)?;
                if !next.in_sync.insert(member.clone()) {
                    return Err(Refusal::AlreadyInSync);
                }
            }
            Change::Settle { by, at } => self.expect(*by, *at)?,
            Change::Release { by, at } => {
                self.expect(*by, *at)?;
                next.released = true;
            }
            Change::SetStandby { standby, at } => {
                self.expect_generation(*at)?;
                match self.standby {
                    Some(other) if other != *standby => return Err(Refusal::StandbyExists { standby: other }),
                    _ if *standby == self.holder => return Err(Refusal::SameHolder { holder: *standby }),
                    _ => next.standby = Some(*standby),
                }
            }
            Change::ClearStandby { standby } => {
                self.names_standby(*standby)?;
                next.standby = None;
            }
        }
        Ok(next)
    }

    /// A new epoch for `holder`. What the set is comes from the record that is replaced, not from one read earlier.
    fn start(&self, next: &mut Self, holder: Holder) -> Result<(), Refusal> {
        if holder == self.holder {
            return Err(Refusal::SameHolder { holder });
        }
        next.epoch = self.epoch.next();
        next.previous = self.holder;
        next.holder = holder;
        next.released = false;
        next.alone = self.released;
        Ok(())
    }

    fn expect(&self, holder: Holder, generation: Generation) -> Result<(), Refusal> {
        if self.holder != holder {
            return Err(Refusal::Holder { expected: holder, actual: self.holder });
        }
        self.expect_generation(generation)
    }

    fn expect_generation(&self, generation: Generation) -> Result<(), Refusal> {
        if self.generation == generation {
            Ok(())
        } else {
            Err(Refusal::Generation { expected: generation, actual: self.generation })
        }
    }

    fn names_standby(&self, expected: Holder) -> Result<(), Refusal> {
        if self.standby == Some(expected) { Ok(()) } else { Err(Refusal::NotStandby { expected }) }
    }

    /// Whether a replica that promised `promised` proves that this record was set back (a restore of etcd or of
    /// a backup): it names an epoch that this record never minted.
    pub fn rewound_by(&self, promised: Epoch, generation: Generation) -> Option<RecordRewound> {
        let rewound = promised > self.epoch || generation > self.generation;
        rewound.then_some(RecordRewound { recorded: self.epoch, promised, generation })
    }

    /// Whether what `engine` left unanswered may be handed to an engine that holds this record: nobody else held
    /// the volume in between.
    pub fn may_inherit_from(&self, engine: Holder) -> bool {
        engine != Holder::NOBODY && (self.previous == engine || self.holder == engine)
    }
}

/// The record is older than what a replica has seen of it: no engine starts until somebody repairs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error(
    "the record was set back: it is at epoch {recorded}, but a replica promised epoch {promised} (record generation \
     {generation}); restore the newer record, or accept the loss by name"
)]
pub struct RecordRewound {
    /// The epoch in the record.
    pub recorded: Epoch,
    /// The epoch that the replica promised.
    pub promised: Epoch,
    /// The record's generation that the replica last heard of.
    pub generation: Generation,
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Holder = Holder(1);
    const NEW: Holder = Holder(2);

    fn members(names: &[&str]) -> BTreeSet<MemberId> {
        names.iter().map(|name| MemberId::new(name).unwrap()).collect()
    }

    fn held_by_old() -> Record {
        Record::new(members(&["a", "b"])).apply(&Change::Start { holder: OLD }).unwrap()
    }

    #[test]
    fn a_start_mints_an_epoch_and_remembers_who_was_before() {
        let record = held_by_old().apply(&Change::Start { holder: NEW }).unwrap();
        assert_eq!((Epoch(2), NEW, OLD), (record.epoch, record.holder, record.previous));
        assert_eq!(Err(Refusal::SameHolder { holder: NEW }), record.apply(&Change::Start { holder: NEW }));
    }

    #[test]
    fn changes_of_the_holder_compare_generation_and_holder() {
        let record = held_by_old();
        let at = record.generation;
        let keep = members(&["a"]);
        let table = [
            (OLD, at, keep.clone(), None),
            (OLD, at.next(), keep.clone(), Some(Refusal::Generation { expected: at.next(), actual: at })),
            (NEW, at, keep.clone(), Some(Refusal::Holder { expected: NEW, actual: OLD })),
            (OLD, at, members(&[]), Some(Refusal::LastMember)),
            (OLD, at, members(&["a", "c"]), Some(Refusal::NotASubset)),
        ];
        for (by, at, keep, refusal) in table {
            assert_eq!(refusal, record.apply(&Change::Shrink { by, at, keep }).err());
        }
        let shrunk = record.apply(&Change::Shrink { by: OLD, at, keep: keep.clone() }).unwrap();
        assert_eq!((keep, at.next()), (shrunk.in_sync.clone(), shrunk.generation));
        let member = MemberId::new("b").unwrap();
        assert!(shrunk.apply(&Change::Grow { by: OLD, at, member: member.clone() }).is_err());
        assert_eq!(
            members(&["a", "b"]),
            shrunk.apply(&Change::Grow { by: OLD, at: at.next(), member }).unwrap().in_sync
        );
    }

    #[test]
    fn settling_keeps_a_delayed_change_from_applying() {
        let record = held_by_old();
        let delayed = Change::Shrink { by: OLD, at: record.generation, keep: members(&["a"]) };
        let settled = record.apply(&Change::Settle { by: OLD, at: record.generation }).unwrap();
        assert!(settled.apply(&delayed).is_err());
    }

    #[test]
    fn a_standby_is_promoted_only_while_the_record_names_it() {
        let record = held_by_old();
        let promote = Change::Promote { standby: NEW };
        assert_eq!(Err(Refusal::NotStandby { expected: NEW }), record.apply(&promote));
        let set = Change::SetStandby { standby: NEW, at: record.generation };
        let named = record.apply(&set).unwrap();
        let promoted = named.apply(&promote).unwrap();
        assert_eq!((NEW, None, Epoch(2)), (promoted.holder, promoted.standby, promoted.epoch));
        let rolled_back = named.apply(&Change::ClearStandby { standby: NEW }).unwrap();
        assert_eq!(Err(Refusal::NotStandby { expected: NEW }), rolled_back.apply(&promote));
        assert!(rolled_back.apply(&set).is_err(), "a late repetition must not undo the rollback");
    }

    #[test]
    fn a_successor_of_an_engine_that_released_the_volume_is_alone() {
        let record = held_by_old();
        assert!(!record.apply(&Change::Start { holder: NEW }).unwrap().alone);
        let released = record.apply(&Change::Release { by: OLD, at: record.generation }).unwrap();
        let next = released.apply(&Change::Start { holder: NEW }).unwrap();
        assert!(next.alone && !next.released);
        assert!(!next.apply(&Change::Start { holder: Holder(3) }).unwrap().alone);
    }

    #[test]
    fn a_start_at_the_source_leaves_the_standby_named() {
        let named = held_by_old().apply(&Change::SetStandby { standby: NEW, at: held_by_old().generation }).unwrap();
        let restarted = named.apply(&Change::Start { holder: Holder(3) }).unwrap();
        assert_eq!(Some(NEW), restarted.standby);
    }

    #[test]
    fn a_promise_newer_than_the_record_proves_a_rewind() {
        let record = held_by_old();
        assert_eq!(None, record.rewound_by(record.epoch, record.generation));
        assert!(record.rewound_by(record.epoch.next(), record.generation).is_some());
        assert!(record.rewound_by(Epoch(0), record.generation.next()).is_some());
    }

    #[test]
    fn requests_are_inherited_only_from_the_direct_predecessor() {
        let record = held_by_old().apply(&Change::Start { holder: NEW }).unwrap();
        assert!(record.may_inherit_from(OLD));
        let later = record.apply(&Change::Start { holder: Holder(3) }).unwrap();
        assert!(!later.may_inherit_from(OLD) && !later.may_inherit_from(Holder::NOBODY));
    }
}
