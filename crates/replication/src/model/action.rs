//! What can happen next in a world, and what it does.

use std::collections::VecDeque;

use bytes::Bytes;

use super::world::{BESIDE, FLUSH, LEASE, Link, READ, Scope, World, conn, member, write};
use crate::engine::{self, CasOutcome, IoOp, Phase};
use crate::ids::{Epoch, Session, Slot};
use crate::record::{Change, Record, Refusal};
use crate::replica;

/// One step; engines and replicas by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Start(u8),
    /// The record answers.
    Cas(u8),
    /// The record's answer is lost; the change may still happen.
    CasUnknown(u8),
    /// The record is not reached.
    CasNotSent(u8),
    Delayed,
    Dial(u8, u8),
    Arrive(u8, u8, Session),
    Answer(u8, u8),
    Store(u8, u8),
    Write(u8),
    WriteBeside(u8),
    Replay(u8),
    Flush(u8),
    Read(u8, u8),
    ReadSent(u8),
    Heartbeat(u8),
    Crash(u8),
    Break(u8, u8),
    /// An engine notices that a replica's end of a connection is gone.
    Notice(u8, u8),
    Suspect(u8, u8),
    Impatient(u8),
    Join(u8, u8),
    Restart(u8),
    Reboot(u8, Lost),
    BreakDisk(u8),
    Tick,
    StandBy(u8),
    Promote(u8),
    /// A promoted engine's message reaches the engine that it read through, and the answer comes back.
    StandDown(u8, u8),
    RollBack(u8),
    StandbyRead(u8, u8),
}

/// What a reboot does to writes that were not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lost {
    Everything,
    Nothing,
}

impl World {
    /// Everything that can happen.
    pub(super) fn actions(&self, scope: &Scope) -> Vec<Action> {
        let mut actions = Vec::new();
        for at in 0..self.hosts.len() as u8 {
            self.host_actions(scope, at, &mut actions);
        }
        for link in &self.links {
            if !link.to_replica.is_empty() {
                actions.push(Action::Arrive(link.engine, link.replica, link.session));
            }
            if link.alive && !link.to_engine.is_empty() {
                actions.push(Action::Answer(link.engine, link.replica));
            }
            if link.alive && link.dead_end {
                actions.push(Action::Notice(link.engine, link.replica));
            }
        }
        for at in 0..self.disks.len() as u8 {
            self.disk_actions(at, &mut actions);
        }
        if self.delayed.as_ref().is_some_and(|change| self.attempt(scope, change).is_ok()) {
            actions.push(Action::Delayed);
        }
        if self.budget.ticks > 0 && self.hosts.iter().any(|host| host.engine.is_some()) {
            actions.push(Action::Tick);
        }
        actions
    }

    fn disk_actions(&self, at: u8, actions: &mut Vec<Action>) {
        let disk = &self.disks[usize::from(at)];
        actions.extend((0..disk.ops.len() as u8).map(|op| Action::Store(at, op)));
        if self.budget.restarts > 0 {
            actions.push(Action::Restart(at));
        }
        if self.budget.reboots > 0 {
            actions.push(Action::Reboot(at, Lost::Nothing));
            if disk.value != disk.flushed {
                actions.push(Action::Reboot(at, Lost::Everything));
            }
        }
        if self.budget.errors > 0 && !disk.broken {
            actions.push(Action::BreakDisk(at));
        }
    }

    fn host_actions(&self, scope: &Scope, at: u8, actions: &mut Vec<Action>) {
        let host = &self.hosts[usize::from(at)];
        let Some(engine) = &host.engine else {
            let in_turn = (0..at).all(|other| self.hosts[usize::from(other)].starts > 0);
            if host.starts == 0 && in_turn {
                let target = scope.migration && at == 1;
                actions.push(if target { Action::StandBy(at) } else { Action::Start(at) });
            } else if host.starts == 1 && at == 0 && (!scope.rules.new_epoch() || !host.replay.is_empty()) {
                // A process that reuses its epoch, or sends again what it had sent, exists only without those rules.
                actions.push(Action::Start(at));
            }
            return;
        };
        if host.cas.is_some() {
            actions.push(Action::Cas(at));
            if self.budget.unknown > 0 && self.delayed.is_none() {
                actions.push(Action::CasUnknown(at));
            }
            if self.budget.unreachable > 0 {
                actions.push(Action::CasNotSent(at));
            }
        }
        actions.extend(host.dials.iter().map(|(slot, _)| Action::Dial(at, slot.0)));
        if self.budget.crashes > 0 {
            actions.push(Action::Crash(at));
        }
        if self.budget.impatience > 0 && engine.is_waiting_for_members(self.now) {
            actions.push(Action::Impatient(at));
        }
        if host.tells {
            let there = |other: &u8| {
                let host = &self.hosts[usize::from(*other)];
                *other != at && (host.engine.is_some() || host.ended.is_some())
            };
            actions.extend((0..self.hosts.len() as u8).filter(there).map(|source| Action::StandDown(at, source)));
        }
        self.replica_facing_actions(scope, at, actions);
        match engine.phase() {
            Phase::Serving => self.serving_actions(scope, at, actions),
            Phase::Standby => self.standby_actions(scope, at, actions),
            _ => {}
        }
    }

