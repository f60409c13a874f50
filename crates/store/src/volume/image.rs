//! Images of snapshots as files: their pieces, and the sums that Longhorn keeps of them (`<image>.checksum`).
//!
//! A sum is that of the whole image file, holes included, and counts for as long as the file's time of change is the one
//! noted with it. Longhorn skips files of equal sums in a rebuild, and calls one whose sum changed without its time having
//! changed silently corrupted. Reading all of an image takes long: the host asks for piece after piece, so that other work
//! goes between them, and notes the sum in the end.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::flight::{Owner, failure};
use super::lifecycle::OpenError;
use super::recover::replace_meta;
use super::snapshot::SnapshotError;
use super::{Volume, Work};
use crate::buffer::AlignedBuf;
use crate::files::Files;
use crate::meta::{META_BYTES_MAX, checksum_name, render, snapshot_image};
use crate::op::{FileId, OpKind};
use crate::request::{ImagePiece, Output, Reply, RequestError, RequestId};

/// How sums are computed: the one method that Longhorn knows.
pub const HASH_METHOD: &str = "crc64";
/// Read at once, in bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// Holes are looked for in windows that grow while nothing is found, in bytes: a fragmented image does not take long in one
/// step, and an empty one takes few.
const FIRST_WINDOW: u64 = 64 << 20;
const LAST_WINDOW: u64 = 64 << 30;

/// Longhorn's `<image>.checksum`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageHash {
    pub method: String,
    /// Hexadecimal digits.
    pub checksum: String,
    /// When the image was last changed, as Go prints it.
    pub change_time: String,
    /// RFC 3339.
    pub last_hashed_at: String,
    pub silently_corrupted: bool,
}

impl<F: Files> Volume<F> {
    fn hashable(&self, name: &str) -> Result<String, SnapshotError> {
        let image = snapshot_image(name);
        match self.tree.disks.get(&image) {
            None => Err(SnapshotError::None(name.to_owned())),
            Some(disk) if disk.removed => Err(SnapshotError::Removed(name.to_owned())),
            Some(_) => Ok(image),
        }
    }

    /// When a snapshot's image was last changed, as Longhorn writes it.
    pub fn change_time(&mut self, name: &str) -> Result<String, SnapshotError> {
        let image = self.hashable(name)?;
        let stat = self.files.stat(&image).map_err(OpenError::io(&image))?;
        let stat = stat.ok_or(OpenError::MissingImage { image })?;
        Ok(go_time(stat.changed_ns))
    }

    /// What was last noted; None if nothing was, or nothing that can be understood.
    pub fn image_hash(&mut self, name: &str) -> Result<Option<ImageHash>, SnapshotError> {
        let file = checksum_name(&self.hashable(name)?);
        let contents = self.files.read_file(&file, META_BYTES_MAX).map_err(OpenError::io(&file))?;
        Ok(contents.and_then(|contents| serde_json::from_slice(&contents).ok()))
    }

    /// Notes a sum.
    pub fn note_image_hash(&mut self, name: &str, hash: &ImageHash) -> Result<(), SnapshotError> {
        let file = checksum_name(&self.hashable(name)?);
        replace_meta(&mut self.files, &file, &render(hash)).map_err(OpenError::io(&file))?;
        Ok(())
    }

    pub(super) fn begin_image_piece(
        &mut self,
        id: RequestId,
        snapshot: &str,
        at: u64,
        out: &mut Output,
    ) -> Result<(), RequestError> {
        let image = self.hashable(snapshot).map_err(|_| RequestError::NoSnapshot(snapshot.to_owned()))?;
        let stat = self.files.stat(&image).map_err(|error| RequestError::Io((&error).into()))?;
        let size = stat.ok_or_else(|| RequestError::NoSnapshot(snapshot.to_owned()))?.size;
        let file = self.file_of(&image)?;
        let (start, end) = self.next_data(file, at, size).map_err(|error| RequestError::Io((&error).into()))?;
        let zeroes = start.saturating_sub(at);
        if start == end {
            let piece = ImagePiece { zeroes, data: Bytes::new() };
            out.done.push((id, Ok(Reply::ImagePiece(piece))));
            return Ok(());
        }
        let key = self.flight.start(id, Work::Image(zeroes));
        let buffer = AlignedBuf::new((end - start) as usize);
        self.flight.send(Owner::Request(key, 0), file, start, OpKind::Read { buffer }, out);
        Ok(())
    }

    /// The first range with data at or after `at`, cut to a piece; empty at the end of the file if there is none.
    fn next_data(&mut self, file: FileId, at: u64, size: u64) -> std::io::Result<(u64, u64)> {
        let (mut from, mut window) = (at, FIRST_WINDOW);
        while from < size {
            let to = size.min(from.saturating_add(window));
            let mut found = None;
            self.files.extents(file, from, to, &mut |start, end, written| {
                if written && found.is_none() {
                    found = Some((start, end.min(start + PIECE_BYTES)));
                }
            })?;
            if let Some(found) = found {
                return Ok(found);
            }
            from = to;
            window = (window * 2).min(LAST_WINDOW);
        }
        Ok((size.max(at), size.max(at)))
    }

    pub(super) fn image_completed(&mut self, key: u32, buffer: Option<AlignedBuf>, out: &mut Output) {
        let active = self.flight.finish(key);
        let Work::Image(zeroes) = active.work else { unreachable!("a piece of an image must stay one") };
        let answer = failure(active.fault).map(|()| {
            let data = buffer.map_or_else(Bytes::new, AlignedBuf::freeze);
            Reply::ImagePiece(ImagePiece { zeroes, data })
        });
        out.done.push((active.id, answer));
    }
}

/// A moment in UTC as Go's `time.Time` prints it: `2026-01-02 03:04:05.006 +0000 UTC`.
fn go_time(ns: i64) -> String {
    const DAY: i64 = 86_400;
    let (seconds, nanos) = (ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    let (days, rest) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    let fraction = format!("{nanos:09}");
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}{point}{fraction} +0000 UTC")
}

/// Year, month and day of a number of days since 1970 (proleptic Gregorian): years begin in March, so that the day that
/// may be missing is the last one.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::go_time;

    #[test]
    fn times_are_printed_as_go_prints_them() {
        let second = 1_000_000_000;
        assert_eq!(go_time(0), "1970-01-01 00:00:00 +0000 UTC");
        assert_eq!(go_time(951_782_399 * second + 999_999_999), "2000-02-28 23:59:59.999999999 +0000 UTC");
        assert_eq!(go_time(951_782_400 * second), "2000-02-29 00:00:00 +0000 UTC");
        assert_eq!(go_time(1_772_323_199 * second + 500_000), "2026-02-28 23:59:59.0005 +0000 UTC");
        assert_eq!(go_time(-second), "1969-12-31 23:59:59 +0000 UTC");
    }
}
