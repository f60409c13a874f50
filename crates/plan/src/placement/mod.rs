//! Where a replica goes: which disk of which node, and why not on the others.
//!
//! Filters ([`filter`]) say which disks are possible, each refusal with its reason; a [`Score`] orders what is left.
//! Policy is the order of the score's fields: spread over zones, then nodes, then disks; then keep what may still be
//! promised as even as possible. Anti-affinity that is *hard* refuses, anti-affinity that is *soft* only prefers.
//!
//! ```text
//!   nodes ──node filters──► disks ──disk filters──► candidates ──smallest score──► the spot
//!             │ refused: why          │ refused: why
//!             └───────────────────────┴──────────────► "why, per node"
//! ```

mod filter;
mod host;
pub mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde::Serialize;
use tether_model::reason::Reason;

pub(crate) use self::filter::space;
pub use self::host::running_since;

/// A node as placement sees it.
// Facts that are each yes or no, and independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// Empty is a zone of its own: all nodes that do not say where they are.
    pub zone: String,
    pub region: String,
    pub is_deleting: bool,
    /// It is known not to answer, or Kubernetes does not know it: what runs there cannot be told, nor told to stop.
    pub is_down: bool,
    /// Why the node is not Ready; `None` if it is.
    pub not_ready: Option<String>,
    /// Why nothing may be scheduled to it although it is Ready (a cordon); `None` if something may.
    pub unschedulable: Option<String>,
    pub allows_scheduling: bool,
    pub is_evicting: bool,
    /// Kubernetes schedules nothing to it, and a drain may follow.
    pub is_cordoned: bool,
    pub tags: BTreeSet<String>,
    /// Whether its instance manager runs, and can start a replica.
    pub manager: Manager,
    /// Since when it runs: what failed before, failed in another process, or with one.
    pub manager_since: Option<Timestamp>,
    pub disks: Vec<Disk>,
}

/// The instance manager of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manager {
    #[default]
    Missing,
    Stopped,
    Starting,
    Running,
    Error,
    Unknown,
}

impl Manager {
    /// Whether it runs, or will in a moment: what is asked of it now is not asked in vain.
    pub fn can_launch(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }

    /// One word, in lower case.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Error => "in error",
            Self::Unknown => "unknown",
        }
    }
}

/// A disk of a node. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    pub name: String,
    pub uuid: String,
    pub path: String,
    pub is_filesystem: bool,
    pub allows_scheduling: bool,
    pub is_evicting: bool,
    /// Why the disk is not usable at all; `None` if it is.
    pub not_ready: Option<String>,
    /// Why nothing more may be put on it; `None` if something may.
    pub unschedulable: Option<String>,
    pub tags: BTreeSet<String>,
    pub available: i64,
    pub maximum: i64,
    pub reserved: i64,
}

/// All nodes, by name.
pub type Hosts = BTreeMap<String, Host>;

/// What is promised to replicas already, by the disk's uuid; kept from the Replica objects themselves, because what the
/// nodes report comes later than the next decision.
pub type Promised = BTreeMap<String, i64>;

/// What the settings of the cluster and of the volume allow.
// Five settings that are each yes or no, and independent of each other.
#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Two replicas may share a node if nothing else is possible.
    pub node_soft: bool,
    pub zone_soft: bool,
    pub disk_soft: bool,
    /// How much of a disk may be promised, in percent of what is not reserved.
    pub over_provisioning_percent: i64,
    /// How much of a disk must stay free, in percent.
    pub minimal_available_percent: i64,
    /// Volumes without a selector may use nodes and disks that have tags.
    pub empty_node_selector_fits_all: bool,
    pub empty_disk_selector_fits_all: bool,
}

/// Longhorn's defaults.
impl Default for Policy {
    fn default() -> Self {
        Self {
            node_soft: false,
            zone_soft: true,
            disk_soft: true,
            over_provisioning_percent: 100,
            minimal_available_percent: 25,
            empty_node_selector_fits_all: true,
            empty_disk_selector_fits_all: true,
        }
    }
}

