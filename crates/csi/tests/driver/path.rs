//! The whole way of the control plane: a claim gets a volume, a pod's node gets it attached, and all of it goes again.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tether_crd::{Volume, names};
use tether_csi::connect::{Address, connect};
use tether_csi::metrics::Metrics;
use tether_csi::{attacher, provisioner};
use tokio_util::sync::CancellationToken;

use crate::lab::*;

async fn start_loops(lab: &Lab) {
    let address = Address(lab.dir.path().join("csi.sock"));
    let (client, connection) = (lab.client.clone(), connect(&address).await.unwrap());
    let settings = attacher::Settings::default();
    tokio::spawn(async move {
        attacher::run(client, connection, settings, &Metrics::default(), CancellationToken::new()).await
    });
    let (client, connection) = (lab.client.clone(), connect(&address).await.unwrap());
    let settings = provisioner::Settings { default_fs_type: "ext4".into(), ..provisioner::Settings::default() };
    tokio::spawn(async move {
        provisioner::run(client, connection, settings, &Metrics::default(), CancellationToken::new()).await
    });
}

pub(crate) async fn start_node(lab: &Lab) {
    let nodes: Api<Node> = Api::all(lab.client.clone());
    let managed = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    make(&nodes, json!({ "metadata": { "name": "node-1", "annotations": managed } })).await;
    let drivers = json!([{ "name": "driver.longhorn.io", "nodeID": "node-1", "topologyKeys": [] }]);
    make(
        &Api::<CSINode>::all(lab.client.clone()),
        json!({ "metadata": { "name": "node-1" }, "spec": { "drivers": drivers } }),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_claim_to_an_attached_volume_and_back() {
    let lab = Lab::new().await;
    start_loops(&lab).await;
    start_node(&lab).await;
    let client = || lab.client.clone();
    let parameters = json!({ "numberOfReplicas": "2", "fsType": "ext4" });
    let class = json!({ "metadata": { "name": "longhorn" }, "provisioner": "driver.longhorn.io", "parameters": parameters,
                        "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate" });
    make(&Api::<StorageClass>::all(client()), class).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client(), "default");
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "longhorn",
                       "resources": { "requests": { "storage": "64Mi" } } });
    make(&claims, json!({ "metadata": { "name": "data" }, "spec": spec })).await;
    let phase = |c: &PersistentVolumeClaim| c.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
    let bound = until(&claims, "data", "bound", |c| c.is_some_and(|c| phase(c) == "Bound")).await.unwrap();
    let name = bound.spec.unwrap().volume_name.unwrap();
    assert_eq!(name, format!("pvc-{}", bound.metadata.uid.unwrap()));
    let volumes: Api<PersistentVolume> = Api::all(client());
    let pv = volumes.get(&name).await.unwrap().spec.unwrap();
    let csi = pv.csi.unwrap();
    assert_eq!((csi.volume_handle.as_str(), csi.fs_type.as_deref()), (name.as_str(), Some("ext4")));
    assert_eq!(csi.volume_attributes.unwrap()["numberOfReplicas"], "2");

    let accounts: Api<ServiceAccount> = Api::namespaced(client(), "default");
    until(&accounts, "default", "there", |a| a.is_some()).await;
    let pods: Api<Pod> = Api::namespaced(client(), "default");
    let spec = json!({ "nodeName": "node-1", "containers": [{ "name": "main", "image": "none" }],
                       "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] });
    make(&pods, json!({ "metadata": { "name": "web" }, "spec": spec })).await;
    let attachments: Api<VolumeAttachment> = Api::all(client());
    let ticket = names::csi_ticket(&name, "node-1");
    let attached = |va: Option<&VolumeAttachment>| va.is_some_and(|va| va.status.as_ref().is_some_and(|s| s.attached));
    until(&attachments, &ticket, "attached", attached).await;
    let nodes: Api<Node> = Api::all(client());
    let listed = |n: Option<&Node>| {
        n.is_some_and(|n| n.status.as_ref().is_some_and(|s| s.volumes_attached.iter().flatten().count() == 1))
    };
    until(&nodes, "node-1", "told", listed).await;
    let held = lab.api::<tether_crd::VolumeAttachment>().get(&name).await.unwrap();
    let owner = held.spec.attachment_tickets[&ticket].owner.clone().unwrap();
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("VolumeAttachment", ticket.as_str()));

    pods.delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    until(&attachments, &ticket, "gone", |va| va.is_none()).await;
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    until(&volumes, &name, "gone", |pv| pv.is_none()).await;
    assert!(lab.api::<Volume>().get_opt(&name).await.unwrap().is_none());
}

/// A volume that a person wants to keep is kept when its claim and even its object go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_is_to_be_kept_is_not_deleted() {
    let lab = Lab::new().await;
    start_loops(&lab).await;
    let class =
        json!({ "metadata": { "name": "kept" }, "provisioner": "driver.longhorn.io", "reclaimPolicy": "Retain" });
    make(&Api::<StorageClass>::all(lab.client.clone()), class).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(lab.client.clone(), "default");
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "kept",
                       "resources": { "requests": { "storage": "64Mi" } } });
    make(&claims, json!({ "metadata": { "name": "data" }, "spec": spec })).await;
    let named = |c: Option<&PersistentVolumeClaim>| {
        c.is_some_and(|c| c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound"))
    };
    let name = until(&claims, "data", "bound", named).await.unwrap().spec.unwrap().volume_name.unwrap();
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(lab.client.clone());
    let released = |pv: Option<&PersistentVolume>| {
        pv.is_some_and(|pv| pv.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Released"))
    };
    until(&volumes, &name, "released", released).await;
    volumes.delete(&name, &DeleteParams::default()).await.unwrap();
    until(&volumes, &name, "gone", |pv| pv.is_none()).await;
    assert!(lab.api::<Volume>().get_opt(&name).await.unwrap().is_some(), "the data is still there");
}

/// Two provisioners of one claim, or one that was killed in between, make one volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_gets_one_volume_however_often_it_is_asked_for() {
    let lab = Lab::new().await;
    start_loops(&lab).await;
    start_loops(&lab).await;
    let class = json!({ "metadata": { "name": "longhorn" }, "provisioner": "driver.longhorn.io" });
    make(&Api::<StorageClass>::all(lab.client.clone()), class).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(lab.client.clone(), "default");
    for name in ["one", "two", "three"] {
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "longhorn",
                           "resources": { "requests": { "storage": "64Mi" } } });
        make(&claims, json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
    for name in ["one", "two", "three"] {
        until(&claims, name, "bound", |c| {
            c.is_some_and(|c| c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound"))
        })
        .await;
        let touch = json!({ "metadata": { "labels": { "looked": "again" } } });
        claims.patch(name, &PatchParams::default(), &Patch::Merge(touch)).await.unwrap();
    }
    let volumes: Api<PersistentVolume> = Api::all(lab.client.clone());
    assert_eq!(volumes.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 3);
    assert_eq!(lab.api::<Volume>().list(&kube::api::ListParams::default()).await.unwrap().items.len(), 3);
}
