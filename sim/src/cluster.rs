//! Replicas, engines and clients of one volume, and whoever runs them: starts, restarts, fails over, migrates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use tether_engine::auth::Key;
use tether_engine::engine_server::{Answer, Command, EngineServer, Info, Nbd, ReplicaAddress, Settings};
use tether_engine::frontend::nbd::listen::Security;
use tether_engine::host::{Address, CommandId};
use tether_engine::replica_server::{ReplicaServer, Settings as ReplicaSettings};
use tether_replication::engine::Limits;
use tether_replication::ids::{BootId, Holder, MemberId, VolumeId};
use tether_replication::rules::Rules;
use tether_store::files::fake::{FakeDisk, FakeFiles};
use tether_store::volume::{Create, Open, OpenError};
use tether_store::{Fault as DiskFault, Volume};
use uuid::Uuid;

use crate::client::{self, Client};
use crate::faults::{Fault, Places};
use crate::process::{Hosted, Kind, Process, Told};
use crate::record::Mood;
use crate::world::{Action, Host, Plant, World};

/// How often the volume is looked after, in microseconds.
const LOOK: u64 = 300_000;
/// Data that fits on a disk that is full: nothing more than what is there.
const FULL_BYTES: u64 = 4096;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub places: Places,
    pub clients: usize,
    /// Clients trim. Not beside snapshots: what is trimmed then shows the newest snapshot, by design of the layout,
    /// and a history that allows it allows too much.
    pub trims: bool,
    pub size: u64,
    pub rules: Rules,
    pub plant: Option<Plant>,
}

/// The volume and its people.
pub struct Cluster {
    pub world: World,
    pub shape: Shape,
    key: Key,
    /// Process of each replica, while it runs.
    pub replicas: Vec<Option<usize>>,
    /// Every engine ever started, the newest last.
    pub engines: Vec<usize>,
    pub clients: Vec<usize>,
    standby: Option<usize>,
    /// How often a write at a standby took the volume over, and how often a standby ended before its promotion.
    pub taken_over: u64,
    pub rolled_back: u64,
    serving: Vec<(usize, CommandId)>,
    pub info: Option<Info>,
    asked: Option<(usize, CommandId)>,
    /// Hosts that lost power since their replica was last known to hold everything.
    tainted: BTreeSet<usize>,
    /// Engines that are to be kept alive: off while a run ends.
    pub care: bool,
    pub stopped: Option<CommandId>,
    pub stop_done: bool,
}

fn address(port: usize) -> Address {
    Address::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16)))
}

pub fn member(replica: usize) -> MemberId {
    MemberId::new(&format!("r{replica}")).expect("a name must be short")
}

fn boot(host: usize, count: u64) -> u128 {
    (host as u128 + 1) << 64 | u128::from(count + 1)
}

impl Cluster {
    pub fn new(seed: u64, shape: Shape, keep_log: bool) -> Self {
        let mut world = World::new(seed, keep_log);
        world.plant = shape.plant;
        for host in 0..=shape.places.replicas + shape.places.engines {
            let disk = (host < shape.places.replicas).then(|| FakeDisk::new(world.random.next_u64()));
            let (offset, ppm) = (world.random.below(1_000_000_000), world.random.below(80_000) as i64 - 40_000);
            world.hosts.push(Host { up: true, offset, ppm, disk, slow: 1, boot: 0 });
        }
        let mut cluster = Self {
            world,
            shape,
            key: Key::from_bytes([7; 32]),
            replicas: vec![None; shape.places.replicas],
            engines: Vec::new(),
            clients: Vec::new(),
            standby: None,
            taken_over: 0,
            rolled_back: 0,
            serving: Vec::new(),
            info: None,
            asked: None,
            tainted: BTreeSet::new(),
            care: true,
            stopped: None,
            stop_done: false,
        };
        for replica in 0..shape.places.replicas {
            cluster.start_replica(replica);
        }
        cluster.start_engine(false);
        for number in 0..shape.clients {
            let seed = cluster.world.random.next_u64();
            let depth = 1 + cluster.world.random.below(4) as usize;
            let client = Client::new(number as u64 + 1, shape.size, depth, shape.trims, seed);
            let kind = Kind::Client(Box::new(Hosted::new(client, seed)));
            let host = shape.places.replicas + shape.places.engines;
            let index = cluster.world.spawn(Process::new(format!("client {number}"), host, kind));
            cluster.clients.push(index);
        }
        cluster.point_clients(true);
        cluster.world.queue.after(LOOK, Action::Look);
        cluster
    }

