//! A volume that grows: disks are asked first, then engine and replicas are told, and the engine does it.

use tether_crd::IntString;
use tether_crd::attachment::TicketType;
use tether_crd::engine::InstanceState;
use tether_model::reason::Reason;
use tether_model::report::Rule;

use super::draft::Draft;
use super::tickets::{self, Wish};
use crate::object::name;
use crate::placement;

const EXPANSION: Rule = Rule("volume-expansion");

pub(super) fn expand(draft: &mut Draft<'_>) {
    let size = draft.volume().spec.size;
    let told = draft.engine().spec.volume_size;
    if size > told {
        match disks_have_room(draft, size.0 - told.0) {
            Ok(()) => grow(draft, size),
            Err(words) => draft.blocked(EXPANSION, Reason::InsufficientStorage, words),
        }
    } else if size < told {
        cancel(draft, size);
    }
    follow(draft, size);
    ticket(draft);
}

fn disks_have_room(draft: &Draft<'_>, more: i64) -> Result<(), String> {
    let policy = draft.observed.settings.policy(draft.volume());
    for replica in draft.replicas.iter().filter(|r| r.is_scheduled() && !r.is_leaving() && r.spec.failed_at.is_empty())
    {
        let node = &replica.spec.node_id;
        let Some(disk) = draft.host(node).and_then(|host| host.disk(&replica.spec.disk_id)) else { continue };
        let promised = draft.observed.promised.get(&disk.uuid).copied().unwrap_or(0);
        placement::can_grow(disk, &policy, promised, more)
            .map_err(|why| format!("Replica {} on node {node}, disk {}: {why}.", name(&**replica), disk.name))?;
    }
    Ok(())
}

fn grow(draft: &mut Draft<'_>, size: IntString) {
    set_size(draft, size);
    // Replicas that never ran are made in the new size; there is nothing to grow.
    if draft.record().is_some() {
        draft.status.expansion_required = true;
        draft.fires(EXPANSION, Reason::ExpansionInProgress, format!("The volume grows to {size} bytes."));
    }
}

fn set_size(draft: &mut Draft<'_>, size: IntString) {
    draft.engine_mut().spec.volume_size = size;
    for replica in &mut draft.replicas {
        replica.spec.volume_size = size;
    }
}

/// The size in the spec was taken back.
fn cancel(draft: &mut Draft<'_>, size: IntString) {
    let status = &draft.engine().status;
    let volume = draft.name();
    if status.is_expanding || (status.current_size > size && status.current_size.0 != 0) {
        let words = "The engine has begun to grow the volume, which cannot be taken back.";
        draft.blocked(EXPANSION, Reason::ExpansionInProgress, words);
        return;
    }
    set_size(draft, size);
    draft.status.expansion_required = false;
    draft.fires(EXPANSION, Reason::CanceledExpansion, "The volume keeps its size.");
    draft.tell(Reason::CanceledExpansion, format!("Canceled expanding the volume {volume}, will keep size {size}"));
}

/// Whether the engine serves the size that is wanted.
fn follow(draft: &mut Draft<'_>, size: IntString) {
    let is_running = draft.engine_state() == InstanceState::Running;
    let served = draft.engine().status.current_size;
    if !is_running || served.0 == 0 || draft.engine().spec.volume_size != size {
        return;
    }
    if served < size && !draft.status.expansion_required {
        draft.status.expansion_required = true;
        draft.fires(EXPANSION, Reason::ExpansionInProgress, format!("The engine serves {served} of {size} bytes."));
    } else if served == size && draft.status.expansion_required {
        draft.status.expansion_required = false;
        draft.fires(EXPANSION, Reason::UpToDate, format!("The engine serves all {size} bytes."));
    }
}

/// While it has to grow, the volume has to be attached.
fn ticket(draft: &mut Draft<'_>) {
    let wish = if draft.status.expansion_required { Wish::Hold } else { Wish::Drop };
    tickets::set(draft, TicketType::Expansion, wish, "false");
}
