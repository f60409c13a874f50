//! Node lifecycle: silent nodes become Unknown, and conditions become taints.
//!
//! Silence is measured by whoever observes, from the last sign of life that reached it (a renewed Lease or a
//! posted status), on a clock that does not jump: the clocks of the nodes play no part.
//!
//! How fast nodes are tainted NoExecute is limited for each zone, so that a broken network does not look like
//! broken nodes: one node in 10 s; none at all while most of a small zone or every node is away. The limit needs no
//! memory, for the taints themselves say when they were added.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::{
    NO_EXECUTE, NO_SCHEDULE, TAINT_DISK_PRESSURE, TAINT_MEMORY_PRESSURE, TAINT_NETWORK_UNAVAILABLE, TAINT_NOT_READY,
    TAINT_PID_PRESSURE, TAINT_UNREACHABLE, TAINT_UNSCHEDULABLE, condition, is_ready, is_unschedulable, readiness,
    taints, zone,
};
use crate::Plan;
use crate::event::Event;
use crate::object::{Target, name, subject};

const HEARTBEAT: Rule = Rule("node-heartbeat");
const CONDITION_TAINTS: Rule = Rule("node-condition-taints");
const EVICTION_TAINT: Rule = Rule("node-eviction-taint");

/// The conditions that a kubelet reports and that nobody knows once it is silent.
const KUBELET_CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// Which condition, in which status, is which taint.
const TAINT_OF_CONDITION: [(&str, &str, &str); 6] = [
    ("Ready", "False", TAINT_NOT_READY),
    ("Ready", "Unknown", TAINT_UNREACHABLE),
    ("MemoryPressure", "True", TAINT_MEMORY_PRESSURE),
    ("DiskPressure", "True", TAINT_DISK_PRESSURE),
    ("NetworkUnavailable", "True", TAINT_NETWORK_UNAVAILABLE),
    ("PIDPressure", "True", TAINT_PID_PRESSURE),
];

/// A node with this label does not count when the health of its zone is judged.
const LABEL_EXCLUDE_DISRUPTION: &str = "node.kubernetes.io/exclude-disruption";

/// What may be set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How long a node may be silent before it is Unknown.
    pub monitor_grace: SignedDuration,
    /// The same for a node that never posted its status.
    pub startup_grace: SignedDuration,
    /// Between two nodes of one healthy zone that are tainted NoExecute.
    pub eviction_interval: SignedDuration,
    /// The same in an unhealthy zone that is large.
    pub secondary_eviction_interval: SignedDuration,
    /// A zone with more nodes than this is large; evictions stop in a smaller one that is unhealthy.
    pub large_zone: usize,
    /// A zone is unhealthy when at least this share of its nodes is not Ready (and more than two are).
    pub unhealthy_percent: usize,
}

impl Default for Settings {
    /// Kubernetes' defaults.
    fn default() -> Self {
        Self {
            monitor_grace: SignedDuration::from_secs(50),
            startup_grace: SignedDuration::from_secs(60),
            eviction_interval: SignedDuration::from_secs(10),
            secondary_eviction_interval: SignedDuration::from_secs(100),
            large_zone: 50,
            unhealthy_percent: 55,
        }
    }
}

/// A node, and for how long nothing was heard of it.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub node: &'a Node,
    pub silent_for: SignedDuration,
    /// The API server itself has no newer heartbeat than the last one that was heard. Without its word a silent node
    /// may only mean that whoever listens is cut off.
    pub is_certain: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Ask the API server for the node's Lease.
    CheckLease { node: String },
    /// Replace the conditions in the node's status.
    SetConditions { node: Target, conditions: Vec<NodeCondition> },
    /// Replace the node's taints.
    SetTaints { node: Target, taints: Vec<Taint> },
}

