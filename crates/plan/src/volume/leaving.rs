//! Whether a volume has left a node, as whoever took it away has to know before it may be given to another.

use tether_crd::{Engine, Volume, VolumeAttachment};

use super::run::why_it_stays;
use crate::object::is_deleting;

/// How far a volume is on its way from a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaving {
    /// It is not there, and will not be.
    Gone,
    /// This ticket wants it there: it stays, whoever else let go of it.
    Wanted(String),
    /// It is being taken away; and why that takes long, if somebody said so.
    Still(String),
}

/// Looks at one volume, whose engines these are. A node that does not answer is left when its engine is fenced, which the
/// engine's object shows as it shows an engine that ended.
pub fn leaving<'a>(
    volume: &Volume,
    attachment: &VolumeAttachment,
    engines: impl IntoIterator<Item = &'a Engine>,
    node: &str,
) -> Leaving {
    let mut tickets = attachment.spec.attachment_tickets.iter();
    if let Some((id, _)) = tickets.find(|(_, ticket)| ticket.node_id == node) {
        return Leaving::Wanted(id.clone());
    }
    if let Some(engine) = engines.into_iter().find(|engine| engine.spec.node_id == node) {
        return Leaving::Still(why_it_stays(engine).trim().to_owned());
    }
    let spec = &volume.spec;
    if !is_deleting(volume) && (spec.node_id == node || spec.migration_node_id == node) {
        // The ticket is gone, and what followed from it not yet.
        return Leaving::Still(String::new());
    }
    Leaving::Gone
}

#[cfg(test)]
mod tests {
    use tether_crd::attachment::Ticket;
    use tether_crd::condition::{Condition, FALSE};

    use super::*;

    fn engine_on(node: &str) -> Engine {
        let mut engine = Engine::default();
        engine.spec.node_id = node.into();
        engine
    }

    fn volume_on(node: &str, target: &str) -> Volume {
        let mut volume = Volume::default();
        (volume.spec.node_id, volume.spec.migration_node_id) = (node.into(), target.into());
        volume
    }

    #[test]
    fn a_volume_has_left_when_neither_wish_nor_engine_is_there() {
        let free = VolumeAttachment::default();
        let of = |volume: &Volume, engines: &[Engine]| leaving(volume, &free, engines, "a");
        assert_eq!(of(&volume_on("", ""), &[]), Leaving::Gone);
        assert_eq!(of(&volume_on("", ""), &[engine_on("")]), Leaving::Gone);
        assert_eq!(of(&volume_on("b", ""), &[engine_on("b")]), Leaving::Gone);
        let still = Leaving::Still(String::new());
        assert_eq!(of(&volume_on("a", ""), &[engine_on("")]), still, "the wish is about to be cleared");
        assert_eq!(of(&volume_on("", ""), &[engine_on("a")]), still);
        assert_eq!(of(&volume_on("b", ""), &[engine_on("b"), engine_on("a")]), still, "the source of a move");
        assert_eq!(of(&volume_on("b", "a"), &[engine_on("b")]), still, "the target of a move");
    }

    #[test]
    fn it_stays_where_another_ticket_wants_it_and_says_what_keeps_it() {
        let mut attachment = VolumeAttachment::default();
        let ticket = Ticket { node_id: "a".into(), ..Ticket::default() };
        attachment.spec.attachment_tickets.insert("by-hand".into(), ticket);
        let wanted = Leaving::Wanted("by-hand".into());
        assert_eq!(leaving(&volume_on("a", ""), &attachment, &[engine_on("a")], "a"), wanted);
        assert_eq!(leaving(&volume_on("a", ""), &attachment, &[engine_on("a")], "b"), Leaving::Gone);

        let mut engine = engine_on("a");
        engine.status.conditions.push(Condition {
            kind: tether_crd::engine::INSTANCE_REMOVAL.into(),
            status: FALSE.into(),
            message: "its device is mounted".into(),
            ..Condition::default()
        });
        let Leaving::Still(why) = leaving(&volume_on("", ""), &VolumeAttachment::default(), &[engine], "a") else {
            panic!("its engine is there");
        };
        assert!(why.contains("its device is mounted"), "{why}");
    }
}
