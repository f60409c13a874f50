//! The store under the protocol: operations of `replication` as requests of `store`, and answers back.
//!
//! Work on metadata (snapshots, size, chains) needs a store with nothing under way. The protocol sees to that for
//! engines' requests; what the store does on its own account (giving back the space of removed snapshots, sums) steps
//! aside: no new step begins while something waits to be alone.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tether_replication::ids::{BootId, MemberId, VolumeId};
use tether_replication::replica::{Durable, OpId, StoreAnswer, StoreOp};
use tether_replication::wire::{ControlKind, ControlOp, Extent, Failure, Layer};
use tether_store::files::fake::FakeFiles;
use tether_store::files::real::StdFiles;
use tether_store::volume::{Chain, SnapshotError};
use tether_store::{Change, FileId, Files, Output, Reply, Request, RequestError, View, Volume};
use uuid::Uuid;

use super::hashing::{HASH_ID, Hashing};
use super::{Info, member_or, persist};
use crate::host::Io;

/// Bytes of one step of reclaiming: short enough that a write waiting behind it is not noticed.
const RECLAIM_STEP_BYTES: u64 = 1 << 20;
/// Ids of the store's own requests; the protocol counts from zero.
const RECLAIM_ID: u64 = u64::MAX;
const VOLUME_ID: u64 = u64::MAX - 1;

/// Files that know their descriptors.
pub trait Located {
    fn locate(&self, file: FileId) -> RawFd;
}

impl Located for StdFiles {
    fn locate(&self, file: FileId) -> RawFd {
        self.raw_fd(file)
    }
}

/// A disk in memory has no descriptors: its host goes by the id in the operation.
impl Located for FakeFiles {
    fn locate(&self, _file: FileId) -> RawFd {
        -1
    }
}

/// Arguments of operations on snapshots, as engines send them. Times come from the engine, so that all replicas
/// say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SnapshotArgs {
    pub name: String,
    /// RFC 3339.
    pub created: String,
    pub user_created: bool,
    pub labels: BTreeMap<String, String>,
}

impl SnapshotArgs {
    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(self).expect("arguments must be writable as JSON"))
    }
}

/// An open directory and what is asked of it.
pub(super) struct Store<F: Files + Located> {
    pub(super) volume: Volume<F>,
    chain: Chain,
    pub(super) out: Output,
    answered: Vec<(OpId, Result<StoreAnswer, Failure>)>,
    /// Operations that need to be alone.
    alone: VecDeque<(OpId, StoreOp)>,
    reclaiming: bool,
    /// There may be something to reclaim.
    reclaim_wanted: bool,
    pub(super) hashing: Hashing,
}

impl<F: Files + Located> Store<F> {
    pub fn new(volume: Volume<F>) -> Self {
        let chain = volume.chain();
        Self {
            volume,
            chain,
            out: Output::default(),
            answered: Vec::new(),
            alone: VecDeque::new(),
            reclaiming: false,
            reclaim_wanted: true,
            hashing: Hashing::default(),
        }
    }

    pub fn into_volume(self) -> Volume<F> {
        self.volume
    }

    pub fn size(&self) -> u64 {
        self.volume.size()
    }

    pub fn in_hand(&self) -> usize {
        self.volume.in_hand()
    }

    pub fn is_idle(&self) -> bool {
        self.volume.is_idle() && self.alone.is_empty() && self.out.ops.is_empty()
    }

    pub fn chain_id(&self) -> u64 {
        self.chain.identity()
    }

    pub fn member(&self) -> MemberId {
        member_or(&self.volume.state().header.replica, "replica")
    }

    /// The volume that this is a replica of, if an engine ever said.
    pub fn volume_id(&self) -> Option<VolumeId> {
        Uuid::parse_str(&self.volume.state().header.volume).ok().map(|uid| VolumeId(uid.as_u128()))
    }

    pub fn belong_to(&mut self, volume: VolumeId) {
        if self.volume_id().is_none() {
            let change = Change::Volume(volume.to_string());
            self.volume.submit(VOLUME_ID, Request::Save(vec![change]), &mut self.out);
        }
    }

    /// Nobody promised or wrote anything here: the replica is as empty as it was made.
    pub fn is_fresh(&self) -> bool {
        let header = &self.volume.state().header;
        header.promise.epoch == 0
            && header.out_of_sync.is_none()
            && self.chain.snapshots.is_empty()
            && self.volume.is_empty()
    }

    pub fn durable(&self, boot: BootId) -> Durable {
        persist::durable(self.volume.state(), boot)
    }

    pub fn info(&self, connections: usize) -> Info {
        let header = &self.volume.state().header;
        Info {
            name: header.replica.clone(),
            volume: header.volume.clone(),
            size: self.volume.size(),
            epoch: header.promise.epoch,
            active_regions: self.volume.state().active_regions().count() as u64,
            doubtful: header.doubt,
            out_of_sync: header.out_of_sync.clone(),
            connections,
            index_bytes: self.volume.index_bytes(),
        }
    }

