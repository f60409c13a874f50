//! What can be asked of an open replica on the data path, and the answers.

use bytes::Bytes;

use crate::op::{Fault, FileOp};
use crate::state::{Promise, State};

/// Chosen by the host; comes back with the answer.
pub type RequestId = u64;

/// Which contents a read or checksum means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// What the volume holds now.
    Live,
    /// What it held when this snapshot was taken.
    Snapshot(String),
}

/// A request. Offsets and lengths are bytes; they need no alignment (whole blocks are fastest).
#[derive(Debug, Clone)]
#[rustfmt::skip]
pub enum Request {
    Read { view: View, offset: u64, len: u64 },
    /// `fua`: done only when it survives a power loss.
    Write { offset: u64, data: Bytes, fua: bool },
    /// `unmap`: holes will do; otherwise the space stays allocated.
    WriteZeroes { offset: u64, len: u64, fua: bool, unmap: bool },
    /// Gives space back. Whole blocks inside the range leave the head (and removed snapshots right below it):
    /// they read as in the newest kept snapshot, or as zeroes.
    Discard { offset: u64, len: u64 },
    /// Everything completed before survives a power loss.
    Flush,
    /// Which parts hold data; answered at once.
    Status { offset: u64, len: u64 },
    /// Digest of the contents of whole blocks; see [`checksum`](crate::checksum).
    Checksum { view: View, offset: u64, len: u64 },
    /// The next piece of a snapshot's image, as the file has it: what is missing there is zeroes, not what older
    /// images have. For sums over whole images, piece by piece.
    ImagePiece { snapshot: String, at: u64 },
    /// Changes the state file; done when durable. Not all changes of a list may survive a crash, but what
    /// survives errs on the safe side: regions are added before others are removed, and all fields of the header
    /// change at once.
    Save(Vec<Change>),
    /// Does up to `budget` bytes of the work that removed snapshots have left.
    Reclaim { budget: u64 },
    /// Copies whole blocks of another replica's view into this one's, older snapshots first. Zeroes that are
    /// there anyway take no space.
    Copy { view: View, offset: u64, data: Bytes },
}

/// One change of the state file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[rustfmt::skip]
pub enum Change {
    Promise(Promise),
    Generation(u64),
    Doubt(bool),
    OutOfSync(Option<String>),
    /// The contents are incomplete.
    Rebuilding(bool),
    Volume(String),
    Note { name: String, value: Option<String> },
    /// Adds regions to the activity log.
    LogAdd(Vec<u64>),
    /// Removes regions from the activity log, after adding them to every missed map.
    LogClear(Vec<u64>),
    LogGeneration(u64),
    /// Begins a missed map for a replica that is away; keeps it if there is one. If seven are kept already,
    /// this one is not: that replica will be copied as a whole.
    MapBegin { owner: String },
    /// Nothing if there is no such map.
    MapAdd { owner: String, regions: Vec<u64> },
    MapClear { owner: String, regions: Vec<u64> },
    /// Forgets a missed map.
    MapEnd { owner: String },
    /// Forgets all of them.
    MapsEnd,
}

/// A part of the volume that holds data, or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub offset: u64,
    pub len: u64,
    /// False: a hole, which reads as zeroes.
    pub data: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Read(Bytes),
    /// Write, write zeroes, discard, fill, flush, save.
    Done,
    Status(Vec<Extent>),
    Checksum(crate::checksum::Digest),
    Reclaim(Reclaimed),
    ImagePiece(ImagePiece),
}

/// Zeroes, then data; neither: the end of the image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImagePiece {
    pub zeroes: u64,
    pub data: Bytes,
}

/// What a step of reclaiming did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reclaimed {
    /// Bytes read and written in this step.
    pub bytes: u64,
    /// More is left: ask again.
    pub more: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{offset}+{len} lies outside the volume of {size} bytes")]
    OutOfRange { offset: u64, len: u64, size: u64 },
    #[error("no space left on the filesystem")]
    NoSpace,
    #[error("I/O error: {0}")]
    Io(Fault),
    #[error("an earlier sync failed ({0}); what was not durable then may be lost, open the replica again")]
    SyncFailed(Fault),
    #[error("there is no snapshot {0:?}")]
    NoSnapshot(String),
    #[error("{offset}+{len} are not whole blocks of 4096 bytes")]
    NotBlocks { offset: u64, len: u64 },
    #[error("{0}")]
    State(#[from] crate::state::StateError),
    #[error("metadata: {0}")]
    Metadata(String),
}

impl From<Fault> for RequestError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::NoSpace => Self::NoSpace,
            other => Self::Io(other),
        }
    }
}

/// Collects what a call wants done and what it finished. Reuse one to save allocations.
#[derive(Debug, Default)]
pub struct Output {
    pub ops: Vec<FileOp>,
    pub done: Vec<(RequestId, Result<Reply, RequestError>)>,
}

/// Read access for the protocol.
impl State {
    /// Regions in the activity log.
    pub fn active_regions(&self) -> impl Iterator<Item = u64> {
        self.maps[crate::state::ACTIVITY].iter().flat_map(crate::state::RegionMap::iter)
    }
}
