//! The header of the state file: fields, and their encoding in one block.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ACTIVITY, MAPS, StateError, VERSION};
use crate::AlignedBuf;
use crate::buffer::BLOCK;

/// First bytes of a slot.
const MAGIC: [u8; 8] = *b"TETHERRS";
/// 16 TiB of the smallest region: more would not fit into memory either.
const REGIONS_MAX: u64 = 1 << 32;
/// Magic, version, length, sequence, checksum, reserved.
const PREFIX_BYTES: usize = 32;

/// The highest epoch that the replica promised to, and to whom.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Promise {
    pub epoch: u64,
    /// Uid of the engine process.
    pub holder: String,
    pub session: u64,
}

/// What identifies a metadata file: Longhorn replaces `volume.meta` whenever it opens a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    pub inode: u64,
    pub modified_ns: i64,
    pub crc32: u32,
}

/// What a data file looked like when the replica was closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileMark {
    pub name: String,
    pub inode: u64,
    pub size: u64,
    pub modified_ns: i64,
}

/// The data files at a clean close: the head, and a digest over all snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Closed {
    pub head: FileMark,
    pub snapshots: String,
}

/// Who a missed map is kept for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MapOwner {
    pub slot: usize,
    /// Replica that is away.
    pub owner: String,
}

/// Fields of the state file.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own that outlives a crash")]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Header {
    /// Uid of the volume; empty in a directory that was adopted without knowing it.
    pub volume: String,
    /// Name of this replica.
    pub replica: String,
    pub promise: Promise,
    /// Which membership of the in-sync set this copy belongs to.
    pub generation: u64,
    /// The host lost power with regions in the log: acknowledged writes may be missing.
    pub doubt: bool,
    /// Why this copy must not be read before it was made equal to an in-sync one.
    pub out_of_sync: Option<String>,
    /// Contents are being copied from another replica and are not complete.
    pub rebuilding: bool,
    /// Boot of the host during which the replica was last open.
    pub boot_id: String,
    /// Open, or not closed properly.
    pub open: bool,
    /// Handed back to Longhorn.
    pub released: bool,
    pub region_bytes: u64,
    pub regions: u64,
    /// Counts clears of the activity log, so that a late clear is recognised.
    pub log_generation: u64,
    pub maps: Vec<MapOwner>,
    /// Acceptable identities of `volume.meta`: the present one, and one that is about to replace it.
    pub volume_meta: Vec<Identity>,
    pub closed: Option<Closed>,
    /// Values that the protocol keeps beside its promise.
    pub notes: BTreeMap<String, String>,
}

impl Header {
    /// What no program of this version writes.
    pub(super) fn check(&self) -> Result<(), StateError> {
        let bad = |field, value: String, reason| Err(StateError::Field { field, value, reason });
        if !self.region_bytes.is_power_of_two() || self.region_bytes < BLOCK {
            return bad("regionBytes", self.region_bytes.to_string(), "not a power of two of at least 4096");
        }
        if self.regions > REGIONS_MAX {
            return bad("regions", self.regions.to_string(), "too many");
        }
        for (index, owner) in self.maps.iter().enumerate() {
            let twice = self.maps[..index].iter().any(|other| other.slot == owner.slot || other.owner == owner.owner);
            if owner.slot == ACTIVITY || owner.slot >= MAPS || twice {
                return bad("maps", owner.slot.to_string(), "not a slot from 1 to 7 used once");
            }
        }
        Ok(())
    }
}

pub(super) fn encode(header: &Header, sequence: u64) -> Result<AlignedBuf, StateError> {
    encode_as(header, sequence, VERSION)
}

pub(super) fn encode_as(header: &Header, sequence: u64, version: u32) -> Result<AlignedBuf, StateError> {
    let text = serde_json::to_vec(header).expect("the header must be representable as JSON");
    if text.len() > BLOCK as usize - PREFIX_BYTES {
        return Err(StateError::TooLarge(text.len()));
    }
    let mut block = AlignedBuf::zeroed(BLOCK as usize);
    block[..8].copy_from_slice(&MAGIC);
    block[8..12].copy_from_slice(&version.to_le_bytes());
    block[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
    block[16..24].copy_from_slice(&sequence.to_le_bytes());
    block[PREFIX_BYTES..PREFIX_BYTES + text.len()].copy_from_slice(&text);
    let crc = checksum(&block);
    block[24..28].copy_from_slice(&crc.to_le_bytes());
    Ok(block)
}

/// Over the whole block but the checksum itself.
fn checksum(block: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&block[..24]);
    crc.update(&block[28..]);
    crc.finalize()
}

fn number<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    block[at..at + N].try_into().expect("the range must have this length")
}

pub(super) fn decode(block: &[u8]) -> Result<(Header, u64), StateError> {
    let damaged = |what: &str| Err(StateError::Damaged(what.to_owned()));
    if block.len() != BLOCK as usize {
        return damaged("the file is too short");
    }
    if block[..8] != MAGIC {
        return damaged("it does not begin with TETHERRS");
    }
    if checksum(block) != u32::from_le_bytes(number(block, 24)) {
        return damaged("its checksum does not match");
    }
    let version = u32::from_le_bytes(number(block, 8));
    if version > VERSION {
        return Err(StateError::Newer { found: version });
    }
    let length = u32::from_le_bytes(number(block, 12)) as usize;
    let Some(text) = block.get(PREFIX_BYTES..PREFIX_BYTES + length) else {
        return damaged("its length is out of range");
    };
    match serde_json::from_slice(text) {
        Ok(header) => Ok((header, u64::from_le_bytes(number(block, 16)))),
        Err(error) => damaged(&error.to_string()),
    }
}
