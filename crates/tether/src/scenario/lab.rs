//! The cluster that scenarios are performed on, and the volume of one of them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Event, Node as KubeNode, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tether_crd::attachment::TicketType;
use tether_crd::volume::CloneState;
use tether_crd::{NAMESPACE, Node, Snapshot, Volume, VolumeAttachment as Tickets, names};
use tether_plan::instance_manager::IMAGE;

use super::catalog::Host;
use crate::client;
use crate::cluster::{self, Layout, Marker};
use crate::commands::fault::crash_instance_manager;
use crate::picture::Picture;

/// Nodes of a cluster that is started for scenarios.
const NODES: &str = "3";
/// Where volumes of scenarios come from.
const CLASS: &str = "tether-scenario";
/// Who wants a copy attached.
const COPY_TICKET: &str = "scenario";
/// Small, so that a rebuild takes no time; large enough for a few regions of the activity log.
const SIZE: &str = "64Mi";
/// Until something that the cluster does by itself must have happened. An ordinary step takes a second; a loaded machine, more.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at what no watch tells.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A cluster.
pub(super) struct Lab {
    pub(super) client: Client,
    /// Of a cluster that this machine runs: its nodes can be switched off.
    embedded: Option<(Layout, Marker)>,
    /// It was started for this, and ends with it.
    own: Option<PathBuf>,
    nodes: [String; 3],
}

