//! Comparing replicas: what differs between the live contents of two directories.

use std::path::Path;

use crate::buffer::BLOCK;
use crate::files::Files;
use crate::files::overlay::Overlay;
use crate::files::real::{DirectoryError, StdFiles};
use crate::host::{RunOp, read};
use crate::request::{RequestError, View};
use crate::volume::{Adopt, Open, OpenError, Volume};

/// Compared at a time, in bytes.
const STEP: u64 = 1 << 20;

/// A range that differs; whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    pub offset: u64,
    pub len: u64,
}

/// What a comparison found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Summary {
    /// Bytes that were read from each side; holes in both are equal without reading.
    pub compared: u64,
    pub different: u64,
}

/// Why two directories could not be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] RequestError),
    #[error("the volumes have {0} and {1} bytes")]
    Size(u64, u64),
}

/// Opens a directory to look at it: nothing in it changes, and it may be in use (then what is read may be of
/// different moments).
pub fn observe(path: &Path) -> Result<Volume<Overlay<StdFiles>>, DiffError> {
    let files = || Ok::<_, DirectoryError>(Overlay::new(StdFiles::observe(path)?));
    match Volume::open(files()?, &Open::default()) {
        Err(OpenError::NotAdopted | OpenError::WasReleased) => Ok(Volume::adopt(files()?, &Adopt::default())?.0),
        opened => Ok(opened?.0),
    }
}

/// Calls `each` for every range that differs.
pub fn diff<A: Files + RunOp, B: Files + RunOp>(
    one: &mut Volume<A>,
    two: &mut Volume<B>,
    each: &mut dyn FnMut(Difference),
) -> Result<Summary, DiffError> {
    let size = one.size();
    if size != two.size() {
        return Err(DiffError::Size(size, two.size()));
    }
    let mut summary = Summary::default();
    let mut open: Option<Difference> = None;
    for offset in (0..size).step_by(STEP as usize) {
        let len = STEP.min(size - offset);
        let holes = |extents: Vec<crate::Extent>| extents.iter().all(|extent| !extent.data);
        if holes(one.status(offset, len)) && holes(two.status(offset, len)) {
            continue;
        }
        let (left, right) = (read(one, View::Live, offset, len)?, read(two, View::Live, offset, len)?);
        summary.compared += len;
        for (index, (a, b)) in left.chunks(BLOCK as usize).zip(right.chunks(BLOCK as usize)).enumerate() {
            if a == b {
                continue;
            }
            let at = offset + index as u64 * BLOCK;
            summary.different += BLOCK;
            match &mut open {
                Some(last) if last.offset + last.len == at => last.len += BLOCK,
                _ => open.replace(Difference { offset: at, len: BLOCK }).into_iter().for_each(&mut *each),
            }
        }
    }
    open.into_iter().for_each(each);
    Ok(summary)
}
