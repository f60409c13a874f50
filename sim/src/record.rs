//! The record's keeper: compare and swap that is slow, out of reach, or answers into the void.

use std::collections::BTreeMap;

use tether_engine::record::{RecordCall, RecordReturn};
use tether_replication::engine::CasOutcome;
use tether_replication::ids::{Epoch, Holder, MemberId};
use tether_replication::record::{Change, Record};
use tether_store::files::fake::Random;

/// How it behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Nobody reaches it.
    Away,
    /// Some answers are lost, some changes are made late, some never arrive.
    Flaky,
}

/// The record and who held it when.
#[derive(Debug, Default)]
pub struct RecordService {
    pub record: Option<Record>,
    pub mood: Mood,
    pub epochs: BTreeMap<Holder, Epoch>,
    /// Records in order, for rules about them.
    pub generations: u64,
    /// Members that were taken in since somebody looked.
    pub grown: Vec<MemberId>,
}

impl RecordService {
    /// What comes back, after how long, and after how long the change is made (again) behind the caller's back.
    pub fn call(&mut self, call: &RecordCall, random: &mut Random) -> (RecordReturn, u64, Option<u64>) {
        let unwell = match self.mood {
            Mood::Well => 0,
            Mood::Away => 1,
            Mood::Flaky => random.below(5),
        };
        let delay = 300 + random.below(4000);
        match (unwell, call) {
            (0 | 4, _) => (self.apply(call), delay, None),
            (1, _) | (_, RecordCall::Load | RecordCall::Create(_)) => {
                (unreached(call), 200_000 + random.below(800_000), None)
            }
            (2, _) => {
                self.apply(call);
                (RecordReturn::Changed(CasOutcome::Unknown), 500_000, None)
            }
            _ => (RecordReturn::Changed(CasOutcome::Unknown), 500_000, Some(random.below(4_000_000))),
        }
    }

    /// Does what is asked.
    pub fn apply(&mut self, call: &RecordCall) -> RecordReturn {
        match call {
            RecordCall::Load => RecordReturn::Loaded(Ok(self.record.clone())),
            RecordCall::Create(record) => {
                RecordReturn::Created(Ok(self.record.get_or_insert_with(|| record.clone()).clone()))
            }
            RecordCall::Served | RecordCall::DeviceGrown | RecordCall::DetachDevice => RecordReturn::Detached(Ok(())),
            RecordCall::Change(change) => {
                let Some(current) = &self.record else { return RecordReturn::Changed(CasOutcome::NotSent) };
                RecordReturn::Changed(match current.apply(change) {
                    Ok(next) => {
                        self.epochs.insert(next.holder, next.epoch);
                        self.generations += 1;
                        if let Change::Grow { member, .. } = change {
                            self.grown.push(member.clone());
                        }
                        self.record = Some(next.clone());
                        CasOutcome::Applied(next)
                    }
                    Err(refusal) => CasOutcome::Refused { refusal, current: current.clone() },
                })
            }
        }
    }
}

fn unreached(call: &RecordCall) -> RecordReturn {
    match call {
        RecordCall::Load => RecordReturn::Loaded(Err("nobody answers".to_owned())),
        RecordCall::Create(_) => RecordReturn::Created(Err("nobody answers".to_owned())),
        RecordCall::Change(_) => RecordReturn::Changed(CasOutcome::NotSent),
        RecordCall::Served | RecordCall::DeviceGrown | RecordCall::DetachDevice => RecordReturn::Detached(Ok(())),
    }
}
