//! One run: a seed, its faults, the end of faults, and what must be true then.

use tether_engine::engine_server::Command;
use tether_replication::rules::Rules;
use tether_store::files::fake::Random;
use tether_store::volume::Open;
use tether_store::{View, Volume, host};

use crate::client;
use crate::cluster::{Cluster, Shape, member};
use crate::faults::{Family, Fault, Places, plan};
use crate::oracle::{SECTOR, Value};
use crate::process::{Kind, Told};
use crate::world::{Action, Plant};

/// How long faults go on, in microseconds.
const FAULTS: u64 = 15_000_000;
/// After the last fault service resumes within this time (I5): a lease, the timeouts of a start and of clients, a
/// resync of a small volume.
const RECOVERY: u64 = 90_000_000;
/// Faults are drawn from a generator of their own, so that they stay when the machines change.
const FAULT_SEED: u64 = 0x5eed_fa17;
const MIB: u64 = 1 << 20;

/// A run as it is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub rules: Rules,
    pub plant: Option<Plant>,
    /// Kinds of faults; none: drawn from the seed.
    pub families: Option<Vec<Family>>,
    /// Exactly these, instead of drawn ones.
    pub script: Option<Vec<(u64, Fault)>>,
    pub keep_log: bool,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        Self { seed, rules: Rules::default(), plant: None, families: None, script: None, keep_log: false }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    pub hash: u64,
    pub failure: Option<String>,
    pub log: Vec<String>,
    /// Requests: done, failed, lost.
    pub requests: (u64, u64, u64),
    pub engines: usize,
    /// Reads that standbys answered, and how standbys ended: taken over by a write, rolled back.
    pub standby: (u64, u64, u64),
    /// Changes of the record.
    pub generations: u64,
    pub virtual_seconds: u64,
}

/// Runs it to its end.
pub fn run(asked: &Plan) -> Outcome {
    let mut random = Random::new(asked.seed ^ FAULT_SEED);
    let families = asked.families.clone().unwrap_or_else(|| Family::swarm(&mut random));
    let places = Places { replicas: 3, engines: 2 };
    let script = asked.script.clone().unwrap_or_else(|| plan(&families, places, FAULTS, &mut random));
    let shape = Shape {
        places,
        clients: 3,
        trims: !script.iter().any(|(_, fault)| matches!(fault, Fault::Snapshot(_))),
        size: 16 * MIB,
        rules: asked.rules,
        plant: asked.plant,
    };
    let mut cluster = Cluster::new(asked.seed, shape, asked.keep_log);
    let failure = go(&mut cluster, script).err().or_else(|| cluster.world.violation.clone().map(|v| v.0));
    if let Some(failure) = &failure {
        cluster.world.note(failure);
    }
    let history = &cluster.world.history;
    Outcome {
        hash: cluster.world.log.hash(),
        failure,
        requests: (history.done, history.failed, history.lost),
        engines: cluster.engines.len(),
        standby: (cluster.world.read_through, cluster.taken_over, cluster.rolled_back),
        generations: cluster.world.record.generations,
        virtual_seconds: cluster.world.queue.now() / 1_000_000,
        log: cluster.world.log.lines().to_vec(),
    }
}

fn go(cluster: &mut Cluster, faults: Vec<(u64, Fault)>) -> Result<(), String> {
    let last = faults.iter().map(|(at, _)| *at).max().unwrap_or(0);
    for (at, fault) in faults {
        cluster.world.queue.at(at, Action::Fault(fault));
    }
    advance(cluster, last.max(FAULTS / 2) + 1_000_000)?;
    cluster.heal_all();
    recover(cluster)?;
    quiesce(cluster)?;
    compare(cluster)
}

/// Lets things happen until `until`.
fn advance(cluster: &mut Cluster, until: u64) -> Result<(), String> {
    cluster.world.queue.at(until, Action::Mark);
    loop {
        let next = cluster.world.step();
        match next {
            Some(Action::Fault(fault)) => cluster.fault(fault),
            Some(Action::Look) => cluster.look(),
            Some(Action::Answered) => cluster.listen(),
            Some(_) => return Ok(()),
            None => {
                let why = cluster.world.violation.clone();
                return Err(why.map_or_else(|| "nothing happens any more".to_owned(), |violation| violation.0));
            }
        }
    }
}

