//! The rows of the file: fixed little-endian layouts, each with a checksum over its key and its content.
//!
//! The history is an undo log. A row keeps the state *before* its change; the state after it is the one before the
//! next change of that object, or the object itself. So a creation writes its value once, an update writes the old
//! value once more, and a row that vanished breaks a chain that loading follows.

use bytes::Bytes;

use super::{Entry, EventKind, Key};

/// What [`read_object`] and the others found wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum RowError {
    #[error("checksum mismatch")]
    Checksum,
    #[error("row cut short")]
    Short,
    #[error("row malformed")]
    Malformed,
}

/// Totals of the whole store, kept in its own row: they notice rows that are missing or surplus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    /// The latest revision.
    pub(super) revision: u64,
    /// The revision of the oldest history row; one more than `revision` if there is none.
    pub(super) first: u64,
    pub(super) objects: u64,
    /// Sum of [`fingerprint`] over all objects.
    pub(super) digest: u64,
}

impl Totals {
    pub(super) const EMPTY: Self = Self { revision: 0, first: 1, objects: 0, digest: 0 };

    pub(super) fn add(&mut self, entry: &Entry) {
        self.objects += 1;
        self.digest = self.digest.wrapping_add(fingerprint(entry));
    }

    pub(super) fn remove(&mut self, entry: &Entry) {
        self.objects -= 1;
        self.digest = self.digest.wrapping_sub(fingerprint(entry));
    }
}

/// One history row, as stored.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) kind: EventKind,
    pub(super) key: Key,
    /// Revision and value before the change.
    pub(super) previous: Option<(u64, Bytes)>,
    /// The final state, of a deletion; empty otherwise.
    pub(super) last: Bytes,
}

/// 64-bit FNV-1a over what identifies a state of an object. Sums of it do not depend on order.
fn fingerprint(entry: &Entry) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let Key { resource, namespace, name } = &*entry.key;
    let value = crc32fast::hash(&entry.value).to_le_bytes();
    let revision = entry.revision.to_le_bytes();
    let parts = [resource.as_bytes(), namespace.as_bytes(), name.as_bytes(), &revision, &value];
    parts.iter().fold(OFFSET, |hash, part| {
        let hash = part.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(PRIME));
        // ends the part with a byte that UTF-8 does not use, so that "ab"+"c" differs from "a"+"bc"
        (hash ^ 0xff).wrapping_mul(PRIME)
    })
}

pub(super) fn object_row(entry: &Entry) -> Vec<u8> {
    let mut row = Vec::with_capacity(12 + entry.value.len());
    row.extend_from_slice(&[0; 4]);
    row.extend_from_slice(&entry.revision.to_le_bytes());
    row.extend_from_slice(&entry.value);
    sealed(row, &object_salt(&entry.key))
}

pub(super) fn read_object(key: &Key, row: &[u8]) -> Result<(u64, Bytes), RowError> {
    let mut row = Reader::new(row, &object_salt(key))?;
    Ok((row.u64()?, row.rest()))
}

pub(super) fn undo_row(revision: u64, kind: EventKind, key: &Key, previous: Option<&Entry>, last: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(64 + previous.map_or(0, |entry| entry.value.len()) + last.len());
    row.extend_from_slice(&[0; 4]);
    row.push(match kind {
        EventKind::Added => 0,
        EventKind::Modified => 1,
        EventKind::Deleted => 2,
    });
    for part in [&key.resource, &key.namespace, &key.name] {
        put_bytes(&mut row, part.as_bytes());
    }
    if let Some(previous) = previous {
        row.push(1);
        row.extend_from_slice(&previous.revision.to_le_bytes());
        put_bytes(&mut row, &previous.value);
    } else {
        row.push(0);
    }
    row.extend_from_slice(last);
    sealed(row, &revision.to_le_bytes())
}

pub(super) fn read_undo(revision: u64, row: &[u8]) -> Result<Undo, RowError> {
    let mut row = Reader::new(row, &revision.to_le_bytes())?;
    let kind = match row.u8()? {
        0 => EventKind::Added,
        1 => EventKind::Modified,
        2 => EventKind::Deleted,
        _ => return Err(RowError::Malformed),
    };
    let key = Key { resource: row.string()?, namespace: row.string()?, name: row.string()? };
    let previous = match row.u8()? {
        0 => None,
        1 => Some((row.u64()?, row.bytes()?)),
        _ => return Err(RowError::Malformed),
    };
    if previous.is_none() != (kind == EventKind::Added) {
        return Err(RowError::Malformed);
    }
    Ok(Undo { kind, key, previous, last: row.rest() })
}

pub(super) fn totals_row(totals: &Totals) -> Vec<u8> {
    let mut row = vec![0; 4];
    for number in [totals.revision, totals.first, totals.objects, totals.digest] {
        row.extend_from_slice(&number.to_le_bytes());
    }
    sealed(row, &[])
}

pub(super) fn read_totals(row: &[u8]) -> Result<Totals, RowError> {
    let mut row = Reader::new(row, &[])?;
    Ok(Totals { revision: row.u64()?, first: row.u64()?, objects: row.u64()?, digest: row.u64()? })
}

/// What the checksum of an object's row covers beside the row: a row under a wrong key is a wrong row.
fn object_salt(key: &Key) -> Vec<u8> {
    let mut salt = Vec::with_capacity(12 + key.resource.len() + key.namespace.len() + key.name.len());
    for part in [&key.resource, &key.namespace, &key.name] {
        put_bytes(&mut salt, part.as_bytes());
    }
    salt
}

fn put_bytes(row: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("a value must be smaller than 4 GiB: writes are bounded");
    row.extend_from_slice(&len.to_le_bytes());
    row.extend_from_slice(bytes);
}

fn checksum(salt: &[u8], body: &[u8]) -> [u8; 4] {
    let mut crc = crc32fast::Hasher::new();
    crc.update(salt);
    crc.update(body);
    crc.finalize().to_le_bytes()
}

/// Fills in the checksum that the first four bytes were left for.
fn sealed(mut row: Vec<u8>, salt: &[u8]) -> Vec<u8> {
    let (crc, body) = row.split_at_mut(4);
    crc.copy_from_slice(&checksum(salt, body));
    row
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn new(row: &'a [u8], salt: &[u8]) -> Result<Self, RowError> {
        let (crc, body) = row.split_at_checked(4).ok_or(RowError::Short)?;
        if crc != checksum(salt, body) {
            return Err(RowError::Checksum);
        }
        Ok(Self(body))
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RowError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(RowError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, RowError> {
        Ok(self.take(1)?[0])
    }

    fn u64(&mut self) -> Result<u64, RowError> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("eight bytes must fit a u64")))
    }

    fn prefixed(&mut self) -> Result<&'a [u8], RowError> {
        let len = u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes must fit a u32"));
        self.take(len as usize)
    }

    fn bytes(&mut self) -> Result<Bytes, RowError> {
        Ok(Bytes::copy_from_slice(self.prefixed()?))
    }

    fn string(&mut self) -> Result<String, RowError> {
        String::from_utf8(self.prefixed()?.to_vec()).map_err(|_| RowError::Malformed)
    }

    fn rest(self) -> Bytes {
        Bytes::copy_from_slice(self.0)
    }
}
