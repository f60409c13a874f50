//! Tickets that a volume puts in for itself, while something has to be done that needs it attached.

use tether_crd::attachment::{DISABLE_FRONTEND, Owner, Ticket, TicketType};
use tether_crd::{API_VERSION, names};

use super::Change;
use super::create::ticket_target;
use super::draft::Draft;
use crate::object::{name, namespace, uid};

/// Whether a ticket is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Put it in, unless it is there.
    Hold,
    /// Take it out, if it is there.
    Drop,
    /// Leave it as it is.
    Leave,
}

/// Sees to it that the volume's own ticket of a type is there, or is not.
pub(super) fn set(draft: &mut Draft<'_>, kind: TicketType, wish: Wish, disable_frontend: &str) {
    let id = names::ticket(kind.as_str(), draft.name());
    let Some(attachment) = ticket_target(draft) else { return };
    let held = draft.observed.attachment.and_then(|attachment| attachment.spec.attachment_tickets.get(&id));
    let ticket = match (wish, held) {
        (Wish::Hold, None) if !draft.status.owner_id.is_empty() => Some(Box::new(Ticket {
            id: id.clone(),
            kind,
            node_id: draft.status.owner_id.clone(),
            parameters: [(DISABLE_FRONTEND.to_owned(), disable_frontend.to_owned())].into(),
            owner: Some(Owner {
                api_version: API_VERSION.to_owned(),
                kind: "Volume".to_owned(),
                namespace: namespace(draft.volume()).to_owned(),
                name: name(draft.volume()).to_owned(),
                uid: uid(draft.volume()).to_owned(),
            }),
            ..Default::default()
        })),
        (Wish::Drop, Some(_)) => None,
        _ => return,
    };
    // After the status, which says why the ticket is there.
    draft.last.push(Change::SetTicket { attachment, id, ticket });
}