    /// Starts an operation of the protocol; its answer comes out of [`Store::answered`], perhaps at once.
    pub fn start(&mut self, op: OpId, request: StoreOp) {
        match self.request(&request) {
            Some(Ok(asked)) => self.volume.submit(op.0, asked, &mut self.out),
            Some(Err(failure)) => self.answered.push((op, Err(failure))),
            None => self.alone.push_back((op, request)),
        }
    }

    /// The store's request, or None if the operation needs to be alone.
    fn request(&self, op: &StoreOp) -> Option<Result<Request, Failure>> {
        Some(Ok(match op {
            StoreOp::Read { offset, len } => Request::Read { view: View::Live, offset: *offset, len: u64::from(*len) },
            StoreOp::Write { offset, data, fua } => Request::Write { offset: *offset, data: data.clone(), fua: *fua },
            StoreOp::Zero { offset, len, fua, unmap } => {
                Request::WriteZeroes { offset: *offset, len: u64::from(*len), fua: *fua, unmap: *unmap }
            }
            StoreOp::Discard { offset, len } => Request::Discard { offset: *offset, len: u64::from(*len) },
            StoreOp::Flush => Request::Flush,
            StoreOp::Status { offset, len } => Request::Status { offset: *offset, len: u64::from(*len) },
            StoreOp::Persist(changes) => Request::Save(persist::changes(changes)),
            StoreOp::CopyRead { layer, offset, len } => match self.view(*layer) {
                Some(view) => Request::Read { view, offset: *offset, len: u64::from(*len) },
                None => return Some(Err(Failure::Conflict)),
            },
            StoreOp::Checksum { layer, offset, len } => match self.view(*layer) {
                Some(view) => Request::Checksum { view, offset: *offset, len: u64::from(*len) },
                None => return Some(Err(Failure::Conflict)),
            },
            StoreOp::CopyWrite { layer, offset, data } => match self.view(*layer) {
                Some(view) => Request::Copy { view, offset: *offset, data: data.clone() },
                None => return Some(Err(Failure::Conflict)),
            },
            StoreOp::ChainRead | StoreOp::ChainSet { .. } | StoreOp::Control(_) => return None,
        }))
    }

    fn view(&self, layer: Layer) -> Option<View> {
        if layer == Layer::LIVE {
            return Some(View::Live);
        }
        self.chain.snapshots.get(usize::from(layer.0)).map(|link| View::Snapshot(link.name.clone()))
    }

    /// Takes the result of a file operation.
    pub fn completed(&mut self, op: tether_store::OpId, result: tether_store::OpResult) {
        self.volume.completed(op, result, &mut self.out);
    }

    /// Answers since the last time.
    pub fn answered(&mut self) -> Vec<(OpId, Result<StoreAnswer, Failure>)> {
        loop {
            for (id, result) in std::mem::take(&mut self.out.done) {
                match id {
                    RECLAIM_ID => self.reclaimed(&result),
                    HASH_ID => self.piece_read(result),
                    VOLUME_ID => {
                        if let Err(error) = result {
                            tracing::error!(%error, "cannot note which volume this replica belongs to");
                        }
                    }
                    id => self.answered.push((OpId(id), answer(result))),
                }
            }
            self.go_on();
            // What needed no file operation is answered already, and nothing else would make us look.
            if self.out.done.is_empty() {
                return std::mem::take(&mut self.answered);
            }
        }
    }

    /// Does what needs to be alone, if it is; otherwise reclaims and computes sums.
    fn go_on(&mut self) {
        while self.volume.is_idle()
            && let Some((op, request)) = self.alone.pop_front()
        {
            let result = self.run_alone(request);
            self.answered.push((op, result));
        }
        if !self.alone.is_empty() {
            return;
        }
        if self.reclaim_wanted && !self.reclaiming {
            self.reclaiming = true;
            self.volume.submit(RECLAIM_ID, Request::Reclaim { budget: RECLAIM_STEP_BYTES }, &mut self.out);
        }
        self.hash_on();
    }

    fn reclaimed(&mut self, result: &Result<Reply, RequestError>) {
        self.reclaiming = false;
        self.reclaim_wanted = match result {
            Ok(Reply::Reclaim(step)) => step.more,
            Ok(_) => false,
            Err(error) => {
                tracing::warn!(%error, "space of removed snapshots is not given back for now");
                false
            }
        };
    }