    /// The boot id as processes see it.
    fn boot_of(&self, host: usize) -> u128 {
        let count = if self.world.plant == Some(Plant::BootIsNotNoticed) { 0 } else { self.world.hosts[host].boot };
        boot(host, count)
    }

    fn open(&self, replica: usize) -> Result<Volume<FakeFiles>, OpenError> {
        let disk = self.world.hosts[replica].disk.clone().expect("a host of a replica must have a disk");
        let boot_id = Uuid::from_u128(self.boot_of(replica)).to_string();
        match Volume::open(disk.files(), &Open { volume: None, boot_id: boot_id.clone() }) {
            Err(OpenError::NotAReplica) => {
                let create = Create {
                    volume: String::new(),
                    replica: member(replica).to_string(),
                    size: self.shape.size,
                    boot_id,
                    created: "2026-01-01T00:00:00Z".to_owned(),
                };
                Volume::create(disk.files(), &create).map(|(volume, _)| volume)
            }
            other => other.map(|(volume, _)| volume),
        }
    }

    pub fn start_replica(&mut self, replica: usize) {
        if self.replicas[replica].is_some() || !self.world.hosts[replica].up {
            return;
        }
        let volume = match self.open(replica) {
            Ok(volume) => volume,
            Err(error) => {
                self.world.note(&format!("replica {replica} does not open: {error}"));
                self.world.queue.after(1_000_000, Action::Fault(Fault::StartReplica(replica)));
                return;
            }
        };
        let settings = ReplicaSettings {
            listen: vec![address(10_000 + replica)],
            key: self.key.clone(),
            boot: BootId(self.boot_of(replica)),
            rules: self.shape.rules,
        };
        let seed = self.world.random.next_u64();
        let kind = Kind::Replica(Box::new(Hosted::new(ReplicaServer::new(settings, volume), seed)));
        self.replicas[replica] = Some(self.world.spawn(Process::new(format!("replica {replica}"), replica, kind)));
    }

    fn kill_replica(&mut self, replica: usize, silently: bool) {
        if let Some(index) = self.replicas[replica].take() {
            self.world.kill(index, silently);
            if let Some(disk) = &self.world.hosts[replica].disk {
                disk.kill();
            }
        }
    }

    fn power_off(&mut self, replica: usize) {
        if !self.world.hosts[replica].up {
            return;
        }
        self.world.note(&format!("host {replica} loses power"));
        self.kill_replica(replica, true);
        let host = &mut self.world.hosts[replica];
        host.up = false;
        host.boot += 1;
        if let Some(disk) = &host.disk {
            disk.lose_power();
        }
        self.tainted.insert(replica);
    }

    fn power_on(&mut self, replica: usize) {
        if !self.world.hosts[replica].up {
            self.world.hosts[replica].up = true;
            self.world.note(&format!("host {replica} boots"));
            self.start_replica(replica);
            self.world.send_again();
        }
    }

    /// Whether the power of this host may fail without all in-sync hosts having lost theirs: then everything
    /// acknowledged must survive, and that is what is checked.
    fn may_lose_power(&self, replica: usize) -> bool {
        let Some(record) = &self.world.record.record else { return false };
        (0..self.replicas.len())
            .any(|other| other != replica && record.in_sync.contains(&member(other)) && !self.tainted.contains(&other))
    }

