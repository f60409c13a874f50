//! Claims, volumes and the pods that use them.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

use crate::harness::*;

fn claim_body(name: &str, size: &str, class: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class,
        "resources": { "requests": { "storage": size } },
    } })
}

fn volume_body(name: &str, size: &str, class: &str, policy: &str) -> Value {
    json!({ "metadata": { "name": name }, "spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": class, "capacity": { "storage": size },
        "persistentVolumeReclaimPolicy": policy,
        "csi": { "driver": "driver.example.com", "volumeHandle": name },
    } })
}

fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

fn using(name: &str, claim: &str) -> Value {
    let mut body = pod(name);
    body["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }]);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_is_bound_kept_while_used_and_its_volume_released_after_it() {
    let cluster = Cluster::start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) = (cluster.in_default(), cluster.all());
    let pods: Api<Pod> = cluster.in_default();
    cluster.add_node("a").await;
    create(&claims, claim_body("data", "5Gi", "")).await;
    let note = cluster.event("FailedBinding", "data").await;
    assert_eq!(note, "no persistent volumes available for this claim and no storage class is set");

    create(&volumes, volume_body("big", "20Gi", "", "Retain")).await;
    let bound = until(&claims, "data", "Bound", |c| claim_phase(c) == "Bound").await;
    assert_eq!(bound.spec.as_ref().unwrap().volume_name.as_deref(), Some("big"));
    assert_eq!(bound.status.as_ref().unwrap().capacity.as_ref().unwrap()["storage"].0, "20Gi");
    let annotations = bound.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations["pv.kubernetes.io/bind-completed"], "yes");
    assert_eq!(annotations["pv.kubernetes.io/bound-by-controller"], "yes");
    let volume = until(&volumes, "big", "Bound", |v| volume_phase(v) == "Bound").await;
    assert_eq!(volume.spec.unwrap().claim_ref.unwrap().uid, bound.metadata.uid);

    create(&pods, using("db", "data")).await;
    until(&pods, "db", "scheduled", |p| p.spec.as_ref().unwrap().node_name.is_some()).await;
    let protected = |c: &PersistentVolumeClaim| c.metadata.finalizers.iter().flatten().count() == 1;
    until(&claims, "data", "protected", protected).await;
    delete(&claims, "data", DeleteParams::default()).await;
    delete(&pods, "db", DeleteParams::default()).await;
    assert!(claims.get("data").await.is_ok(), "the pod still has it");
    delete(&pods, "db", DeleteParams::default().grace_period(0)).await;
    until_gone(&claims, "data").await;
    until(&volumes, "big", "Released", |v| volume_phase(v) == "Released").await;
    delete(&volumes, "big", DeleteParams::default()).await;
    until_gone(&volumes, "big").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_claims_and_volumes_find_each_other_one_to_one() {
    const PAIRS: usize = 20;
    let cluster = Cluster::start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) = (cluster.in_default(), cluster.all());
    for i in 0..PAIRS {
        create(&claims, claim_body(&format!("c{i}"), "1Gi", "")).await;
        create(&volumes, volume_body(&format!("v{i}"), "1Gi", "", "Retain")).await;
    }
    let mut taken = Vec::new();
    for i in 0..PAIRS {
        let name = format!("c{i}");
        let bound = until(&claims, &name, "Bound", |c| claim_phase(c) == "Bound").await;
        taken.push(bound.spec.unwrap().volume_name.unwrap());
    }
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), PAIRS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_waits_for_its_pod_is_provisioned_for_the_node_that_the_pod_gets() {
    let cluster = Cluster::start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) = (cluster.in_default(), cluster.all());
    let pods: Api<Pod> = cluster.in_default();
    let class = json!({
        "metadata": { "name": "late", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "driver.example.com", "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&cluster.all::<StorageClass>(), class).await;
    for name in ["a", "b"] {
        cluster.add_node(name).await;
    }
    let mut no_class = claim_body("data", "5Gi", "");
    no_class["spec"]["storageClassName"] = Value::Null;
    create(&claims, no_class).await;
    let note = cluster.event("WaitForFirstConsumer", "data").await;
    assert_eq!(note, "waiting for first consumer to be created before binding");

    create(&pods, using("db", "data")).await;
    let annotation =
        |c: &PersistentVolumeClaim, key: &str| c.metadata.annotations.as_ref().and_then(|a| a.get(key).cloned());
    let asked = until(&claims, "data", "given to its provisioner", |c| {
        annotation(c, "volume.kubernetes.io/storage-provisioner").is_some()
    })
    .await;
    assert_eq!(asked.spec.as_ref().unwrap().storage_class_name.as_deref(), Some("late"));
    let node = annotation(&asked, "volume.kubernetes.io/selected-node").unwrap();
    assert!(cluster.event("ExternalProvisioning", "data").await.contains("'driver.example.com'"));

    // A provisioner makes a volume that only that node can reach, and points it to the claim.
    let mut made = volume_body("made", "5Gi", "late", "Delete");
    made["metadata"]["annotations"] = json!({ "pv.kubernetes.io/provisioned-by": "driver.example.com" });
    made["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] }] } });
    made["spec"]["claimRef"] = json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "default", "name": "data",
        "uid": asked.metadata.uid,
    });
    create(&volumes, made).await;
    let placed = until(&pods, "db", "scheduled", |p| p.spec.as_ref().unwrap().node_name.is_some()).await;
    assert_eq!(placed.spec.unwrap().node_name.as_deref(), Some(node.as_str()));
    until(&volumes, "made", "Bound", |v| volume_phase(v) == "Bound").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_came_before_its_claim_is_scheduled_when_the_claim_is_bound() {
    let cluster = Cluster::start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) = (cluster.in_default(), cluster.all());
    let pods: Api<Pod> = cluster.in_default();
    cluster.add_node("a").await;
    create(&pods, using("db", "data")).await;
    let told = |p: &Pod, text: &str| {
        let conditions = p.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        conditions.iter().any(|c| c.type_ == "PodScheduled" && c.message.as_deref() == Some(text))
    };
    let missing = "0/1 nodes are available: persistentvolumeclaim \"data\" not found.";
    until(&pods, "db", "told", |p| told(p, missing)).await;
    create(&claims, claim_body("data", "1Gi", "")).await;
    let unbound = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.";
    until(&pods, "db", "told", |p| told(p, unbound)).await;
    create(&volumes, volume_body("v", "1Gi", "", "Retain")).await;
    until(&pods, "db", "scheduled", |p| p.spec.as_ref().unwrap().node_name.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_without_its_volume_is_lost() {
    let cluster = Cluster::start().await;
    let (claims, volumes): (Api<PersistentVolumeClaim>, Api<PersistentVolume>) = (cluster.in_default(), cluster.all());
    create(&claims, claim_body("data", "1Gi", "")).await;
    create(&volumes, volume_body("v", "1Gi", "", "Retain")).await;
    until(&claims, "data", "Bound", |c| claim_phase(c) == "Bound").await;
    until(&volumes, "v", "protected", |v| v.metadata.finalizers.is_some()).await;
    delete(&volumes, "v", DeleteParams::default()).await;
    assert!(volumes.get("v").await.is_ok(), "a bound volume is protected");
    patch(&volumes, "v", json!({ "metadata": { "finalizers": null } })).await;
    until(&claims, "data", "Lost", |c| claim_phase(c) == "Lost").await;
    let note = cluster.event("ClaimLost", "data").await;
    assert_eq!(note, "Bound claim has lost its PersistentVolume. Data on the volume is lost!");
}