    fn replica_facing_actions(&self, _scope: &Scope, at: u8, actions: &mut Vec<Action>) {
        let Some(engine) = &self.hosts[usize::from(at)].engine else { return };
        for replica in 0..self.disks.len() as u8 {
            let slot = Slot(replica);
            if self.budget.breaks > 0
                && self.links.iter().any(|link| link.alive && (link.engine, link.replica) == (at, replica))
            {
                actions.push(Action::Break(at, replica));
            }
            if self.budget.suspicions > 0 && engine.can_suspect(slot) {
                actions.push(Action::Suspect(at, replica));
            }
            if self.budget.joins > 0 && engine.could_join().has(slot) {
                actions.push(Action::Join(at, replica));
            }
        }
    }

    fn serving_actions(&self, scope: &Scope, at: u8, actions: &mut Vec<Action>) {
        let host = &self.hosts[usize::from(at)];
        let Some(engine) = &host.engine else { return };
        if self.written < scope.writes {
            actions.push(Action::Write(at));
        }
        if self.budget.beside > 0 && scope.blocks > 1 {
            actions.push(Action::WriteBeside(at));
        }
        if !host.replay.is_empty() {
            actions.push(Action::Replay(at));
        }
        if self.budget.flushes > 0 && host.flush.is_none() {
            actions.push(Action::Flush(at));
        }
        if engine.lease_lapsed(self.now) {
            actions.push(Action::Heartbeat(at));
        }
        if scope.split_reads && host.reading.is_none() {
            actions.push(Action::ReadSent(at));
        }
        for slot in engine.could_read(self.now).iter().filter(|slot| !scope.split_reads && self.would_serve(at, *slot))
        {
            actions.push(Action::Read(at, slot.0));
        }
    }

    fn standby_actions(&self, scope: &Scope, at: u8, actions: &mut Vec<Action>) {
        if self.record.standby == self.hosts[usize::from(at)].engine.as_ref().map(engine::Engine::holder) {
            if !self.rolled_back {
                actions.push(Action::RollBack(at));
            }
            actions.push(Action::Promote(at));
        } else if !scope.rules.promotion_named() {
            actions.push(Action::Promote(at));
        }
        if !scope.rules.standby_reads_source() {
            actions.extend((0..self.disks.len() as u8).map(|replica| Action::StandbyRead(at, replica)));
        }
    }

    /// Whether a replica would answer a request of this engine.
    fn would_serve(&self, at: u8, slot: Slot) -> bool {
        let Some(engine) = &self.hosts[usize::from(at)].engine else { return false };
        let Some(session) = engine.open_session(slot) else { return false };
        let link = |link: &&Link| {
            link.alive && !link.dead_end && link.engine == at && link.session == session && link.replica == slot.0
        };
        let Some(link) = self.links.iter().find(link) else { return false };
        self.disks[usize::from(slot.0)].machine.serves(conn(link), engine.epoch(), session)
    }

    /// Takes one step, and all that follows from it at once.
    pub(super) fn step(&mut self, scope: &Scope, action: Action) {
        self.act(scope, action);
        self.settle(scope);
        if self.record.in_sync.is_empty() {
            self.violate("I5: nobody is in sync, so that nobody can ever serve");
        }
    }

