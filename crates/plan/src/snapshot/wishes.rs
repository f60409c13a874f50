//! One snapshot: it is to be made, or to go, or the volume is to become what it was.

use tether_crd::attachment::{ANY, DISABLE_FRONTEND, Owner, Ticket, TicketType};
use tether_crd::condition::rfc3339;
use tether_crd::engine::SnapshotInfo;
use tether_crd::snapshot::SnapshotStatus;
use tether_crd::{API_VERSION, Engine, FINALIZER, Snapshot, labels, names};
use tether_model::reason::Reason;

use super::{Change, HAND_OVER, Look, REMOVAL, STATUS, TICKET, VOLUME_HEAD};
use crate::Plan;
use crate::clone::incomplete;
use crate::event::Event;
use crate::object::{Target, annotation, has_finalizer, name, namespace, subject, uid};

/// On a snapshot: the volume is to become what it was then. The value is the run of the engine that is to do it
/// (`status.uuid`): an engine of a later run, which may have been written to, is never reverted by an old wish.
pub const REVERT_REQUESTED: &str = "longhorn.io/revert-requested";

/// The value of [`REVERT_REQUESTED`] for an engine that can be asked: it serves, and shows the volume to nobody.
pub fn revert_request(engine: &Engine) -> Option<&str> {
    let shown = !engine.status.endpoint.is_empty() || !engine.spec.disable_frontend;
    (engine.is_available_on(&engine.spec.node_id) && !shown).then_some(engine.status.uuid.as_str())
}

/// Whether a snapshot's wish to be reverted to is for this run of the engine.
pub(crate) fn reverts(snapshot: &Snapshot, engine: &Engine) -> bool {
    let wish = annotation(snapshot, REVERT_REQUESTED).filter(|wish| !wish.is_empty());
    wish.is_some() && wish == revert_request(engine)
}

/// It is to be there.
pub(super) fn creation(plan: &mut Plan<Change>, look: &Look<'_>, snapshot: &Snapshot) {
    let old = &snapshot.status;
    let info = look.info(name(snapshot));
    let wanted =
        snapshot.spec.create_snapshot && old.creation_time.is_empty() && info.is_none() && look.volume.is_some();
    let reverts = info.is_some() && look.engine.is_some_and(|engine| reverts(snapshot, engine));
    ticket(plan, look, snapshot, wanted);
    hand_over(plan, look, snapshot, wanted || reverts);
    let mut status = match info {
        Some(info) => there(look, old, info),
        None => SnapshotStatus { ready_to_use: false, ..old.clone() },
    };
    if info.is_none() {
        status.error = missing(look, snapshot, wanted);
        if wanted && status.requested_time.is_empty() {
            status.requested_time = rfc3339(look.now);
        }
    }
    if info.is_some() && old.creation_time.is_empty() && snapshot.spec.create_snapshot {
        let note = format!("snapshot {} of volume {} is made", name(snapshot), snapshot.spec.volume);
        plan.tells(Event::normal(snapshot, Reason::SnapshotMade, note));
    }
    if info.is_none() && old.ready_to_use && look.is_listed() {
        let note = format!("the engine of volume {} does not have snapshot {}", snapshot.spec.volume, name(snapshot));
        plan.tells(Event::warning(snapshot, Reason::SnapshotLost, note));
    }
    set_status(plan, snapshot, status);
}

/// Why it is not there.
fn missing(look: &Look<'_>, snapshot: &Snapshot, wanted: bool) -> String {
    if look.volume.is_none() {
        return format!("volume {} does not exist", snapshot.spec.volume);
    }
    if wanted && let Some((_, words)) = look.volume.and_then(incomplete) {
        return format!("waits for the volume to be complete: {words}");
    }
    if wanted {
        return match (look.is_migrating, look.serving_node()) {
            (true, _) => "waits for the migration of the volume to end".to_owned(),
            (false, None) => "waits for the volume to be attached".to_owned(),
            (false, Some(_)) => String::new(),
        };
    }
    match look.is_listed() {
        true => "the engine of the volume does not have this snapshot".to_owned(),
        false => "it is not known yet what the engine of the volume has".to_owned(),
    }
}

/// As the engine shows it.
fn there(look: &Look<'_>, old: &SnapshotStatus, info: &SnapshotInfo) -> SnapshotStatus {
    // The size that a volume made from it needs is that of the volume when it was made.
    let size = look.volume.map_or(0, |volume| volume.spec.size.0);
    SnapshotStatus {
        parent: info.parent.clone(),
        children: info.children.clone(),
        mark_removed: info.removed,
        user_created: info.user_created,
        creation_time: info.created.clone(),
        size: info.size.parse().unwrap_or_default(),
        labels: info.labels.clone(),
        owner_id: look.volume.map(|volume| volume.status.owner_id.clone()).unwrap_or_default(),
        error: String::new(),
        restore_size: if old.restore_size > 0 { old.restore_size } else { size },
        ready_to_use: !info.removed,
        ..old.clone()
    }
}

