//! From nothing to a started engine: who are the replicas, what does the record say.
//!
//! ```text
//!   ask replicas without a name who they are ─┐
//!   load the record ──────────────────────────┴─► there is one ─────────────► start
//!                                              └─► none: all replicas known ─► make it ─► start
//!          ▲                                                                       │ not known whether it was made
//!          └───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A new record names every replica as in sync only if all of them are fresh. One that holds data is the whole set;
//! the others are brought up from it. Two that hold data are a question for people.

use std::collections::BTreeMap;

use tether_replication::engine::{Config, Engine, Event as EngineEvent};
use tether_replication::ids::MemberId;
use tether_replication::record::Record;
use tether_replication::region::Geometry;

use super::EngineServer;
use crate::auth::Welcome;
use crate::host::{Address, Effects, Time, TimerId};
use crate::record::RecordCall;

/// How long a start waits for the names of replicas that do not answer, if the record is there.
const NAMES_MS: u64 = 1000;
/// Pause between attempts to learn a name, or to reach the record.
const RETRY_MS: u64 = 500;

/// What is known so far.
#[derive(Debug, Default)]
pub(super) struct Birth {
    /// Replicas whose names are still to be learned.
    nameless: Vec<Address>,
    /// What those that were asked said.
    welcomes: BTreeMap<MemberId, Welcome>,
    record: Option<Record>,
    loaded: bool,
    creating: bool,
    /// Names were waited for long enough.
    patience_over: bool,
    patience: Option<TimerId>,
    retries: BTreeMap<TimerId, Retry>,
}

#[derive(Debug)]
enum Retry {
    Name(Address),
    Load,
}

impl EngineServer {
    pub(super) fn begin_birth(&mut self, now: Time, out: &mut Effects<Self>) {
        out.call(RecordCall::Load);
        let patience = out.io.timer();
        out.io.set_timer(patience, now.plus_millis(NAMES_MS));
        self.birth.patience = Some(patience);
        for replica in self.settings.replicas.clone() {
            // Those with a name are asked too: whether they are fresh decides what a new record says.
            self.birth.nameless.push(replica.address.clone());
            self.members.ask_name(&replica.address, now, &mut out.io);
        }
    }

    pub(super) fn named(&mut self, address: &Address, welcome: Welcome, now: Time, out: &mut Effects<Self>) {
        self.birth.nameless.retain(|other| other != address);
        let member = welcome.member.clone();
        let known = self.members.addresses.insert(member.clone(), address.clone());
        if known.is_some_and(|known| known != *address) {
            tracing::warn!(%member, %address, "two addresses lead to one replica; the newer one is used");
        }
        if welcome.size != self.settings.size {
            tracing::warn!(%member, theirs = welcome.size, ours = self.settings.size, "the replica has another size");
        }
        self.birth.welcomes.insert(member.clone(), welcome);
        if self.engine.is_some() {
            self.apply(EngineEvent::AddMember { member }, now);
        }
        self.try_start(now, out);
    }

    pub(super) fn nameless(&mut self, address: &Address, why: &str, now: Time, out: &mut Effects<Self>) {
        tracing::debug!(%address, why, "a replica does not say who it is");
        // One whose name was given is dialed by the engine itself, once there is one.
        let named = self.settings.replicas.iter().any(|replica| replica.address == *address && replica.name.is_some());
        if named && self.engine.is_some() {
            return;
        }
        let timer = out.io.timer();
        out.io.set_timer(timer, now.plus_millis(RETRY_MS));
        self.birth.retries.insert(timer, Retry::Name(address.clone()));
    }

    pub(super) fn birth_timer(&mut self, timer: TimerId, now: Time, out: &mut Effects<Self>) {
        if Some(timer) == self.birth.patience {
            self.birth.patience_over = true;
            self.try_start(now, out);
        }
        match self.birth.retries.remove(&timer) {
            Some(Retry::Name(address)) => self.members.ask_name(&address, now, &mut out.io),
            Some(Retry::Load) => {
                out.call(RecordCall::Load);
            }
            None => {}
        }
    }

    pub(super) fn loaded(&mut self, result: Result<Option<Record>, String>, now: Time, out: &mut Effects<Self>) {
        match result {
            Ok(record) => {
                self.birth.loaded = true;
                self.birth.record = record;
                self.try_start(now, out);
            }
            Err(why) => {
                tracing::warn!(why, "the record cannot be read; trying again");
                self.load_later(now, out);
            }
        }
    }

