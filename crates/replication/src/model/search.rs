//! Breadth-first search over worlds: the first violation found is a shortest one.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::action::Action;
use super::world::{Scope, World, member};
use crate::engine::{Engine, Event, Phase};

/// What a search found.
pub(super) struct Found {
    pub(super) states: usize,
    pub(super) steps: u64,
    pub(super) depth: usize,
    pub(super) violation: Option<(&'static str, Vec<Action>)>,
    /// All reachable states were visited.
    pub(super) complete: bool,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} states, {} steps, depth {}", self.states, self.steps, self.depth)?;
        match &self.violation {
            Some((what, trace)) => {
                write!(f, ": {what}")?;
                trace.iter().enumerate().try_for_each(|(at, action)| write!(f, "\n    {:2}. {action:?}", at + 1))
            }
            None if self.complete => f.write_str(", complete, no violation"),
            None => f.write_str(", cut off, no violation so far"),
        }
    }
}

/// A quick hash of 64 bits: among a few million states two of one fingerprint are most unlikely.
#[derive(Default)]
struct Quick(u64);

impl Hasher for Quick {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0.rotate_left(23) ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

type Fingerprints = HashSet<u64, BuildHasherDefault<Quick>>;

fn fingerprint(world: &World) -> u64 {
    let mut hasher = Quick::default();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Recovery is tried from one state in so many: it is much more work than a step.
const RECOVERY_EVERY: usize = 61;

/// Searches from `first`, up to `max_states`.
pub(super) fn search(scope: &Scope, first: World, max_states: usize, recovery: bool) -> Found {
    let mut seen = Fingerprints::default();
    seen.insert(fingerprint(&first));
    let mut parents: Vec<(usize, Option<Action>)> = vec![(0, None)];
    let (mut frontier, mut next) = (vec![(first, 0)], Vec::new());
    let mut found = Found { states: 1, steps: 0, depth: 0, violation: None, complete: false };
    while !frontier.is_empty() {
        for (world, id) in frontier.drain(..) {
            if recovery && id % RECOVERY_EVERY == 0 && !recovers(scope, &world) {
                found.violation = Some(("I5: without faults a new engine does not come to serve", trace(&parents, id)));
                return found;
            }
            if recovery && id % RECOVERY_EVERY == 0 && !goes_on(scope, &world) {
                found.violation = Some(("I5: without faults the engine does not go on", trace(&parents, id)));
                return found;
            }
            for action in world.actions(scope) {
                let mut after = world.clone();
                after.step(scope, action);
                found.steps += 1;
                if let Some(what) = after.violation {
                    parents.push((id, Some(action)));
                    found.violation = Some((what, trace(&parents, parents.len() - 1)));
                    found.depth += 1;
                    return found;
                }
                if seen.insert(fingerprint(&after)) {
                    parents.push((id, Some(action)));
                    found.states += 1;
                    next.push((after, parents.len() - 1));
                }
            }
            if found.states > max_states {
                return found;
            }
        }
        found.depth += 1;
        std::mem::swap(&mut frontier, &mut next);
    }
    found.complete = true;
    found
}

fn trace(parents: &[(usize, Option<Action>)], mut id: usize) -> Vec<Action> {
    let mut trace = Vec::new();
    while let (parent, Some(action)) = parents[id] {
        trace.push(action);
        id = parent;
    }
    trace.reverse();
    trace
}

/// I5: when faults stop, a new engine serves; with all members, and with any one that is not doubtful.
fn recovers(scope: &Scope, world: &World) -> bool {
    let recorded: Vec<u8> = (0..scope.replicas).filter(|at| world.record.in_sync.contains(&member(*at))).collect();
    let alone: Vec<u8> = recorded
        .iter()
        .copied()
        .filter(|at| !world.disks[usize::from(*at)].durable.doubtful || recorded.len() == 1)
        .collect();
    serves_with(scope, world, &recorded) && alone.iter().all(|at| serves_with(scope, world, &[*at]))
}

/// A new engine is started and reaches only these replicas.
fn serves_with(scope: &Scope, world: &World, reachable: &[u8]) -> bool {
    let mut world = world.clone();
    let scope = Scope { fine: &[], fine_answers: &[], fine_store: false, slow_copies: false, ..scope.clone() };
    let at = world.hosts.len() as u8;
    let mut host = world.hosts[0].clone();
    (host.engine, host.cas, host.starts) = (None, None, 0);
    host.dials.clear();
    world.hosts.push(host);
    for old in 0..at {
        world.kill(old);
    }
    world.links.clear();
    for disk in 0..world.disks.len() as u8 {
        while !world.disks[usize::from(disk)].ops.is_empty() {
            world.step(&scope, Action::Store(disk, 0));
        }
    }
    world.step(&scope, Action::Start(at));
    world.delayed = None;
    for _ in 0..20 {
        let host = &world.hosts[usize::from(at)];
        let Some(engine) = &host.engine else { return false };
        if engine.phase() == Phase::Serving {
            return true;
        }
        let dial = host.dials.iter().map(|(slot, _)| slot.0).find(|replica| reachable.contains(replica));
        let action = match dial {
            _ if host.cas.is_some() => Action::Cas(at),
            Some(replica) => Action::Dial(at, replica),
            None => {
                world.budget.impatience = 1;
                world.budget.ticks = 1;
                if engine.is_waiting_for_members(world.now) { Action::Impatient(at) } else { Action::Tick }
            }
        };
        world.step(&scope, action);
    }
    world.tell(&scope, at, Event::Timer);
    false
}

/// I5 for an engine that lives: when faults stop and nobody else wants the volume, it does all that was asked of it,
/// or says that it cannot.
fn goes_on(scope: &Scope, world: &World) -> bool {
    let holds = |at: &u8| {
        let engine = world.hosts[usize::from(*at)].engine.as_ref();
        engine.is_some_and(|engine| engine.is_established() && engine.holder() == world.record.holder)
    };
    (0..world.hosts.len() as u8).find(holds).is_none_or(|at| is_well_in_the_end(scope, world, at))
}

fn is_well_in_the_end(scope: &Scope, world: &World, at: u8) -> bool {
    let mut world = world.clone();
    let scope = Scope { fine: &[], fine_answers: &[], fine_store: false, slow_copies: false, ..scope.clone() };
    for other in (0..world.hosts.len() as u8).filter(|other| *other != at) {
        world.kill(other);
    }
    for disk in 0..world.disks.len() as u8 {
        while !world.disks[usize::from(disk)].ops.is_empty() {
            world.step(&scope, Action::Store(disk, 0));
        }
    }
    world.settle(&scope);
    for _ in 0..12 {
        world.poke(&scope, at, Engine::end_pauses);
        let Some(engine) = &world.hosts[usize::from(at)].engine else { return true };
        if engine.is_well() {
            return true;
        }
        world.budget.ticks = 1;
        for action in fair_turn(&world, at) {
            world.step(&scope, action);
        }
    }
    false
}

/// Everything that waits to happen to an engine happens once, and time goes by.
fn fair_turn(world: &World, at: u8) -> Vec<Action> {
    let host = &world.hosts[usize::from(at)];
    let gone = world.links.iter().filter(|link| link.alive && link.dead_end && link.engine == at);
    let mut turn: Vec<_> = gone.map(|link| Action::Notice(at, link.replica)).collect();
    turn.extend(host.cas.is_some().then_some(Action::Cas(at)));
    turn.extend(host.dials.iter().map(|(slot, _)| Action::Dial(at, slot.0)));
    turn.push(Action::Tick);
    turn
}
