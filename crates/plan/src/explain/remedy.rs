//! What will change a condition that is not met, and the command that is safe to run. A command that could lose data is
//! never named; one that changes something is named only if nothing is lost by it.

use serde::Serialize;
use tether_crd::NAMESPACE;
use tether_crd::attachment::{Ticket, TicketStatus};
use tether_crd::volume::CloneState;
use tether_model::reason::Reason;

use super::{Link, Look};
use crate::clone::{ATTEMPTS, Source};
use crate::object::name;

/// What a person can expect, or do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// What has to happen.
    pub change: String,
    /// What may be run to find out more, or to make it happen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

pub(super) fn of(look: &Look<'_>, link: &Link) -> Remedy {
    let volume = name(look.observed.volume);
    let wanted = look.observed.volume.spec.node_id.as_str();
    let (change, command) = match link.reason.unwrap_or(Reason::Unknown) {
        Reason::ReplicaSchedulingFailure | Reason::LocalReplicaSchedulingFailure => placement(look),
        Reason::AttachedElsewhere | Reason::BehindOtherTicket => {
            ("The ticket that holds the volume is removed by whoever made it.".to_owned(), holder(look))
        }
        Reason::AttachedWithIncompatibleParameters => {
            let change =
                "The ticket that holds the volume is removed; then the volume is attached as the other wants it.";
            (change.to_owned(), holder(look))
        }
        Reason::CopyIncomplete | Reason::VolumeCloneFailed => copy(look),
        Reason::NoInSyncReplica | Reason::Faulted => no_basis(look),
        Reason::DetachedUnexpectedly => {
            let change = "The volume is detached and attached again by itself, as soon as its node can run an engine.";
            (change.to_owned(), Some(format!("kubectl -n {NAMESPACE} get lhim,lhe")))
        }
        Reason::Unknown | Reason::NodeUnavailable => {
            let node = down_node(look).unwrap_or(wanted);
            let change = format!(
                "Node {node} comes back; or the ticket goes to another node, which is safe: an engine there fences this one."
            );
            (change, Some(format!("kubectl describe node {node}")))
        }
        Reason::InstanceManagerUnavailable => {
            let change =
                format!("The instance manager of node {wanted} comes up; on a cordoned node it is not started.");
            (change, Some(format!("kubectl -n {NAMESPACE} get pods,lhim -o wide")))
        }
        Reason::ReplicasStarting | Reason::EngineStarting => {
            let change = "It is being started. An engine waits a few seconds for replicas, then begins without them.";
            (change.to_owned(), Some(format!("kubectl -n {NAMESPACE} get lhe,lhr -l longhornvolume={volume}")))
        }
        Reason::EngineStopping | Reason::ReplicasStopping => (
            "It is being stopped.".to_owned(),
            Some(format!("kubectl -n {NAMESPACE} get lhe,lhr -l longhornvolume={volume}")),
        ),
        Reason::RebuildInProgress | Reason::ReplicaReused | Reason::ReplicaReplenished => {
            ("The replica gets what it missed; nothing has to be done.".to_owned(), None)
        }
        Reason::ReplenishmentWait => {
            let change = "The replica's node comes back; else a new replica is made when the wait is over.";
            (change.to_owned(), down_node(look).map(|node| format!("kubectl describe node {node}")))
        }
        Reason::InsufficientStorage => (
            "A disk gets more room, or the size is taken back.".to_owned(),
            Some(format!("kubectl -n {NAMESPACE} get lhn")),
        ),
        Reason::MigrationEngineNotReady | Reason::Migrating => (
            "The engine on the other node gets ready; if its node is down, the migration can be rolled back."
                .to_owned(),
            Some(format!("kubectl -n {NAMESPACE} get lhe,lhim")),
        ),
        Reason::MigrationTargetNotReady => {
            let waits = |(ticket, status): &(&Ticket, Option<TicketStatus>)| {
                let waiting = status.as_ref()?.waiting.as_ref()?;
                (waiting.reason == Reason::MigrationTargetNotReady.code()).then(|| ticket.node_id.clone())
            };
            let node = look.tickets.iter().find_map(waits).unwrap_or_default();
            let change = format!("Node {node} gets ready; then the migration begins by itself.");
            (change, Some(format!("kubectl describe node {node}")))
        }
        Reason::RebuildAfterMigration => (
            "The migration is confirmed or rolled back; then the replica gets what it missed.".to_owned(),
            Some("kubectl get volumeattachments".to_owned()),
        ),
        Reason::MigrationUnresolved => (
            "One of the two pods goes, and with it its ticket.".to_owned(),
            Some("kubectl get volumeattachments".to_owned()),
        ),
        _ => ("See the details.".to_owned(), Some(format!("kubectl -n {NAMESPACE} describe lhv {volume}"))),
    };
    Remedy { change, command }
}

