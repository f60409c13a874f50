//! Detaching: the driver first, then the finalizer; and volumes that are let go.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tether_csi::fake::{Answer, Asked, Call};
use tonic::Code;

use crate::lab::*;

async fn attached(lab: &Lab) {
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    lab.driver.take_asked();
    lab.take_writes();
}

fn unpublished(lab: &Lab) -> Vec<String> {
    let only = |asked| match asked {
        Asked::Unpublish(request) => Some(format!("{} from {}", request.volume_id, request.node_id)),
        _ => None,
    };
    lab.driver.take_asked().into_iter().filter_map(only).collect()
}

#[tokio::test]
async fn a_deleted_attachment_goes_once_the_driver_has_taken_the_volume_away() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    assert_eq!(unpublished(&lab), ["handle-pv from id-1"]);
    assert_eq!(lab.take_writes(), ["PATCH volumeattachments/va"], "with the finalizer the object goes");
    assert!(lab.driver.published("handle-pv").is_empty());
}

#[tokio::test]
async fn a_node_that_is_gone_is_known_by_what_was_written_down() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    let nodes: Api<CSINode> = Api::all(lab.client.clone());
    nodes.delete("node-1", &DeleteParams::default()).await.unwrap();
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    assert_eq!(unpublished(&lab), ["handle-pv from id-1"]);
}

#[tokio::test]
async fn a_failed_unpublish_is_told_and_repeated() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    for _ in 0..2 {
        lab.driver.answer(Call::Unpublish, Answer::Fail(Code::NotFound, "no such volume".into()));
    }
    lab.driver.answer(Call::Unpublish, Answer::Delay(std::time::Duration::from_millis(300)));
    lab.delete("va").await;
    let va = lab.until_detach_error("va", "code = NotFound desc = no such volume").await;
    assert_eq!(va.metadata.finalizers.unwrap(), [FINALIZER]);
    until_gone(&lab.attachments(), "va").await;
    assert_eq!(unpublished(&lab).len(), 3);
}

#[tokio::test]
async fn a_detach_that_cannot_be_written_down_is_made_again() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    lab.refuse("PATCH volumeattachments/va", 1);
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    assert_eq!(unpublished(&lab).len(), 2);
}

#[tokio::test]
async fn a_detach_needs_its_volume_and_its_secret() {
    let (lab, _running) = Lab::running().await;
    let secrets: Api<Secret> = Api::namespaced(lab.client.clone(), "default");
    create(&secrets, json!({ "metadata": { "name": "key" }, "stringData": { "a": "b" } })).await;
    lab.volume("pv", |pv| {
        pv["spec"]["csi"]["controllerPublishSecretRef"] = json!({ "namespace": "default", "name": "key" });
    })
    .await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    secrets.delete("key", &DeleteParams::default()).await.unwrap();
    lab.delete("va").await;
    lab.until_detach_error("va", r#"failed to load secret "default/key""#).await;
    assert_eq!(unpublished(&lab).len(), 0);
    create(&secrets, json!({ "metadata": { "name": "key" }, "stringData": { "a": "b" } })).await;
    until_gone(&lab.attachments(), "va").await;
}

#[tokio::test]
async fn a_deleted_volume_is_kept_until_nothing_is_attached() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    let volumes = lab.volumes();
    volumes.delete("pv", &DeleteParams::default()).await.unwrap();
    let is_kept = |pv: &PersistentVolume| pv.metadata.finalizers.iter().flatten().any(|f| f == FINALIZER);
    assert!(is_kept(&volumes.get("pv").await.unwrap()));
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    let pv = until(&volumes, "pv", "let go", |pv| !is_kept(pv)).await;
    assert_eq!(pv.metadata.finalizers.unwrap(), ["kubernetes.io/pv-protection"], "others' stay");
}

/// A volume whose object went before it was let go needs nothing more.
#[tokio::test]
async fn a_volume_that_is_gone_is_not_let_go_again_and_again() {
    let (lab, _running) = Lab::running().await;
    attached(&lab).await;
    lab.lose("PATCH persistentvolumes/pv");
    lab.volumes().delete("pv", &DeleteParams::default()).await.unwrap();
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
    let tried = |writes: &[String]| writes.iter().filter(|write| *write == "PATCH persistentvolumes/pv").count();
    let mut writes = Vec::new();
    while tried(&writes) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        writes.extend(lab.take_writes());
    }
    // Longer than the delay after a failure.
    tokio::time::sleep(Duration::from_millis(300)).await;
    writes.extend(lab.take_writes());
    assert_eq!(tried(&writes), 1);
}