/// Decides about every node of the cluster.
pub fn decide(nodes: &[Observed<'_>], settings: &Settings, now: Timestamp) -> Plan<Change> {
    let mut plan = Plan::default();
    let mut zones = zones(nodes, settings);
    for observed in nodes {
        let node = observed.node;
        if heartbeat(&mut plan, observed, settings, now) {
            // The taints follow from the new conditions, once they are there.
            continue;
        }
        let mut wanted = condition_taints(&mut plan, node, now);
        let zone = zones.get_mut(&zone(node)).expect("every node's zone must have been judged");
        eviction_taint(&mut plan, node, zone, &mut wanted, now);
        if wanted != taints(node) {
            plan.changes.push(Change::SetTaints { node: Target::of(node), taints: wanted });
        }
    }
    plan
}

/// Returns whether the node's conditions change.
fn heartbeat(plan: &mut Plan<Change>, observed: &Observed<'_>, settings: &Settings, now: Timestamp) -> bool {
    let Observed { node, silent_for, is_certain } = *observed;
    let never_posted = readiness(node).is_empty();
    let grace = if never_posted { settings.startup_grace } else { settings.monitor_grace };
    if silent_for <= grace {
        let words = format!("Last sign of life {}s ago.", silent_for.as_secs());
        plan.waits(HEARTBEAT, subject(node), Reason::NodeAlive, words, now + (grace - silent_for) + PAST_GRACE);
        return false;
    }
    let Some(conditions) = unknown_conditions(node, now) else {
        let words = "The node's conditions are Unknown already.";
        plan.rests(HEARTBEAT, subject(node), Reason::NodeStatusUnknown, words);
        return false;
    };
    if !is_certain {
        let words = format!("Nothing was heard for {}s.", silent_for.as_secs());
        let question = Change::CheckLease { node: name(node).to_owned() };
        plan.asks(HEARTBEAT, subject(node), Reason::NodeSilent, words, question);
        return false;
    }
    let (reason, message) = if never_posted {
        (Reason::NodeStatusNeverUpdated, NEVER_POSTED)
    } else {
        (Reason::NodeStatusUnknown, STOPPED_POSTING)
    };
    let words = format!("{message} Silent for {}s, more than {}s.", silent_for.as_secs(), grace.as_secs());
    let change = Change::SetConditions { node: Target::of(node), conditions };
    plan.acts(HEARTBEAT, subject(node), reason, words, change);
    if is_ready(node) {
        let note = format!("Node {} status is now: NodeNotReady", name(node));
        plan.tells(Event::normal(node, Reason::NodeNotReady, note));
    }
    true
}

/// Silence counts when it is *longer* than the grace period, so the decision falls one tick after it.
const PAST_GRACE: SignedDuration = SignedDuration::from_millis(1);
const STOPPED_POSTING: &str = "Kubelet stopped posting node status.";
const NEVER_POSTED: &str = "Kubelet never posted node status.";

/// The node's conditions with those of the kubelet Unknown; `None` if they are.
fn unknown_conditions(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions = node.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in KUBELET_CONDITIONS {
        match conditions.iter_mut().find(|c| c.type_ == kind) {
            None => conditions.push(NodeCondition {
                type_: kind.into(),
                status: "Unknown".into(),
                reason: Some(Reason::NodeStatusNeverUpdated.code().into()),
                message: Some(NEVER_POSTED.into()),
                last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                last_transition_time: Some(Time(now)),
            }),
            Some(known) if known.status != "Unknown" => {
                known.status = "Unknown".into();
                known.reason = Some(Reason::NodeStatusUnknown.code().into());
                known.message = Some(STOPPED_POSTING.into());
                known.last_transition_time = Some(Time(now));
            }
            Some(_) => continue,
        }
        changed = true;
    }
    changed.then_some(conditions)
}

/// The node's taints with those of effect NoSchedule as its conditions and the cordon ask for.
fn condition_taints(plan: &mut Plan<Change>, node: &Node, now: Timestamp) -> Vec<Taint> {
    let in_status =
        |(kind, status, _): &&(&str, &str, &str)| condition(node, kind).is_some_and(|c| c.status == *status);
    let mut keys: Vec<&str> = TAINT_OF_CONDITION.iter().filter(in_status).map(|(_, _, key)| *key).collect();
    if is_unschedulable(node) {
        keys.push(TAINT_UNSCHEDULABLE);
    }
    let ours = |taint: &Taint| {
        let known = taint.key == TAINT_UNSCHEDULABLE || TAINT_OF_CONDITION.iter().any(|(_, _, key)| *key == taint.key);
        known && taint.effect == NO_SCHEDULE
    };
    let mut wanted: Vec<Taint> =
        taints(node).iter().filter(|t| !ours(t) || keys.contains(&t.key.as_str())).cloned().collect();
    let missing = keys.iter().filter(|key| !taints(node).iter().any(|t| ours(t) && t.key == **key));
    wanted.extend(missing.map(|key| taint(key, NO_SCHEDULE, now)));
    if wanted == taints(node) {
        let words = "The NoSchedule taints agree with the node's conditions.";
        plan.rests(CONDITION_TAINTS, subject(node), Reason::UpToDate, words);
    } else {
        let words = format!("The node's conditions ask for these NoSchedule taints: [{}].", keys.join(", "));
        plan.fires(CONDITION_TAINTS, subject(node), Reason::TaintsFollowConditions, words);
    }
    wanted
}

fn taint(key: &str, effect: &str, now: Timestamp) -> Taint {
    Taint { key: key.into(), value: None, effect: effect.into(), time_added: Some(Time(now)) }
}

/// Adds, swaps or removes the one NoExecute taint that says that a node is not ready or unreachable.
fn eviction_taint(plan: &mut Plan<Change>, node: &Node, zone: &mut Zone, wanted: &mut Vec<Taint>, now: Timestamp) {
    let key = match readiness(node) {
        "False" => Some(TAINT_NOT_READY),
        "Unknown" => Some(TAINT_UNREACHABLE),
        _ => None,
    };
    let has = |key: &str| taints(node).iter().any(|t| t.effect == NO_EXECUTE && t.key == key);
    let tainted = has(TAINT_NOT_READY) || has(TAINT_UNREACHABLE);
    let drop_both = |wanted: &mut Vec<Taint>| {
        wanted.retain(|t| t.effect != NO_EXECUTE || (t.key != TAINT_NOT_READY && t.key != TAINT_UNREACHABLE));
    };
    match (key, zone.pace) {
        (None, _) | (Some(_), Pace::Suspended) if tainted => {
            drop_both(wanted);
            let (reason, words) = match key {
                None => (Reason::NodeAlive, "The node is Ready again."),
                Some(_) => (Reason::AllNodesAway, "No node is Ready: the fault may be here, so nothing is evicted."),
            };
            plan.fires(EVICTION_TAINT, subject(node), reason, words);
        }
        (None, _) => plan.rests(EVICTION_TAINT, subject(node), Reason::NodeAlive, "The node needs no NoExecute taint."),
        (Some(_), Pace::Suspended) => {
            let words = "No node is Ready: the fault may be here, so nothing is evicted.";
            plan.blocked(EVICTION_TAINT, subject(node), Reason::AllNodesAway, words);
        }
        (Some(key), _) if has(key) => {
            plan.rests(EVICTION_TAINT, subject(node), Reason::UpToDate, format!("The node has taint {key}:NoExecute."));
        }
        (Some(key), _) if tainted => {
            drop_both(wanted);
            wanted.push(taint(key, NO_EXECUTE, now));
            let words = format!("The node's condition changed: its taint is now {key}:NoExecute.");
            plan.fires(EVICTION_TAINT, subject(node), Reason::TaintsFollowConditions, words);
        }
        (Some(_), Pace::Stopped) => {
            let words = "Most nodes of this small zone are not Ready: nothing more is evicted in it.";
            plan.blocked(EVICTION_TAINT, subject(node), Reason::ZoneUnhealthy, words);
        }
        (Some(key), Pace::Every(interval)) => match zone.last.map(|last| last + interval) {
            Some(next) if next > now => {
                let words =
                    format!("{key}:NoExecute waits for its turn: one node of a zone in {}s.", interval.as_secs());
                plan.waits(EVICTION_TAINT, subject(node), Reason::EvictionRateLimited, words, next);
            }
            _ => {
                zone.last = Some(now);
                wanted.push(taint(key, NO_EXECUTE, now));
                let words = format!("The node is {}: taint {key}:NoExecute.", readiness(node));
                plan.fires(EVICTION_TAINT, subject(node), Reason::TaintsFollowConditions, words);
            }
        },
    }
}

/// How fast the nodes of a zone may be tainted NoExecute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Every(SignedDuration),
    /// No further node.
    Stopped,
    /// No node at all, and taints that are there go: nobody is Ready.
    Suspended,
}