impl Lab {
    /// Starts a cluster of its own.
    pub(super) async fn start(node_grace: SignedDuration) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("tether-scenario-{}", std::process::id()));
        let grace = format!("{}ms", node_grace.as_millis());
        let up = ["up", "--detach", "--nodes", NODES, "--api-port", "0", "--no-devices", "--node-grace", &grace];
        tether(&up, &dir).await.context("cannot start a cluster")?;
        let (layout, marker) = Marker::open(&dir)?;
        let client = client::from_file(&layout.kubeconfig(), "tether-scenario").await?;
        let mut lab = Self::on(client).await?;
        (lab.embedded, lab.own) = (Some((layout, marker)), Some(dir));
        Ok(lab)
    }

    /// Uses a cluster that runs; `embedded` if it is one of `tether up`.
    pub(super) async fn attach(client: Client, embedded: Option<(Layout, Marker)>) -> Result<Self> {
        let mut lab = Self::on(client).await?;
        lab.embedded = embedded;
        Ok(lab)
    }

    async fn on(client: Client) -> Result<Self> {
        let nodes: Api<Node> = Api::namespaced(client.clone(), NAMESPACE);
        let deadline = Instant::now() + LIMIT;
        loop {
            let found = nodes.list(&ListParams::default()).await.context("cannot list the nodes")?;
            let ready = found.items.into_iter().filter(Node::is_ready).filter_map(|node| node.metadata.name);
            if let Ok(nodes) = <[String; 3]>::try_from(ready.take(3).collect::<Vec<_>>()) {
                for node in &nodes {
                    register(&client, node).await?;
                }
                return Ok(Self { client, embedded: None, own: None, nodes });
            }
            if Instant::now() > deadline {
                bail!("a scenario needs three nodes that are ready; see `kubectl -n {NAMESPACE} get lhn`");
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    pub(super) fn data_dir(&self) -> Option<&PathBuf> {
        self.own.as_ref()
    }

    /// Ends the cluster if it was started for this.
    pub(super) async fn stop(self) -> Result<()> {
        let Some(dir) = self.own else { return Ok(()) };
        tether(&["down"], &dir).await.context("cannot stop the cluster")?;
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
    }

    pub(super) fn node(&self, host: Host) -> &str {
        &self.nodes[host as usize]
    }

    pub(super) fn has_power(&self) -> bool {
        self.embedded.is_some()
    }

    fn power(&self) -> Result<&(Layout, Marker)> {
        self.embedded.as_ref().context("nodes of this cluster cannot be switched off from here")
    }

    pub(super) async fn down(&self, host: Host) -> Result<()> {
        let (layout, marker) = self.power()?.clone();
        let node = self.node(host).to_owned();
        tokio::task::spawn_blocking(move || cluster::node_down(&layout, &marker, &node).map(drop)).await?
    }

    pub(super) fn up(&self, host: Host) -> Result<()> {
        let (layout, marker) = self.power()?;
        cluster::node_up(layout, marker, self.node(host)).map(drop)
    }

    pub(super) async fn partition(&self, host: Host, cut: bool) -> Result<()> {
        let (layout, marker) = self.power()?.clone();
        let node = self.node(host).to_owned();
        let signal = if cut { cluster::partition } else { cluster::heal };
        tokio::task::spawn_blocking(move || signal(&layout, &marker, &node).map(drop)).await?
    }

    /// Ends the process of the controllers without a warning; it is started again by itself.
    pub(super) fn kill_controller(&self) -> Result<()> {
        let (layout, _) = self.power()?;
        let status = cluster::Status::read(layout).context("the cluster has no status")?;
        let controller = status.components.iter().find(|component| component.name == "controller");
        let pid = controller.and_then(|controller| controller.pid);
        if let Some(process) = pid.and_then(cluster::Process::open) {
            process.signal(rustix::process::Signal::KILL);
        }
        Ok(())
    }

    pub(super) async fn crash(&self, host: Host) -> Result<()> {
        crash_instance_manager(&self.client, self.node(host), false).await
    }

    /// The uid of the pod of a node's instance manager, if it runs and is to stay.
    pub(super) async fn manager(&self, host: Host) -> Result<Option<String>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let pod = pods.get_opt(&names::instance_manager(self.node(host), IMAGE, "v1")).await?;
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let runs = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        Ok(pod.filter(runs).and_then(|pod| pod.metadata.uid))
    }

    /// Waits until another instance manager runs on a node than that one.
    pub(super) async fn replaced(&self, host: Host, old: &str) -> Result<()> {
        let what = format!("another instance manager runs on {}", self.node(host));
        until(&what, async || Ok(self.manager(host).await?.filter(|uid| uid != old).map(drop))).await
    }

    pub(super) async fn cordon(&self, host: Host, cordoned: bool) -> Result<()> {
        let nodes: Api<KubeNode> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"unschedulable": cordoned}}));
        let done = nodes.patch(self.node(host), &PatchParams::default(), &patch).await;
        done.map(drop).with_context(|| format!("cannot cordon {}", self.node(host)))
    }

    /// Whether the cluster takes a node for alive; none: it has none of that name.
    pub(super) async fn storage_node(&self, host: Host) -> Result<Option<Node>> {
        let nodes: Api<Node> = Api::namespaced(self.client.clone(), NAMESPACE);
        Ok(nodes.get_opt(self.node(host)).await?)
    }

    /// Makes a claim for a volume that can move, and returns the volume's name.
    pub(super) async fn claim(&self, name: &str) -> Result<String> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let class = json!({
            "metadata": {"name": CLASS},
            "provisioner": names::CSI_DRIVER,
            "allowVolumeExpansion": true,
            "parameters": {"numberOfReplicas": "3", "migratable": "true"},
        });
        create(&classes, class).await?;
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": CLASS,
                "resources": {"requests": {"storage": SIZE}},
            },
        });
        create(&claims, claim).await?;
        let bound = async || {
            let claim = claims.get(name).await?;
            let phase = claim.status.and_then(|status| status.phase);
            Ok(claim.spec.and_then(|spec| spec.volume_name).filter(|_| phase.as_deref() == Some("Bound")))
        };
        until("the claim is bound", bound).await
    }

    /// Deletes a claim, and with it the volume; does not wait for the end.
    pub(super) async fn release(&self, name: &str) {
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(self.client.clone());
        let _ = claims.delete(name, &DeleteParams::default()).await;
    }

    /// Takes a snapshot, unless there is one of that name, and waits until it can be used.
    pub(super) async fn snapshot(&self, name: &str, volume: &str) -> Result<()> {
        let snapshots: Api<Snapshot> = Api::namespaced(self.client.clone(), NAMESPACE);
        let wish = json!({"metadata": {"name": name}, "spec": {"volume": volume, "createSnapshot": true}});
        create(&snapshots, wish).await?;
        let what = format!("snapshot {name} can be used");
        until(&what, async || Ok(snapshots.get(name).await?.status.ready_to_use.then_some(()))).await
    }

    /// Makes a volume from a snapshot, attaches it, and tells where it is served.
    pub(super) async fn copy(&self, name: &str, volume: &str, snapshot: &str, host: Host) -> Result<String> {
        let volumes: Api<Volume> = Api::namespaced(self.client.clone(), NAMESPACE);
        let size = volumes.get(volume).await?.spec.size;
        let copy = json!({
            "metadata": {"name": name},
            "spec": {
                "size": size, "numberOfReplicas": 1, "frontend": "blockdev",
                "dataSource": format!("snap://{volume}/{snapshot}"),
            },
        });
        create(&volumes, copy).await?;
        // Nothing but the copying keeps it attached until then, and shows it to nobody.
        until(&format!("volume {name} is copied"), async || {
            Ok((volumes.get(name).await?.status.clone_status.state == CloneState::Completed).then_some(()))
        })
        .await?;
        let tickets: Api<Tickets> = Api::namespaced(self.client.clone(), NAMESPACE);
        let ticket = json!({
            "id": COPY_TICKET, "type": TicketType::Api.as_str(), "nodeID": self.node(host),
            "parameters": {"disableFrontend": "false"},
        });
        let wish = Patch::Merge(json!({"spec": {"attachmentTickets": {COPY_TICKET: ticket}}}));
        tickets.patch(name, &PatchParams::default(), &wish).await?;
        until(&format!("volume {name} is attached"), async || {
            let picture = Picture::load(&self.client, name).await?;
            let is_there = |p: &Picture| p.attachment.as_ref().is_some_and(|held| held.is_satisfied(COPY_TICKET));
            let served = picture.filter(is_there).map(|picture| picture.endpoint().to_owned());
            Ok(served.filter(|endpoint| !endpoint.is_empty()))
        })
        .await
    }

    /// Deletes a volume that no claim has; does not wait for the end.
    pub(super) async fn remove(&self, name: &str) -> Result<()> {
        let volumes: Api<Volume> = Api::namespaced(self.client.clone(), NAMESPACE);
        volumes.delete(name, &DeleteParams::default()).await.with_context(|| format!("cannot delete volume {name}"))?;
        Ok(())
    }

    pub(super) async fn publish(&self, name: &str, volume: &str, host: Host) -> Result<()> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let attachment = json!({
            "metadata": {"name": name},
            "spec": {
                "attacher": names::CSI_DRIVER, "nodeName": self.node(host), "source": {"persistentVolumeName": volume},
            },
        });
        create(&attachments, attachment).await
    }

    pub(super) async fn unpublish(&self, name: &str) -> Result<()> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        match attachments.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            done => done.map(drop).with_context(|| format!("cannot delete VolumeAttachment {name}")),
        }
    }

    /// Whether Kubernetes was told that the volume is attached; the error if it was refused.
    pub(super) async fn published(&self, name: &str) -> Result<(bool, String)> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let status = attachments.get(name).await?.status;
        let error = status.as_ref().and_then(|status| status.attach_error.as_ref()?.message.clone());
        Ok((status.is_some_and(|status| status.attached), error.unwrap_or_default()))
    }

    /// Reasons and words of the events of a volume.
    pub(super) async fn events(&self, volume: &str) -> Result<Vec<(String, String)>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = events.list(&ListParams::default()).await?.items.into_iter();
        let ours = all.filter(|event| event.involved_object.name.as_deref() == Some(volume));
        Ok(ours.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect())
    }

    /// How much the controllers have logged; none: their log cannot be read from here.
    pub(super) fn log_len(&self) -> Option<u64> {
        let (layout, _) = self.embedded.as_ref()?;
        Some(std::fs::metadata(layout.log("controller")).map_or(0, |file| file.len()))
    }

    /// What the controllers logged of a volume from there on.
    pub(super) fn logged(&self, volume: &str, from: u64) -> Result<String> {
        let (layout, _) = self.power()?;
        let file = layout.log("controller");
        let log = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        let log = String::from_utf8_lossy(log.get(usize::try_from(from)?..).unwrap_or_default());
        Ok(log.lines().filter(|line| line.contains(volume)).collect::<Vec<_>>().join("\n"))
    }
}

