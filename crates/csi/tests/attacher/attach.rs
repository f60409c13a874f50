//! Attaching: what the driver is asked, what is written, and what the status says when it fails.

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use serde_json::json;
use tether_csi::fake::{Answer, Asked, Call, Profile};
use tether_csi::proto::controller_service_capability::rpc::Type as Rpc;
use tether_csi::proto::{ControllerPublishVolumeRequest, volume_capability};
use tonic::Code;

use crate::lab::*;

fn published(lab: &Lab) -> Vec<ControllerPublishVolumeRequest> {
    let only = |asked| match asked {
        Asked::Publish(request) => Some(request),
        _ => None,
    };
    lab.driver.take_asked().into_iter().filter_map(only).collect()
}

#[tokio::test]
async fn a_volume_is_protected_marked_published_and_said_to_be_attached() {
    let (lab, _running) = Lab::running().await;
    lab.driver.answer(Call::Publish, Answer::Context(map(&[("devicePath", "/dev/xvdba")])));
    lab.volume("pv", |pv| {
        pv["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection"]);
        pv["spec"]["csi"]["volumeAttributes"] = json!({ "tier": "gold" });
        pv["spec"]["mountOptions"] = json!(["noatime"]);
    })
    .await;
    lab.attach("va", "pv").await;
    let va = lab.until_attached("va").await;
    assert_eq!(va.metadata.finalizers.unwrap(), [FINALIZER]);
    assert_eq!(va.metadata.annotations.unwrap()["csi.alpha.kubernetes.io/node-id"], "id-1");
    assert_eq!(va.status.unwrap().attachment_metadata.unwrap()["devicePath"], "/dev/xvdba");
    let pv = lab.volumes().get("pv").await.unwrap();
    assert!(pv.metadata.finalizers.unwrap().iter().any(|f| f == FINALIZER));

    let asked = published(&lab);
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].volume_id.as_str(), asked[0].node_id.as_str()), ("handle-pv", "id-1"));
    assert_eq!(asked[0].volume_context["tier"], "gold");
    assert!(!asked[0].readonly && asked[0].secrets.is_empty());
    let capability = asked[0].volume_capability.clone().unwrap();
    assert_eq!(capability.access_mode.unwrap().mode, 1);
    let Some(volume_capability::AccessType::Mount(mount)) = capability.access_type else { panic!("a file system") };
    assert_eq!((mount.fs_type.as_str(), mount.mount_flags), ("ext4", vec!["noatime".to_owned()]));
    assert_eq!(
        lab.take_writes(),
        ["PATCH persistentvolumes/pv", "PATCH volumeattachments/va", "PATCH volumeattachments/va/status"]
    );
}

#[tokio::test]
async fn secrets_inline_volumes_and_read_only_reach_the_driver() {
    let lab = Lab::new(Profile::new(DRIVER).with(Rpc::PublishReadonly).with(Rpc::SingleNodeMultiWriter)).await;
    lab.register("node-1", "id-1").await;
    let _running = lab.attacher().await;
    let secrets: Api<Secret> = Api::namespaced(lab.client.clone(), "default");
    create(&secrets, json!({ "metadata": { "name": "key" }, "stringData": { "token": "s3cret" } })).await;
    create(&secrets, json!({ "metadata": { "name": "empty" } })).await;
    let with_secret = |name: &str| json!({ "namespace": "default", "name": name });
    lab.volume("pv", |pv| {
        pv["spec"]["csi"]["controllerPublishSecretRef"] = with_secret("key");
        pv["spec"]["csi"]["readOnly"] = json!(true);
    })
    .await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    let asked = published(&lab);
    assert_eq!((asked[0].secrets["token"].as_str(), asked[0].readonly), ("s3cret", true));
    assert_eq!(asked[0].volume_capability.clone().unwrap().access_mode.unwrap().mode, 7);

    let mut inline = spec("inline");
    inline["csi"]["controllerPublishSecretRef"] = with_secret("empty");
    inline.as_object_mut().unwrap().remove("capacity");
    lab.attach_from("inline", json!({ "inlineVolumeSpec": inline })).await;
    lab.until_attached("inline").await;
    let asked = published(&lab);
    assert_eq!(asked[0].volume_id, "handle-inline");
    assert!(asked[0].secrets.is_empty() && !asked[0].readonly);

    lab.volume("raw", |pv| pv["spec"]["volumeMode"] = json!("Block")).await;
    lab.attach("raw", "raw").await;
    lab.until_attached("raw").await;
    let capability = published(&lab)[0].volume_capability.clone().unwrap();
    assert_eq!(capability.access_type, Some(volume_capability::AccessType::Block(volume_capability::BlockVolume {})));
}