#[derive(Clone, Copy, Debug)]
struct Zone {
    pace: Pace,
    /// When a node of the zone was last tainted NoExecute.
    last: Option<Timestamp>,
}

fn zones(nodes: &[Observed<'_>], settings: &Settings) -> BTreeMap<String, Zone> {
    let mut members: BTreeMap<String, Vec<&Node>> = BTreeMap::new();
    for observed in nodes {
        members.entry(zone(observed.node)).or_default().push(observed.node);
    }
    let counted = |node: &&&Node| {
        !node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(LABEL_EXCLUDE_DISRUPTION))
    };
    let nobody_ready = nodes.iter().map(|o| &o.node).any(|n| counted(&n))
        && !nodes.iter().map(|o| &o.node).filter(counted).any(|n| is_ready(n));
    members
        .into_iter()
        .map(|(key, nodes)| {
            let size = nodes.iter().filter(counted).count();
            let away = nodes.iter().filter(counted).filter(|n| !is_ready(n)).count();
            let unhealthy = away > 2 && away < size && away * 100 >= size * settings.unhealthy_percent;
            let pace = match (nobody_ready, unhealthy, size > settings.large_zone) {
                (true, _, _) => Pace::Suspended,
                (false, true, true) => Pace::Every(settings.secondary_eviction_interval),
                (false, true, false) => Pace::Stopped,
                (false, false, _) => Pace::Every(settings.eviction_interval),
            };
            let added = nodes
                .iter()
                .flat_map(|n| taints(n))
                .filter(|t| t.effect == NO_EXECUTE && (t.key == TAINT_NOT_READY || t.key == TAINT_UNREACHABLE));
            let last = added.filter_map(|t| t.time_added.as_ref()).map(|t| t.0).max();
            (key, Zone { pace, last })
        })
        .collect()
}
