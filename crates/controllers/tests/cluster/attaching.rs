//! Volumes follow pods from node to node; a driver is played by hand.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tether_plan::attach_detach::{Settings, attachment_name};

use crate::harness::*;

const UNIQUE: &str = "kubernetes.io/csi/driver.example.com^data";

async fn cluster(settings: Settings) -> Cluster {
    let mut cluster = Cluster::without_controllers().await;
    cluster.run_controllers(|options| options.attach_detach = Some(settings));
    until(&cluster.in_default::<k8s_openapi::api::core::v1::ServiceAccount>(), "default", "there", |_| true).await;
    for node in ["a", "b"] {
        cluster.add_node(node).await;
        let managed = json!({ "metadata": { "annotations": {
            "volumes.kubernetes.io/controller-managed-attach-detach": "true" } } });
        patch(&cluster.all::<Node>(), node, managed).await;
    }
    let volumes: Api<PersistentVolume> = cluster.all();
    create(
        &volumes,
        json!({ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "capacity": { "storage": "1Gi" },
            "csi": { "driver": "driver.example.com", "volumeHandle": "data" },
        } }),
    )
    .await;
    let claims: Api<PersistentVolumeClaim> = cluster.in_default();
    create(
        &claims,
        json!({ "metadata": { "name": "data" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "data",
            "resources": { "requests": { "storage": "1Gi" } },
        } }),
    )
    .await;
    until(&claims, "data", "bound", |c| c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound")).await;
    cluster
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    cluster.in_default()
}

async fn run_pod(cluster: &Cluster, name: &str, node: &str) {
    let mut body = pod(name);
    body["spec"]["nodeName"] = json!(node);
    body["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    create(&pods(cluster), body).await;
}

async fn remove_pod(cluster: &Cluster, name: &str) {
    delete(&pods(cluster), name, DeleteParams::default().grace_period(0)).await;
}

fn attachments(cluster: &Cluster) -> Api<VolumeAttachment> {
    cluster.all()
}

fn on(node: &str) -> String {
    attachment_name("data", "driver.example.com", node)
}

/// The driver attaches; the node is told, says that it uses the volume, and mounts it.
async fn attach_and_mount(cluster: &Cluster, node: &str) {
    until(&attachments(cluster), &on(node), "there", |_| true).await;
    patch_status(&attachments(cluster), &on(node), json!({ "status": { "attached": true } })).await;
    let listed =
        |n: &Node| n.status.as_ref().unwrap().volumes_attached.iter().flatten().any(|volume| volume.name == UNIQUE);
    until(&cluster.all::<Node>(), node, "told", listed).await;
    use_volume(cluster, node, true).await;
}

async fn use_volume(cluster: &Cluster, node: &str, uses: bool) {
    let used = if uses { json!([UNIQUE]) } else { json!([]) };
    patch_status(&cluster.all::<Node>(), node, json!({ "status": { "volumesInUse": used } })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_moves_with_its_pod_and_only_when_it_is_unmounted() {
    let cluster = cluster(Settings::default()).await;
    run_pod(&cluster, "one", "a").await;
    attach_and_mount(&cluster, "a").await;
    let note = cluster.event("SuccessfulAttachVolume", "one").await;
    assert_eq!(note, "AttachVolume.Attach succeeded for volume \"data\" ");
    let made = attachments(&cluster).get(&on("a")).await.unwrap();
    assert_eq!((made.spec.attacher.as_str(), made.spec.node_name.as_str()), ("driver.example.com", "a"));
    assert_eq!(made.spec.source.persistent_volume_name.as_deref(), Some("data"));

    run_pod(&cluster, "two", "b").await;
    let note = cluster.event("FailedAttachVolume", "two").await;
    assert_eq!(note, "Waiting for detach for volume \"data\" Volume is already used by pod(s) one");
    remove_pod(&cluster, "one").await;
    // The node still has it mounted: it stays listed, and where it is.
    cluster.pass(60, &["a", "b"]).await;
    assert!(attachments(&cluster).get_opt(&on("b")).await.unwrap().is_none());
    let node = cluster.all::<Node>().get("a").await.unwrap();
    assert!(node.status.unwrap().volumes_attached.iter().flatten().any(|volume| volume.name == UNIQUE));

    use_volume(&cluster, "a", false).await;
    until_gone(&attachments(&cluster), &on("a")).await;
    attach_and_mount(&cluster, "b").await;
    let node = cluster.all::<Node>().get("a").await.unwrap();
    assert!(node.status.unwrap().volumes_attached.is_none_or(|all| all.is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_keeps_its_volume_for_six_minutes() {
    let cluster = cluster(Settings::default()).await;
    run_pod(&cluster, "one", "a").await;
    attach_and_mount(&cluster, "a").await;
    cluster.post_ready("a", "False").await;
    remove_pod(&cluster, "one").await;
    run_pod(&cluster, "two", "b").await;
    cluster.event("FailedAttachVolume", "two").await;
    cluster.pass(300, &["b"]).await;
    assert!(attachments(&cluster).get_opt(&on("a")).await.unwrap().is_some());
    cluster.pass(70, &["b"]).await;
    until_gone(&attachments(&cluster), &on("a")).await;
    attach_and_mount(&cluster, "b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_out_of_service_loses_its_volume_at_once() {
    let cluster = cluster(Settings { disable_force_detach: true, ..Settings::default() }).await;
    run_pod(&cluster, "one", "a").await;
    attach_and_mount(&cluster, "a").await;
    remove_pod(&cluster, "one").await;
    run_pod(&cluster, "two", "b").await;
    cluster.event("FailedAttachVolume", "two").await;
    let taint =
        json!({ "spec": { "taints": [{ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" }] } });
    patch(&cluster.all::<Node>(), "a", taint).await;
    until_gone(&attachments(&cluster), &on("a")).await;
    attach_and_mount(&cluster, "b").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments_that_nobody_wants_are_found_and_those_of_deleted_nodes_too() {
    let cluster = cluster(Settings::default()).await;
    let dangling = |node: &str| {
        json!({ "metadata": { "name": on(node) }, "spec": { "attacher": "driver.example.com", "nodeName": node,
                "source": { "persistentVolumeName": "data" } } })
    };
    create(&attachments(&cluster), dangling("a")).await;
    until_gone(&attachments(&cluster), &on("a")).await;
    delete(&cluster.all::<Node>(), "b", DeleteParams::default()).await;
    create(&attachments(&cluster), dangling("b")).await;
    until_gone(&attachments(&cluster), &on("b")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_needs_no_attachment_gets_none() {
    use k8s_openapi::api::storage::v1::CSIDriver;
    let cluster = cluster(Settings::default()).await;
    run_pod(&cluster, "one", "a").await;
    until(&attachments(&cluster), &on("a"), "there", |_| true).await;
    let driver = json!({ "metadata": { "name": "driver.example.com" }, "spec": { "attachRequired": false } });
    create(&cluster.all::<CSIDriver>(), driver).await;
    until_gone(&attachments(&cluster), &on("a")).await;
}
