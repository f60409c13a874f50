//! A disk that fails on purpose, the same way for the same seed.
//!
//! It is one directory in memory, twice: what processes see, and what is durable. [`FakeDisk::kill`] ends the
//! process and keeps what it saw; [`FakeDisk::lose_power`] keeps what was durable, and of the rest whatever the
//! dice say: each dirty sector old or new, each change of a name made or not. Space can run out, operations can
//! fail, bits can flip, and the power can fail at the n-th step.

mod inode;
mod random;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Abilities, EachExtent, Files, Stat};
use crate::AlignedBuf;
use crate::buffer::BLOCK;
use crate::host::RunOp;
use crate::op::{Fault, FileId, FileOp, OpId, OpKind, OpResult};

use inode::Inode;
pub use random::Random;

/// The disk. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct FakeDisk(Arc<Mutex<Disk>>);

/// The directory as one process sees it; useless after the process was killed or the power failed.
#[derive(Debug)]
pub struct FakeFiles {
    disk: FakeDisk,
    process: u64,
}

/// What an injected fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Read,
    /// Writes, zeroes and holes.
    Write,
    /// `fdatasync`, and writes that are synced at once.
    Sync,
    /// Anything done through [`Files`].
    Metadata,
}

#[derive(Debug)]
struct Disk {
    random: Random,
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// Changes of names since the directory was synced.
    renames: Vec<NameChange>,
    next_inode: u64,
    /// Ticks with every change, so that times of change differ.
    clock_ns: i64,
    process: u64,
    open: Vec<Option<u64>>,
    /// Blocks that fit; none: no limit.
    space: Option<u64>,
    /// Faults to come: what, after how many more, how.
    faults: Vec<(Target, u64, Fault)>,
    /// One in so many operations fails; 0: none.
    fault_odds: u64,
    /// Steps until the power fails.
    power: Option<u64>,
    dead: bool,
    steps: u64,
}

#[derive(Debug, Clone)]
enum NameChange {
    Set { name: String, inode: u64 },
    Remove { name: String },
    Rename { from: String, to: String, inode: u64 },
}

fn dead() -> io::Error {
    io::Error::other("the process is dead")
}

impl FakeDisk {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            random: Random::new(seed),
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renames: Vec::new(),
            next_inode: 2,
            clock_ns: 1_000_000_000,
            process: 0,
            open: Vec::new(),
            space: None,
            faults: Vec::new(),
            fault_odds: 0,
            power: None,
            dead: false,
            steps: 0,
        })))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no holder of the lock must panic")
    }

    /// Starts a process on the disk.
    pub fn files(&self) -> FakeFiles {
        FakeFiles { disk: self.clone(), process: self.disk().process }
    }

    /// Ends all processes; what they wrote is seen by the next.
    pub fn kill(&self) {
        let mut disk = self.disk();
        disk.process += 1;
        disk.open.clear();
        disk.power = None;
        disk.dead = false;
    }

    /// Ends all processes and loses what was not durable, as far as the dice say.
    pub fn lose_power(&self) {
        self.disk().lose_power();
    }

    /// Lets the power fail at the `steps`-th change from now: nothing is changed any more, everything fails.
    /// Then [`lose_power`](Self::lose_power) is due.
    pub fn fail_power_after(&self, steps: u64) {
        self.disk().power = Some(steps);
    }

    /// Whether the power failed.
    pub fn is_dead(&self) -> bool {
        self.disk().dead
    }

    /// Changes made so far.
    pub fn steps(&self) -> u64 {
        self.disk().steps
    }

    /// Limits the disk to so many bytes of data; none lifts it.
    pub fn set_space(&self, bytes: Option<u64>) {
        self.disk().space = bytes.map(|bytes| bytes / BLOCK);
    }

    /// Makes the `after`-th operation of a kind from now fail (0: the next).
    pub fn inject(&self, target: Target, after: u64, fault: Fault) {
        self.disk().faults.push((target, after, fault));
    }

    /// Takes back faults that were injected and have not happened yet.
    pub fn heal(&self) {
        let mut disk = self.disk();
        disk.faults.clear();
        disk.fault_odds = 0;
    }

    /// Takes back faults that were injected and have not hit anything yet.
    pub fn clear_faults(&self) {
        self.disk().faults.clear();
    }

    /// Makes one in `odds` operations fail; 0 none.
    pub fn set_fault_odds(&self, odds: u64) {
        self.disk().fault_odds = odds;
    }

    /// Flips a bit of a file, as a failing medium would. False if there is no such place.
    pub fn flip_bit(&self, name: &str, byte: u64, bit: u8) -> bool {
        let mut disk = self.disk();
        let Some(inode) = disk.names.get(name).copied() else { return false };
        disk.inodes.get_mut(&inode).is_some_and(|inode| inode.flip_bit(byte, bit))
    }

    /// Runs an operation. One that belongs to a dead process fails.
    pub fn run(&self, op: FileOp) -> (OpId, OpResult) {
        let id = op.id;
        let result = match self.disk().run(op) {
            Ok(Some(buffer)) => OpResult::Read(buffer),
            Ok(None) => OpResult::Done,
            Err(fault) => OpResult::Failed(fault),
        };
        (id, result)
    }

    /// The whole of a file as processes see it, for assertions.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk();
        Some(disk.inodes[disk.names.get(name)?].contents())
    }

    /// Puts a file there, durably, as another program would.
    pub fn put(&self, name: &str, contents: &[u8]) {
        let mut disk = self.disk();
        let inode = disk.new_inode();
        let made = disk.inodes.get_mut(&inode).expect("the inode must have just been made");
        made.replace(contents);
        made.sync();
        disk.set_name(name, inode);
        disk.sync_names();
    }

    /// Names of all files.
    pub fn names(&self) -> Vec<String> {
        self.disk().names.keys().cloned().collect()
    }
}

