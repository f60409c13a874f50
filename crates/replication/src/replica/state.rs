//! Writes on their way to the store, and changes of the durable state: what waits for what.

use super::{Effect, InFlight, OpId, Parked, Promise, Replica, StateChange, StoreAnswer, StoreOp, To, What, send};
use crate::ids::Generation;
use crate::region::{Region, RegionSet};
use crate::wire::{Failure, ReplyBody};

/// The one change of the durable state that is under way, and the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Persisting {
    /// In the hands of the store.
    pub(super) op: Option<OpId>,
    /// Regions that become part of the log with it.
    adds: RegionSet,
    /// The promise that becomes durable with it.
    promise: Option<(Promise, Generation)>,
    /// It says that a chain of snapshots is about to be built.
    rebuilding: bool,
    /// To be answered when it is durable.
    answers: Vec<To>,
    next: Vec<StateChange>,
    next_answers: Vec<To>,
}

/// Writes that were applied while their log entry was still on its way (a model without the rule does that).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ahead {
    waiting: Vec<(To, (Region, Region), ReplyBody)>,
}

impl Replica {
    /// A request that changes data: logged first.
    pub(super) fn write(&mut self, to: To, offset: u64, len: u64, op: StoreOp, effects: &mut Vec<Effect>) {
        if !self.config.geometry.holds(offset, len) {
            return send(to.0, to.1, to.2, ReplyBody::Failed(Failure::Invalid), effects);
        }
        let touched = self.config.geometry.touched(offset, len);
        let regions = (touched.start, touched.end);
        let missing: RegionSet = touched.filter(|region| !self.durable.log.contains(*region)).collect();
        if missing.is_empty() {
            return self.issue(to, regions, What::Ordinary, op, effects);
        }
        let fresh: RegionSet = missing.iter().filter(|region| self.adding.insert(*region)).collect();
        if self.config.rules.log_ahead() {
            self.parked.push_back(Parked { conn: to.0, id: to.1, session: to.2, regions, op });
        } else {
            self.issue(to, regions, What::Ordinary, op, effects);
        }
        if !fresh.is_empty() {
            self.persist(StateChange::LogAdd(fresh), None, effects);
        }
    }

    /// Hands an operation to the store.
    pub(super) fn issue(
        &mut self,
        (conn, id, session): To,
        regions: (Region, Region),
        what: What,
        op: StoreOp,
        effects: &mut Vec<Effect>,
    ) {
        let number = self.number();
        self.in_flight.insert(number, InFlight { conn, id, session, regions, what });
        effects.push(Effect::Store { op: number, request: op });
    }

