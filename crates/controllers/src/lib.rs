//! The cluster controllers that Kubernetes brings along and the embedded cluster needs.
//!
//! Each controller is a folder with the same files: `mod.rs` says when it looks and what it does in a few lines,
//! `observe.rs` gathers what the decision needs, `apply.rs` carries the plan out. The decisions are in `tether-plan`.
//!
//! Nothing polls: each kind is watched once for all of them ([`context`]), a change puts the keys that it concerns into
//! queues, and a plan that waits says until when. At rest nothing is written.

mod attach_detach;
mod binding;
pub mod cache;
pub mod clock;
mod clone;
mod context;
mod crd_cleanup;
mod disruption;
mod garbage;
mod kinds;
pub mod leader;
mod longhorn;
mod metrics;
mod namespace;
mod node;
mod options;
mod pod_gc;
pub mod publish;
pub mod queue;
mod schedule;
mod service_account;
mod setting;
mod snapshot;
mod storage_node;
mod tickets;
pub mod trim;
mod volume;
pub mod worker;
pub mod write;

use kube::Client;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::context::Context;
use self::leader::Election;
pub use self::metrics::{Metrics, Phases, Took};
pub use self::options::Options;
use self::worker::{work, work_many};
pub use self::write::WriteError;

/// A controller panicked, which is a bug: all of them have ended, and whoever supervises the process starts it anew.
#[derive(Debug, thiserror::Error)]
#[error("a controller ended: {0}")]
pub struct Ended(#[from] tokio::task::JoinError);

/// Runs all controllers until `stop`; with an election, whenever this process leads.
pub async fn run(client: Client, options: Options, stop: CancellationToken) -> Result<(), Ended> {
    let Some(settings) = options.leader_election.clone() else {
        return stop.run_until_cancelled(lead(client, &options)).await.unwrap_or(Ok(()));
    };
    let mut election = Election::new(client.clone(), options.clock.clone(), settings, &options.identity);
    let mut outcome = Ok(());
    while outcome.is_ok() && stop.run_until_cancelled(election.acquire()).await.is_some() {
        tracing::info!(identity = options.identity, "leading");
        tokio::select! {
            ended = lead(client.clone(), &options) => outcome = ended,
            () = election.keep() => tracing::warn!(identity = options.identity, "no longer leading"),
            () = stop.cancelled() => break,
        }
    }
    election.release().await;
    outcome
}

/// Runs all controllers until dropped; everything that was started ends with it.
async fn lead(client: Client, options: &Options) -> Result<(), Ended> {
    let context = Context::new(client, options.clock.clone(), &options.identity, options.volumes);
    let (lifecycle, lifecycle_queue) = node::Lifecycle::new(&context, options.node);
    let (eviction, eviction_queue) = node::Eviction::new(&context);
    let (pod_gc, pod_gc_queue) = pod_gc::PodGc::new(&context, options.pod_gc);
    let (garbage, garbage_queue) = garbage::Garbage::new(&context);
    let (namespaces, namespace_queue) = namespace::Namespaces::new(&context);
    let (definitions, definition_queue) = crd_cleanup::CrdCleanup::new(&context);
    let (accounts, account_queue) = service_account::ServiceAccounts::new(&context, options.root_ca.clone());
    let (binding, binding_queue) = binding::Binding::new(&context);
    let (budgets, budget_queue) = disruption::Budgets::new(&context);
    let (scheduler, schedule_queue) = schedule::Scheduler::new(&context);
    let (tickets, ticket_queue) = tickets::Tickets::new(&context);
    let (volumes, volume_queue) = volume::Volumes::new(&context);
    let (snapshots, snapshot_queue) = snapshot::Snapshots::new(&context);
    let (clones, clone_queue) = clone::Clones::new(&context);
    let storage_nodes = options.storage_nodes.then(|| storage_node::StorageNodes::new(&context));
    let attach_detach = options.attach_detach.map(|settings| attach_detach::AttachDetach::new(&context, settings));

    options.metrics.observe(&context);
    options.metrics.queue("longhorn-volume-attachment-controller", &ticket_queue);
    options.metrics.queue("longhorn-volume", &volume_queue);
    options.metrics.queue("scheduler", &schedule_queue);
    options.metrics.queue("garbage-collector", &garbage_queue);
    if let Some((_, queue)) = &storage_nodes {
        options.metrics.queue("longhorn-node", queue);
    }
    if let Some((_, queue)) = &attach_detach {
        options.metrics.queue("attach-detach", queue);
    }

    let mut tasks = JoinSet::new();
    context.watch(&mut tasks);
    context.ready().await;
    tracing::info!("every kind was listed");
    if options.volumes {
        setting::make_missing(&context.client, &context.longhorn).await;
    }
    if options.cluster {
        tasks.spawn(work(lifecycle, lifecycle_queue));
        tasks.spawn(work(eviction, eviction_queue));
        tasks.spawn(work(pod_gc, pod_gc_queue));
        tasks.spawn(work(garbage, garbage_queue));
        tasks.spawn(work(namespaces, namespace_queue));
        tasks.spawn(work(definitions, definition_queue));
        tasks.spawn(work(accounts, account_queue));
        tasks.spawn(work(binding, binding_queue));
        tasks.spawn(work(budgets, budget_queue));
        tasks.spawn(work(scheduler, schedule_queue));
    }
    tasks.spawn(work_many(tickets, ticket_queue, tickets::AT_ONCE));
    tasks.spawn(work_many(volumes, volume_queue, volume::AT_ONCE));
    tasks.spawn(work_many(snapshots, snapshot_queue, snapshot::AT_ONCE));
    tasks.spawn(work_many(clones, clone_queue, clone::AT_ONCE));
    if let Some((storage_nodes, queue)) = storage_nodes {
        tasks.spawn(work(storage_nodes, queue));
    }
    if let Some((attach_detach, queue)) = attach_detach {
        tasks.spawn(work_many(attach_detach, queue, attach_detach::AT_ONCE));
    }
    (options.on_leading)();
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}
