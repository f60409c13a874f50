//! Ranges that are allocated but were never written: what a power loss leaves where a write was under way.
//!
//! The filesystem allocates space first and calls it written when the data is there. In between it reads as
//! zeroes, neither old nor new, and in a newer layer it would hide what older ones hold. So it counts as a hole.
//! Longhorn sees zeroes there; both must see the same in a directory that changes hands.

use super::lifecycle::OpenError;
use crate::buffer::{AlignedBuf, BLOCK};
use crate::files::Files;
use crate::op::FileId;
use crate::tree::Tree;

/// Zeroes written at a time, in bytes.
const PIECE: u64 = 1 << 20;

/// Unwritten ranges of one image.
fn unwritten<F: Files>(files: &mut F, image: &str) -> Result<(FileId, Vec<(u64, u64)>), OpenError> {
    let size = files.stat(image).map_err(OpenError::io(image))?.map_or(0, |stat| stat.size);
    let file = files.open(image).map_err(OpenError::io(image))?;
    let mut found = Vec::new();
    let mut each = |from: u64, to: u64, written: bool| {
        if !written {
            found.push((from / BLOCK * BLOCK, to.next_multiple_of(BLOCK).min(size)));
        }
    };
    files.extents(file, 0, size, &mut each).map_err(OpenError::io(image))?;
    Ok((file, found))
}

/// After a reboot: makes them real holes in the live chain, which mean the same to Longhorn.
pub(super) fn drop_unwritten<F: Files>(files: &mut F, tree: &Tree) -> Result<(), OpenError> {
    for image in tree.live()? {
        let (file, ranges) = unwritten(files, &image)?;
        for (from, to) in &ranges {
            files.punch(file, *from, *to).map_err(OpenError::io(&image))?;
        }
        if !ranges.is_empty() {
            files.sync(file).map_err(OpenError::io(&image))?;
        }
        files.close(file);
    }
    Ok(())
}

/// In what Longhorn wrote: makes them zeroes that are written, except in the oldest image, which hides nothing.
pub(super) fn write_unwritten<F: Files>(files: &mut F, tree: &Tree) -> Result<(), OpenError> {
    let live = tree.live()?;
    for image in &live[..live.len() - 1] {
        let (file, ranges) = unwritten(files, image)?;
        for (from, to) in &ranges {
            for at in (*from..*to).step_by(PIECE as usize) {
                let zeroes = AlignedBuf::zeroed((to - at).min(PIECE) as usize);
                files.write_at(file, at, &zeroes).map_err(OpenError::io(image))?;
            }
        }
        if !ranges.is_empty() {
            files.sync(file).map_err(OpenError::io(image))?;
        }
        files.close(file);
    }
    Ok(())
}