    /// Starts an engine on the next host for engines.
    pub fn start_engine(&mut self, standby: bool) -> usize {
        let number = self.engines.len() + usize::from(self.standby.is_some());
        let host = self.shape.places.replicas + number % self.shape.places.engines;
        let holder = Holder(u128::from(self.world.random.next_u64()) << 64 | (number as u128 + 1));
        let replicas = (0..self.replicas.len())
            .map(|replica| ReplicaAddress { name: Some(member(replica)), address: address(10_000 + replica) });
        // Somebody who ended every engine before may say so; then no lease is waited for.
        let older_stopped =
            self.engines.iter().all(|engine| !self.world.processes[*engine].alive) && self.world.random.coin();
        let settings = Settings {
            volume: "v1".to_owned(),
            volume_id: VolumeId(1),
            holder,
            size: self.shape.size,
            replicas: replicas.collect(),
            key: self.key.clone(),
            nbd: vec![Nbd { address: address(20_000 + self.world.processes.len()), security: Security::Clear }],
            limits: Limits::default(),
            older_stopped,
            peer_listen: Some(address(30_000 + self.world.processes.len())),
            standby,
            source: standby.then(|| address(30_000 + self.newest())),
            line: false,
            rules: self.shape.rules,
        };
        let seed = self.world.random.next_u64();
        let kind = Kind::Engine(Box::new(Hosted::new(EngineServer::new(settings), seed)));
        let mut process = Process::new(format!("engine {number}"), host, kind);
        process.holder = holder;
        let index = self.world.spawn(process);
        self.watch(index);
        if standby {
            self.standby = Some(index);
        } else {
            self.engines.push(index);
            if let Some(standby) = self.standby {
                self.world.command(standby, Command::Source { address: address(30_000 + index) });
            }
        }
        index
    }

    fn watch(&mut self, engine: usize) {
        let id = self.world.command(engine, Command::Serving);
        self.serving.push((engine, id));
    }

    pub fn newest(&self) -> usize {
        *self.engines.last().expect("an engine must have been started")
    }

    /// Tells clients where the volume is; all of them leave other places, or some stay.
    pub fn point_clients(&mut self, all: bool) {
        let address = address(20_000 + self.newest());
        for client in self.clients.clone() {
            let leave = all || self.world.random.coin();
            let old = self.world.peer_of_client(client).is_none_or(|peer| !self.world.processes[peer].alive);
            if leave || old {
                let command = client::Command::Move(address.clone());
                self.world.queue.after(0, Action::Told(client, Told::Client(command)));
            }
        }
    }

    /// Looks after the volume, and again later.
    pub fn look(&mut self) {
        for (process, id, answer) in std::mem::take(&mut self.world.answers) {
            self.answered(process, id, answer);
        }
        for index in std::mem::take(&mut self.world.finished) {
            self.world.kill(index, false);
            for replica in &mut self.replicas {
                replica.take_if(|process| *process == index);
            }
            if self.standby.take_if(|standby| *standby == index).is_some() {
                self.rolled_back += 1;
                self.point_clients(true);
            }
        }
        self.notice_promotion();
        for grown in std::mem::take(&mut self.world.record.grown) {
            self.tainted.retain(|replica| member(*replica) != grown);
        }
        let newest = self.newest();
        let over = !self.world.processes[newest].alive
            || self.info.as_ref().is_some_and(|info| matches!(info.phase.as_str(), "Fenced" | "Failed" | "Stopped"));
        if over && self.care {
            self.world.kill(newest, false);
            self.info = None;
            self.start_engine(false);
            self.point_clients(true);
        }
        let newest = self.newest();
        self.asked = Some((newest, self.world.command(newest, Command::Info)));
        self.world.queue.after(LOOK, Action::Look);
    }

