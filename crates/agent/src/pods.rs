//! The pods of this node: each is looked at when it changes, and `plan::kubelet` decides.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tether_plan::Plan;
use tether_plan::kubelet::{self, Change, Observed};
use tether_plan::object::Target;
use tokio_util::sync::CancellationToken;

use crate::{Options, volumes};

/// Pods that are worked on at the same time.
const CONCURRENT_PODS: u16 = 16;
/// After an error the pod is looked at again.
const RETRY: Duration = Duration::from_secs(2);

struct Context {
    client: Client,
    recorder: Recorder,
    address: String,
}

/// Tells the life of every pod bound to this node until `cancel`.
pub(crate) async fn run(client: Client, options: &Options, cancel: &CancellationToken) {
    let reporter = Reporter { controller: "kubelet".into(), instance: Some(options.name.clone()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let context = Arc::new(Context { client: client.clone(), recorder, address: options.address.to_string() });
    let mine = watcher::Config::default().fields(&format!("spec.nodeName={}", options.name));
    let pods = Controller::new(Api::<Pod>::all(client), mine)
        .with_config(Config::default().concurrency(CONCURRENT_PODS))
        .graceful_shutdown_on(cancel.clone().cancelled_owned())
        .run(reconcile, |pod, error, _| retry(&pod, error), context);
    pods.for_each(|_| std::future::ready(())).await;
}

fn retry(pod: &Pod, error: &kube::Error) -> Action {
    tracing::warn!(pod = pod.name_any(), namespace = pod.namespace(), %error, "cannot act on the pod");
    Action::requeue(RETRY)
}

async fn reconcile(pod: Arc<Pod>, context: Arc<Context>) -> kube::Result<Action> {
    let unmounted = volumes::unmounted(&context.client, &pod).await?;
    let now = Timestamp::now();
    let plan = kubelet::decide(&Observed { pod: &pod, unmounted, address: &context.address }, now);
    apply(&context, &plan).await?;
    publish(&context, &plan).await;
    Ok(match plan.wake_at() {
        Some(until) => Action::requeue(until.duration_since(now).unsigned_abs()),
        None => Action::await_change(),
    })
}

async fn apply(context: &Context, plan: &Plan<Change>) -> kube::Result<()> {
    for change in &plan.changes {
        match change {
            Change::SetStatus { pod, status } => {
                let metadata = json!({"uid": pod.uid, "resourceVersion": pod.resource_version});
                let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
                pods(context, pod).patch_status(&pod.name, &PatchParams::default(), &patch).await?;
            }
            Change::Remove { pod } => remove(context, pod).await?,
        }
    }
    Ok(())
}

async fn remove(context: &Context, pod: &Target) -> kube::Result<()> {
    let params = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: Some(pod.uid.clone()), resource_version: None }),
        ..DeleteParams::default()
    };
    match pods(context, pod).delete(&pod.name, &params).await {
        // Someone was faster, or a pod of the same name has taken its place.
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        other => other.map(drop),
    }
}

/// An event that cannot be published is lost, as everywhere in Kubernetes.
async fn publish(context: &Context, plan: &Plan<Change>) {
    for event in &plan.events {
        let published = Event {
            type_: if event.warning { EventType::Warning } else { EventType::Normal },
            reason: event.reason.code().to_owned(),
            note: Some(event.note.clone()),
            action: "Sync".to_owned(),
            secondary: None,
        };
        if let Err(error) = context.recorder.publish(&published, &event.about).await {
            tracing::warn!(%error, "cannot publish an event");
        }
    }
}

fn pods(context: &Context, pod: &Target) -> Api<Pod> {
    Api::namespaced(context.client.clone(), &pod.namespace)
}
