//! What redb reads and writes through: any medium's backend, or a shadow of it.
//!
//! A shadow keeps its writes in memory. A file is first opened in a shadow, repaired there if it has to be, and checked
//! from end to end; so a file that turns out to be damaged is left exactly as it was found.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::ops::Bound;

use parking_lot::Mutex;
use redb::{BackendError, StorageBackend};

/// Unit in which a shadow remembers writes; redb's page size, so that most writes are whole units.
const UNIT: usize = 4096;

#[derive(Debug)]
pub(super) struct Backend {
    inner: Box<dyn StorageBackend>,
    shadow: Option<Mutex<Shadow>>,
}

#[derive(Debug)]
struct Shadow {
    /// Of what lies beneath, which does not change.
    inner_len: u64,
    len: u64,
    /// Units that were written, by number.
    units: BTreeMap<u64, Box<[u8; UNIT]>>,
}

impl Backend {
    pub(super) fn direct(inner: Box<dyn StorageBackend>) -> Self {
        Self { inner, shadow: None }
    }

    /// Reads `inner` and never changes it.
    pub(super) fn shadow(inner: Box<dyn StorageBackend>) -> io::Result<Self> {
        let inner_len = inner.len()?;
        let shadow = Shadow { inner_len, len: inner_len, units: BTreeMap::new() };
        Ok(Self { inner, shadow: Some(Mutex::new(shadow)) })
    }
}

impl Shadow {
    fn read(&self, inner: &dyn StorageBackend, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset + out.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let there = self.inner_len.saturating_sub(offset).min(out.len() as u64) as usize;
        let (old, new) = out.split_at_mut(there);
        inner.read(offset, old)?;
        new.fill(0);
        for (number, unit) in self.units.range(offset / UNIT as u64..(offset + out.len() as u64).div_ceil(UNIT as u64))
        {
            let start = number * UNIT as u64;
            let from = offset.max(start);
            let to = (offset + out.len() as u64).min(start + UNIT as u64);
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&unit[(from - start) as usize..(to - start) as usize]);
        }
        Ok(())
    }

    fn write(&mut self, inner: &dyn StorageBackend, offset: u64, data: &[u8]) -> io::Result<()> {
        self.len = self.len.max(offset + data.len() as u64);
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (number, within) = (at / UNIT as u64, (at % UNIT as u64) as usize);
            let count = (UNIT - within).min(data.len() - done);
            let unit = match self.units.entry(number) {
                Entry::Occupied(unit) => unit.into_mut(),
                Entry::Vacant(place) => {
                    let mut unit = Box::new([0; UNIT]);
                    let start = number * UNIT as u64;
                    let there = self.inner_len.saturating_sub(start).min(UNIT as u64) as usize;
                    inner.read(start, &mut unit[..there])?;
                    place.insert(unit)
                }
            };
            unit[within..within + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        Ok(())
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        match &self.shadow {
            None => self.inner.len(),
            Some(shadow) => Ok(shadow.lock().len),
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        match &self.shadow {
            None => self.inner.read(offset, out),
            Some(shadow) => shadow.lock().read(&*self.inner, offset, out),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.shadow {
            None => self.inner.set_len(len),
            Some(shadow) => {
                shadow.lock().len = len;
                Ok(())
            }
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        match &self.shadow {
            None => self.inner.sync_data(),
            Some(_) => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.shadow {
            None => self.inner.write(offset, data),
            Some(shadow) => shadow.lock().write(&*self.inner, offset, data),
        }
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.query_lock_range(start, end)
    }
}