/// The replica that needs a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// What it may grow to.
    pub size: i64,
    /// What it will hold soon after it is there: what its volume holds now.
    pub actual_size: i64,
    pub node_selector: BTreeSet<String>,
    pub disk_selector: BTreeSet<String>,
    /// Any of these `(zone, region)` will do; an empty part matches everything.
    pub topology: Vec<(String, String)>,
    /// This node and no other.
    pub only_node: Option<String>,
    /// This node if it is possible.
    pub prefer_node: Option<String>,
}

/// A replica of the same volume that has its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling {
    pub node: String,
    pub disk: String,
    /// It is to leave its place as soon as there is another.
    pub is_evicting: bool,
}

/// A place for a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spot {
    pub node: String,
    pub disk: String,
    pub disk_path: String,
}

/// Why a node or one of its disks is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    pub node: String,
    /// Name of the disk; `None` if the whole node is refused.
    pub disk: Option<String>,
    pub reason: Reason,
    /// What it is in this case, without the names.
    pub words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.disk {
            Some(disk) => write!(f, "node {}, disk {disk}: {}", self.node, self.words),
            None => write!(f, "node {}: {}", self.node, self.words),
        }
    }
}

/// There is no place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NoPlace {
    /// In the order of nodes and their disks.
    pub refusals: Vec<Refusal>,
}

impl NoPlace {
    /// Longhorn's words for the condition, in the order in which obstacles are met: `nodes are unavailable`.
    pub fn summary(&self) -> String {
        if self.refusals.is_empty() {
            return summary_of(Reason::NodeUnavailable).to_owned();
        }
        // What a disk lacks is nearer to a place than what a node lacks, but both are obstacles.
        let mut words: Vec<&str> = Vec::new();
        for refusal in &self.refusals {
            let word = summary_of(refusal.reason);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        words.sort_unstable_by_key(|word| SUMMARIES.iter().position(|known| known == word));
        words.join("; ")
    }
}

/// `node a: cordoned; node b, disk d: …`
impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.refusals.is_empty() {
            return f.write_str("there is no node");
        }
        let all: Vec<String> = self.refusals.iter().map(ToString::to_string).collect();
        f.write_str(&all.join("; "))
    }
}

const SUMMARIES: [&str; 6] = [
    "nodes are unavailable",
    "hard affinity cannot be satisfied",
    "tags not fulfilled",
    "disks are unavailable",
    "insufficient storage",
    "replica scheduling failed",
];

fn summary_of(reason: Reason) -> &'static str {
    match reason {
        Reason::NodeUnavailable => SUMMARIES[0],
        Reason::NodeAffinityNotSatisfied => SUMMARIES[1],
        Reason::TagsNotFulfilled => SUMMARIES[2],
        Reason::DiskUnavailable => SUMMARIES[3],
        Reason::InsufficientStorage => SUMMARIES[4],
        _ => SUMMARIES[5],
    }
}

/// How far a zone, a node or a disk is in use by the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Free,
    /// Only by replicas that are to leave.
    Leaving,
    Taken,
}

/// How good a place is; the smallest is the best, and what comes first weighs most.
///
/// The room on the node is after Longhorn's rule to keep `(max − min) / mean` of the room small: to put a replica where
/// there is most room makes exactly that as small as it can be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Score<'a> {
    not_preferred: bool,
    zone: Use,
    node: Use,
    disk: Use,
    /// What may still be promised on all disks of the node, the most first.
    node_room: std::cmp::Reverse<i64>,
    disk_room: std::cmp::Reverse<i64>,
    name: (&'a str, &'a str),
}

