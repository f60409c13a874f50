//! The images of a replica and how they stand on each other.
//!
//! ```text
//!   snap-a ◄─ snap-b ◄─ snap-c ◄─ head        the live chain
//!                 ▲
//!                 └──── snap-d                a branch left by a revert
//! ```

use std::collections::BTreeMap;

use crate::meta::{DiskMeta, is_head, snapshot_name};

/// Longest chain that Longhorn opens.
pub const CHAIN_MAX: usize = 250;

/// Metadata of every image, by file name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    pub disks: BTreeMap<String, DiskMeta>,
    pub head: String,
}

/// Metadata that does not fit together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error(
        "{child}.meta: field Parent is {parent:?}, and there is no {parent}.meta; restore it, or rebuild this replica"
    )]
    NoParent { child: String, parent: String },
    #[error("{image}.meta: its chain of parents leads back to itself; rebuild this replica")]
    Cycle { image: String },
    #[error("the live chain has {0} images, more than the 250 that Longhorn opens; delete snapshots")]
    TooLong(usize),
}

impl Tree {
    /// From `image` down to the oldest.
    pub fn chain(&self, image: &str) -> Result<Vec<String>, TreeError> {
        let mut chain = vec![image.to_owned()];
        let mut at = image;
        loop {
            let Some(disk) = self.disks.get(at) else {
                let child = chain.iter().rev().nth(1).cloned().unwrap_or_default();
                return Err(TreeError::NoParent { child, parent: at.to_owned() });
            };
            if disk.parent.is_empty() {
                return Ok(chain);
            }
            if chain.len() > self.disks.len() {
                return Err(TreeError::Cycle { image: image.to_owned() });
            }
            at = &disk.parent;
            chain.push(at.to_owned());
        }
    }

    /// The live chain, head first.
    pub fn live(&self) -> Result<Vec<String>, TreeError> {
        let chain = self.chain(&self.head)?;
        if chain.len() > CHAIN_MAX { Err(TreeError::TooLong(chain.len())) } else { Ok(chain) }
    }

    /// Checks every image's chain.
    pub fn check(&self) -> Result<(), TreeError> {
        self.live()?;
        self.disks.keys().try_for_each(|image| self.chain(image).map(drop))
    }

    pub fn children<'a, 'b: 'a>(&'a self, image: &'b str) -> impl Iterator<Item = &'a str> + use<'a, 'b> {
        self.disks.iter().filter(move |(_, disk)| disk.parent == image).map(|(name, _)| name.as_str())
    }

    /// The only child, if there is exactly one.
    pub fn only_child(&self, image: &str) -> Option<&str> {
        let mut children = self.disks.iter().filter(|(_, disk)| disk.parent == image);
        let (only, _) = children.next()?;
        children.next().is_none().then_some(only.as_str())
    }

    /// Images of snapshots; other files with metadata (temporary ones of a restore) are left alone.
    pub fn snapshots(&self) -> impl Iterator<Item = (&str, &str, &DiskMeta)> {
        self.disks.iter().filter_map(|(image, disk)| Some((image.as_str(), snapshot_name(image)?, disk)))
    }

    /// Images that are heads but not the head.
    pub fn stray_heads(&self) -> Vec<String> {
        self.disks.keys().filter(|image| is_head(image) && **image != self.head).cloned().collect()
    }

    /// The work that removed snapshots leave, nearest to the root first.
    pub fn reclaimable(&self) -> Option<Reclaim> {
        let removed = || self.snapshots().filter(|(_, _, disk)| disk.removed);
        if let Some((image, ..)) = removed().find(|(image, ..)| self.children(image).next().is_none()) {
            return Some(Reclaim::Delete { image: image.to_owned() });
        }
        let fold = removed().find_map(|(image, ..)| {
            let child = self.only_child(image)?;
            snapshot_name(child)?;
            Some(Reclaim::Fold { parent: image.to_owned(), child: child.to_owned() })
        });
        fold.or_else(|| {
            let (image, ..) = removed().find(|(image, ..)| self.only_child(image) == Some(&self.head))?;
            Some(Reclaim::Prune { image: image.to_owned() })
        })
    }
}

/// One piece of work on a removed snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reclaim {
    /// Nothing stands on it: delete it.
    Delete { image: String },
    /// One snapshot stands on it: move that one's data into it, and let it take the other's name.
    Fold { parent: String, child: String },
    /// Only the head stands on it: give back what the head hides.
    Prune { image: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(edges: &[(&str, &str, bool)], head: &str) -> Tree {
        let disk = |parent: &str, removed| DiskMeta { parent: parent.to_owned(), removed, ..DiskMeta::default() };
        let disks = edges.iter().map(|(name, parent, removed)| ((*name).to_owned(), disk(parent, *removed)));
        Tree { disks: disks.collect(), head: head.to_owned() }
    }

    const A: &str = "volume-snap-a.img";
    const B: &str = "volume-snap-b.img";
    const D: &str = "volume-snap-d.img";
    const HEAD: &str = "volume-head-003.img";

    #[test]
    fn chains() {
        let good = tree(&[(A, "", false), (B, A, false), (D, A, false), (HEAD, B, false)], HEAD);
        assert_eq!(good.live().unwrap(), [HEAD, B, A]);
        assert_eq!(good.children(A).collect::<Vec<_>>(), [B, D]);
        good.check().unwrap();
        let missing = tree(&[(HEAD, B, false)], HEAD);
        assert_eq!(missing.live(), Err(TreeError::NoParent { child: HEAD.to_owned(), parent: B.to_owned() }));
        let cycle = tree(&[(A, B, false), (B, A, false), (HEAD, B, false)], HEAD);
        assert!(matches!(cycle.live(), Err(TreeError::Cycle { .. })));
    }

    #[test]
    fn what_a_removed_snapshot_leaves_to_do() {
        let cases = [
            (vec![(A, "", false), (HEAD, A, false)], None),
            (vec![(A, "", true), (HEAD, A, false)], Some(Reclaim::Prune { image: A.to_owned() })),
            (
                vec![(A, "", true), (B, A, false), (HEAD, B, false)],
                Some(Reclaim::Fold { parent: A.to_owned(), child: B.to_owned() }),
            ),
            (vec![(A, "", true), (B, A, false), (D, A, false), (HEAD, B, false)], None),
            (
                vec![(A, "", true), (B, A, false), (D, A, true), (HEAD, B, false)],
                Some(Reclaim::Delete { image: D.to_owned() }),
            ),
        ];
        for (edges, expected) in cases {
            assert_eq!(tree(&edges, HEAD).reclaimable(), expected, "{edges:?}");
        }
    }
}
