//! Volumes come, are published and grow, each call twice; and what is refused says why.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use tether_crd::{Engine, Volume, VolumeAttachment, names};
use tether_csi::proto::volume_capability::access_mode::Mode;
use tether_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, GetCapacityRequest, ListVolumesRequest,
    ProbeRequest, Topology, ValidateVolumeCapabilitiesRequest, VolumeCapability,
};
use tonic::Code;

use crate::lab::*;

fn publish(volume: &str, node: &str, capability: VolumeCapability) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

fn unpublish(volume: &str, node: &str) -> ControllerUnpublishVolumeRequest {
    ControllerUnpublishVolumeRequest { volume_id: volume.into(), node_id: node.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_from_birth_to_death_with_every_call_repeated() {
    let mut lab = Lab::new().await;
    let request = a_volume("pvc-1", mount("ext4"));
    for _ in 0..2 {
        let made = lab.controller.create_volume(request.clone()).await.unwrap().into_inner().volume.unwrap();
        assert_eq!((made.volume_id.as_str(), made.capacity_bytes), ("pvc-1", 64 << 20));
        assert_eq!(made.volume_context["numberOfReplicas"], "2");
    }
    assert_eq!(lab.identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(true));
    let volume = lab.api::<Volume>().get("pvc-1").await.unwrap();
    assert_eq!(volume.spec.number_of_replicas, 2);

    for _ in 0..2 {
        lab.controller.controller_publish_volume(publish("pvc-1", "node-1", mount("ext4"))).await.unwrap();
    }
    let tickets = lab.api::<VolumeAttachment>().get("pvc-1").await.unwrap().spec.attachment_tickets;
    let ticket = &tickets[&names::csi_ticket("pvc-1", "node-1")];
    assert_eq!((ticket.node_id.as_str(), ticket.kind.as_str()), ("node-1", "csi-attacher"));
    let get = ControllerGetVolumeRequest { volume_id: "pvc-1".into() };
    let status = lab.controller.controller_get_volume(get).await.unwrap().into_inner().status.unwrap();
    assert_eq!(status.published_node_ids, ["node-1"]);

    let elsewhere =
        lab.controller.controller_publish_volume(publish("pvc-1", "node-2", mount("ext4"))).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::FailedPrecondition);
    assert!(elsewhere.message().contains("node-1"), "{elsewhere}");
    let in_use = lab.controller.delete_volume(DeleteVolumeRequest { volume_id: "pvc-1".into(), ..Default::default() });
    assert_eq!(in_use.await.unwrap_err().code(), Code::FailedPrecondition);

    let expand = ControllerExpandVolumeRequest {
        volume_id: "pvc-1".into(),
        capacity_range: Some(CapacityRange { required_bytes: 128 << 20, limit_bytes: 0 }),
        volume_capability: Some(mount("ext4")),
        ..Default::default()
    };
    for _ in 0..2 {
        let grown = lab.controller.controller_expand_volume(expand.clone()).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (128 << 20, true));
    }
    for _ in 0..2 {
        lab.controller.controller_unpublish_volume(unpublish("pvc-1", "node-1")).await.unwrap();
    }
    lab.controller.controller_publish_volume(publish("pvc-1", "node-2", mount("ext4"))).await.unwrap();
    lab.controller.controller_unpublish_volume(unpublish("pvc-1", "")).await.unwrap();
    for _ in 0..2 {
        let delete = DeleteVolumeRequest { volume_id: "pvc-1".into(), ..Default::default() };
        lab.controller.delete_volume(delete).await.unwrap();
    }
    assert!(lab.api::<Volume>().get_opt("pvc-1").await.unwrap().is_none());
    lab.controller.controller_unpublish_volume(unpublish("pvc-1", "node-1")).await.unwrap();
}