    fn act(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Start(at) => {
                let older_stopped = self.older_stopped(scope, at);
                let replay = std::mem::take(&mut self.hosts[usize::from(at)].replay);
                self.spawn(scope, at);
                self.hosts[usize::from(at)].replay = replay;
                self.tell(scope, at, engine::Event::Start { older_stopped });
            }
            Action::Cas(at) => self.cas(scope, at),
            Action::CasUnknown(at) => {
                self.budget.unknown -= 1;
                let Some((id, change)) = self.hosts[usize::from(at)].cas.take() else { return };
                self.delayed = Some(change);
                self.tell(scope, at, engine::Event::Cas { id, outcome: CasOutcome::Unknown });
            }
            Action::CasNotSent(at) => {
                self.budget.unreachable -= 1;
                let Some((id, _)) = self.hosts[usize::from(at)].cas.take() else { return };
                self.tell(scope, at, engine::Event::Cas { id, outcome: CasOutcome::NotSent });
            }
            Action::Delayed => {
                if let Some(Ok(record)) = self.delayed.take().map(|change| self.attempt(scope, &change)) {
                    self.record = record;
                }
            }
            Action::Dial(at, replica) => self.dial(scope, at, replica),
            Action::Arrive(engine, replica, session) => {
                let found = |link: &Link| (link.engine, link.replica, link.session) == (engine, replica, session);
                if let Some(at) = self.links.iter().position(found) {
                    self.arrive(scope, at);
                }
            }
            Action::Answer(engine, replica) => {
                let found = |link: &Link| link.alive && (link.engine, link.replica) == (engine, replica);
                if let Some(at) = self.links.iter().position(found) {
                    self.answer(scope, at);
                }
            }
            Action::Store(at, op) => {
                let disk = &mut self.disks[usize::from(at)];
                let (op, request) = disk.ops.remove(usize::from(op));
                let result = disk.run(&request);
                self.tell_replica(scope, at, replica::Event::Stored { op, result });
            }
            action => self.act_frontend(scope, action),
        }
    }

    fn act_frontend(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Write(at) => {
                self.written += 1;
                let value = self.written;
                self.monitor.submit(value);
                for host in &mut self.hosts {
                    if let Some(kept) = host.flush.as_mut() {
                        kept.insert(value);
                    }
                    if let Some(seen) = host.reading.as_mut() {
                        seen.insert(value);
                    }
                }
                self.tell(scope, at, engine::Event::Io { id: engine::IoId(u64::from(value)), op: write(value) });
            }
            Action::WriteBeside(at) => {
                self.budget.beside -= 1;
                let op = IoOp::Write { offset: 1, data: Bytes::from_static(b"?"), fua: false };
                self.tell(scope, at, engine::Event::Io { id: BESIDE, op });
            }
            Action::Replay(at) => {
                let value = self.hosts[usize::from(at)].replay.remove(0);
                self.tell(scope, at, engine::Event::Io { id: engine::IoId(u64::from(value)), op: write(value) });
            }
            Action::Flush(at) => {
                self.budget.flushes -= 1;
                self.hosts[usize::from(at)].flush = Some(self.monitor.flush_sent());
                self.tell(scope, at, engine::Event::Io { id: FLUSH, op: IoOp::Flush });
            }
            Action::Read(at, replica) => self.read(scope, at, replica),
            Action::ReadSent(at) => {
                self.hosts[usize::from(at)].reading = Some(self.monitor.readable());
                self.tell(scope, at, engine::Event::Io { id: READ, op: IoOp::Read { offset: 0, len: 1 } });
            }
            Action::Heartbeat(at) => self.poke(scope, at, engine::Engine::heartbeat),
            Action::StandBy(at) => {
                self.spawn(scope, at);
                let generation = self.record.generation;
                self.tell(scope, at, engine::Event::StandBy { at: generation });
            }
            Action::Promote(at) => self.tell(scope, at, engine::Event::Promote),
            Action::StandDown(at, source) => self.stand_down(scope, at, source),
            Action::RollBack(at) => {
                self.rolled_back = true;
                let Some(standby) = self.hosts[usize::from(at)].engine.as_ref().map(engine::Engine::holder) else {
                    return;
                };
                if scope.rules.promotion_named()
                    && let Ok(record) = self.record.apply(&Change::ClearStandby { standby })
                {
                    self.record = record;
                }
            }
            Action::StandbyRead(_, replica) => {
                let value = self.disks[usize::from(replica)].value;
                if !self.monitor.read(value) {
                    self.violate("I3/I4: the standby read what no history explains");
                }
            }
            action => self.act_fault(scope, action),
        }
    }

    fn act_fault(&mut self, scope: &Scope, action: Action) {
        match action {
            Action::Crash(at) => {
                self.budget.crashes -= 1;
                self.kill(at);
            }
            Action::Break(at, replica) => {
                self.budget.breaks -= 1;
                let found = |link: &&mut Link| link.alive && (link.engine, link.replica) == (at, replica);
                let Some(link) = self.links.iter_mut().find(found) else { return };
                link.alive = false;
                link.to_engine.clear();
                let session = link.session;
                self.forget_idle_links();
                self.tell(scope, at, engine::Event::Disconnected { slot: Slot(replica), session });
            }
            Action::Notice(at, replica) => {
                let found =
                    |link: &&mut Link| link.alive && link.dead_end && (link.engine, link.replica) == (at, replica);
                let Some(link) = self.links.iter_mut().find(found) else { return };
                link.alive = false;
                let session = link.session;
                self.forget_idle_links();
                self.tell(scope, at, engine::Event::Disconnected { slot: Slot(replica), session });
            }
            Action::Suspect(at, replica) => {
                self.budget.suspicions -= 1;
                self.poke(scope, at, |engine, now, effects| engine.suspect(Slot(replica), now, effects));
            }
            Action::Impatient(at) => {
                self.budget.impatience -= 1;
                self.poke(scope, at, engine::Engine::give_up_waiting);
            }
            Action::Join(at, replica) => {
                self.budget.joins -= 1;
                self.tell(scope, at, engine::Event::AddMember { member: member(replica) });
            }
            Action::Restart(at) => {
                self.budget.restarts -= 1;
                self.restart_replica(scope, at);
            }
            Action::Reboot(at, lost) => self.reboot(scope, at, lost),
            Action::BreakDisk(at) => {
                self.budget.errors -= 1;
                self.disks[usize::from(at)].broken = true;
            }
            Action::Tick => {
                self.budget.ticks -= 1;
                self.now = self.now.after(LEASE);
                for at in 0..self.hosts.len() as u8 {
                    self.tell(scope, at, engine::Event::Timer);
                }
            }
            _ => unreachable!("handled above"),
        }
    }

    /// The source is told to stop, and says whether it has served and is stopped.
    fn stand_down(&mut self, scope: &Scope, at: u8, source: u8) {
        self.hosts[usize::from(at)].tells = false;
        let Some((by, epoch)) =
            self.hosts[usize::from(at)].engine.as_ref().map(|engine| (engine.holder(), engine.epoch()))
        else {
            return;
        };
        self.tell(scope, source, engine::Event::Superseded { by, epoch });
        if let Some(source) = self.hosts[usize::from(source)].ended {
            self.tell(scope, at, engine::Event::SourceStopped { source });
        }
    }

    /// The process of an engine is gone; what it had sent may still arrive.
    pub(super) fn kill(&mut self, at: u8) {
        let host = &mut self.hosts[usize::from(at)];
        (host.engine, host.cas, host.flush, host.reading) = (None, None, None, None);
        host.reading_across_loss = false;
        (host.tells, host.ended) = (false, None);
        host.dials.clear();
        for link in self.links.iter_mut().filter(|link| link.engine == at) {
            link.alive = false;
            link.to_engine.clear();
        }
        self.forget_idle_links();
    }

    fn dial(&mut self, scope: &Scope, at: u8, replica: u8) {
        let host = &mut self.hosts[usize::from(at)];
        let Some(found) = host.dials.iter().position(|(slot, _)| slot.0 == replica) else { return };
        let (slot, session) = host.dials.remove(found);
        self.links.push(Link {
            engine: at,
            replica,
            session,
            alive: true,
            dead_end: false,
            to_replica: VecDeque::new(),
            to_engine: VecDeque::new(),
        });
        self.forget_idle_links();
        self.tell(scope, at, engine::Event::Connected { slot, session });
    }

    fn reboot(&mut self, scope: &Scope, at: u8, lost: Lost) {
        self.budget.reboots -= 1;
        let before: Vec<(bool, u8)> = self.holdings();
        let disk = &mut self.disks[usize::from(at)];
        disk.boot += 1;
        disk.sure &= disk.durable.log.is_empty();
        match lost {
            Lost::Everything => disk.value = disk.flushed,
            Lost::Nothing => disk.flushed = disk.value,
        }
        self.restart_replica(scope, at);
        let after = self.holdings();
        let held = |holdings: &[(bool, u8)], value| holdings.iter().any(|(counts, held)| *counts && *held == value);
        let lost = |value| held(&before, value) && !held(&after, value);
        self.monitor.power_lost(lost);
        if (0..8).any(lost) {
            for host in self.hosts.iter_mut().filter(|host| host.reading.is_some()) {
                host.reading_across_loss = true;
            }
        }
    }

    /// Of each replica: whether it is recorded and surely holds its value, and the value.
    fn holdings(&self) -> Vec<(bool, u8)> {
        let recorded = |at: usize| self.record.in_sync.contains(&member(at as u8));
        self.disks.iter().enumerate().map(|(at, disk)| (recorded(at) && disk.sure, disk.value)).collect()
    }

    fn read(&mut self, scope: &Scope, at: u8, replica: u8) {
        let Some(engine) = &self.hosts[usize::from(at)].engine else { return };
        let current = engine.record().generation == self.record.generation && engine.holder() == self.record.holder;
        let outside = !self.record.in_sync.contains(&member(replica));
        if current && outside && scope.rules.grow_required_first() && scope.rules.record_opened() {
            self.violate("I4: a replica that is not in sync was read");
        }
        let value = self.disks[usize::from(replica)].value;
        if !self.monitor.read(value) {
            self.violate("I2/I3: a read returned what no history explains");
        }
    }

    /// What whoever starts an engine knows about older ones.
    fn older_stopped(&self, scope: &Scope, at: u8) -> bool {
        let stopped = |other: usize| {
            let engine = self.hosts[other].engine.as_ref();
            engine.is_none_or(|engine| {
                matches!(engine.phase(), Phase::Fenced | Phase::Failed | Phase::Stopped | Phase::Standby | Phase::Idle)
            })
        };
        let holds = |other: usize| {
            self.hosts[other].engine.as_ref().is_some_and(|engine| engine.holder() == self.record.holder)
        };
        (0..self.hosts.len())
            .filter(|other| *other != usize::from(at))
            .all(|other| stopped(other) || (!scope.rules.all_older_stopped() && !holds(other)))
    }

    /// What the record would say to a change, with the rules of this world.
    fn attempt(&self, scope: &Scope, change: &Change) -> Result<Record, Refusal> {
        let rules = scope.rules;
        let mut change = change.clone();
        if let Change::Shrink { by, at, .. } | Change::Grow { by, at, .. } | Change::Settle { by, at } = &mut change {
            if !rules.compare_generation() {
                *at = self.record.generation;
            }
            if !rules.holder() {
                *by = self.record.holder;
            }
        }
        match &change {
            Change::Shrink { by, at, keep }
                if !rules.last_member() && (*by, *at) == (self.record.holder, self.record.generation) =>
            {
                let mut record = self.record.clone();
                record.in_sync.clone_from(keep);
                record.generation = record.generation.next();
                Ok(record)
            }
            change => self.record.apply(change),
        }
    }

    fn cas(&mut self, scope: &Scope, at: u8) {
        let Some((id, change)) = self.hosts[usize::from(at)].cas.take() else { return };
        let starts = matches!(change, Change::Start { .. } | Change::Promote { .. });
        let seen = self.hosts[usize::from(at)].seen.clone().unwrap_or_default();
        let standby = self.hosts[usize::from(at)].engine.as_ref().is_some_and(|_| scope.migration && at == 1);
        if starts && standby && self.rolled_back && self.attempt(scope, &change).is_ok() {
            self.violate("I6: the standby was promoted after its rollback was done");
        }
        // Without holders, whoever finds the epoch that it wanted takes it for its own.
        let mistaken = starts && !scope.rules.holder() && self.record.epoch == Epoch(seen.epoch.0 + 1);
        let outcome = match self.attempt(scope, &change) {
            _ if mistaken => CasOutcome::Applied(self.record.clone()),
            Ok(record) => {
                self.record = record.clone();
                let stale = starts && !scope.rules.set_of_the_start();
                let in_sync = if stale { seen.in_sync } else { record.in_sync.clone() };
                CasOutcome::Applied(Record { in_sync, ..record })
            }
            Err(refusal) => CasOutcome::Refused { refusal, current: self.as_seen_by(scope, at) },
        };
        self.tell(scope, at, engine::Event::Cas { id, outcome });
    }

    /// Without holders an engine cannot tell that the epoch is somebody else's.
    fn as_seen_by(&self, scope: &Scope, at: u8) -> Record {
        let mut record = self.record.clone();
        if let Some(engine) = self.hosts[usize::from(at)].engine.as_ref()
            && !scope.rules.holder()
            && engine.epoch() == record.epoch
        {
            record.holder = engine.holder();
        }
        record
    }
}
