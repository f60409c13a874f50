//! Snapshots come, are listed and go, and volumes are made from them: each call twice, in any order.

use tether_crd::volume::CloneState;
use tether_crd::{Snapshot, Volume, VolumeAttachment};
use tether_csi::proto::volume_content_source::{SnapshotSource, Type, VolumeSource};
use tether_csi::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerPublishVolumeRequest, CreateSnapshotRequest,
    CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetSnapshotRequest, ListSnapshotsRequest,
    VolumeContentSource,
};
use tonic::Code;

use crate::lab::*;

fn snapshot(volume: &str, name: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest { source_volume_id: volume.into(), name: name.into(), ..Default::default() }
}

fn from_snapshot(name: &str, id: &str) -> CreateVolumeRequest {
    let source = Type::Snapshot(SnapshotSource { snapshot_id: id.into() });
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..a_volume(name, mount("ext4"))
    }
}

fn from_volume(name: &str, id: &str) -> CreateVolumeRequest {
    let source = Type::Volume(VolumeSource { volume_id: id.into() });
    CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..a_volume(name, mount("ext4"))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_detached_volume_from_birth_to_death() {
    let mut lab = Lab::new().await;
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let made = lab.controller.create_snapshot(snapshot("v1", "s1")).await.unwrap().into_inner().snapshot.unwrap();
        assert!(made.ready_to_use && made.creation_time.is_some());
        assert_eq!((made.source_volume_id.as_str(), made.size_bytes), ("v1", 64 << 20));
        ids.push(made.snapshot_id);
    }
    assert_eq!(ids, ["snap://v1/s1", "snap://v1/s1"]);
    let get = GetSnapshotRequest { snapshot_id: ids[0].clone(), ..Default::default() };
    assert!(lab.controller.get_snapshot(get).await.unwrap().into_inner().snapshot.unwrap().ready_to_use);
    lab.controller.create_volume(a_volume("v2", mount("ext4"))).await.unwrap();
    let taken = lab.controller.create_snapshot(snapshot("v2", "s1")).await.unwrap_err();
    assert_eq!(taken.code(), Code::AlreadyExists, "{taken}");
    let delete = DeleteSnapshotRequest { snapshot_id: ids[0].clone(), ..Default::default() };
    for _ in 0..2 {
        lab.controller.delete_snapshot(delete.clone()).await.unwrap();
    }
    until("the snapshot is gone", async || lab.api::<Snapshot>().get_opt("s1").await.unwrap().is_none()).await;
    until("nobody needs the volume", async || {
        let tickets = lab.api::<VolumeAttachment>().get("v1").await.unwrap().spec.attachment_tickets;
        tickets.is_empty() && lab.api::<Volume>().get("v1").await.unwrap().spec.node_id.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_are_listed_page_by_page_and_by_what_they_are_of() {
    let mut lab = Lab::new().await;
    for volume in ["v1", "v2"] {
        lab.controller.create_volume(a_volume(volume, mount("ext4"))).await.unwrap();
    }
    for (volume, name) in [("v1", "a"), ("v1", "b"), ("v2", "Name With Space")] {
        lab.controller.create_snapshot(snapshot(volume, name)).await.unwrap();
    }
    let mut list = async |request: ListSnapshotsRequest| {
        lab.controller.list_snapshots(request).await.map(|found| {
            let found = found.into_inner();
            let ids: Vec<_> = found.entries.into_iter().map(|e| e.snapshot.unwrap().snapshot_id).collect();
            (ids, found.next_token)
        })
    };
    let (first, token) = list(ListSnapshotsRequest { max_entries: 2, ..Default::default() }).await.unwrap();
    assert_eq!((first.len(), token.as_str()), (2, "2"));
    let next = ListSnapshotsRequest { starting_token: token, ..Default::default() };
    assert_eq!(list(next).await.unwrap().0.len(), 1);
    let of_volume = ListSnapshotsRequest { source_volume_id: "v1".into(), ..Default::default() };
    assert_eq!(list(of_volume).await.unwrap().0, ["snap://v1/a", "snap://v1/b"]);
    let one = ListSnapshotsRequest { snapshot_id: "snap://v1/b".into(), ..Default::default() };
    assert_eq!(list(one).await.unwrap().0, ["snap://v1/b"]);
    let none = ListSnapshotsRequest { snapshot_id: "none".into(), ..Default::default() };
    assert_eq!(list(none).await.unwrap().0.len(), 0);
    let wrong = ListSnapshotsRequest { starting_token: "none".into(), ..Default::default() };
    assert_eq!(list(wrong).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_are_made_from_snapshots_and_volumes_and_wait_to_be_published() {
    let mut lab = Lab::new().await;
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    lab.controller.create_snapshot(snapshot("v1", "s1")).await.unwrap();
    for request in [from_snapshot("c1", "snap://v1/s1"), from_volume("c2", "v1")] {
        let made = lab.controller.create_volume(request.clone()).await.unwrap().into_inner().volume.unwrap();
        assert_eq!(made.content_source, request.volume_content_source);
        let publish = ControllerPublishVolumeRequest {
            volume_id: made.volume_id.clone(),
            node_id: "node-1".into(),
            volume_capability: Some(mount("ext4")),
            ..Default::default()
        };
        lab.controller.controller_publish_volume(publish).await.unwrap();
        let state = lab.api::<Volume>().get(&made.volume_id).await.unwrap().status.clone_status.state;
        assert!([CloneState::CopyCompletedAwaitingHealthy, CloneState::Completed].contains(&state), "{state}");
        assert!(lab.controller.create_volume(request).await.is_ok(), "the same again");
    }
    let mut small = from_snapshot("c3", "snap://v1/s1");
    small.capacity_range = Some(CapacityRange { required_bytes: 32 << 20, limit_bytes: 0 });
    for (request, code) in [
        (small, Code::OutOfRange),
        (from_snapshot("c4", "snap://v1/none"), Code::NotFound),
        (from_volume("c5", "none"), Code::NotFound),
        (from_volume("c1", "v1"), Code::AlreadyExists),
    ] {
        assert_eq!(lab.controller.create_volume(request.clone()).await.unwrap_err().code(), code, "{}", request.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_questions_about_snapshots_get_the_codes_of_the_interface() {
    let mut lab = Lab::new().await;
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    let backup =
        CreateSnapshotRequest { parameters: [("type".to_owned(), "bak".to_owned())].into(), ..snapshot("v1", "s1") };
    for (request, code) in [
        (snapshot("", "s1"), Code::InvalidArgument),
        (snapshot("v1", ""), Code::InvalidArgument),
        (snapshot("none", "s1"), Code::NotFound),
        (backup, Code::InvalidArgument),
    ] {
        assert_eq!(lab.controller.create_snapshot(request.clone()).await.unwrap_err().code(), code, "{request:?}");
    }
    let nothing = DeleteSnapshotRequest::default();
    assert_eq!(lab.controller.delete_snapshot(nothing).await.unwrap_err().code(), Code::InvalidArgument);
    let unknown = DeleteSnapshotRequest { snapshot_id: "whatever".into(), ..Default::default() };
    lab.controller.delete_snapshot(unknown).await.unwrap();
}

/// What csi-sanity found: a volume was called made while it was still on its way to being detached, and could not be
/// grown; one that was deleted right after it was unpublished lost its replicas before its engine had ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_can_be_grown_when_it_is_made_and_deleted_when_it_is_unpublished() {
    let mut lab = Lab::new().await;
    lab.controller.create_volume(a_volume("v1", mount("ext4"))).await.unwrap();
    let grow = ControllerExpandVolumeRequest {
        volume_id: "v1".into(),
        capacity_range: Some(CapacityRange { required_bytes: 128 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    let grown = lab.controller.controller_expand_volume(grow).await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes, 128 << 20);
    let delete = DeleteVolumeRequest { volume_id: "v1".into(), ..Default::default() };
    lab.controller.delete_volume(delete).await.unwrap();
    assert!(lab.api::<Volume>().get_opt("v1").await.unwrap().is_none());
}

/// Looks until it is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if is_so().await {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("in ten seconds: {what}");
}