/// A node of the volume that is down.
fn down_node<'a>(look: &Look<'a>) -> Option<&'a str> {
    let engines = look.observed.engines.iter().map(|engine| engine.spec.node_id.as_str());
    let replicas = look.observed.replicas.iter().map(|replica| replica.spec.node_id.as_str());
    let is_down = |node: &&str| !node.is_empty() && look.observed.hosts.get(*node).is_none_or(|host| host.is_down);
    engines.chain(replicas).find(is_down)
}

/// The first thing that would make a place.
fn placement(look: &Look<'_>) -> (String, Option<String>) {
    let mut change = "A node or disk that can take a replica; each says above why it cannot.".to_owned();
    for host in look.observed.hosts.values() {
        let node = &host.name;
        if host.unschedulable.as_deref().is_some_and(|why| why.contains("Cordon")) {
            change.push_str(" A cordoned node can when it is uncordoned.");
            return (change, Some(format!("kubectl uncordon {node}")));
        }
        if !host.allows_scheduling && host.not_ready.is_none() {
            let patch = r#"'{"spec":{"allowScheduling":true}}'"#;
            return (change, Some(format!("kubectl -n {NAMESPACE} patch lhn {node} --type merge -p {patch}")));
        }
    }
    (change, Some(format!("kubectl -n {NAMESPACE} get lhn -o wide")))
}

/// How the one who holds the volume lets go: only tickets that a person made are a person's to remove.
fn holder(look: &Look<'_>) -> Option<String> {
    let volume = name(look.observed.volume);
    let held = look.tickets.iter().find(|(_, status)| status.as_ref().is_some_and(|status| status.satisfied));
    let (ticket, _) = held?;
    Some(match (&ticket.kind, &ticket.owner) {
        (tether_crd::attachment::TicketType::Api, _) => format!("tether volume detach {volume} --ticket {}", ticket.id),
        (_, Some(owner)) if owner.namespace.is_empty() => format!("kubectl describe {} {}", owner.kind, owner.name),
        (_, Some(owner)) => format!("kubectl -n {} describe {} {}", owner.namespace, owner.kind, owner.name),
        _ => format!("kubectl -n {NAMESPACE} get lhva {volume} -o yaml"),
    })
}

/// What a volume that is being made as a copy waits for: its source, as long as there is one.
fn copy(look: &Look<'_>) -> (String, Option<String>) {
    let volume = look.observed.volume;
    let status = &volume.status.clone_status;
    if status.state == CloneState::Failed && status.attempt_count >= ATTEMPTS {
        let change = "The volume is deleted and made again; it never was a complete copy.";
        return (
            change.to_owned(),
            Some(format!("kubectl -n {NAMESPACE} get events --field-selector involvedObject.name={}", name(volume))),
        );
    }
    let change = "The copy is completed; the volume is then attached by itself.";
    (change.to_owned(), Source::of(volume).map(|source| format!("tether explain volume {}", source.volume)))
}

/// Who holds the data, and where.
fn no_basis(look: &Look<'_>) -> (String, Option<String>) {
    let record = look.status().record.as_ref();
    let holds = |replica: &&&tether_crd::Replica| {
        record.is_none_or(|record| record.in_sync.contains(&replica.spec.data_directory_name))
    };
    let mut nodes: Vec<&str> = look.observed.replicas.iter().filter(holds).map(|r| r.spec.node_id.as_str()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    match nodes.as_slice() {
        [] => {
            let change = "No replica is left that holds every write: restore the volume from a backup.";
            (change.to_owned(), None)
        }
        nodes => {
            let change = format!(
                "One of the nodes that hold every write comes back with its disk ({}); the volume is then attached by itself.",
                nodes.join(", ")
            );
            (change, down_node(look).map(|node| format!("kubectl describe node {node}")))
        }
    }
}