    fn load_later(&mut self, now: Time, out: &mut Effects<Self>) {
        let timer = out.io.timer();
        out.io.set_timer(timer, now.plus_millis(RETRY_MS));
        self.birth.retries.insert(timer, Retry::Load);
    }

    pub(super) fn created(&mut self, result: Result<Record, String>, now: Time, out: &mut Effects<Self>) {
        match result {
            Ok(record) => {
                self.birth.record = Some(record);
                self.try_start(now, out);
            }
            // Whoever keeps it may have made it, and died before saying so: what is there now decides.
            Err(why) => {
                tracing::warn!(why, "the record cannot be made; trying again");
                (self.birth.loaded, self.birth.creating) = (false, false);
                self.load_later(now, out);
            }
        }
    }

    fn try_start(&mut self, now: Time, out: &mut Effects<Self>) {
        if self.engine.is_some() || !self.birth.loaded {
            return;
        }
        if self.birth.record.is_some() {
            if self.birth.patience_over || !self.names_are_missing() {
                self.start(now);
            }
            return;
        }
        if !self.birth.nameless.is_empty() || self.birth.creating {
            if self.birth.patience_over && !self.birth.creating {
                let missing: Vec<_> = self.birth.nameless.iter().map(ToString::to_string).collect();
                tracing::warn!(?missing, "a new volume needs all of its replicas once; waiting for these");
            }
            return;
        }
        match first_members(&self.birth.welcomes) {
            Ok(members) => {
                self.birth.creating = true;
                // Nobody ever held it, so there is nobody's lease to wait for.
                out.call(RecordCall::Create(Record { released: true, ..Record::new(members) }));
            }
            Err(why) => self.give_up(why, out),
        }
    }

    /// Somebody has not said who he is, and nobody else has.
    fn names_are_missing(&self) -> bool {
        let named = |address: &Address| {
            let mut replicas = self.settings.replicas.iter();
            replicas.any(|replica| replica.address == *address && replica.name.is_some())
        };
        !self.birth.nameless.iter().all(named)
    }

    fn start(&mut self, now: Time) {
        let config = Config {
            holder: self.settings.holder,
            volume: self.settings.volume_id,
            geometry: Geometry::new(self.settings.size),
            limits: self.settings.limits,
            rules: self.settings.rules,
        };
        let members: Vec<_> = self.members.addresses.keys().cloned().collect();
        self.engine = Some(Engine::new(config, members));
        let event = if self.settings.standby {
            let record = self.birth.record.as_ref().expect("an engine must be started from a record");
            EngineEvent::StandBy { at: record.generation }
        } else {
            EngineEvent::Start { older_stopped: self.settings.older_stopped }
        };
        self.apply(event, now);
        self.submit(now);
    }
}

/// Which replicas a new record names.
fn first_members(welcomes: &BTreeMap<MemberId, Welcome>) -> Result<Vec<MemberId>, String> {
    let written: Vec<_> = welcomes.values().filter(|welcome| !welcome.fresh).map(|w| w.member.clone()).collect();
    match written.as_slice() {
        [] if welcomes.is_empty() => Err("a volume needs at least one replica: give --replica".to_owned()),
        [] => Ok(welcomes.keys().cloned().collect()),
        [one] => Ok(vec![one.clone()]),
        several => {
            let names: Vec<_> = several.iter().map(MemberId::as_str).collect();
            Err(format!(
                "there is no record, and several replicas hold data ({}): which of them is current cannot be told. \
                 Start with the one that is (--replica), add the others when it serves, or give the record that \
                 belongs to them",
                names.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn welcomes(replicas: &[(&str, bool)]) -> BTreeMap<MemberId, Welcome> {
        let welcome = |(name, fresh): &(&str, bool)| {
            let member = MemberId::new(name).expect("a name");
            (member.clone(), Welcome { member, size: 1, fresh: *fresh })
        };
        replicas.iter().map(welcome).collect()
    }

    #[test]
    fn a_new_record_names_replicas_that_are_known_to_be_equal() {
        let names = |members: Vec<MemberId>| members.iter().map(ToString::to_string).collect::<Vec<_>>();
        let table = [
            (vec![("a", true), ("b", true)], Some(vec!["a", "b"])),
            (vec![("a", true), ("b", false)], Some(vec!["b"])),
            (vec![("a", false), ("b", false)], None),
            (vec![], None),
        ];
        for (replicas, expected) in table {
            let got = first_members(&welcomes(&replicas)).map(names).ok();
            let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(got, expected, "{replicas:?}");
        }
    }
}
