//! What goes into a replica and what comes out of it: events, effects, and the state that outlives a crash.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::ids::{BootId, Epoch, Generation, Holder, MemberId, Session, VolumeId};
use crate::region::{Geometry, RegionSet};
use crate::rules::Rules;
use crate::wire::{ControlOp, Extent, Failure, Layer, Reply, Request};

/// What a replica is told at birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The volume that it belongs to.
    pub volume: VolumeId,
    /// Size of volume and regions.
    pub geometry: Geometry,
    /// The running boot of this host.
    pub boot: BootId,
    /// All of them, but in a model.
    pub rules: Rules,
}

/// A connection of some engine to this replica, numbered by the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conn(pub u64);

/// An operation on the store, numbered by the replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// What a replica promised: it listens to this engine in this session, and to nobody older.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The epoch.
    pub epoch: Epoch,
    /// The engine process that minted it.
    pub holder: Holder,
    /// Its newest session.
    pub session: Session,
}

/// What a replica remembers across crashes, beside the data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Durable {
    /// The newest promise.
    pub promise: Option<Promise>,
    /// The newest generation of the record that it heard of.
    pub generation: Generation,
    /// The boot in which this was written last.
    pub boot: BootId,
    /// Regions may be older than acknowledged.
    pub doubtful: bool,
    /// The chain of snapshots is being built; its content is not complete.
    pub rebuilding: bool,
    /// Activity log: regions that may differ between members, or not be durable.
    pub log: RegionSet,
    /// What replicas outside the set have missed, by name.
    pub maps: BTreeMap<MemberId, RegionSet>,
}

/// A change of [`Durable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StateChange {
    /// A promise, and the generation of the record that came with it.
    Promise(Promise, Generation),
    /// The host rebooted; `doubtful` if the log was not empty.
    Boot { boot: BootId, doubtful: bool },
    /// Data and snapshots are complete and equal to the other members'.
    Settled,
    /// A chain of snapshots is about to be built.
    Rebuilding,
    /// Regions are about to be written.
    LogAdd(RegionSet),
    /// Regions are equal and durable everywhere; they go to every missed map, then out of the log.
    LogClear(RegionSet),
    /// A member left: it has missed nothing yet.
    MapStart(MemberId),
    /// A member is in sync again.
    MapDrop(MemberId),
    /// This replica was away, so that its maps are not complete.
    MapsDrop,
}

impl Durable {
    /// Applies one change.
    pub fn apply(&mut self, change: &StateChange) {
        match change {
            StateChange::Promise(promise, generation) => {
                self.promise = Some(*promise);
                self.generation = self.generation.max(*generation);
            }
            StateChange::Boot { boot, doubtful } => {
                self.boot = *boot;
                self.doubtful |= doubtful;
            }
            StateChange::Settled => (self.doubtful, self.rebuilding) = (false, false),
            StateChange::Rebuilding => self.rebuilding = true,
            StateChange::LogAdd(regions) => self.log.extend(regions.iter()),
            StateChange::LogClear(regions) => {
                for region in regions.iter() {
                    self.maps.values_mut().for_each(|map| {
                        map.insert(region);
                    });
                    self.log.remove(region);
                }
            }
            StateChange::MapStart(member) => {
                self.maps.entry(member.clone()).or_default();
            }
            StateChange::MapDrop(member) => {
                self.maps.remove(member);
            }
            StateChange::MapsDrop => self.maps.clear(),
        }
    }
}

/// What happens to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// An engine asks.
    Request { conn: Conn, request: Request },
    /// A connection is gone; nothing more comes from it and nothing more can be sent.
    Gone { conn: Conn },
    /// The store did what it was asked.
    Stored { op: OpId, result: Result<StoreAnswer, Failure> },
}

/// What a replica wants done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Do this on the store and report [`Event::Stored`]. Operations may be done in any order and at the same
    /// time; the replica waits where the order matters.
    Store { op: OpId, request: StoreOp },
    /// Send this to the engine.
    Send { conn: Conn, reply: Reply },
    /// Close the connection.
    Close { conn: Conn },
}

/// An operation on the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Data of the live volume: [`StoreAnswer::Data`].
    Read { offset: u64, len: u32 },
    /// Write; with `fua` the data is on stable storage when it is done.
    Write { offset: u64, data: Bytes, fua: bool },
    /// Zeroes, possibly as a hole.
    Zero { offset: u64, len: u32, fua: bool, unmap: bool },
    /// The range is not needed.
    Discard { offset: u64, len: u32 },
    /// All completed writes become durable.
    Flush,
    /// Which parts are allocated: [`StoreAnswer::Extents`].
    Status { offset: u64, len: u32 },
    /// Changes of [`Durable`], applied in this order, durable all or none. One at a time.
    Persist(Vec<StateChange>),
    /// Data of a layer: [`StoreAnswer::Data`].
    CopyRead { layer: Layer, offset: u64, len: u32 },
    /// Data into a layer.
    CopyWrite { layer: Layer, offset: u64, data: Bytes },
    /// Checksum of a range of a layer: [`StoreAnswer::Sum`].
    Checksum { layer: Layer, offset: u64, len: u32 },
    /// The chain of snapshots: [`StoreAnswer::Chain`].
    ChainRead,
    /// Take on this chain: [`StoreAnswer::Controlled`] with the identity of the new one.
    ChainSet { chain: Bytes },
    /// An operation on the whole volume, alone: [`StoreAnswer::Controlled`].
    Control(ControlOp),
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAnswer {
    /// Done.
    Done,
    /// What was read.
    Data(Bytes),
    /// Consecutive extents.
    Extents(Vec<Extent>),
    /// A checksum.
    Sum(u128),
    /// The chain of snapshots, in the store's words, with the number of layers below the live volume.
    Chain { layers: u16, chain: Bytes },
    /// A control operation was done; identity of the chain and size afterwards.
    Controlled { chain: u64, size: u64, body: Bytes },
}