    fn run_alone(&mut self, op: StoreOp) -> Result<StoreAnswer, Failure> {
        match op {
            StoreOp::ChainRead => {
                let layers = u16::try_from(self.chain.snapshots.len()).map_err(|_| Failure::Unsupported)?;
                Ok(StoreAnswer::Chain { layers, chain: Bytes::from(self.chain.render()) })
            }
            StoreOp::ChainSet { chain } => {
                let target = Chain::parse(&chain).map_err(|error| {
                    tracing::warn!(%error, "an engine sent a chain of snapshots that makes no sense");
                    Failure::Invalid
                })?;
                self.volume.set_chain(&target).map_err(|error| refused(&error))?;
                Ok(self.controlled(Bytes::new()))
            }
            StoreOp::Control(op) => {
                let body = self.control(&op)?;
                Ok(self.controlled(body))
            }
            other => unreachable!("{other:?} must not wait to be alone"),
        }
    }

    fn controlled(&mut self, body: Bytes) -> StoreAnswer {
        self.chain = self.volume.chain();
        StoreAnswer::Controlled { chain: self.chain.identity(), size: self.volume.size(), body }
    }

    fn control(&mut self, op: &ControlOp) -> Result<Bytes, Failure> {
        let args = || serde_json::from_slice::<SnapshotArgs>(&op.body).map_err(|_| Failure::Invalid);
        let done = match op.kind {
            ControlKind::SnapshotCreate => {
                let args = args()?;
                self.volume.create_snapshot(&args.name, args.user_created, &args.created, args.labels)
            }
            ControlKind::SnapshotDelete => {
                self.reclaim_wanted = true;
                self.volume.remove_snapshot(&args()?.name)
            }
            ControlKind::SnapshotRevert => {
                let args = args()?;
                self.volume.revert(&args.name, &args.created)
            }
            ControlKind::SnapshotPurge => {
                self.reclaim_wanted = true;
                self.volume.remove_system_snapshots().map(drop)
            }
            ControlKind::Expand => self.volume.expand(op.size),
            ControlKind::Custom => return self.snapshots(),
        };
        done.map(|()| Bytes::new()).map_err(|error| refused(&error))
    }

    /// Everything that the directory holds, as JSON.
    fn snapshots(&mut self) -> Result<Bytes, Failure> {
        let all = self.volume.snapshots().map_err(|error| refused(&error))?;
        let shown: Vec<_> = all
            .iter()
            .map(|snapshot| {
                serde_json::json!({
                    "name": snapshot.name, "parent": snapshot.parent, "children": snapshot.children,
                    "removed": snapshot.removed, "userCreated": snapshot.user_created, "created": snapshot.created,
                    "size": snapshot.size, "labels": snapshot.labels, "live": snapshot.live,
                })
            })
            .collect();
        Ok(Bytes::from(serde_json::Value::Array(shown).to_string()))
    }

    /// Hands the file operations to the host.
    pub fn flush_ops(&mut self, io: &mut Io) {
        for op in self.out.ops.drain(..) {
            io.file(self.volume.files().locate(op.file), op);
        }
    }
}

fn answer(result: Result<Reply, RequestError>) -> Result<StoreAnswer, Failure> {
    match result {
        Ok(Reply::Read(data)) => Ok(StoreAnswer::Data(data)),
        Ok(Reply::Done | Reply::Reclaim(_) | Reply::ImagePiece(_)) => Ok(StoreAnswer::Done),
        Ok(Reply::Status(extents)) => Ok(StoreAnswer::Extents(extents.iter().map(extent).collect())),
        Ok(Reply::Checksum(digest)) => {
            let first = digest.first_chunk().expect("a digest has more than sixteen bytes");
            Ok(StoreAnswer::Sum(u128::from_le_bytes(*first)))
        }
        Err(error) => {
            tracing::warn!(%error, "the store refused");
            Err(match error {
                RequestError::NoSpace => Failure::NoSpace,
                RequestError::OutOfRange { .. } | RequestError::NotBlocks { .. } => Failure::Invalid,
                RequestError::NoSnapshot(_) => Failure::Conflict,
                RequestError::Io(_)
                | RequestError::SyncFailed(_)
                | RequestError::State(_)
                | RequestError::Metadata(_) => Failure::Io,
            })
        }
    }
}

fn extent(extent: &tether_store::Extent) -> Extent {
    Extent { len: extent.len as u32, allocated: extent.data, zero: !extent.data }
}

fn refused(error: &SnapshotError) -> Failure {
    tracing::warn!(%error, "the store refused");
    match error {
        SnapshotError::Exists(_) | SnapshotError::None(_) | SnapshotError::Removed(_) | SnapshotError::Busy => {
            Failure::Conflict
        }
        SnapshotError::Name(_) | SnapshotError::Size { .. } => Failure::Invalid,
        SnapshotError::TooMany => Failure::Unsupported,
        SnapshotError::Metadata(_) => Failure::Io,
    }
}
