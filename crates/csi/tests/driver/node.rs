//! Mounts on a real block device; needs root and says so where it has none.

use std::path::Path;
use std::process::Command;

use tether_csi::proto::volume_capability::access_mode::Mode;
use tether_csi::proto::{
    ControllerPublishVolumeRequest, NodeExpandVolumeRequest, NodeGetInfoRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability,
};
use tonic::Code;

use crate::lab::*;

/// A loop device over a file; gone when dropped.
struct Loop(String);

impl Loop {
    fn new(dir: &Path, megabytes: u64) -> Option<Self> {
        let file = dir.join("disk.img");
        std::fs::File::create(&file).unwrap().set_len(megabytes << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        made.status.success().then(|| Self(String::from_utf8(made.stdout).unwrap().trim().to_owned()))
    }

    /// The device becomes larger.
    fn grow(&self, dir: &Path, megabytes: u64) {
        let file = std::fs::File::options().write(true).open(dir.join("disk.img")).unwrap();
        file.set_len(megabytes << 20).unwrap();
        assert!(Command::new("losetup").args(["--set-capacity", &self.0]).status().unwrap().success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

fn stage(staging: &Path, capability: VolumeCapability) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: "v1".into(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

fn publish(staging: &Path, target: &Path, capability: VolumeCapability, readonly: bool) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "v1".into(),
        staging_target_path: staging.display().to_string(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability),
        readonly,
        ..Default::default()
    }
}

async fn lab_with_device(capability: &VolumeCapability) -> Option<(Lab, Loop)> {
    let mut lab = Lab::new().await;
    let Some(device) = Loop::new(lab.dir.path(), 64) else {
        tracing::warn!("skipped: loop devices need root");
        return None;
    };
    lab.endpoint.lock().clone_from(&device.0);
    lab.controller.create_volume(a_volume("v1", capability.clone())).await.unwrap();
    let attach = ControllerPublishVolumeRequest {
        volume_id: "v1".into(),
        node_id: "node-1".into(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    };
    lab.controller.controller_publish_volume(attach).await.unwrap();
    Some((lab, device))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_is_made_mounted_shown_read_only_and_found_again() {
    let wanted = mount("ext4");
    let Some((mut lab, _device)) = lab_with_device(&wanted).await else { return };
    let (staging, target) = (lab.dir.path().join("staging"), lab.dir.path().join("pods/one/mount"));
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    let early = lab.node.node_publish_volume(publish(&staging, &target, wanted.clone(), false)).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
    for _ in 0..2 {
        lab.node.node_stage_volume(stage(&staging, wanted.clone())).await.unwrap();
    }
    for _ in 0..2 {
        lab.node.node_publish_volume(publish(&staging, &target, wanted.clone(), false)).await.unwrap();
    }
    std::fs::write(target.join("hello"), "world").unwrap();
    std::fs::write(target.join("v1"), "a user's file, named as the volume is").unwrap();
    let second = lab.dir.path().join("pods/two/mount");
    lab.node.node_publish_volume(publish(&staging, &second, wanted.clone(), true)).await.unwrap();
    assert_eq!(std::fs::read_to_string(second.join("hello")).unwrap(), "world");
    assert!(std::fs::write(second.join("hello"), "no").is_err(), "it is shown for reading only");
    let conflicting = lab.node.node_publish_volume(publish(&staging, &second, wanted.clone(), false)).await;
    assert_eq!(conflicting.unwrap_err().code(), Code::AlreadyExists);

    let path = target.display().to_string();
    let stats = NodeGetVolumeStatsRequest { volume_id: "v1".into(), volume_path: path.clone(), ..Default::default() };
    let usage = lab.node.node_get_volume_stats(stats).await.unwrap().into_inner().usage;
    assert!(usage[0].total > 32 << 20 && usage[0].used > 0 && usage[1].total > 0, "{usage:?}");
    let expand = NodeExpandVolumeRequest { volume_id: "v1".into(), volume_path: path, ..Default::default() };
    let grown = lab.node.node_expand_volume(expand).await.unwrap().into_inner();
    assert_eq!(grown.capacity_bytes, 64 << 20);

    for target in [&target, &second] {
        for _ in 0..2 {
            let request =
                NodeUnpublishVolumeRequest { volume_id: "v1".into(), target_path: target.display().to_string() };
            lab.node.node_unpublish_volume(request).await.unwrap();
            assert!(!target.exists());
        }
    }
    for _ in 0..2 {
        let staging_target_path = staging.display().to_string();
        lab.node
            .node_unstage_volume(NodeUnstageVolumeRequest { volume_id: "v1".into(), staging_target_path })
            .await
            .unwrap();
    }
    assert!(!staging.join("hello").exists());
    lab.node.node_stage_volume(stage(&staging, wanted)).await.unwrap();
    assert_eq!(std::fs::read_to_string(staging.join("hello")).unwrap(), "world");
    assert!(staging.join("v1").exists(), "it is not the driver's file");
    let other = lab.node.node_stage_volume(stage(&lab.dir.path().join("other"), mount("xfs"))).await;
    assert_eq!(other.unwrap_err().code(), Code::FailedPrecondition, "ext4 is not formatted away");
    let staging_target_path = staging.display().to_string();
    lab.node
        .node_unstage_volume(NodeUnstageVolumeRequest { volume_id: "v1".into(), staging_target_path })
        .await
        .unwrap();
}

/// A volume may have grown by little while nobody had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_system_fits_its_device_when_it_is_mounted_however_little_that_grew() {
    let wanted = mount("ext4");
    let Some((mut lab, device)) = lab_with_device(&wanted).await else { return };
    let staging = lab.dir.path().join("staging");
    let staging_target_path = staging.display().to_string();
    let mut sizes = Vec::new();
    for megabytes in [64, 66, 72, 72] {
        device.grow(lab.dir.path(), megabytes);
        lab.node.node_stage_volume(stage(&staging, wanted.clone())).await.unwrap();
        let stats = rustix::fs::statvfs(&staging).unwrap();
        sizes.push(stats.f_blocks * stats.f_frsize);
        std::fs::write(staging.join("file"), "data").unwrap();
        let unstage =
            NodeUnstageVolumeRequest { volume_id: "v1".into(), staging_target_path: staging_target_path.clone() };
        lab.node.node_unstage_volume(unstage).await.unwrap();
    }
    let grown: Vec<i64> = sizes.windows(2).map(|pair| (pair[1] - pair[0]).try_into().unwrap()).collect();
    assert_eq!(grown, [2 << 20, 6 << 20, 0], "{sizes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_volume_appears_as_a_device() {
    use std::os::unix::fs::FileTypeExt as _;
    let wanted = block(Mode::SingleNodeWriter);
    let Some((mut lab, _device)) = lab_with_device(&wanted).await else { return };
    let (staging, target) = (lab.dir.path().join("staging"), lab.dir.path().join("pods/dev"));
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    for _ in 0..2 {
        lab.node.node_stage_volume(stage(&staging, wanted.clone())).await.unwrap();
        lab.node.node_publish_volume(publish(&staging, &target, wanted.clone(), false)).await.unwrap();
    }
    assert!(std::fs::metadata(&target).unwrap().file_type().is_block_device());
    for _ in 0..2 {
        let target_path = target.display().to_string();
        lab.node
            .node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id: "v1".into(), target_path })
            .await
            .unwrap();
        let staging_target_path = staging.display().to_string();
        lab.node
            .node_unstage_volume(NodeUnstageVolumeRequest { volume_id: "v1".into(), staging_target_path })
            .await
            .unwrap();
    }
    assert!(!target.exists() && !staging.join("v1").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_says_who_it_is() {
    let mut lab = Lab::new().await;
    let info = lab.node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-1", 0));
}
