//! Load on an attacher: many VolumeAttachments at once for a driver that answers at once.
//!
//! What is measured is the way from the API server to the driver and back, whoever goes it: the attacher of this program, or
//! another that is started beside it on the same socket.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{Api, DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tether_csi::fake::{Driver, Profile};
use tokio_util::sync::CancellationToken;

use super::{Figure, Samples};

/// The name of the driver, and what everything of a run is called after.
pub(crate) const DRIVER: &str = "bench.tether.io";
/// Objects that are written at a time while the load is prepared.
const WRITERS: usize = 16;
/// How long a watch may last: an attacher with a limit of its own takes minutes for a few hundred.
const WATCH_SECONDS: u32 = 3_600;
/// Without any progress for so long, nobody attaches.
const STALLED: Duration = Duration::from_secs(60);

/// Serves the instant driver on a socket until the token is cancelled.
pub(crate) fn serve_driver(socket: &Path, stop: &CancellationToken) -> Result<()> {
    let listener = tether_engine::unix::listen(socket).with_context(|| socket.display().to_string())?;
    let driver = Driver::new(Profile::new(DRIVER)).forgetful();
    let stop = stop.clone();
    tokio::spawn(async move {
        if let Err(error) = driver.serve(listener, stop).await {
            tracing::error!(%error, "the driver ended");
        }
    });
    Ok(())
}

/// What is being done; told when it begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    Preparing,
    Attaching,
    Detaching,
    Cleaning,
}

impl Phase {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Preparing => "making volumes",
            Self::Attaching => "attaching",
            Self::Detaching => "detaching",
            Self::Cleaning => "cleaning up",
        }
    }
}

/// What a run came to.
pub(crate) struct Figures {
    pub attach: Figure,
    pub detach: Figure,
}

/// Attaches `count` volumes and detaches them again; somebody else does the work.
pub(crate) async fn run(client: &Client, count: usize, progress: &dyn Fn(Phase)) -> Result<Figures> {
    clean(client).await?;
    progress(Phase::Preparing);
    let nodes: Api<CSINode> = Api::all(client.clone());
    let node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": "bench-node" },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": "bench-node", "topologyKeys": [] }] },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    each(count, |index| {
        let api = volumes.clone();
        async move { api.create(&PostParams::default(), &volume(index)?).await.map(drop).map_err(Into::into) }
    })
    .await?;

    progress(Phase::Attaching);
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let is_attached = |va: &VolumeAttachment| va.status.as_ref().is_some_and(|s| s.attached);
    let following = follow(client.clone(), count, move |event| match event {
        WatchEvent::Modified(va) if is_attached(va) => Some(va.name_any()),
        _ => None,
    });
    let attach = measure("attach", following, count, |index| {
        let api = attachments.clone();
        async move { api.create(&PostParams::default(), &attachment(index)?).await.map(drop).map_err(Into::into) }
    })
    .await?;

    progress(Phase::Detaching);
    let gone = follow(client.clone(), count, |event| match event {
        WatchEvent::Deleted(va) => Some(va.name_any()),
        _ => None,
    });
    let detach = measure("detach", gone, count, |index| {
        let api = attachments.clone();
        async move { api.delete(&name(index), &DeleteParams::default()).await.map(drop).map_err(Into::into) }
    })
    .await?;
    progress(Phase::Cleaning);
    clean(client).await?;
    Ok(Figures { attach, detach })
}

fn name(index: usize) -> String {
    format!("bench-{index}")
}

fn volume(index: usize) -> Result<PersistentVolume> {
    let csi = json!({ "driver": DRIVER, "volumeHandle": name(index), "fsType": "ext4" });
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "csi": csi,
                       "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "" });
    let body =
        json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name(index) }, "spec": spec });
    Ok(serde_json::from_value(body)?)
}

fn attachment(index: usize) -> Result<VolumeAttachment> {
    let spec =
        json!({ "attacher": DRIVER, "nodeName": "bench-node", "source": { "persistentVolumeName": name(index) } });
    let metadata = json!({ "name": name(index) });
    let body =
        json!({ "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": metadata, "spec": spec });
    Ok(serde_json::from_value(body)?)
}

/// Does something for each index, several at a time.
async fn each<F: Future<Output = Result<()>>>(count: usize, work: impl Fn(usize) -> F) -> Result<()> {
    futures::stream::iter(0..count).map(|index| Ok(work(index))).try_buffer_unordered(WRITERS).try_collect().await
}

/// A task that notes when each attachment was seen to be done.
async fn follow(
    client: Client,
    count: usize,
    is_done: impl Fn(&WatchEvent<VolumeAttachment>) -> Option<String> + Send + 'static,
) -> Result<Vec<(String, Instant)>> {
    let api: Api<VolumeAttachment> = Api::all(client);
    let from = api.list(&ListParams::default().limit(1)).await?.metadata.resource_version.unwrap_or_default();
    let mut seen = std::collections::HashMap::new();
    let watch = api.watch(&WatchParams::default().timeout(WATCH_SECONDS), &from).await?;
    futures::pin_mut!(watch);
    while seen.len() < count {
        match tokio::time::timeout(STALLED, watch.next()).await {
            Ok(Some(event)) => {
                if let Some(name) = is_done(&event?) {
                    seen.entry(name).or_insert_with(Instant::now);
                }
            }
            Ok(None) => bail!("the watch ended after {} of {count}", seen.len()),
            Err(_) => bail!("nothing happens after {} of {count}: does an attacher for {DRIVER} run?", seen.len()),
        }
    }
    Ok(seen.into_iter().collect())
}

/// Starts everything at once and waits until all of it is done.
async fn measure<F: Future<Output = Result<()>>>(
    what: &str,
    following: impl Future<Output = Result<Vec<(String, Instant)>>> + Send + 'static,
    count: usize,
    start: impl Fn(usize) -> F,
) -> Result<Figure> {
    let following = tokio::spawn(following);
    // The watch is there before the first write.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = Instant::now();
    each(count, start).await?;
    let done = following.await??;
    let last = done.iter().map(|(_, at)| *at).max().unwrap_or(begun);
    let mut samples = Samples::default();
    for (_, at) in &done {
        samples.add(at.duration_since(begun));
    }
    Ok(samples.figure(what, last.duration_since(begun)))
}

/// Removes what this or an earlier run left.
async fn clean(client: &Client) -> Result<()> {
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let nodes: Api<CSINode> = Api::all(client.clone());
    let ours = |name: &String| name.starts_with("bench-");
    let held: Vec<String> =
        attachments.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).filter(ours).collect();
    let free = Arc::new(json!({ "metadata": { "finalizers": null } }));
    let params = kube::api::PatchParams::default();
    for name in held {
        let _ = attachments.delete(&name, &DeleteParams::default()).await;
        let _ = attachments.patch(&name, &params, &kube::api::Patch::Merge(&*free)).await;
    }
    let held: Vec<String> =
        volumes.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).filter(ours).collect();
    let (api, params) = (&volumes, &params);
    each(held.len(), |index| {
        let (name, free) = (held[index].clone(), free.clone());
        async move {
            let _ = api.delete(&name, &DeleteParams::default()).await;
            let _ = api.patch(&name, params, &kube::api::Patch::Merge(&*free)).await;
            Ok(())
        }
    })
    .await?;
    let _ = nodes.delete("bench-node", &DeleteParams::default()).await;
    Ok(())
}