    fn answered(&mut self, process: usize, id: CommandId, answer: Answer) {
        if self.stopped == Some(id) && process == self.newest() {
            self.stop_done = true;
        }
        if self.asked == Some((process, id)) {
            if let Answer::Info(info) = answer {
                self.info = Some(*info);
            }
            return;
        }
        if matches!(answer, Answer::Failed(_)) {
            self.world.note(&format!("{}: {answer:?}", self.world.processes[process].name));
        }
    }

    /// What must be known at the moment it happens: engines that begin to serve.
    pub fn listen(&mut self) {
        let Some(at) = self.world.answers.iter().position(|(process, id, _)| self.serving.contains(&(*process, *id)))
        else {
            return;
        };
        let (process, _, answer) = self.world.answers.remove(at);
        if answer != Answer::Done {
            return;
        }
        let Some(epoch) = self.world.record.epochs.get(&self.world.processes[process].holder).copied() else { return };
        let now = self.world.queue.now();
        self.world.note(&format!("{} serves at epoch {epoch}", self.world.processes[process].name));
        self.world.history.served(epoch, &self.world.record.epochs, now);
        if let Some(record) = &self.world.record.record
            && record.epoch == epoch
        {
            self.tainted.retain(|replica| !record.in_sync.contains(&member(*replica)));
        }
    }

    fn newest_may_go(&self) -> bool {
        self.world.processes[self.newest()].alive
    }

    /// Something goes wrong, or is put right.
    pub fn fault(&mut self, fault: Fault) {
        self.world.note(&format!("{fault:?}"));
        let newest = self.newest();
        match fault {
            Fault::KillReplica(replica) => self.kill_replica(replica, false),
            Fault::StartReplica(replica) => self.start_replica(replica),
            Fault::PowerOff(replica) if self.may_lose_power(replica) => self.power_off(replica),
            Fault::PowerOn(replica) => self.power_on(replica),
            Fault::PowerOffAll { engine } => self.power_off_all(engine),
            Fault::StopReplica(replica) => {
                if let Some(process) = self.replicas[replica] {
                    self.world.stop(process);
                }
            }
            Fault::ContReplica(replica) => {
                if let Some(process) = self.replicas[replica] {
                    self.world.cont(process);
                }
            }
            Fault::StopEngine => {
                self.world.stop(newest);
                let after = 500_000 + self.world.random.below(8_000_000);
                self.world.queue.after(after, Action::Fault(Fault::Cont(newest)));
            }
            Fault::Cont(process) => self.world.cont(process),
            Fault::KillEngine => self.world.kill(newest, false),
            Fault::Failover => {
                self.info = None;
                self.start_engine(false);
                self.point_clients(false);
            }
            Fault::KillOld => self.kill_old(),
            Fault::Standby if self.standby.is_none() && self.newest_may_go() => self.migrate(),
            Fault::PowerOff(_) | Fault::Standby => {}
            Fault::Promote => self.promote(),
            Fault::StrayWrites => self.stray_writes(),
            Fault::Rollback { at_source } => {
                if let Some(standby) = self.standby {
                    self.world.command(if at_source { newest } else { standby }, Command::Rollback { standby: None });
                }
            }
            Fault::KillStandby => {
                if let Some(standby) = self.standby.take() {
                    self.world.kill(standby, false);
                    self.point_clients(true);
                }
            }
            Fault::Confirm => self.confirm(),
            Fault::Cut(a, b) => self.world.cut(a, b),
            Fault::Heal(a, b) => self.world.heal(a, b),
            Fault::Reset(a, b) => self.world.reset_connections(a, b),
            Fault::Record(mood) => self.world.record.mood = mood,
            Fault::DiskFault(replica, hit) => {
                if let Some(disk) = &self.world.hosts[replica].disk {
                    disk.inject(hit.target(), self.world.random.below(4), DiskFault::Io);
                }
            }
            Fault::Full(replica) => self.space(replica, Some(FULL_BYTES)),
            Fault::Room(replica) => self.space(replica, None),
            Fault::Slow(replica) => self.world.hosts[replica].slow = 2000,
            Fault::Fast(replica) => self.world.hosts[replica].slow = 1,
            Fault::Snapshot(number) => {
                let (name, created) = (format!("s{number}"), "2026-01-01T00:00:00Z".to_owned());
                self.world.command(newest, Command::SnapshotCreate { name, created, labels: BTreeMap::default() });
            }
            Fault::DropSnapshot(number) => {
                self.world.command(newest, Command::SnapshotDelete { name: format!("s{number}") });
            }
        }
    }

