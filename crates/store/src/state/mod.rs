//! Tether's own file beside Longhorn's: what the replica promised, where it was open, which regions may differ.
//!
//! ```text
//! block 0   header, slot A          block 2   map 0, regions     0..31744
//! block 1   header, slot B            …       map 7, regions     0..31744
//!                                   block 10  map 0, regions 31744..63488
//!                                     …
//! ```
//!
//! The header is written to both slots, one after the other, each made durable before the next step; the newer
//! valid one counts. A torn write damages one slot at most, and so does a flipped bit. Maps are overwritten in
//! place: each 512-byte sector carries its own checksum, and a sector that does not add up stands for "every
//! region of this sector": more is copied than needed, never less.

pub mod header;
pub mod map;

pub use header::{Closed, FileMark, Header, Identity, MapOwner, Promise};
pub use map::RegionMap;

use crate::AlignedBuf;
use crate::buffer::BLOCK;

/// The state file's name. Longhorn ignores it.
pub const STATE_FILE: &str = "tether.state";
/// Version of the layout; a newer one is refused.
pub const VERSION: u32 = 1;
/// Region size of new replicas, in bytes: small enough that copying one is quick, large enough that the map of a
/// large volume stays small and the log is rarely written.
pub const REGION_BYTES: u64 = 4 << 20;
/// Region maps per file: the activity log, and one missed map for each replica that may be away.
pub const MAPS: usize = 8;
/// The activity log.
pub const ACTIVITY: usize = 0;

/// A state file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("{STATE_FILE} is damaged in both copies of its header ({0}); rebuild this replica from another one")]
    Damaged(String),
    #[error("{STATE_FILE} has version {found}, this program knows up to {VERSION}; upgrade it")]
    Newer { found: u32 },
    #[error("{STATE_FILE}: field {field} is {value}: {reason}; rebuild this replica from another one")]
    Field { field: &'static str, value: String, reason: &'static str },
    #[error("{STATE_FILE}: the header would take {0} bytes of at most 4064; shorten the names in it")]
    TooLarge(usize),
}

/// Where the `index`th block of `map` lies in the file.
pub fn map_offset(map: usize, index: usize) -> u64 {
    (2 + index as u64 * MAPS as u64 + map as u64) * BLOCK
}

/// Length of the file for volumes of `regions` regions.
pub fn file_bytes(regions: u64) -> u64 {
    map_offset(0, map::blocks(regions))
}

/// Number of regions of a volume.
pub fn regions(size: u64, region_bytes: u64) -> u64 {
    size.div_ceil(region_bytes)
}

/// Everything the file holds, in memory.
#[derive(Debug, Clone)]
pub struct State {
    pub header: Header,
    /// Sequence number of the header last written.
    pub sequence: u64,
    /// The maps in use; the activity log always is.
    pub maps: [Option<RegionMap>; MAPS],
}

impl State {
    pub fn new(header: Header) -> Self {
        let mut state = Self { header, sequence: 0, maps: [const { None }; MAPS] };
        state.maps[ACTIVITY] = Some(RegionMap::new(state.header.regions));
        state
    }

    /// The whole file for a new replica.
    pub fn render_file(&self) -> Result<Vec<u8>, StateError> {
        let mut file = Vec::with_capacity(file_bytes(self.header.regions) as usize);
        for _slot in 0..2 {
            file.extend_from_slice(&self.render_header()?);
        }
        for index in 0..map::blocks(self.header.regions) {
            for number in 0..MAPS {
                file.extend_from_slice(&self.render_block(number, index));
            }
        }
        Ok(file)
    }

    pub fn render_header(&self) -> Result<AlignedBuf, StateError> {
        header::encode(&self.header, self.sequence)
    }

    pub fn render_block(&self, number: usize, index: usize) -> AlignedBuf {
        let empty = RegionMap::new(0);
        self.maps[number].as_ref().unwrap_or(&empty).render(number, index)
    }

    /// Reads a whole file. `repair` tells that one slot must be written again.
    pub fn parse(file: &[u8]) -> Result<(Self, bool), StateError> {
        let block = BLOCK as usize;
        let slot = |at: usize| file.get(at * block..(at + 1) * block).unwrap_or_default();
        let (first, second) = (header::decode(slot(0)), header::decode(slot(1)));
        let repair = !matches!((&first, &second), (Ok(a), Ok(b)) if a.1 == b.1);
        let (header, sequence) = match (first, second) {
            // A newer program may have used one slot only so far.
            (Err(StateError::Newer { found }), _) | (_, Err(StateError::Newer { found })) => {
                return Err(StateError::Newer { found });
            }
            (Ok(a), Ok(b)) => {
                if b.1 > a.1 {
                    b
                } else {
                    a
                }
            }
            (Ok(a), Err(_)) => a,
            (Err(_), Ok(b)) => b,
            (Err(a), Err(b)) => return Err(StateError::Damaged(format!("slot A: {a}; slot B: {b}"))),
        };
        header.check()?;
        let mut state = Self { header, sequence, maps: [const { None }; MAPS] };
        for number in 0..MAPS {
            if number == ACTIVITY || state.header.maps.iter().any(|owner| owner.slot == number) {
                let mut map = RegionMap::new(state.header.regions);
                for index in 0..map::blocks(state.header.regions) {
                    let at = map_offset(number, index) as usize;
                    map.load(number, index, file.get(at..at + block).unwrap_or_default());
                }
                state.maps[number] = Some(map);
            }
        }
        Ok((state, repair))
    }

    /// The header alone, without the maps.
    pub(crate) fn clone_header(&self) -> Self {
        Self { header: self.header.clone(), sequence: self.sequence, maps: [const { None }; MAPS] }
    }

    /// The map of missed regions that is kept for `owner`.
    pub fn map_of(&self, owner: &str) -> Option<usize> {
        self.header.maps.iter().find(|entry| entry.owner == owner).map(|entry| entry.slot)
    }
}

#[cfg(test)]
mod tests;
