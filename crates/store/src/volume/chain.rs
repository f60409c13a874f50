//! The snapshots of a replica as another one needs to know them: to compare, and to take them on.
//!
//! Removed snapshots are left out: they are in nobody's view, and when their space is reclaimed is each
//! replica's own business.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Volume;
use super::lifecycle::OpenError;
use super::recover::replace_meta;
use super::snapshot::SnapshotError;
use crate::files::Files;
use crate::meta::{DiskMeta, VolumeMeta, meta_name, render, snapshot_image, snapshot_name, valid_snapshot_name};
use crate::tree::CHAIN_MAX;

/// The kept snapshots, parents before children.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    /// Size of the volume in bytes.
    pub size: u64,
    pub snapshots: Vec<ChainSnapshot>,
    /// Name of the snapshot that the live volume stands on, or empty.
    pub head: String,
}

/// A kept snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainSnapshot {
    pub name: String,
    /// Nearest kept snapshot below, or empty.
    pub parent: String,
    pub user_created: bool,
    pub created: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// A chain that cannot be taken on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    #[error("not a chain: {0}")]
    NotJson(String),
    #[error("snapshot {0:?}: its parent {1:?} does not come before it")]
    Parent(String, String),
    #[error("snapshot {0:?} has no proper name, or comes twice")]
    Name(String),
    #[error("{0} snapshots are more than the {CHAIN_MAX} that Longhorn opens")]
    TooMany(usize),
}

impl Chain {
    pub fn parse(bytes: &[u8]) -> Result<Self, ChainError> {
        let chain: Self = serde_json::from_slice(bytes).map_err(|error| ChainError::NotJson(error.to_string()))?;
        if chain.snapshots.len() >= CHAIN_MAX {
            return Err(ChainError::TooMany(chain.snapshots.len()));
        }
        for (index, snapshot) in chain.snapshots.iter().enumerate() {
            let before = |name: &str| chain.snapshots[..index].iter().any(|other| other.name == name);
            if !valid_snapshot_name(&snapshot.name) || before(&snapshot.name) {
                return Err(ChainError::Name(snapshot.name.clone()));
            }
            if !snapshot.parent.is_empty() && !before(&snapshot.parent) {
                return Err(ChainError::Parent(snapshot.name.clone(), snapshot.parent.clone()));
            }
        }
        if !chain.head.is_empty() && chain.snapshots.iter().all(|snapshot| snapshot.name != chain.head) {
            return Err(ChainError::Parent("volume-head".to_owned(), chain.head));
        }
        Ok(chain)
    }

    pub fn render(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a chain must be representable as JSON")
    }

    /// Equal for replicas with equal names, parents and size; never 0.
    pub fn identity(&self) -> u64 {
        use sha2::{Digest, Sha256};
        let mut hash = Sha256::new();
        hash.update(self.size.to_le_bytes());
        for snapshot in &self.snapshots {
            for text in [&snapshot.name, &snapshot.parent] {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
        }
        hash.update(&self.head);
        let digest = hash.finalize();
        u64::from_le_bytes(digest[..8].try_into().expect("a digest must have eight bytes")).max(1)
    }
}

impl<F: Files> Volume<F> {
    /// The chain as it is. Snapshots of one age come in the order of their names, so that equal replicas give
    /// equal chains.
    pub fn chain(&self) -> Chain {
        let kept_below = |image: &str| {
            let mut at = self.tree.disks.get(image).map_or("", |disk| disk.parent.as_str());
            while let Some(disk) = self.tree.disks.get(at).filter(|disk| disk.removed) {
                at = &disk.parent;
            }
            snapshot_name(at).unwrap_or_default().to_owned()
        };
        let mut left: BTreeMap<String, ChainSnapshot> = BTreeMap::new();
        for (image, name, disk) in self.tree.snapshots().filter(|(_, _, disk)| !disk.removed) {
            let snapshot = ChainSnapshot {
                name: name.to_owned(),
                parent: kept_below(image),
                user_created: disk.user_created,
                created: disk.created.clone(),
                labels: disk.labels.clone().unwrap_or_default(),
            };
            left.insert(name.to_owned(), snapshot);
        }
        let mut snapshots: Vec<ChainSnapshot> = Vec::new();
        loop {
            let next = left.values().find(|one| !left.contains_key(&one.parent)).map(|one| one.name.clone());
            let Some(name) = next else { break };
            snapshots.extend(left.remove(&name));
        }
        Chain { size: self.size(), snapshots, head: kept_below(&self.tree.head) }
    }