    fn number(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op)
    }

    /// The store finished an operation.
    pub(super) fn stored(&mut self, op: OpId, result: Result<StoreAnswer, Failure>, effects: &mut Vec<Effect>) {
        let Some(done) = self.in_flight.remove(&op) else { return };
        if self.in_flight.is_empty() {
            self.next_op = self.next_op_when_idle();
        }
        let body = match result {
            Err(failure) => ReplyBody::Failed(failure),
            Ok(StoreAnswer::Done) => ReplyBody::Done,
            Ok(StoreAnswer::Data(data)) => ReplyBody::Data(data),
            Ok(StoreAnswer::Extents(extents)) => ReplyBody::Extents(extents),
            Ok(StoreAnswer::Sum(sum)) => ReplyBody::Sum(sum),
            Ok(StoreAnswer::Chain { layers, chain }) => ReplyBody::Chain { layers, chain },
            Ok(StoreAnswer::Controlled { chain, size, body }) => {
                self.chain = chain;
                self.config.geometry.size = size;
                if done.what == What::ChainSet { ReplyBody::Done } else { ReplyBody::Controlled(body) }
            }
        };
        let to = (done.conn, done.id, done.session);
        if self.logged(done.regions) {
            send(to.0, to.1, to.2, body, effects);
        } else {
            self.ahead.waiting.push((to, done.regions, body));
        }
    }

    fn logged(&self, (first, end): (Region, Region)) -> bool {
        self.adding.is_empty() || !(first..end).any(|region| self.adding.contains(region))
    }

    /// Numbers start again when nothing is in flight: they need to be unique only among what is.
    fn next_op_when_idle(&self) -> u64 {
        self.persisting.op.map_or(0, |op| op.0)
    }

    /// Regions are equal everywhere, says the engine. A region with a write under way is not.
    pub(super) fn clear(&mut self, to: To, log: u64, regions: &RegionSet, effects: &mut Vec<Effect>) {
        if log != self.log_number {
            return send(to.0, to.1, to.2, ReplyBody::Failed(Failure::Session), effects);
        }
        let busy = |region: Region| {
            let in_store = self.in_flight.values().any(|write| (write.regions.0..write.regions.1).contains(&region));
            in_store || self.adding.contains(region)
        };
        let safe = self.config.rules.clear_only_quiet();
        let quiet: RegionSet =
            regions.iter().filter(|region| self.durable.log.contains(*region) && !(safe && busy(*region))).collect();
        if quiet.is_empty() {
            return send(to.0, to.1, to.2, ReplyBody::Done, effects);
        }
        self.persist(StateChange::LogClear(quiet), Some(to), effects);
    }

    /// Makes a change of the durable state; `answer` is told when it is durable.
    ///
    /// Additions to the log count only when they are durable ([`Replica::persisted`]); everything else counts at
    /// once, which is on the safe side: a region that is being cleared is logged again by the next write to it.
    pub(super) fn persist(&mut self, change: StateChange, answer: Option<To>, effects: &mut Vec<Effect>) {
        match &change {
            StateChange::LogAdd(_) | StateChange::Promise(..) => {}
            StateChange::LogClear(regions) if !self.config.rules.missed_map() => {
                regions.iter().for_each(|region| {
                    self.durable.log.remove(region);
                });
            }
            change => self.durable.apply(change),
        }
        self.persisting.next.push(change);
        self.persisting.next_answers.extend(answer);
        self.persist_next(effects);
    }

    fn persist_next(&mut self, effects: &mut Vec<Effect>) {
        if self.persisting.op.is_some() || self.persisting.next.is_empty() {
            return;
        }
        let changes = std::mem::take(&mut self.persisting.next);
        self.persisting.answers = std::mem::take(&mut self.persisting.next_answers);
        self.persisting.adds = changes
            .iter()
            .filter_map(|change| if let StateChange::LogAdd(regions) = change { Some(regions) } else { None })
            .flat_map(RegionSet::iter)
            .collect();
        self.persisting.promise = changes.iter().find_map(|change| match change {
            StateChange::Promise(promise, generation) => Some((*promise, *generation)),
            _ => None,
        });
        self.persisting.rebuilding = changes.contains(&StateChange::Rebuilding);
        let op = self.number();
        self.persisting.op = Some(op);
        effects.push(Effect::Store { op, request: StoreOp::Persist(changes) });
    }

    /// A change is durable, or the disk that holds the state failed: then nothing that relied on it is answered
    /// but with the failure.
    pub(super) fn persisted(&mut self, result: Result<StoreAnswer, Failure>, effects: &mut Vec<Effect>) {
        self.persisting.op = None;
        let adds = std::mem::take(&mut self.persisting.adds);
        let answers = std::mem::take(&mut self.persisting.answers);
        let failure = result.err();
        adds.iter().for_each(|region| {
            self.adding.remove(region);
        });
        for to in answers {
            let body = failure.map_or(ReplyBody::Done, ReplyBody::Failed);
            send(to.0, to.1, to.2, body, effects);
        }
        match failure {
            None => {
                self.durable.log.extend(adds.iter());
                self.issue_parked(effects);
                self.answer_ahead(effects);
            }
            Some(failure) => self.fail_parked(&adds, failure, effects),
        }
        if let Some((promise, generation)) = self.persisting.promise.take() {
            self.promise_persisted(promise, generation, failure, effects);
        }
        if std::mem::take(&mut self.persisting.rebuilding)
            && let Some((to, chain)) = self.chain_set.take()
        {
            match failure {
                None => self.issue(to, (0, 0), What::ChainSet, StoreOp::ChainSet { chain }, effects),
                Some(failure) => send(to.0, to.1, to.2, ReplyBody::Failed(failure), effects),
            }
        }
        self.persist_next(effects);
    }

    /// The promise counts now; the open that asked for it is answered, if no newer one took its place.
    fn promise_persisted(
        &mut self,
        promise: Promise,
        generation: Generation,
        failure: Option<Failure>,
        effects: &mut Vec<Effect>,
    ) {
        if failure.is_none() {
            self.durable.apply(&StateChange::Promise(promise, generation));
        }
        let Some(opening) = self.opening.filter(|opening| opening.promised && opening.promise == promise) else {
            return;
        };
        match failure {
            None => self.opened(effects),
            Some(failure) => {
                self.opening = None;
                send(opening.conn, opening.id, promise.session, ReplyBody::Failed(failure), effects);
            }
        }
    }

    fn issue_parked(&mut self, effects: &mut Vec<Effect>) {
        let parked = std::mem::take(&mut self.parked);
        for write in parked {
            if (write.regions.0..write.regions.1).all(|region| self.durable.log.contains(region)) {
                self.issue((write.conn, write.id, write.session), write.regions, What::Ordinary, write.op, effects);
            } else {
                self.parked.push_back(write);
            }
        }
    }

    fn answer_ahead(&mut self, effects: &mut Vec<Effect>) {
        let waiting = std::mem::take(&mut self.ahead.waiting);
        for (to, regions, body) in waiting {
            if self.logged(regions) {
                send(to.0, to.1, to.2, body, effects);
            } else {
                self.ahead.waiting.push((to, regions, body));
            }
        }
    }

    fn fail_parked(&mut self, regions: &RegionSet, failure: Failure, effects: &mut Vec<Effect>) {
        let parked = std::mem::take(&mut self.parked);
        for write in parked {
            if (write.regions.0..write.regions.1).any(|region| regions.contains(region)) {
                send(write.conn, write.id, write.session, ReplyBody::Failed(failure), effects);
            } else {
                self.parked.push_back(write);
            }
        }
    }
}
