//! A directory that is looked at and not changed: what would be changed is changed in memory only.
//!
//! Opening a replica puts things in order and marks it open. Somebody who only wants to look must not do that,
//! least of all while another process uses it.

use std::collections::BTreeMap;
use std::io;

use super::{Abilities, EachExtent, Files, Stat};
use crate::AlignedBuf;
use crate::host::RunOp;
use crate::op::{Fault, FileId, FileOp, OpId, OpKind, OpResult};

/// Files of `below`, with changes on top that nobody else sees.
#[derive(Debug)]
pub struct Overlay<F> {
    below: F,
    changed: BTreeMap<String, Changed>,
}

#[derive(Debug, Clone)]
enum Changed {
    Gone,
    /// Another name's file.
    Is(String),
    Small(Vec<u8>),
}

impl<F: Files> Overlay<F> {
    pub fn new(below: F) -> Self {
        Self { below, changed: BTreeMap::new() }
    }

    /// What a name stands for: a file below, or contents.
    fn find(&self, name: &str) -> Changed {
        self.changed.get(name).cloned().unwrap_or_else(|| Changed::Is(name.to_owned()))
    }
}

fn missing() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl<F: Files> Files for Overlay<F> {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let mut names = self.below.list()?;
        names.retain(|name| !self.changed.contains_key(name));
        names.extend(self.changed.iter().filter(|(_, is)| !matches!(is, Changed::Gone)).map(|(name, _)| name.clone()));
        names.sort_unstable();
        Ok(names)
    }

    fn stat(&mut self, name: &str) -> io::Result<Option<Stat>> {
        match self.find(name) {
            Changed::Gone => Ok(None),
            Changed::Is(below) => self.below.stat(&below),
            Changed::Small(contents) => {
                let size = contents.len() as u64;
                Ok(Some(Stat { inode: 0, links: 1, size, allocated: size, modified_ns: 0, changed_ns: 0 }))
            }
        }
    }

    fn read_file(&mut self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        match self.find(name) {
            Changed::Gone => Ok(None),
            Changed::Is(below) => self.below.read_file(&below, limit),
            Changed::Small(contents) => Ok(Some(contents)),
        }
    }

    fn write_file(&mut self, name: &str, contents: &[u8]) -> io::Result<Stat> {
        self.changed.insert(name.to_owned(), Changed::Small(contents.to_vec()));
        self.stat(name)?.ok_or_else(missing)
    }

    fn create_sparse(&mut self, _name: &str, _size: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::ReadOnlyFilesystem))
    }

    fn resize(&mut self, _name: &str, _size: u64) -> io::Result<()> {
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let is = self.find(from);
        self.changed.insert(to.to_owned(), is);
        self.changed.insert(from.to_owned(), Changed::Gone);
        Ok(())
    }

    fn link(&mut self, from: &str, to: &str) -> io::Result<()> {
        let is = self.find(from);
        self.changed.insert(to.to_owned(), is);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.changed.insert(name.to_owned(), Changed::Gone);
        Ok(())
    }

    fn sync_dir(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn open(&mut self, name: &str) -> io::Result<FileId> {
        match self.find(name) {
            Changed::Is(below) => self.below.open(&below),
            Changed::Small(_) => self.below.open(name).or(Ok(FileId(u32::MAX))),
            Changed::Gone => Err(missing()),
        }
    }

    fn close(&mut self, file: FileId) {
        if file != FileId(u32::MAX) {
            self.below.close(file);
        }
    }

    fn read_at(&mut self, file: FileId, offset: u64, buffer: &mut AlignedBuf) -> io::Result<()> {
        self.below.read_at(file, offset, buffer)
    }

    fn write_at(&mut self, _file: FileId, _offset: u64, _data: &AlignedBuf) -> io::Result<()> {
        Ok(())
    }

    fn sync(&mut self, _file: FileId) -> io::Result<()> {
        Ok(())
    }

    fn extents(&mut self, file: FileId, start: u64, end: u64, each: EachExtent<'_>) -> io::Result<()> {
        self.below.extents(file, start, end, each)
    }

    fn punch(&mut self, _file: FileId, _start: u64, _end: u64) -> io::Result<()> {
        Ok(())
    }

    fn abilities(&self) -> Abilities {
        self.below.abilities()
    }
}

impl<F: RunOp> RunOp for Overlay<F> {
    fn run_op(&self, op: FileOp) -> (OpId, OpResult) {
        match op.kind {
            OpKind::Read { .. } => self.below.run_op(op),
            _ => (op.id, OpResult::Failed(Fault::Unsupported)),
        }
    }
}