/// After success the volume can be published elsewhere; until then the caller waits, and may come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_is_unpublished_when_it_has_left_the_node() {
    let mut lab = Lab::new().await;
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    lab.controller.controller_publish_volume(publish("v1", "node-1", mount("ext4"))).await.unwrap();

    lab.agents_rest.store(true, Ordering::Relaxed);
    let mut hasty = tonic::Request::new(unpublish("v1", "node-1"));
    hasty.set_timeout(Duration::from_millis(300));
    let late = lab.controller.controller_unpublish_volume(hasty).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "its engine still runs: {late}");
    let attachment = lab.api::<VolumeAttachment>().get("v1").await.unwrap();
    assert!(attachment.spec.attachment_tickets.is_empty(), "it is on its way all the same");

    lab.agents_rest.store(false, Ordering::Relaxed);
    lab.controller.controller_unpublish_volume(unpublish("v1", "node-1")).await.unwrap();
    let engines = lab.api::<Engine>().list(&ListParams::default()).await.unwrap();
    assert!(engines.iter().all(|engine| engine.spec.node_id.is_empty()), "{engines:?}");
    lab.controller.controller_publish_volume(publish("v1", "node-2", mount("ext4"))).await.unwrap();

    // Somebody else wants it there, too: it stays, and nobody waits for it to go.
    let by_hand = json!({ "id": "by-hand", "type": "longhorn-api", "nodeID": "node-2", "parameters": {} });
    let body = json!({ "spec": { "attachmentTickets": { "by-hand": by_hand } } });
    let tickets = lab.api::<VolumeAttachment>();
    tickets.patch("v1", &PatchParams::default(), &Patch::Merge(body)).await.unwrap();
    lab.agents_rest.store(true, Ordering::Relaxed);
    lab.controller.controller_unpublish_volume(unpublish("v1", "node-2")).await.unwrap();
    let kept = tickets.get("v1").await.unwrap().spec.attachment_tickets;
    assert_eq!(kept.keys().collect::<Vec<_>>(), ["by-hand"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_have_the_codes_of_the_interface_and_say_why() {
    let mut lab = Lab::new().await;
    let create = |change: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut request = a_volume("v1", mount("ext4"));
        change(&mut request);
        request
    };
    let shared = capability(mount("").access_type.unwrap(), Mode::MultiNodeMultiWriter);
    let cases = [
        (create(&|r| r.name.clear()), Code::InvalidArgument, "name"),
        (create(&|r| r.volume_capabilities.clear()), Code::InvalidArgument, "capabilities"),
        (create(&|r| r.volume_capabilities = vec![shared.clone()]), Code::InvalidArgument, "ReadWriteMany"),
        (
            create(&|r| drop(r.parameters.insert("dataLocality".into(), "maybe".into()))),
            Code::InvalidArgument,
            "dataLocality",
        ),
        (
            create(&|r| r.capacity_range = Some(CapacityRange { required_bytes: 64 << 20, limit_bytes: 32 << 20 })),
            Code::OutOfRange,
            "too large",
        ),
    ];
    for (request, code, words) in cases {
        let refused = lab.controller.create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    let larger = create(&|r| r.capacity_range = Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }));
    assert_eq!(lab.controller.create_volume(larger).await.unwrap_err().code(), Code::AlreadyExists);
    for (volume, node, code) in
        [("", "node-1", Code::InvalidArgument), ("none", "node-1", Code::NotFound), ("v1", "none", Code::NotFound)]
    {
        let refused = lab.controller.controller_publish_volume(publish(volume, node, mount(""))).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
    let missing = ValidateVolumeCapabilitiesRequest {
        volume_id: "none".into(),
        volume_capabilities: vec![mount("")],
        ..Default::default()
    };
    assert_eq!(lab.controller.validate_volume_capabilities(missing).await.unwrap_err().code(), Code::NotFound);
    let list = ListVolumesRequest { max_entries: 0, starting_token: "no such token".into() };
    assert_eq!(lab.controller.list_volumes(list).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migratable_block_volume_is_accepted() {
    let mut lab = Lab::new().await;
    let mut request = a_volume("vm", block(Mode::MultiNodeMultiWriter));
    request.parameters.insert("migratable".into(), "true".into());
    lab.controller.create_volume(request).await.unwrap();
    let volume = lab.api::<Volume>().get("vm").await.unwrap();
    assert!(volume.is_migratable());
    let wanted = block(Mode::MultiNodeMultiWriter);
    lab.controller.controller_publish_volume(publish("vm", "node-1", wanted)).await.unwrap();
    let list = ListVolumesRequest::default();
    let listed = lab.controller.list_volumes(list).await.unwrap().into_inner().entries;
    assert_eq!(listed[0].status.as_ref().unwrap().published_node_ids, ["node-1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn room_is_counted_where_it_is_asked_for() {
    let mut lab = Lab::new().await;
    let mut at = async |node: Option<&str>| {
        let segments = node.map(|node| [("kubernetes.io/hostname".to_owned(), node.to_owned())].into());
        let topology = segments.map(|segments| Topology { segments });
        let request = GetCapacityRequest { accessible_topology: topology, ..Default::default() };
        lab.controller.get_capacity(request).await.unwrap().into_inner()
    };
    let all = at(None).await;
    let one = at(Some("node-1")).await;
    assert_eq!(all.available_capacity, 2 * one.available_capacity);
    assert_eq!(one.maximum_volume_size, Some(one.available_capacity));
    assert_eq!(at(Some("none")).await.available_capacity, 0);

    let zone = json!({ "status": { "zone": "z1" } });
    for node in ["node-1", "node-2"] {
        let nodes = lab.api::<tether_crd::Node>();
        nodes.patch_status(node, &PatchParams::default(), &Patch::Merge(&zone)).await.unwrap();
    }
    let mut of = async |parameters: &[(&str, &str)]| {
        let segments = [("kubernetes.io/hostname", "node-1"), ("topology.kubernetes.io/zone", "z1")];
        let pairs = |all: &[(&str, &str)]| all.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let request = GetCapacityRequest {
            accessible_topology: Some(Topology { segments: pairs(&segments) }),
            parameters: pairs(parameters),
            ..Default::default()
        };
        lab.controller.get_capacity(request).await.map(tonic::Response::into_inner)
    };
    let zone = loop {
        let zone = of(&[("storageCapacityMode", "zone")]).await.unwrap();
        if zone.available_capacity == all.available_capacity {
            break zone;
        }
    };
    assert_eq!(zone.maximum_volume_size, one.maximum_volume_size, "a replica is on one disk");
    assert_eq!(of(&[("diskSelector", "ssd")]).await.unwrap().available_capacity, 0, "no disk has the tag");
    let wrong = of(&[("storageCapacityMode", "rack")]).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    assert!(wrong.message().contains("rack"), "{wrong}");
}