impl Disk {
    /// One change: the power may fail before it.
    fn step(&mut self) -> Result<(), Fault> {
        if self.dead {
            return Err(Fault::Io);
        }
        if let Some(left) = &mut self.power {
            if *left == 0 {
                self.dead = true;
                return Err(Fault::Io);
            }
            *left -= 1;
        }
        self.steps += 1;
        self.clock_ns += 1000;
        Ok(())
    }

    /// Whether this operation is to fail.
    fn faulty(&mut self, target: Target) -> Result<(), Fault> {
        if self.dead {
            return Err(Fault::Io);
        }
        if self.fault_odds > 0 && self.random.below(self.fault_odds) == 0 {
            return Err(Fault::Io);
        }
        let mut hit = None;
        self.faults.retain_mut(|(of, after, fault)| {
            if *of != target || hit.is_some() {
                return true;
            }
            if *after == 0 {
                hit = Some(*fault);
                return false;
            }
            *after -= 1;
            true
        });
        hit.map_or(Ok(()), Err)
    }

    fn new_inode(&mut self) -> u64 {
        let inode = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(inode, Inode::new(self.clock_ns));
        inode
    }

    fn set_name(&mut self, name: &str, inode: u64) {
        self.names.insert(name.to_owned(), inode);
        self.renames.push(NameChange::Set { name: name.to_owned(), inode });
    }

    fn sync_names(&mut self) {
        self.durable_names = self.names.clone();
        self.renames.clear();
        self.forget_unnamed();
    }

    /// Drops files that nothing refers to.
    fn forget_unnamed(&mut self) {
        let Self { names, durable_names, renames, open, inodes, .. } = self;
        inodes.retain(|inode, _| {
            names.values().chain(durable_names.values()).any(|named| named == inode)
                || open.contains(&Some(*inode))
                || renames.iter().any(|change| match change {
                    NameChange::Set { inode: named, .. } | NameChange::Rename { inode: named, .. } => named == inode,
                    NameChange::Remove { .. } => false,
                })
        });
    }

    fn lose_power(&mut self) {
        let changes = std::mem::take(&mut self.renames);
        // Journals keep a prefix; the standard promises less. Both happen.
        let prefix = self.random.coin().then(|| self.random.below(changes.len() as u64 + 1));
        for (index, change) in changes.into_iter().enumerate() {
            if !prefix.map_or_else(|| self.random.coin(), |length| (index as u64) < length) {
                continue;
            }
            match change {
                NameChange::Set { name, inode } => drop(self.durable_names.insert(name, inode)),
                NameChange::Remove { name } => drop(self.durable_names.remove(&name)),
                NameChange::Rename { from, to, inode } => {
                    if self.durable_names.get(&from) == Some(&inode) {
                        self.durable_names.remove(&from);
                    }
                    self.durable_names.insert(to, inode);
                }
            }
        }
        self.names = self.durable_names.clone();
        self.open.clear();
        self.process += 1;
        self.power = None;
        self.dead = false;
        let mood = self.random.below(4);
        let Self { inodes, random, .. } = self;
        for inode in inodes.values_mut() {
            inode.lose_power(random, mood);
        }
        self.forget_unnamed();
    }

