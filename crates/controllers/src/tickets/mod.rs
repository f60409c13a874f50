//! Attachment tickets: where volumes are to be, and what everybody who wants one is told.

mod apply;
mod notice;
mod observe;
mod owners;
mod waits;

use std::sync::Arc;

use jiff::Timestamp;
use tether_crd::attachment::TicketType;
use tether_crd::settings::DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED;
use tether_crd::{NAMESPACE, Volume, VolumeAttachment};
use tether_plan::tickets::decide;

use self::notice::Noticed;
use self::owners::Owners;
use self::waits::Waits;
use crate::cache::Seen;
use crate::context::Context;
use crate::longhorn::{tickets_of_owner, tickets_on_node};
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// How many volumes are worked on at once. Their writes share the commits of the API server, so that more at once is more per second.
pub(crate) const AT_ONCE: usize = 32;

/// One volume at a time, by its name.
pub(crate) struct Tickets {
    context: Arc<Context>,
    owners: Arc<Owners>,
    noticed: Noticed,
    waits: Waits,
    publisher: Publisher,
}

impl Tickets {
    pub(crate) fn new(context: &Arc<Context>) -> (Arc<Self>, Arc<Queue<String>>) {
        let queue = Queue::new(context.clock.clone());
        let owners = Arc::<Owners>::default();
        listen(context, &queue);
        listen_to_owners(context, &queue, &owners);
        let publisher = context.publisher("longhorn-volume-attachment-controller");
        (
            Arc::new(Self {
                context: context.clone(),
                owners,
                noticed: Noticed::default(),
                waits: Waits::default(),
                publisher,
            }),
            queue,
        )
    }
}

/// Notes which volumes a change concerns.
fn listen(context: &Arc<Context>, queue: &Arc<Queue<String>>) {
    let longhorn = &context.longhorn;
    longhorn.attachments.subscribe({
        let queue = queue.clone();
        move |seen| queue.add(seen.object().metadata.name.clone().unwrap_or_default())
    });
    longhorn.volumes.subscribe({
        let queue = queue.clone();
        move |seen| {
            if matters(seen) {
                queue.add(seen.object().metadata.name.clone().unwrap_or_default());
            }
        }
    });
    longhorn.engines.subscribe({
        let (queue, volumes) = (queue.clone(), Arc::downgrade(&longhorn.volumes));
        move |seen| {
            let volume = &seen.object().spec.volume_name;
            let known = volumes.upgrade().and_then(|volumes| volumes.get(NAMESPACE, volume));
            // Of a volume that stays where it is, the volume itself says all that matters.
            if known.is_some_and(|volume| volume.is_migratable() && volume.is_migrating()) {
                queue.add(volume.clone());
            }
        }
    });
    let attachments = Arc::downgrade(&longhorn.attachments);
    let add_those = {
        let queue = queue.clone();
        move |word: Option<String>, concerned: &dyn Fn(&VolumeAttachment) -> bool| {
            let Some(attachments) = attachments.upgrade() else { return };
            let found = word.map_or_else(|| attachments.list(), |word| attachments.find(&word));
            for attachment in found.iter().filter(|attachment| concerned(attachment)) {
                queue.add(attachment.metadata.name.clone().unwrap_or_default());
            }
        }
    };
    longhorn.nodes.subscribe({
        let add_those = add_those.clone();
        move |seen| {
            if let Seen::Applied { old: Some(old), new } = seen
                && old.is_ready() == new.is_ready()
                && old.is_down() == new.is_down()
            {
                return;
            }
            let node = seen.object().metadata.name.clone().unwrap_or_default();
            add_those(Some(tickets_on_node(&node)), &|_| true);
        }
    });
    context.nodes.subscribe({
        let add_those = add_those.clone();
        move |seen| {
            let cordoned = |node: &k8s_openapi::api::core::v1::Node| observe::is_cordoned(node);
            if let Seen::Applied { old: Some(old), new } = seen
                && cordoned(old) == cordoned(new)
            {
                return;
            }
            let node = seen.object().metadata.name.clone().unwrap_or_default();
            add_those(Some(tickets_on_node(&node)), &has_manual_ticket);
        }
    });
    longhorn.settings.subscribe(move |seen| {
        if seen.object().metadata.name.as_deref() == Some(DETACH_MANUALLY_ATTACHED_VOLUMES_WHEN_CORDONED) {
            add_those(None, &has_manual_ticket);
        }
    });
}

/// A ticket goes when its owner does, and the owner may be of any kind.
fn listen_to_owners(context: &Arc<Context>, queue: &Arc<Queue<String>>, owners: &Arc<Owners>) {
    let attachments = Arc::downgrade(&context.longhorn.attachments);
    context.kinds.subscribe({
        let (queue, owners) = (queue.clone(), owners.clone());
        move |sighting| {
            let Some(attachments) = attachments.upgrade() else { return };
            for uid in owners.doubtful_after(sighting) {
                for attachment in attachments.find(&tickets_of_owner(&uid)) {
                    queue.add(attachment.metadata.name.clone().unwrap_or_default());
                }
            }
        }
    });
}

fn has_manual_ticket(attachment: &VolumeAttachment) -> bool {
    attachment.spec.attachment_tickets.values().any(|ticket| ticket.kind == TicketType::Api)
}

/// Whether anything changed about a volume that tickets depend on. Its record, its conditions and its size on disk change often.
fn matters(seen: &Seen<'_, Volume>) -> bool {
    let Seen::Applied { old: Some(old), new } = seen else { return true };
    wanted(old) != wanted(new) || found(old) != found(new)
}

fn wanted(volume: &Volume) -> impl PartialEq + '_ {
    let spec = &volume.spec;
    let kind = (spec.access_mode, spec.migratable, volume.metadata.deletion_timestamp.is_some());
    (&spec.node_id, &spec.migration_node_id, spec.disable_frontend, kind)
}

fn found(volume: &Volume) -> impl PartialEq + '_ {
    let status = &volume.status;
    let share = (status.share_state, &status.share_endpoint);
    let place = (&status.current_node_id, &status.current_migration_node_id);
    (status.state, status.robustness, place, share, &status.clone_status)
}

impl Reconcile for Tickets {
    type Key = String;
    const NAME: &'static str = "longhorn-volume-attachment-controller";

    async fn reconcile(&self, name: &String) -> Result<Option<Timestamp>, WriteError> {
        let now = self.context.clock.now();
        let Some(attachment) = self.context.longhorn.attachments.get(NAMESPACE, name) else {
            self.noticed.forget(name);
            self.waits.forget(name);
            return Ok(None);
        };
        let owners = self.owners.look(&self.context, &attachment).await?;
        let noticed = self.noticed.note(name, &attachment, now);
        let seen = observe::observe(&self.context, &attachment);
        let plan = decide(&seen.observed(&attachment, &owners, &noticed), now);
        log(Self::NAME, &plan);
        self.waits.say(Self::NAME, name, &plan.report);
        let wake_at = plan.wake_at();
        apply::apply(&self.context, &attachment, plan.changes).await?;
        self.publisher.publish(plan.events).await;
        Ok(wake_at)
    }
}