    /// Takes on the chain of another replica; its contents are to be copied afterwards, oldest first. Snapshots
    /// that are here under the same name stay, so that what is equal already need not be copied. The state must
    /// say that the contents are incomplete before.
    pub fn set_chain(&mut self, chain: &Chain) -> Result<(), SnapshotError> {
        if !self.is_idle() {
            return Err(SnapshotError::Busy);
        }
        if chain.size > self.size() {
            self.expand(chain.size)?;
        }
        self.sync_unsynced()?;
        let done = self.take_on(chain);
        if done.is_err() {
            self.broken = Some(crate::op::Fault::Io);
        }
        Ok(done?)
    }

    /// First everything stands alone, then what is not wanted goes and what is missing comes, then parents are
    /// set from the oldest on: whatever happens in between, the directory can be opened.
    fn take_on(&mut self, chain: &Chain) -> Result<(), OpenError> {
        let layers: Vec<_> = self.layers.iter().map(|layer| (layer.image.clone(), layer.file)).collect();
        self.aside.extend(layers);
        let images: Vec<String> = self.tree.disks.keys().cloned().collect();
        for image in &images {
            self.set_parent(image, "")?;
        }
        for image in images.iter().filter(|image| snapshot_name(image).is_some()) {
            let wanted = chain.snapshots.iter().any(|snapshot| snapshot_image(&snapshot.name) == *image);
            if !wanted || self.tree.disks[image].removed {
                if let Some(file) = self.aside.remove(image) {
                    self.files.close(file);
                }
                self.tree.disks.remove(image);
                self.remove_files(image)?;
            }
        }
        for snapshot in &chain.snapshots {
            let image = snapshot_image(&snapshot.name);
            if !self.tree.disks.contains_key(&image) {
                self.files.remove(&image).map_err(OpenError::io(&image))?;
                self.files.create_sparse(&image, self.size()).map_err(OpenError::io(&image))?;
                self.files.sync_dir().map_err(OpenError::io("sync of the directory"))?;
            }
            let parent = if snapshot.parent.is_empty() { String::new() } else { snapshot_image(&snapshot.parent) };
            let disk = DiskMeta {
                name: image.clone(),
                parent,
                removed: false,
                user_created: snapshot.user_created,
                created: snapshot.created.clone(),
                labels: (!snapshot.labels.is_empty()).then(|| snapshot.labels.clone()),
                ..self.tree.disks.get(&image).cloned().unwrap_or_default()
            };
            replace_meta(&mut self.files, &meta_name(&image), &render(&disk)).map_err(OpenError::io(&image))?;
            self.tree.disks.insert(image, disk);
        }
        let head = self.tree.head.clone();
        let parent = if chain.head.is_empty() { String::new() } else { snapshot_image(&chain.head) };
        self.set_parent(&head, &parent)?;
        self.replace_volume_meta(VolumeMeta { parent, ..self.meta.clone() })?;
        self.open_chain()
    }

    fn set_parent(&mut self, image: &str, parent: &str) -> Result<(), OpenError> {
        let disk = self.tree.disks.get_mut(image).expect("an image must be in the tree");
        if disk.parent != parent {
            parent.clone_into(&mut disk.parent);
            let contents = render(disk);
            replace_meta(&mut self.files, &meta_name(image), &contents).map_err(OpenError::io(image))?;
        }
        Ok(())
    }
}
