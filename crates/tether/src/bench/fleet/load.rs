//! Tickets put in and taken out, and how long each waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tether_crd::volume::State;
use tether_crd::{Volume, VolumeAttachment};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::super::{Figure, Samples};
use super::make::{self, AT_ONCE};
use super::{Plan, objects};

const TICKET: &str = "fleet";
const SIZE_BYTES: i64 = 1 << 30;
/// A round that makes no progress for this long is given up.
const STUCK: Duration = Duration::from_secs(120);

/// Where each volume is to be attached: its index, and that of the node.
pub(super) type Places = Vec<(usize, usize)>;

/// The node to be lost has as many as were asked for; the others share the rest.
pub(super) fn placed(plan: &Plan) -> Places {
    let others = plan.nodes - 1;
    (0..plan.volumes).map(|index| (index, if index < plan.lost { make::LOST } else { 1 + index % others })).collect()
}

/// The volumes of the lost node, elsewhere.
pub(super) fn moved(plan: &Plan) -> Places {
    (0..plan.lost).map(|index| (index, 1 + index % (plan.nodes - 1))).collect()
}

/// Follows the tickets of all volumes.
pub(super) struct Tickets {
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// Node that each volume's ticket is satisfied on, and since when.
    satisfied: Mutex<HashMap<String, (String, Instant)>>,
    /// Volumes that are detached.
    detached: Mutex<HashMap<String, Instant>>,
    changed: Notify,
}

impl Tickets {
    pub(super) fn watch(client: &Client) -> Self {
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(follow(client.clone(), seen.clone(), attachment));
        tasks.spawn(follow(client.clone(), seen.clone(), volume));
        Self { seen, _tasks: tasks }
    }

    /// Puts tickets in, all at once or so many per second, and waits until each is satisfied.
    pub(super) async fn attach(
        &self,
        client: &Client,
        name: &str,
        places: &Places,
        rate: Option<usize>,
    ) -> Result<Figure> {
        let started = Instant::now();
        let attachments = objects::<VolumeAttachment>(client);
        let sent: Vec<(usize, usize, Instant)> = stream::iter(places.iter().copied().enumerate())
            .then(|(nth, place)| async move {
                if let Some(rate) = rate {
                    let due = started + Duration::from_secs_f64(nth as f64 / rate as f64);
                    tokio::time::sleep_until(due.into()).await;
                }
                place
            })
            .map(|(index, node)| {
                let attachments = &attachments;
                async move {
                    let at = Instant::now();
                    let ticket = json!({
                        "id": TICKET, "type": "longhorn-api", "nodeID": make::node_name(node),
                        "parameters": {"disableFrontend": "false"},
                    });
                    let patch = Patch::Merge(json!({"spec": {"attachmentTickets": {TICKET: ticket}}}));
                    attachments.patch(&make::volume_name(index), &PatchParams::default(), &patch).await?;
                    anyhow::Ok((index, node, at))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut samples = Samples::default();
        for (index, node, at) in sent {
            let (volume, node) = (make::volume_name(index), make::node_name(node));
            let arrived = self
                .until(|seen| {
                    seen.satisfied
                        .lock()
                        .get(&volume)
                        .filter(|(on, when)| *on == node && *when >= at)
                        .map(|(_, when)| *when)
                })
                .await;
            let Some(arrived) = arrived else {
                bail!("{volume} was not attached to {node}: tether explain volume {volume}")
            };
            samples.add(arrived - at);
        }
        Ok(samples.figure(name, started.elapsed()))
    }

    /// Takes all tickets out and waits until every volume is detached.
    pub(super) async fn detach(&self, client: &Client, name: &str, plan: &Plan) -> Result<Figure> {
        let started = Instant::now();
        let attachments = objects::<VolumeAttachment>(client);
        let patch: Value = json!({"spec": {"attachmentTickets": {TICKET: null}}});
        let sent: Vec<(String, Instant)> = stream::iter(0..plan.volumes)
            .map(|index| {
                let (attachments, patch) = (&attachments, &patch);
                async move {
                    let (volume, at) = (make::volume_name(index), Instant::now());
                    attachments.patch(&volume, &PatchParams::default(), &Patch::Merge(patch)).await?;
                    anyhow::Ok((volume, at))
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        self.detached(name, started, sent).await
    }

    async fn detached(&self, name: &str, started: Instant, sent: Vec<(String, Instant)>) -> Result<Figure> {
        let mut samples = Samples::default();
        for (volume, at) in sent {
            let arrived =
                self.until(|seen| seen.detached.lock().get(&volume).copied().filter(|when| *when >= at)).await;
            let Some(arrived) = arrived else { bail!("{volume} was not detached: tether explain volume {volume}") };
            samples.add(arrived - at);
        }
        Ok(samples.figure(name, started.elapsed()))
    }

    async fn until<T>(&self, found: impl Fn(&Seen) -> Option<T>) -> Option<T> {
        loop {
            let changed = self.seen.changed.notified();
            if let Some(value) = found(&self.seen) {
                return Some(value);
            }
            tokio::time::timeout(STUCK, changed).await.ok()?;
        }
    }
}

/// Makes the volumes and waits until each is detached, its replicas placed; those of an earlier run are taken over.
pub(super) async fn create(client: &Client, tickets: &Tickets, plan: &Plan) -> Result<Figure> {
    let started = Instant::now();
    let volumes = objects::<Volume>(client);
    let sent: Vec<Option<(String, Instant)>> = stream::iter(0..plan.volumes)
        .map(|index| {
            let (volumes, name) = (&volumes, make::volume_name(index));
            async move {
                let object = json!({
                    "metadata": {"name": name, "namespace": tether_crd::NAMESPACE},
                    "spec": {
                        "size": SIZE_BYTES.to_string(), "numberOfReplicas": plan.replicas, "frontend": "blockdev",
                        "accessMode": "rwo", "nodeSelector": [make::TAG],
                    },
                });
                let at = Instant::now();
                match volumes.create(&PostParams::default(), &serde_json::from_value(object)?).await {
                    Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
                    Err(error) => Err(error.into()),
                    Ok(_) => anyhow::Ok(Some((name, at))),
                }
            }
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    tickets.detached("create", started, sent.into_iter().flatten().collect()).await
}

async fn follow<K>(client: Client, seen: Arc<Seen>, note: fn(&Seen, &K))
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + 'static,
{
    let mut events = Box::pin(watcher(objects::<K>(&client), watcher::Config::default()));
    while let Some(event) = events.next().await {
        if let Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) = event {
            note(&seen, &object);
            seen.changed.notify_waiters();
        }
    }
}

fn attachment(seen: &Seen, attachment: &VolumeAttachment) {
    let name = attachment.name_any();
    let ticket = attachment.spec.attachment_tickets.get(TICKET);
    let status = attachment.status.attachment_ticket_statuses.get(TICKET);
    let node = match (ticket, status) {
        (Some(ticket), Some(status)) if status.satisfied && status.generation == ticket.generation => &ticket.node_id,
        _ => {
            seen.satisfied.lock().remove(&name);
            return;
        }
    };
    let mut satisfied = seen.satisfied.lock();
    if satisfied.get(&name).is_none_or(|(before, _)| before != node) {
        satisfied.insert(name, (node.clone(), Instant::now()));
    }
}

fn volume(seen: &Seen, volume: &Volume) {
    let mut detached = seen.detached.lock();
    if volume.status.state == State::Detached {
        detached.entry(volume.name_any()).or_insert_with(Instant::now);
    } else {
        detached.remove(&volume.name_any());
    }
}