/// It is to go.
pub(super) fn removal(plan: &mut Plan<Change>, look: &Look<'_>, snapshot: &Snapshot) {
    if !has_finalizer(snapshot, FINALIZER) {
        return;
    }
    let info = look.info(name(snapshot)).filter(|_| look.volume.is_some());
    let Some(info) = info else {
        // What was made may be there although nobody lists it now; what was never made cannot be.
        let unknown = look.volume.is_some() && !look.is_listed() && !snapshot.status.creation_time.is_empty();
        ticket(plan, look, snapshot, unknown);
        if unknown {
            plan.blocked(REMOVAL, subject(snapshot), Reason::SnapshotWaits, "It is not known what the engine has.");
        } else {
            let change = Change::RemoveFinalizer { snapshot: Target::of(snapshot) };
            plan.acts(REMOVAL, subject(snapshot), Reason::SnapshotGone, "Nothing of it is left.", change);
        }
        return;
    };
    // The space of the one that is below what is being written to is given back when the next one is made.
    let is_kept = info.removed && info.children.contains_key(VOLUME_HEAD);
    if is_kept {
        let words = "It is marked to go; it is the base of what is being written, and goes with the next snapshot.";
        plan.blocked(REMOVAL, subject(snapshot), Reason::SnapshotWaits, words);
    }
    ticket(plan, look, snapshot, !is_kept);
    hand_over(plan, look, snapshot, !is_kept);
    let mut status = there(look, &snapshot.status, info);
    status.ready_to_use = false;
    set_status(plan, snapshot, status);
}

/// While there is work at the engine, the volume is to be attached; the ticket goes with the work.
fn ticket(plan: &mut Plan<Change>, look: &Look<'_>, snapshot: &Snapshot, wanted: bool) {
    let Some(attachment) = look.attachment else { return };
    let id = names::ticket(TicketType::Snapshot.as_str(), name(snapshot));
    let held = attachment.spec.attachment_tickets.get(&id);
    let target = || Target::of(attachment);
    match (wanted, held, look.ticket_node()) {
        (true, _, None) => {
            plan.blocked(TICKET, subject(snapshot), Reason::SnapshotWaits, "The volume has no node to be attached to.");
        }
        (true, held, Some(node)) if held.is_none_or(|held| held.node_id != node) => {
            let words = format!("The volume is wanted on node {node} for it.");
            let ticket = Some(Box::new(wish(snapshot, &id, node)));
            let change = Change::SetTicket { attachment: target(), id, ticket };
            plan.acts(TICKET, subject(snapshot), Reason::SnapshotWanted, words, change);
        }
        (false, Some(_), _) => {
            let change = Change::SetTicket { attachment: target(), id, ticket: None };
            plan.acts(TICKET, subject(snapshot), Reason::UpToDate, "The volume is not needed for it any more.", change);
        }
        _ => {}
    }
}

fn wish(snapshot: &Snapshot, id: &str, node: &str) -> Ticket {
    Ticket {
        id: id.to_owned(),
        kind: TicketType::Snapshot,
        node_id: node.to_owned(),
        parameters: [(DISABLE_FRONTEND.to_owned(), ANY.to_owned())].into(),
        owner: Some(Owner {
            api_version: API_VERSION.to_owned(),
            kind: "Snapshot".to_owned(),
            namespace: namespace(snapshot).to_owned(),
            name: name(snapshot).to_owned(),
            uid: uid(snapshot).to_owned(),
        }),
        ..Default::default()
    }
}

/// The label says whose work it is.
fn hand_over(plan: &mut Plan<Change>, look: &Look<'_>, snapshot: &Snapshot, wanted: bool) {
    let held = snapshot.metadata.labels.as_ref().and_then(|all| all.get(labels::NODE)).map(String::as_str);
    let node = look.serving_node().filter(|_| wanted);
    if held == node {
        return;
    }
    let words = match node {
        Some(node) => format!("The engine on node {node} is to do it."),
        None => "There is nothing to be done at an engine.".to_owned(),
    };
    let change = Change::HandOver { snapshot: Target::of(snapshot), node: node.map(str::to_owned) };
    plan.acts(HAND_OVER, subject(snapshot), Reason::SnapshotWanted, words, change);
}

fn set_status(plan: &mut Plan<Change>, snapshot: &Snapshot, status: SnapshotStatus) {
    if status == snapshot.status {
        return;
    }
    let change = Change::SetStatus { snapshot: Target::of(snapshot), status: Box::new(status) };
    plan.acts(STATUS, subject(snapshot), Reason::StatusFollows, "The status follows the engine.", change);
}
