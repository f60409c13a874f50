//! Snapshots and size: create, list, revert, remove, expand. Blocking, and only while nothing is under way.

use std::collections::BTreeMap;

use super::Volume;
use super::lifecycle::OpenError;
use super::recover::replace_meta;
use crate::buffer::BLOCK;
use crate::files::Files;
use crate::meta::{
    DiskMeta, META_BYTES_MAX, VOLUME_META, VolumeMeta, checksum_name, meta_name, next_head, render, snapshot_image,
    snapshot_name, valid_snapshot_name,
};
use crate::op::Fault;
use crate::tree::CHAIN_MAX;

/// A snapshot, or the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// `volume-head` for the head, as Longhorn shows it.
    pub name: String,
    /// Empty for the oldest.
    pub parent: String,
    pub children: Vec<String>,
    pub removed: bool,
    pub user_created: bool,
    pub created: String,
    /// Bytes that its image occupies.
    pub size: u64,
    pub labels: BTreeMap<String, String>,
    /// Part of the chain below the head.
    pub live: bool,
}

/// Why an operation on snapshots was not done.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("snapshot {0:?} exists already")]
    Exists(String),
    #[error("{0:?} is no name for a snapshot: letters, digits and -_.:+@ only, at most 200")]
    Name(String),
    #[error("there is no snapshot {0:?}")]
    None(String),
    #[error("snapshot {0:?} is removed already and only waits for its space to be reclaimed")]
    Removed(String),
    #[error("the chain has {CHAIN_MAX} images, more than that Longhorn does not open; delete snapshots")]
    TooMany,
    #[error("a volume of {from} bytes cannot become one of {to}; sizes grow, in steps of 4096")]
    Size { from: u64, to: u64 },
    #[error("requests are under way")]
    Busy,
    #[error(transparent)]
    Metadata(#[from] OpenError),
}

/// How the head is called where names of snapshots are shown.
pub const HEAD_NAME: &str = "volume-head";

impl<F: Files> Volume<F> {
    /// Everything below and including the head, and branches.
    pub fn snapshots(&mut self) -> Result<Vec<SnapshotInfo>, SnapshotError> {
        let live = self.tree.live().map_err(OpenError::from)?;
        let shown = |image: &str| snapshot_name(image).map_or_else(|| HEAD_NAME.to_owned(), str::to_owned);
        let mut list = Vec::new();
        for (image, disk) in &self.tree.disks {
            let stat = self.files.stat(image).map_err(OpenError::io(image))?;
            list.push(SnapshotInfo {
                name: shown(image),
                parent: if disk.parent.is_empty() { String::new() } else { shown(&disk.parent) },
                children: self.tree.children(image).map(shown).collect(),
                removed: disk.removed,
                user_created: disk.user_created,
                created: disk.created.clone(),
                size: stat.map_or(0, |stat| stat.allocated),
                labels: disk.labels.clone().unwrap_or_default(),
                live: live.contains(image),
            });
        }
        Ok(list)
    }

    /// Freezes the present contents under a name; writes go to a new, empty head.
    pub fn create_snapshot(
        &mut self,
        name: &str,
        user_created: bool,
        created: &str,
        labels: BTreeMap<String, String>,
    ) -> Result<(), SnapshotError> {
        if !valid_snapshot_name(name) {
            return Err(SnapshotError::Name(name.to_owned()));
        }
        let image = snapshot_image(name);
        if self.tree.disks.contains_key(&image) {
            return Err(SnapshotError::Exists(name.to_owned()));
        }
        if self.layers.len() >= CHAIN_MAX {
            return Err(SnapshotError::TooMany);
        }
        if !self.is_idle() {
            return Err(SnapshotError::Busy);
        }
        let old = self.tree.head.clone();
        let disk = DiskMeta {
            name: image.clone(),
            removed: false,
            user_created,
            created: created.to_owned(),
            labels: (!labels.is_empty()).then_some(labels),
            ..self.tree.disks[&old].clone()
        };
        let new = self.make_head(&image, created)?;
        if let Err(error) = self.commit_snapshot(&old, &new, &image, &disk) {
            self.roll_back(&old, &[&new, &image]);
            return Err(error.into());
        }
        self.layers.head_mut().image.clone_from(&image);
        self.tree.disks.remove(&old);
        self.tree.disks.insert(image.clone(), disk);
        self.use_head(&new, &image, created).inspect_err(|_| self.broken = Some(Fault::Io))?;
        self.remove_old_head(&old);
        Ok(())
    }

    /// Gives the head's file the snapshot's name as well, and makes the new head the head.
    fn commit_snapshot(&mut self, old: &str, new: &str, image: &str, disk: &DiskMeta) -> Result<(), OpenError> {
        self.sync_unsynced()?;
        self.sync_image(self.layers.head().file)?;
        for leftover in [meta_name(image), checksum_name(image)] {
            self.files.remove(&leftover).map_err(OpenError::io(leftover))?;
        }
        self.files.link(old, image).map_err(OpenError::io(image))?;
        replace_meta(&mut self.files, &meta_name(image), &render(disk)).map_err(OpenError::io(image))?;
        let meta = VolumeMeta { head: new.to_owned(), parent: image.to_owned(), dirty: true, ..self.meta.clone() };
        self.replace_volume_meta(meta)
    }

    /// Takes back what was prepared, as far as possible. If `volume.meta` names the new head nevertheless, or
    /// cannot be read, only opening the replica again tells what happened.
    fn roll_back(&mut self, old: &str, images: &[&str]) {
        let contents = self.files.read_file(VOLUME_META, META_BYTES_MAX).ok().flatten();
        let named = contents.and_then(|contents| VolumeMeta::parse(VOLUME_META, &contents).ok());
        if named.is_none_or(|meta| meta.head != old) {
            self.broken = Some(Fault::Io);
            return;
        }
        for image in images {
            if self.remove_files(image).is_err() {
                // Harmless: the next opening removes it, and a new head takes another name.
                return;
            }
        }
    }

