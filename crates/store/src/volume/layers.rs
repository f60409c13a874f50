//! The open files of the live chain, oldest first.

use crate::index::{Layer, NOTHING};
use crate::op::FileId;

#[derive(Debug, Clone)]
pub(super) struct OpenLayer {
    pub(super) id: Layer,
    pub(super) image: String,
    pub(super) file: FileId,
    /// Length of the file in blocks; older images may be shorter than the volume.
    pub(super) blocks: u64,
}

/// The live chain. Layer numbers stay with their file for as long as the index mentions them.
#[derive(Debug, Default)]
pub(super) struct Layers {
    chain: Vec<OpenLayer>,
    /// Numbers that the index may still mention, and what stands for them now.
    retired: Vec<Retired>,
}

/// A number that is being replaced in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retired {
    pub(super) old: Layer,
    pub(super) new: Layer,
    /// Chunks of the index that are done.
    pub(super) done: usize,
}

impl Layers {
    /// Puts a layer on top.
    pub(super) fn push(&mut self, image: String, file: FileId, blocks: u64) -> Layer {
        let used = |id: &Layer| {
            self.chain.iter().any(|layer| layer.id == *id) || self.retired.iter().any(|retired| retired.old == *id)
        };
        let id = (NOTHING + 1..=Layer::MAX).find(|id| !used(id)).expect("a chain must be shorter than 250 images");
        self.chain.push(OpenLayer { id, image, file, blocks });
        id
    }

    pub(super) fn head(&self) -> &OpenLayer {
        self.chain.last().expect("an open volume must have a head")
    }

    pub(super) fn head_mut(&mut self) -> &mut OpenLayer {
        self.chain.last_mut().expect("an open volume must have a head")
    }

    /// Oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &OpenLayer> {
        self.chain.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.chain.len()
    }

    pub(super) fn file(&self, id: Layer) -> FileId {
        let id = self.retired.iter().find(|retired| retired.old == id).map_or(id, |retired| retired.new);
        let found = self.chain.iter().rev().find(|layer| layer.id == id);
        found.expect("the index must mention layers of the chain only").file
    }

    pub(super) fn by_image(&self, image: &str) -> Option<&OpenLayer> {
        self.chain.iter().find(|layer| layer.image == image)
    }

    /// `parent`'s file now stands for `child` as well, under the child's name. Gives the child's old file back.
    pub(super) fn merge(&mut self, parent: &str, child: &str, blocks: u64) -> Option<FileId> {
        let below = self.chain.iter().position(|layer| layer.image == parent)?;
        let above = self.chain.iter().position(|layer| layer.image == child)?;
        let old = self.chain.remove(below);
        let merged = &mut self.chain[above - 1];
        let unused = std::mem::replace(&mut merged.file, old.file);
        merged.blocks = blocks;
        let new = merged.id;
        for retired in &mut self.retired {
            if retired.new == old.id {
                retired.new = new;
                retired.done = 0;
            }
        }
        self.retired.push(Retired { old: old.id, new, done: 0 });
        Some(unused)
    }

    pub(super) fn retired_mut(&mut self) -> Option<&mut Retired> {
        self.retired.first_mut()
    }

    pub(super) fn drop_retired(&mut self) {
        self.retired.remove(0);
    }
}