    fn power_off_all(&mut self, engine: bool) {
        for replica in 0..self.replicas.len() {
            self.power_off(replica);
        }
        if engine {
            self.world.kill(self.newest(), false);
        }
        let now = self.world.queue.now();
        self.world.history.oracle.power_lost(now);
    }

    fn space(&mut self, replica: usize, bytes: Option<u64>) {
        if let Some(disk) = &self.world.hosts[replica].disk {
            disk.set_space(bytes);
        }
    }

    fn kill_old(&mut self) {
        let newest = self.newest();
        for engine in self.engines.clone() {
            if engine != newest {
                self.world.kill(engine, false);
            }
        }
        self.point_clients(true);
    }

    /// Engines before the newest are not wanted any more.
    fn confirm(&mut self) {
        let newest = self.newest();
        for engine in self.engines.clone() {
            if engine != newest && self.world.processes[engine].alive {
                self.world.command(engine, Command::Stop);
            }
        }
    }

    /// Starts a standby, at which some clients read.
    fn migrate(&mut self) {
        let standby = self.start_engine(true);
        self.send_clients(|| client::Command::Visit(address(20_000 + standby)));
    }

    /// Some clients write at the standby.
    fn stray_writes(&mut self) {
        if let Some(standby) = self.standby {
            self.send_clients(|| client::Command::Move(address(20_000 + standby)));
        }
    }

    fn send_clients(&mut self, command: impl Fn() -> client::Command) {
        for client in self.clients.clone() {
            if self.world.random.coin() {
                self.world.queue.after(0, Action::Told(client, Told::Client(command())));
            }
        }
    }

    /// A standby that took over, by itself or by a stray write, is the engine now.
    fn notice_promotion(&mut self) {
        let Some(record) = &self.world.record.record else { return };
        let holder = record.holder;
        if let Some(standby) = self.standby.take_if(|standby| self.world.processes[*standby].holder == holder) {
            self.world.note("a write took the volume over");
            self.taken_over += 1;
            self.engines.push(standby);
            self.info = None;
            self.point_clients(false);
        }
    }

    fn promote(&mut self) {
        let Some(standby) = self.standby.take() else { return };
        self.world.command(standby, Command::Promote);
        self.engines.push(standby);
        self.info = None;
        self.point_clients(false);
    }

    /// Puts everything right.
    pub fn heal_all(&mut self) {
        self.world.note("all faults end");
        let cuts: Vec<_> = self.world.cuts.keys().copied().collect();
        for (a, b) in cuts {
            while self.world.cuts.contains_key(&(a, b)) {
                self.world.heal(a, b);
            }
        }
        self.world.record.mood = Mood::Well;
        self.notice_promotion();
        if let Some(standby) = self.standby.take() {
            self.world.kill(standby, false);
        }
        for replica in 0..self.replicas.len() {
            self.space(replica, None);
            if let Some(disk) = &self.world.hosts[replica].disk {
                disk.clear_faults();
            }
            self.world.hosts[replica].slow = 1;
            // A disk that failed is of no use until its process is started again.
            self.kill_replica(replica, false);
            if self.world.hosts[replica].up {
                self.start_replica(replica);
            } else {
                self.power_on(replica);
            }
        }
        for process in 0..self.world.processes.len() {
            self.world.cont(process);
        }
        self.kill_old();
    }
}