    /// Creates the files of a new head above `parent`; nothing refers to them yet.
    fn make_head(&mut self, parent: &str, created: &str) -> Result<String, OpenError> {
        let mut new = next_head(&self.tree.head);
        // Longhorn's numbers repeat, and a head that it left behind must not be overwritten.
        while self.files.stat(&new).map_err(OpenError::io(&new))?.is_some() {
            new = next_head(&new);
        }
        self.files.create_sparse(&new, self.size()).map_err(OpenError::io(&new))?;
        let disk = head_meta(&new, parent, created);
        replace_meta(&mut self.files, &meta_name(&new), &render(&disk)).map_err(OpenError::io(&new))?;
        Ok(new)
    }

    /// Opens the new head and lets writes go there.
    fn use_head(&mut self, new: &str, parent: &str, created: &str) -> Result<(), OpenError> {
        new.clone_into(&mut self.tree.head);
        self.tree.disks.insert(new.to_owned(), head_meta(new, parent, created));
        let file = self.files.open(new).map_err(OpenError::io(new))?;
        self.layers.push(new.to_owned(), file, self.index.blocks());
        Ok(())
    }

    /// Removes a head that is none any more. What is done is done: if this fails, the next opening does it.
    fn remove_old_head(&mut self, old: &str) {
        let _ = self.remove_files(old);
    }

    /// Removes an image and what belongs to it: the image first, so that metadata without image means "was
    /// being removed".
    pub(super) fn remove_files(&mut self, image: &str) -> Result<(), OpenError> {
        self.files.remove(image).map_err(OpenError::io(image))?;
        self.files.remove(&checksum_name(image)).map_err(OpenError::io(image))?;
        self.files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
        self.files.remove(&meta_name(image)).map_err(OpenError::io(image))?;
        self.files.sync_dir().map_err(OpenError::io("sync of the directory"))
    }

    /// Goes back to a snapshot: what was written since is gone.
    pub fn revert(&mut self, name: &str, created: &str) -> Result<(), SnapshotError> {
        let image = snapshot_image(name);
        match self.tree.disks.get(&image) {
            None => return Err(SnapshotError::None(name.to_owned())),
            Some(disk) if disk.removed => return Err(SnapshotError::Removed(name.to_owned())),
            Some(_) => {}
        }
        if !self.is_idle() {
            return Err(SnapshotError::Busy);
        }
        self.sync_unsynced()?;
        let old = self.tree.head.clone();
        let new = self.make_head(&image, created)?;
        let meta = VolumeMeta { head: new.clone(), parent: image.clone(), dirty: true, ..self.meta.clone() };
        if let Err(error) = self.replace_volume_meta(meta) {
            self.roll_back(&old, &[&new]);
            return Err(error.into());
        }
        self.tree.disks.remove(&old);
        self.tree.head.clone_from(&new);
        self.tree.disks.insert(new.clone(), head_meta(&new, &image, created));
        let unused: Vec<_> = self.layers.iter().map(|layer| layer.file).collect();
        for file in unused {
            self.files.close(file);
        }
        self.open_chain().inspect_err(|_| self.broken = Some(Fault::Io))?;
        self.remove_old_head(&old);
        Ok(())
    }

    /// Marks a snapshot as removed; [`Request::Reclaim`](crate::Request::Reclaim) gives its space back.
    pub fn remove_snapshot(&mut self, name: &str) -> Result<(), SnapshotError> {
        let image = snapshot_image(name);
        let Some(disk) = self.tree.disks.get(&image) else { return Err(SnapshotError::None(name.to_owned())) };
        if !disk.removed {
            let disk = DiskMeta { removed: true, ..disk.clone() };
            replace_meta(&mut self.files, &meta_name(&image), &render(&disk)).map_err(OpenError::io(&image))?;
            self.tree.disks.insert(image, disk);
        }
        self.reclaim.wanted();
        Ok(())
    }

    /// Marks every snapshot that no user asked for as removed.
    pub fn remove_system_snapshots(&mut self) -> Result<Vec<String>, SnapshotError> {
        let system = self.tree.snapshots().filter(|(_, _, disk)| !disk.user_created && !disk.removed);
        let names: Vec<String> = system.map(|(_, name, _)| name.to_owned()).collect();
        names.iter().try_for_each(|name| self.remove_snapshot(name))?;
        self.reclaim.wanted();
        Ok(names)
    }

    /// Makes the volume larger; the new part reads as zeroes.
    pub fn expand(&mut self, size: u64) -> Result<(), SnapshotError> {
        let from = self.size();
        if size < from || !size.is_multiple_of(BLOCK) || size > super::lifecycle::VOLUME_BYTES_MAX {
            return Err(SnapshotError::Size { from, to: size });
        }
        if size == from {
            return Ok(());
        }
        if !self.is_idle() {
            return Err(SnapshotError::Busy);
        }
        let head = self.tree.head.clone();
        self.files.resize(&head, size).map_err(OpenError::io(&head))?;
        self.replace_volume_meta(VolumeMeta { size: size as i64, ..self.meta.clone() })?;
        self.grow_state()?;
        self.index.grow(size / BLOCK);
        self.layers.head_mut().blocks = size / BLOCK;
        self.reindex(from / BLOCK, size / BLOCK).map_err(OpenError::io(&head))?;
        Ok(())
    }
}

fn head_meta(image: &str, parent: &str, created: &str) -> DiskMeta {
    DiskMeta { name: image.to_owned(), parent: parent.to_owned(), created: created.to_owned(), ..DiskMeta::default() }
}