/// A node whose kubelet does not know the driver gets no attachments. Where the node half of the driver does not run, as without kernel
/// devices, nobody has told it; the guest needs no more than the attachment.
async fn register(client: &Client, node: &str) -> Result<()> {
    let nodes: Api<CSINode> = Api::all(client.clone());
    let known = nodes
        .get_opt(node)
        .await?
        .is_some_and(|found| found.spec.drivers.iter().any(|driver| driver.name == names::CSI_DRIVER));
    if known {
        return Ok(());
    }
    let patch = Patch::Strategic(json!({"spec": {"drivers": [{"name": names::CSI_DRIVER, "nodeID": node}]}}));
    let done = nodes.patch(node, &PatchParams::default(), &patch).await;
    done.map(drop).with_context(|| format!("cannot name the driver in CSINode {node}"))
}

/// Asks until there is an answer.
pub(super) async fn until<T>(what: &str, ask: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            bail!("not within {LIMIT:?}: {what}");
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn create<K>(api: &Api<K>, object: serde_json::Value) -> Result<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).expect("an object of a scenario must be one");
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        done => done
            .map(drop)
            .with_context(|| format!("cannot create {} {}", K::kind(&()), object.meta().name.as_deref().unwrap_or(""))),
    }
}

/// Runs another command of this binary.
async fn tether(args: &[&str], dir: &std::path::Path) -> Result<()> {
    let mut command = tokio::process::Command::new("/proc/self/exe");
    command.args(args).arg("--data-dir").arg(dir).env_remove("KUBECONFIG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = command.spawn()?.wait_with_output().await?;
    if !ended.status.success() {
        bail!("tether {}: {}", args.join(" "), String::from_utf8_lossy(&ended.stderr).trim());
    }
    Ok(())
}