fn wait(cluster: &mut Cluster, what: &str, most: u64, done: impl Fn(&Cluster) -> bool) -> Result<(), String> {
    let end = cluster.world.queue.now() + most;
    while !done(cluster) {
        if cluster.world.queue.now() > end {
            return Err(format!("{what} did not happen in {} s; engine: {:#?}", most / 1_000_000, cluster.info));
        }
        let next = cluster.world.queue.now() + 200_000;
        advance(cluster, next)?;
    }
    Ok(())
}

/// Service resumes when faults stop (I5), and every replica comes back.
fn recover(cluster: &mut Cluster) -> Result<(), String> {
    cluster.info = None;
    let all = cluster.shape.places.replicas;
    wait(cluster, "a volume in full health", RECOVERY, |cluster| {
        cluster.info.as_ref().is_some_and(|info| info.phase == "Serving" && info.in_sync.len() == all)
    })?;
    let before = cluster.world.history.done;
    wait(cluster, "service", RECOVERY, |cluster| cluster.world.history.done > before + 50)
}

/// Clients finish, the engine stops in order.
fn quiesce(cluster: &mut Cluster) -> Result<(), String> {
    for client in cluster.clients.clone() {
        cluster.world.queue.after(0, Action::Told(client, Told::Client(client::Command::Pause)));
    }
    let now = cluster.world.queue.now();
    advance(cluster, now + 1000)?;
    let idle = |cluster: &Cluster| {
        cluster.clients.iter().all(|client| match &cluster.world.processes[*client].kind {
            Kind::Client(hosted) => hosted.machine.idle(),
            _ => true,
        })
    };
    wait(cluster, "the end of all requests", RECOVERY, idle)?;
    cluster.care = false;
    let newest = cluster.newest();
    cluster.stopped = Some(cluster.world.command(newest, Command::Stop));
    wait(cluster, "the stop of the engine", RECOVERY, |cluster| cluster.stop_done)
}

/// All in-sync replicas hold the same bytes, and those that clients were told.
fn compare(cluster: &mut Cluster) -> Result<(), String> {
    const STEP: u64 = 256 * 1024;
    let record = cluster.world.record.record.clone().ok_or("no record")?;
    let now = cluster.world.queue.now();
    let mut volumes = Vec::new();
    for replica in (0..cluster.shape.places.replicas).filter(|replica| record.in_sync.contains(&member(*replica))) {
        let disk = cluster.world.hosts[replica].disk.clone().ok_or("no disk")?;
        disk.kill();
        let open = Open { volume: None, boot_id: String::new() };
        let (volume, _) = Volume::open(disk.files(), &open).map_err(|error| format!("replica {replica}: {error}"))?;
        volumes.push((replica, volume));
    }
    let chains: Vec<_> = volumes.iter().map(|(_, volume)| volume.chain().identity()).collect();
    if chains.iter().any(|chain| *chain != chains[0]) {
        return Err(format!("replicas in sync have different snapshots: {chains:x?}"));
    }
    let touched: Vec<_> = cluster.world.history.oracle.touched().collect();
    for offset in (0..cluster.shape.size).step_by(STEP as usize) {
        let mut first: Option<bytes::Bytes> = None;
        for (replica, volume) in &mut volumes {
            let data = host::read(volume, View::Live, offset, STEP).map_err(|error| format!("{replica}: {error}"))?;
            match &first {
                Some(first) if *first != data => {
                    let at = data.iter().zip(first).position(|(one, other)| one != other).unwrap_or(0);
                    return Err(format!(
                        "replica {replica} differs from another in-sync one at {}",
                        offset + at as u64
                    ));
                }
                Some(_) => {}
                None => first = Some(data),
            }
        }
        let data = first.ok_or("no replica is in sync")?;
        let here = offset / SECTOR as u64..(offset + STEP) / SECTOR as u64;
        for sector in touched.iter().copied().filter(|sector| here.contains(sector)) {
            let at = (sector - here.start) as usize * SECTOR;
            let value = Value::parse(sector, &data[at..at + SECTOR]);
            let read = cluster.world.history.oracle.read(sector, value, now, now);
            read.map_err(|violation| format!("on the disks after the end: {violation}"))?;
        }
    }
    Ok(())
}
