//! What everybody else is told while a copy is not complete: why it is not shown to them, and what changes that.

use tether_crd::Volume;
use tether_crd::attachment::{Ticket, TicketType};
use tether_crd::volume::CloneState;
use tether_model::reason::Reason;

use super::{ATTEMPTS, Source, is_pending, ticket_id};
use crate::object::name;

/// Whether a ticket is the one that the volume's own copy is made under. It asks for no frontend: one that does is not ours,
/// whatever it is called.
pub fn is_own_ticket(volume: &Volume, ticket: &Ticket) -> bool {
    ticket.kind == TicketType::Clone && ticket.id == ticket_id(volume) && ticket.disable_frontend() == Some(true)
}

/// Why the volume is shown to nobody; none: it is no copy, or one that is complete. Whoever read it now would see other
/// content than its source has, and what they wrote the copy might overwrite.
pub fn incomplete(volume: &Volume) -> Option<(Reason, String)> {
    let source = Source::of(volume).filter(|_| is_pending(volume))?;
    let (name, status) = (name(volume), &volume.status.clone_status);
    let of = match &source.snapshot {
        Some(snapshot) => format!("snapshot {snapshot} of volume {}", source.volume),
        None => format!("volume {}", source.volume),
    };
    if status.state != CloneState::Failed {
        let how = match status.state {
            CloneState::Initiated => "whose data is being copied".to_owned(),
            _ => format!("which begins when volume {} is attached and its snapshot is there", source.volume),
        };
        let words = format!("volume {name} is made as a copy of {of}, {how}; it is shown when it is complete.");
        return Some((Reason::CopyIncomplete, words));
    }
    let why = if status.error.is_empty() { String::new() } else { format!(" ({})", status.error) };
    let next = if status.attempt_count >= ATTEMPTS {
        format!("failed {ATTEMPTS} times{why} and is not tried again; delete the volume and make it again.")
    } else {
        let (attempt, due) = (status.attempt_count, &status.next_allowed_attempt_at);
        format!(
            "failed at attempt {attempt} of {ATTEMPTS}{why} and is tried again at {due}; it is shown when it is complete."
        )
    };
    Some((Reason::VolumeCloneFailed, format!("volume {name} is to be a copy of {of}, which {next}")))
}