    fn used(&self) -> u64 {
        self.inodes.values().map(Inode::blocks).sum()
    }

    fn room_for(&self, blocks: u64) -> Result<(), Fault> {
        match self.space {
            Some(space) if self.used() + blocks > space => Err(Fault::NoSpace),
            _ => Ok(()),
        }
    }

    fn inode(&mut self, file: FileId) -> Result<u64, Fault> {
        self.open.get(file.0 as usize).copied().flatten().ok_or(Fault::Io)
    }

    fn run(&mut self, op: FileOp) -> Result<Option<AlignedBuf>, Fault> {
        let number = self.inode(op.file)?;
        let (target, needed) = {
            let inode = &self.inodes[&number];
            match &op.kind {
                OpKind::Read { .. } => (Target::Read, 0),
                OpKind::Write { data, .. } => (Target::Write, inode.missing(op.offset, data.len() as u64)),
                OpKind::Zero { len } => (Target::Write, inode.missing(op.offset, *len)),
                OpKind::Punch { .. } => (Target::Write, 0),
                OpKind::Sync => (Target::Sync, 0),
            }
        };
        self.faulty(target)?;
        if target == Target::Read {
            let OpKind::Read { mut buffer } = op.kind else { return Ok(None) };
            self.inodes[&number].read(op.offset, &mut buffer);
            return Ok(Some(buffer));
        }
        if let OpKind::Write { dsync: true, .. } = &op.kind {
            self.faulty(Target::Sync)?;
        }
        self.room_for(needed)?;
        self.step()?;
        let now = self.clock_ns;
        let inode = self.inodes.get_mut(&number).expect("an open file must exist");
        match op.kind {
            OpKind::Write { data, dsync } => {
                inode.write(op.offset, &data, now);
                if dsync {
                    // The power may fail between the write and its sync.
                    self.step()?;
                    let inode = self.inodes.get_mut(&number).expect("an open file must exist");
                    inode.sync_range(op.offset, data.len() as u64);
                }
            }
            OpKind::Sync => inode.sync_data(),
            OpKind::Punch { len } => inode.punch(op.offset, len, now),
            OpKind::Zero { len } => inode.zero(op.offset, len, now),
            OpKind::Read { .. } => {}
        }
        Ok(None)
    }
}

impl RunOp for FakeFiles {
    fn run_op(&self, op: FileOp) -> (OpId, OpResult) {
        if self.disk.disk().process != self.process {
            return (op.id, OpResult::Failed(Fault::Io));
        }
        self.disk.run(op)
    }
}

fn to_io(fault: Fault) -> io::Error {
    match fault {
        Fault::NoSpace => io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()),
        Fault::Io => io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()),
        Fault::Unsupported => io::Error::from_raw_os_error(rustix::io::Errno::OPNOTSUPP.raw_os_error()),
        Fault::Other(errno) => io::Error::from_raw_os_error(errno),
    }
}

impl FakeFiles {
    /// The disk below.
    pub fn disk(&self) -> FakeDisk {
        self.disk.clone()
    }

    /// The disk, if this process lives and nothing is to fail.
    fn metadata(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.disk.disk();
        if disk.process != self.process {
            return Err(dead());
        }
        disk.faulty(Target::Metadata).map_err(to_io)?;
        Ok(disk)
    }

