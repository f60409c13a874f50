//! The chain of snapshots in words that engines pass from one replica to another.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tether_store::volume::SnapshotInfo;

/// How the store calls the live volume.
const HEAD_NAME: &str = "volume-head";
/// Version of the text; a newer one is refused.
pub const VERSION: u32 = 1;

/// A chain, oldest first. The live volume is above the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Chain {
    pub version: u32,
    pub snapshots: Vec<Link>,
}

/// One snapshot of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    pub name: String,
    pub created: String,
    pub user_created: bool,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl Chain {
    /// The live chain out of everything that a directory holds: branches and removed snapshots do not count, since
    /// replicas get rid of those at their own pace.
    pub fn of(snapshots: &[SnapshotInfo]) -> Self {
        let find = |name: &str| snapshots.iter().find(|snapshot| snapshot.name == name);
        let mut links = Vec::new();
        let mut at = find(HEAD_NAME).and_then(|head| find(&head.parent));
        while let Some(snapshot) = at {
            if !snapshot.removed {
                links.push(Link {
                    name: snapshot.name.clone(),
                    created: snapshot.created.clone(),
                    user_created: snapshot.user_created,
                    labels: snapshot.labels.clone(),
                });
            }
            at = find(&snapshot.parent);
        }
        links.reverse();
        Self { version: VERSION, snapshots: links }
    }

    pub fn to_bytes(&self) -> Bytes {
        Bytes::from(serde_json::to_vec(self).expect("a chain must be writable as JSON"))
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Self>(bytes).ok().filter(|chain| chain.version <= VERSION)
    }

    /// A number that two replicas with the same chain agree on; never zero, which means "not complete".
    pub fn id(&self) -> u64 {
        let mut text = String::new();
        for link in &self.snapshots {
            text.push_str(&link.name);
            text.push('\n');
        }
        let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
        let first = digest.as_ref().first_chunk().expect("a digest has more than eight bytes");
        u64::from_le_bytes(*first).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, parent: &str, removed: bool) -> SnapshotInfo {
        SnapshotInfo {
            name: name.to_owned(),
            parent: parent.to_owned(),
            children: Vec::new(),
            removed,
            user_created: true,
            created: String::new(),
            size: 0,
            labels: BTreeMap::new(),
            live: true,
        }
    }

    #[test]
    fn a_chain_is_what_lies_below_the_head_oldest_first() {
        let all = [
            info("volume-head", "c", false),
            info("c", "b", false),
            info("b", "a", true),
            info("a", "", false),
            info("x", "a", false),
        ];
        let chain = Chain::of(&all);
        assert_eq!(chain.snapshots.iter().map(|link| link.name.as_str()).collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!(Chain::parse(&chain.to_bytes()), Some(chain.clone()));
        assert_ne!(chain.id(), Chain::default().id());
        assert_eq!(Chain::parse(br#"{"version":2,"snapshots":[]}"#), None);
    }
}