/// What cannot be attached says so in its status, and the driver is not asked.
#[tokio::test]
async fn what_can_be_checked_is_checked_before_the_driver_is_asked() {
    let (lab, _running) = Lab::running().await;
    lab.volume("secretive", |pv| {
        pv["spec"]["csi"]["controllerPublishSecretRef"] = json!({ "namespace": "default", "name": "none" });
    })
    .await;
    lab.volume("odd", |pv| pv["spec"]["accessModes"] = json!(["ReadOnlyMany", "ReadWriteOnce"])).await;
    lab.volume("foreign", |pv| {
        pv["spec"].as_object_mut().unwrap().remove("csi");
        pv["spec"]["hostPath"] = json!({ "path": "/tmp" });
    })
    .await;
    lab.volume("going", |pv| pv["metadata"]["finalizers"] = json!(["example.com/kept"])).await;
    lab.volumes().delete("going", &kube::api::DeleteParams::default()).await.unwrap();
    let cases = [
        ("missing", r#"persistentvolume "missing" not found"#),
        ("secretive", r#"failed to load secret "default/none""#),
        ("odd", "unsupported AccessMode combination"),
        ("foreign", "non-csi source"),
        ("going", r#"PersistentVolume "going" is marked for deletion"#),
    ];
    for (volume, text) in cases {
        let name = format!("va-{volume}");
        lab.attach(&name, volume).await;
        let va = lab.until_attach_error(&name, text).await;
        assert!(va.metadata.finalizers.is_none(), "{volume}: it can be deleted without the driver");
        assert!(!va.status.unwrap().attached);
    }
    assert_eq!(lab.driver.take_asked(), []);

    // Once the volume is there it is attached, without waiting for the next attempt.
    lab.volume("missing", |_| {}).await;
    let va = lab.until_attached("va-missing").await;
    assert!(attach_error(&va).is_none());
}

#[tokio::test]
async fn a_node_without_the_driver_is_waited_for() {
    let lab = Lab::new(Profile::new(DRIVER)).await;
    let _running = lab.attacher().await;
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attach_error("va", r#"csinode.storage.k8s.io "node-1" not found"#).await;
    lab.register("node-1", "id-1").await;
    lab.until_attached("va").await;
}

#[tokio::test]
async fn another_drivers_attachment_is_left_alone() {
    let (lab, _running) = Lab::running().await;
    lab.volume("pv", |_| {}).await;
    let source = json!({ "persistentVolumeName": "pv" });
    let other = json!({ "attacher": "other.example.com", "nodeName": "node-1", "source": source });
    create(&lab.attachments(), json!({ "metadata": { "name": "other" }, "spec": other })).await;
    lab.attach("va", "pv").await;
    lab.until_attached("va").await;
    let other = lab.attachments().get("other").await.unwrap();
    assert!(other.metadata.finalizers.is_none() && other.status.is_none_or(|s| !s.attached));
}

/// A driver's error is stored with its code, and the attempt is repeated until it succeeds.
#[tokio::test]
async fn a_failed_publish_is_told_and_repeated() {
    let (lab, _running) = Lab::running().await;
    for _ in 0..3 {
        lab.driver.answer(Call::Publish, Answer::Fail(Code::ResourceExhausted, "the node is full".into()));
    }
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attach_error("va", "rpc error: code = ResourceExhausted desc = the node is full").await;
    let raw = lab.client.request::<serde_json::Value>(
        http::Request::get("/apis/storage.k8s.io/v1/volumeattachments/va").body(Vec::new()).unwrap(),
    );
    let code = raw.await.unwrap()["status"]["attachError"]["errorCode"].clone();
    assert!(code == json!(8) || code.is_null(), "cleared, or the code of the driver: {code}");
    let va = lab.until_attached("va").await;
    assert!(attach_error(&va).is_none(), "a success clears the error");
    assert_eq!(published(&lab).len(), 4);
}

#[tokio::test]
async fn a_driver_that_does_not_answer_in_time_is_asked_again() {
    let mut lab = Lab::new(Profile::new(DRIVER)).await;
    lab.settings.timeout = std::time::Duration::from_millis(200);
    lab.register("node-1", "id-1").await;
    let _running = lab.attacher().await;
    lab.driver.answer(Call::Publish, Answer::Delay(std::time::Duration::from_secs(30)));
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    lab.until_attach_error("va", "code = DeadlineExceeded desc = context deadline exceeded").await;
    let va = lab.until_attached("va").await;
    assert!(attach_error(&va).is_none());
}

/// Each write of the way may be refused; the attempt is repeated, and what was owed is kept.
#[tokio::test]
async fn refused_writes_are_repeated() {
    let (lab, _running) = Lab::running().await;
    let cases = [("protect", "persistentvolumes/", 1), ("mark", "volumeattachments/", 1), ("tell", "/status", 2)];
    for (name, write, publishes) in cases {
        lab.refuse(write, 1);
        lab.volume(name, |_| {}).await;
        lab.attach(&format!("va-{name}"), name).await;
        let va = lab.until_attached(&format!("va-{name}")).await;
        assert!(attach_error(&va).is_none());
        assert_eq!(published(&lab).len(), publishes, "refused: {write}");
    }
}

/// Two attachments of one volume add the finalizer once, and others' finalizers stay.
#[tokio::test]
async fn finalizers_of_others_survive_a_race() {
    let (lab, _running) = Lab::running().await;
    lab.register("node-2", "id-2").await;
    lab.volume("pv", |pv| {
        pv["spec"]["accessModes"] = json!(["ReadWriteMany"]);
        pv["metadata"]["finalizers"] = json!(["example.com/mine"]);
    })
    .await;
    lab.attach("va-1", "pv").await;
    let spec = json!({ "attacher": DRIVER, "nodeName": "node-2", "source": { "persistentVolumeName": "pv" } });
    create(&lab.attachments(), json!({ "metadata": { "name": "va-2" }, "spec": spec })).await;
    lab.until_attached("va-1").await;
    lab.until_attached("va-2").await;
    let pv = lab.volumes().get("pv").await.unwrap();
    let all = pv.metadata.finalizers.unwrap();
    let count = |finalizer: &str| all.iter().filter(|f| *f == finalizer).count();
    assert_eq!((count("example.com/mine"), count(FINALIZER)), (1, 1), "{all:?}");
}

#[tokio::test]
async fn an_error_that_is_too_long_is_cut_and_stored() {
    let (lab, _running) = Lab::running().await;
    lab.driver.answer(Call::Publish, Answer::Fail(Code::Internal, "ü".repeat(2_000)));
    lab.driver.answer(Call::Publish, Answer::Delay(std::time::Duration::from_secs(1)));
    lab.volume("pv", |_| {}).await;
    lab.attach("va", "pv").await;
    let va = lab.until_attach_error("va", "üüü").await;
    assert!(attach_error(&va).unwrap().len() <= 1_024);
}
