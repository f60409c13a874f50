//! The room of each node is published for schedulers, and schedulers keep to it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tether_crd::{NAMESPACE, Setting};
use tether_csi::connect::{Address, connect};
use tether_csi::metrics::Metrics;
use tether_csi::provisioner;
use tether_csi::provisioner::capacity::{self, Refresh};
use tokio_util::sync::CancellationToken;

use crate::lab::*;

const GIB: i64 = 1 << 30;

async fn start(lab: &Lab) {
    let connection = connect(&Address(lab.dir.path().join("csi.sock"))).await.unwrap();
    let refresh = Refresh::Told(lab.driver.room_news());
    let settings = provisioner::Settings {
        default_fs_type: "ext4".into(),
        capacity: Some(capacity::Settings { namespace: NAMESPACE.into(), immediate: false, refresh }),
        ..provisioner::Settings::default()
    };
    let client = lab.client.clone();
    tokio::spawn(async move {
        provisioner::run(client, connection, settings, &Metrics::default(), CancellationToken::new()).await
    });
    for name in ["node-1", "node-2"] {
        let metadata = json!({ "name": name, "labels": { "kubernetes.io/hostname": name } });
        make(&Api::<Node>::all(lab.client.clone()), json!({ "metadata": metadata })).await;
        let driver =
            json!({ "name": "driver.longhorn.io", "nodeID": name, "topologyKeys": ["kubernetes.io/hostname"] });
        let spec = json!({ "drivers": [driver] });
        make(&Api::<CSINode>::all(lab.client.clone()), json!({ "metadata": { "name": name }, "spec": spec })).await;
    }
}

fn late(name: &str) -> serde_json::Value {
    json!({ "metadata": { "name": name }, "provisioner": "driver.longhorn.io", "parameters": { "numberOfReplicas": "1" },
            "volumeBindingMode": "WaitForFirstConsumer" })
}

/// What is published, by node; the largest volume in GiB.
async fn published(lab: &Lab, class: &str) -> BTreeMap<String, i64> {
    let all = lab.api::<CSIStorageCapacity>().list(&ListParams::default()).await.unwrap();
    let of_class = all.items.into_iter().filter(|capacity| capacity.storage_class_name == class);
    let entry = |capacity: CSIStorageCapacity| {
        let labels = capacity.node_topology.unwrap().match_labels.unwrap();
        let largest = tether_plan::amount::units(capacity.maximum_volume_size.as_ref());
        (labels["kubernetes.io/hostname"].clone(), largest / GIB)
    };
    of_class.map(entry).collect()
}

async fn until_published(lab: &Lab, class: &str, wanted: &[(&str, i64)]) {
    let wanted: BTreeMap<String, i64> = wanted.iter().map(|(node, gib)| ((*node).to_owned(), *gib)).collect();
    for _ in 0..2_000 {
        if published(lab, class).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?} is published, not {wanted:?}", published(lab, class).await);
}

async fn versions(lab: &Lab) -> Vec<Option<String>> {
    let all = lab.api::<CSIStorageCapacity>().list(&ListParams::default()).await.unwrap();
    all.items.into_iter().map(|capacity| capacity.metadata.resource_version).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_is_published_for_each_class_and_node_and_follows_them() {
    let lab = Lab::new().await;
    start(&lab).await;
    let classes: Api<StorageClass> = Api::all(lab.client.clone());
    make(&classes, late("late")).await;
    let mut at_once = late("at-once");
    at_once["volumeBindingMode"] = json!("Immediate");
    make(&classes, at_once).await;
    until_published(&lab, "late", &[("node-1", 100), ("node-2", 100)]).await;
    assert_eq!(published(&lab, "at-once").await, BTreeMap::new(), "nobody schedules by it");

    let capacities = lab.api::<CSIStorageCapacity>();
    let one = capacities.list(&ListParams::default()).await.unwrap().items.remove(0);
    let labels = one.metadata.labels.unwrap();
    assert_eq!(labels["csi.storage.k8s.io/drivername"], "driver.longhorn.io");
    assert_eq!(labels["csi.storage.k8s.io/managed-by"], "external-provisioner");
    let owner = &one.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("CSIDriver", "driver.longhorn.io"));

    let nodes = lab.api::<tether_crd::Node>();
    let body = json!({ "spec": { "allowScheduling": false } });
    nodes.patch("node-1", &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    until_published(&lab, "late", &[("node-1", 0), ("node-2", 100)]).await;
    let settings = lab.api::<Setting>();
    let double = json!({ "value": "200" });
    let name = "storage-over-provisioning-percentage";
    settings.patch(name, &PatchParams::default(), &Patch::Merge(double)).await.unwrap();
    until_published(&lab, "late", &[("node-1", 0), ("node-2", 200)]).await;

    let name = one.metadata.name.unwrap();
    capacities.delete(&name, &DeleteParams::default()).await.unwrap();
    until_published(&lab, "late", &[("node-1", 0), ("node-2", 200)]).await;
    let body = json!({ "capacity": "5Gi", "maximumVolumeSize": "5Gi" });
    capacities.patch(&name, &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    until_published(&lab, "late", &[("node-1", 0), ("node-2", 200)]).await;

    let before = versions(&lab).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(versions(&lab).await, before, "nothing is written at rest");

    Api::<Node>::all(lab.client.clone()).delete("node-1", &DeleteParams::default()).await.unwrap();
    until_published(&lab, "late", &[("node-2", 200)]).await;
    classes.delete("late", &DeleteParams::default()).await.unwrap();
    until_published(&lab, "late", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_goes_where_there_is_room_for_its_volume_or_waits() {
    let lab = Lab::new().await;
    start(&lab).await;
    make(&Api::<StorageClass>::all(lab.client.clone()), late("late")).await;
    until_published(&lab, "late", &[("node-1", 100), ("node-2", 100)]).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(lab.client.clone(), "default");
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
                       "resources": { "requests": { "storage": "150Gi" } } });
    make(&claims, json!({ "metadata": { "name": "data" }, "spec": spec })).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(lab.client.clone(), "default");
    until(&accounts, "default", "there", |account| account.is_some()).await;
    let pods: Api<Pod> = Api::namespaced(lab.client.clone(), "default");
    let spec = json!({ "containers": [{ "name": "main", "image": "none" }],
                       "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] });
    make(&pods, json!({ "metadata": { "name": "web" }, "spec": spec })).await;
    let told = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|pod| pod.status.as_ref()).and_then(|status| status.conditions.as_ref());
        let text = "2 node(s) did not have enough free storage";
        conditions.is_some_and(|all| all.iter().any(|c| c.message.as_deref().is_some_and(|m| m.contains(text))))
    };
    until(&pods, "web", "told", told).await;

    // Room comes on one node: the pod goes there, with nobody asking again.
    let disk = json!({ "diskStatus": { "default": { "storageMaximum": 400 * GIB, "storageAvailable": 390 * GIB } } });
    let nodes = lab.api::<tether_crd::Node>();
    nodes.patch_status("node-2", &PatchParams::default(), &Patch::Merge(json!({ "status": disk }))).await.unwrap();
    let placed = |pod: Option<&Pod>| pod.and_then(|p| p.spec.as_ref()).is_some_and(|spec| spec.node_name.is_some());
    let pod = until(&pods, "web", "placed", placed).await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("node-2"));
}
