//! Restarts, several attachers, a driver that goes, and a driver without anything to publish.

use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use tether_controllers::leader;
use tether_csi::attacher::{Ended, Lead};
use tether_csi::fake::{Answer, Call, Profile};

use crate::lab::*;

#[tokio::test]
async fn a_driver_without_publish_counts_as_attached_at_once() {
    let profile = Profile { capabilities: vec![], ..Profile::new(DRIVER) };
    let lab = Lab::new(profile).await;
    let _running = lab.attacher().await;
    lab.attach("va", "none").await;
    let va = lab.until_attached("va").await;
    assert!(va.metadata.finalizers.is_none());
    assert_eq!(lab.take_writes(), ["PATCH volumeattachments/va/status"]);
    lab.delete("va").await;
    until_gone(&lab.attachments(), "va").await;
}

/// Killed in the middle of a call: what was marked is owed, and the next process makes good on it.
#[tokio::test]
async fn a_killed_attacher_leaves_nothing_that_the_next_one_does_not_finish() {
    let (lab, first) = Lab::running().await;
    lab.driver.answer(Call::Publish, Answer::Delay(std::time::Duration::from_secs(2)));
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    until(&lab.attachments(), "va", "marked", |va| va.metadata.finalizers.is_some()).await;
    first.kill().await;
    lab.delete("va").await;
    let second = lab.attacher().await;
    until_gone(&lab.attachments(), "va").await;

    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    second.kill().await;
    lab.delete("va").await;
    let _third = lab.attacher().await;
    until_gone(&lab.attachments(), "va").await;
    assert!(lab.driver.published("handle-pv").is_empty());
}

#[tokio::test]
async fn a_driver_that_goes_ends_the_attacher() {
    let (mut lab, running) = Lab::running().await;
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    lab.stop_driver().await;
    assert!(matches!(running.ended.await.unwrap(), Err(Ended::LostDriver)));
}

#[tokio::test]
async fn of_two_attachers_one_works() {
    let mut lab = Lab::new(Profile::new(DRIVER)).await;
    lab.register("node-1", "id-1").await;
    let election = |identity: &str| {
        let settings = leader::Settings {
            namespace: "default".into(),
            lease: SignedDuration::from_secs(1),
            renew_deadline: SignedDuration::from_millis(800),
            retry: SignedDuration::from_millis(50),
            ..leader::Settings::default()
        };
        Some(Lead { identity: identity.into(), settings })
    };
    lab.settings.leader_election = election("one");
    let one = lab.attacher().await;
    lab.volume("pv", |_| {}).await;
    lab.attach("va-1", "pv").await;
    lab.until_attached("va-1").await;
    lab.settings.leader_election = election("two");
    let _two = lab.attacher().await;
    one.kill().await;
    lab.delete("va-1").await;
    until_gone(&lab.attachments(), "va-1").await;
    let leases: kube::Api<Lease> = kube::Api::namespaced(lab.client.clone(), "default");
    let lease = leases.get("external-attacher-leader-csi-test").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some("two"));
}

#[tokio::test]
async fn backlog_age_and_calls_are_counted() {
    let (lab, _running) = Lab::running().await;
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    let text = lab.metrics.text();
    let call = "csi_sidecar_operations_seconds_count{driver_name=\"csi.test\",\
                method_name=\"/csi.v1.Controller/ControllerPublishVolume\",grpc_status_code=\"Ok\"} 1";
    assert!(text.contains(call), "{text}");
    for lane in ["attach", "detach", "volume"] {
        assert!(text.contains(&format!("tether_attacher_backlog{{lane=\"{lane}\"}} 0")), "{text}");
    }
    assert!(text.contains("tether_attacher_oldest_seconds{lane=\"attach\"}"), "{text}");
}