/// Finds the best place for `wish` beside `siblings`.
pub fn place(
    wish: &Wish,
    policy: &Policy,
    hosts: &Hosts,
    promised: &Promised,
    siblings: &[Sibling],
) -> Result<Spot, NoPlace> {
    let uses = Uses::of(siblings, hosts);
    let mut refusals = Vec::new();
    let mut best: Option<(Score<'_>, &Host, &Disk)> = None;
    for host in hosts.values() {
        if let Err((reason, words)) = filter::host(host, wish, policy, &uses) {
            refusals.push(Refusal { node: host.name.clone(), disk: None, reason, words });
            continue;
        }
        if host.disks.is_empty() {
            let words = "it has no disk".to_owned();
            refusals.push(Refusal { node: host.name.clone(), disk: None, reason: Reason::DiskUnavailable, words });
        }
        let room = |disk: &Disk| disk_room(disk, policy, promised_on(promised, disk));
        let node_room: i64 = host.disks.iter().map(room).fold(0, i64::saturating_add);
        for disk in &host.disks {
            if let Err((reason, words)) = filter::disk(disk, wish, policy, promised_on(promised, disk), &uses) {
                refusals.push(Refusal { node: host.name.clone(), disk: Some(disk.name.clone()), reason, words });
                continue;
            }
            let score = Score {
                not_preferred: wish.prefer_node.as_ref().is_some_and(|node| *node != host.name),
                zone: uses.zone(&host.zone),
                node: uses.node(&host.name),
                disk: uses.disk(&disk.uuid),
                node_room: std::cmp::Reverse(node_room),
                disk_room: std::cmp::Reverse(room(disk)),
                name: (&host.name, &disk.name),
            };
            if best.as_ref().is_none_or(|(held, ..)| score < *held) {
                best = Some((score, host, disk));
            }
        }
    }
    match best {
        Some((_, host, disk)) => {
            Ok(Spot { node: host.name.clone(), disk: disk.uuid.clone(), disk_path: disk.path.clone() })
        }
        None => Err(NoPlace { refusals }),
    }
}

/// Whether a disk can take `more` bytes of promise, for a replica that is there already and grows.
pub fn can_grow(disk: &Disk, policy: &Policy, promised: i64, more: i64) -> Result<(), String> {
    filter::space(disk, policy, promised, more, 0)
}

fn promised_on(promised: &Promised, disk: &Disk) -> i64 {
    promised.get(&disk.uuid).copied().unwrap_or(0)
}

/// What may still be promised on a disk.
fn disk_room(disk: &Disk, policy: &Policy, promised: i64) -> i64 {
    filter::promise_limit(disk, policy).saturating_sub(promised)
}

/// Where the volume's replicas are.
struct Uses<'a> {
    zones: BTreeMap<&'a str, Use>,
    nodes: BTreeMap<&'a str, Use>,
    disks: BTreeMap<&'a str, Use>,
}

impl<'a> Uses<'a> {
    fn of(siblings: &'a [Sibling], hosts: &'a Hosts) -> Self {
        let mut uses = Self { zones: BTreeMap::new(), nodes: BTreeMap::new(), disks: BTreeMap::new() };
        for sibling in siblings {
            let kind = if sibling.is_evicting { Use::Leaving } else { Use::Taken };
            let note = |map: &mut BTreeMap<&'a str, Use>, key: &'a str| {
                let held = map.entry(key).or_insert(kind);
                *held = (*held).max(kind);
            };
            note(&mut uses.nodes, &sibling.node);
            note(&mut uses.disks, &sibling.disk);
            // A replica on a node that nobody knows any more takes up no zone that is known.
            if let Some(host) = hosts.get(&sibling.node) {
                note(&mut uses.zones, &host.zone);
            }
        }
        uses
    }

    fn zone(&self, zone: &str) -> Use {
        self.zones.get(zone).copied().unwrap_or(Use::Free)
    }

    fn node(&self, node: &str) -> Use {
        self.nodes.get(node).copied().unwrap_or(Use::Free)
    }

    fn disk(&self, disk: &str) -> Use {
        self.disks.get(disk).copied().unwrap_or(Use::Free)
    }
}