    /// As [`metadata`](Self::metadata), for something that changes the disk.
    fn change(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let mut disk = self.metadata()?;
        disk.step().map_err(to_io)?;
        Ok(disk)
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Files for FakeFiles {
    fn list(&mut self) -> io::Result<Vec<String>> {
        Ok(self.metadata()?.names.keys().cloned().collect())
    }

    fn stat(&mut self, name: &str) -> io::Result<Option<Stat>> {
        let disk = self.metadata()?;
        let Some(number) = disk.names.get(name) else { return Ok(None) };
        let links = disk.names.values().filter(|named| *named == number).count() as u64;
        Ok(Some(disk.inodes[number].stat(*number, links)))
    }

    fn read_file(&mut self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let disk = self.metadata()?;
        let Some(inode) = disk.names.get(name).map(|number| &disk.inodes[number]) else { return Ok(None) };
        if inode.size() > limit {
            return Err(io::Error::other(format!("{name} has {} bytes, more than {limit}", inode.size())));
        }
        Ok(Some(inode.contents()))
    }

    fn write_file(&mut self, name: &str, contents: &[u8]) -> io::Result<Stat> {
        let mut disk = self.change()?;
        let number = if let Some(number) = disk.names.get(name).copied() {
            number
        } else {
            let number = disk.new_inode();
            disk.set_name(name, number);
            number
        };
        disk.room_for((contents.len() as u64).div_ceil(BLOCK)).map_err(to_io)?;
        disk.step().map_err(to_io)?;
        let now = disk.clock_ns;
        let inode = disk.inodes.get_mut(&number).expect("a named file must exist");
        inode.replace(contents);
        inode.touch(now);
        disk.step().map_err(to_io)?;
        let inode = disk.inodes.get_mut(&number).expect("a named file must exist");
        inode.sync();
        Ok(inode.stat(number, 1))
    }

    fn create_sparse(&mut self, name: &str, size: u64) -> io::Result<()> {
        let mut disk = self.change()?;
        if disk.names.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let number = disk.new_inode();
        disk.set_name(name, number);
        disk.step().map_err(to_io)?;
        let inode = disk.inodes.get_mut(&number).expect("a named file must exist");
        inode.resize(size);
        disk.step().map_err(to_io)?;
        disk.inodes.get_mut(&number).expect("a named file must exist").sync();
        Ok(())
    }

    fn resize(&mut self, name: &str, size: u64) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = *disk.names.get(name).ok_or_else(missing)?;
        let now = disk.clock_ns;
        let inode = disk.inodes.get_mut(&number).expect("a named file must exist");
        inode.resize(size);
        inode.touch(now);
        disk.step().map_err(to_io)?;
        disk.inodes.get_mut(&number).expect("a named file must exist").sync();
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = disk.names.remove(from).ok_or_else(missing)?;
        disk.names.insert(to.to_owned(), number);
        disk.renames.push(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), inode: number });
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = *disk.names.get(from).ok_or_else(missing)?;
        if disk.names.contains_key(to) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        disk.set_name(to, number);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        let mut disk = self.metadata()?;
        if disk.names.contains_key(name) {
            disk.step().map_err(to_io)?;
            disk.names.remove(name);
            disk.renames.push(NameChange::Remove { name: name.to_owned() });
        }
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        self.change()?.sync_names();
        Ok(())
    }

    fn open(&mut self, name: &str) -> io::Result<FileId> {
        let mut disk = self.metadata()?;
        let number = *disk.names.get(name).ok_or_else(missing)?;
        let free = disk.open.iter().position(Option::is_none).unwrap_or_else(|| {
            disk.open.push(None);
            disk.open.len() - 1
        });
        disk.open[free] = Some(number);
        Ok(FileId(free as u32))
    }

    fn close(&mut self, file: FileId) {
        let mut disk = self.disk.disk();
        if disk.process == self.process
            && let Some(place) = disk.open.get_mut(file.0 as usize)
        {
            *place = None;
            disk.forget_unnamed();
        }
    }

    fn read_at(&mut self, file: FileId, offset: u64, buffer: &mut AlignedBuf) -> io::Result<()> {
        let mut disk = self.metadata()?;
        let number = disk.inode(file).map_err(to_io)?;
        disk.inodes[&number].read(offset, buffer);
        Ok(())
    }

    fn write_at(&mut self, file: FileId, offset: u64, data: &AlignedBuf) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = disk.inode(file).map_err(to_io)?;
        let needed = disk.inodes[&number].missing(offset, data.len() as u64);
        disk.room_for(needed).map_err(to_io)?;
        let now = disk.clock_ns;
        disk.inodes.get_mut(&number).expect("an open file must exist").write(offset, data, now);
        Ok(())
    }

    fn sync(&mut self, file: FileId) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = disk.inode(file).map_err(to_io)?;
        disk.inodes.get_mut(&number).expect("an open file must exist").sync();
        Ok(())
    }

    fn extents(&mut self, file: FileId, start: u64, end: u64, each: EachExtent<'_>) -> io::Result<()> {
        let mut disk = self.metadata()?;
        let number = disk.inode(file).map_err(to_io)?;
        disk.inodes[&number].extents(start, end, each);
        Ok(())
    }

    fn punch(&mut self, file: FileId, start: u64, end: u64) -> io::Result<()> {
        let mut disk = self.change()?;
        let number = disk.inode(file).map_err(to_io)?;
        let now = disk.clock_ns;
        disk.inodes.get_mut(&number).expect("an open file must exist").punch(start, end - start, now);
        Ok(())
    }

    fn abilities(&self) -> Abilities {
        Abilities { direct: true, memory_align: BLOCK as usize, unit: BLOCK }
    }
}
