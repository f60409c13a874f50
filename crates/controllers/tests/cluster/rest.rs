//! A cluster at rest writes nothing.

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::Api;
use serde_json::json;

use crate::harness::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_hour_of_rest_costs_no_write() {
    let cluster = Cluster::start().await;
    // Things that are as they have to be, and things that wait for something that does not come.
    let maps: Api<ConfigMap> = cluster.in_default();
    let root = create(&maps, owned("root", &json!([]))).await;
    let reference = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "root", "uid": root.metadata.uid }]);
    create(&maps, owned("leaf", &reference)).await;
    create(&cluster.in_default::<Pod>(), pod("nowhere")).await;
    let spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                       "resources": { "requests": { "storage": "1Gi" } } });
    create(&cluster.in_default::<PersistentVolumeClaim>(), json!({ "metadata": { "name": "waits" }, "spec": spec }))
        .await;
    let spec = json!({ "accessModes": ["ReadWriteMany"], "capacity": { "storage": "1Gi" }, "storageClassName": "other",
                       "csi": { "driver": "driver.example.com", "volumeHandle": "v" } });
    create(&cluster.all::<PersistentVolume>(), json!({ "metadata": { "name": "free" }, "spec": spec })).await;
    // How often something was told while all this came is written a few seconds later.
    settled(&cluster).await;
    cluster.pass(60, &[]).await;
    let before = settled(&cluster).await;
    cluster.pass(3600, &[]).await;
    assert_eq!(settled(&cluster).await, before);
}
