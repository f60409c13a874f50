//! What goes wrong, and when: a plan drawn from the seed before the run.
//!
//! Each seed uses only some families of faults ("swarm"): a run in which everything fails at once hides what two
//! faults do to each other.

use tether_store::files::fake::{Random, Target};

use crate::record::Mood;

/// One thing that goes wrong, or is put right. Replicas and hosts by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    KillReplica(usize),
    StartReplica(usize),
    /// The host of a replica loses power.
    PowerOff(usize),
    PowerOn(usize),
    /// All hosts of replicas lose power; with the engine if so.
    PowerOffAll {
        engine: bool,
    },
    StopReplica(usize),
    ContReplica(usize),
    StopEngine,
    /// The process of this number goes on.
    Cont(usize),
    KillEngine,
    /// A new engine is started while the old one lives.
    Failover,
    /// The old engines are ended.
    KillOld,
    /// A standby is started; some clients read there.
    Standby,
    Promote,
    /// Those clients begin to write, which takes the volume over.
    StrayWrites,
    /// The migration is given up: asked of the standby, or of the engine that holds the volume.
    Rollback {
        at_source: bool,
    },
    KillStandby,
    /// The migration is confirmed: engines before the newest one are stopped in order.
    Confirm,
    Cut(usize, usize),
    Heal(usize, usize),
    Reset(usize, usize),
    Record(MoodOf),
    DiskFault(usize, Hit),
    Full(usize),
    Room(usize),
    Slow(usize),
    Fast(usize),
    Snapshot(u32),
    DropSnapshot(u32),
}

/// [`Mood`] as a fault names it.
pub type MoodOf = Mood;

/// What a disk fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hit {
    Read,
    Write,
    Sync,
}

impl Hit {
    pub fn target(self) -> Target {
        match self {
            Self::Read => Target::Read,
            Self::Write => Target::Write,
            Self::Sync => Target::Sync,
        }
    }
}

/// Kinds of faults that a run draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    ReplicaKill,
    ReplicaPower,
    ReplicaStop,
    EngineKill,
    EngineStop,
    Failover,
    Migration,
    Partition,
    Reset,
    Record,
    Disk,
    Space,
    Slow,
    TotalPower,
    Snapshots,
}

impl Family {
    pub const ALL: [Self; 15] = [
        Self::ReplicaKill,
        Self::ReplicaPower,
        Self::ReplicaStop,
        Self::EngineKill,
        Self::EngineStop,
        Self::Failover,
        Self::Migration,
        Self::Partition,
        Self::Reset,
        Self::Record,
        Self::Disk,
        Self::Space,
        Self::Slow,
        Self::TotalPower,
        Self::Snapshots,
    ];

    /// Some of them: three to seven.
    pub fn swarm(random: &mut Random) -> Vec<Self> {
        let mut all = Self::ALL.to_vec();
        let wanted = 3 + random.below(5) as usize;
        while all.len() > wanted {
            all.swap_remove(random.below(all.len() as u64) as usize);
        }
        all
    }
}

impl Family {
    /// Some of them, migration always.
    pub fn moving(random: &mut Random) -> Vec<Self> {
        let mut some = Self::swarm(random);
        if !some.contains(&Self::Migration) {
            some[0] = Self::Migration;
        }
        some
    }
}

/// Where things are.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    pub replicas: usize,
    /// Hosts of engines follow those of replicas.
    pub engines: usize,
}

/// What happens in the first `duration` microseconds.
pub fn plan(families: &[Family], places: Places, duration: u64, random: &mut Random) -> Vec<(u64, Fault)> {
    let mut plan = Vec::new();
    let mut now = 1_500_000;
    let mut snapshots = 0;
    while now < duration && !families.is_empty() {
        let family = families[random.below(families.len() as u64) as usize];
        draw(family, now, places, &mut snapshots, random, &mut plan);
        now += match random.below(3) {
            0 => random.below(50_000),
            1 => random.below(1_000_000),
            _ => random.below(5_000_000),
        };
    }
    plan
}

fn draw(
    family: Family,
    now: u64,
    places: Places,
    snapshots: &mut u32,
    random: &mut Random,
    plan: &mut Vec<(u64, Fault)>,
) {
    let replica = random.below(places.replicas as u64) as usize;
    let engine = places.replicas + random.below(places.engines as u64) as usize;
    let short = 20_000 + random.below(900_000);
    let long = if random.coin() { short } else { 1_000_000 + random.below(6_000_000) };
    let mut put = |at: u64, fault: Fault| plan.push((at, fault));
    match family {
        Family::ReplicaKill => {
            put(now, Fault::KillReplica(replica));
            put(now + long, Fault::StartReplica(replica));
        }
        Family::ReplicaPower => {
            put(now, Fault::PowerOff(replica));
            put(now + long, Fault::PowerOn(replica));
        }
        Family::ReplicaStop => {
            put(now, Fault::StopReplica(replica));
            put(now + long, Fault::ContReplica(replica));
        }
        Family::EngineKill => put(now, Fault::KillEngine),
        Family::EngineStop => put(now, Fault::StopEngine),
        Family::Failover => {
            match random.below(4) {
                0 | 1 => put(now, Fault::StopEngine),
                2 => {
                    put(now, Fault::Cut(replica, engine));
                    put(now + 2 * long, Fault::Heal(replica, engine));
                }
                _ => {}
            }
            put(now + random.below(500_000), Fault::Failover);
            put(now + 8_000_000, Fault::KillOld);
        }
        Family::Migration => {
            put(now, Fault::Standby);
            let end = match random.below(8) {
                0..3 => Fault::Promote,
                3..5 => Fault::StrayWrites,
                5 | 6 => Fault::Rollback { at_source: random.coin() },
                _ => Fault::KillStandby,
            };
            put(now + 1_000_000 + short, end);
            // Decided soon after: confirmed, or rolled back by a new engine where the source was.
            let decided = now + 1_000_000 + short + random.below(3_000_000);
            match random.below(4) {
                0 | 1 => put(decided, Fault::Confirm),
                2 => put(decided, Fault::Failover),
                _ => {}
            }
            put(now + 9_000_000, Fault::KillOld);
        }
        Family::Partition => {
            put(now, Fault::Cut(replica, engine));
            put(now + long, Fault::Heal(replica, engine));
        }
        Family::Reset => put(now, Fault::Reset(replica, engine)),
        Family::Record => {
            put(now, Fault::Record(if random.coin() { Mood::Away } else { Mood::Flaky }));
            put(now + long, Fault::Record(Mood::Well));
        }
        Family::Disk => {
            let hit = [Hit::Read, Hit::Write, Hit::Sync][random.below(3) as usize];
            put(now, Fault::DiskFault(replica, hit));
            put(now + 2_000_000 + long, Fault::KillReplica(replica));
            put(now + 2_500_000 + long, Fault::StartReplica(replica));
        }
        Family::Space => {
            put(now, Fault::Full(replica));
            put(now + long, Fault::Room(replica));
        }
        Family::Slow => {
            put(now, Fault::Slow(replica));
            put(now + long, Fault::Fast(replica));
        }
        Family::TotalPower => {
            put(now, Fault::PowerOffAll { engine: random.coin() });
            for replica in 0..places.replicas {
                put(now + 100_000 + random.below(2_000_000), Fault::PowerOn(replica));
            }
        }
        Family::Snapshots => {
            *snapshots += 1;
            put(now, Fault::Snapshot(*snapshots));
            if random.coin() {
                put(now + long, Fault::DropSnapshot(*snapshots));
            }
        }
    }
}
