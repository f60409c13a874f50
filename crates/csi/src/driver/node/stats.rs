//! How full a volume is, and how it is.

use std::path::Path;

use tonic::Status;

use super::super::Inner;
use super::{filesystem, mounts, required};
use crate::proto::volume_usage::Unit;
use crate::proto::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeUsage};

pub(super) async fn stats(
    driver: &Inner,
    request: &NodeGetVolumeStatsRequest,
) -> Result<NodeGetVolumeStatsResponse, Status> {
    let id = required("volume_id", &request.volume_id)?;
    let path = Path::new(required("volume_path", &request.volume_path)?);
    driver.view.ready().await;
    let volume = driver.view.volume(id).ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    if !path.exists() {
        return Err(Status::not_found(format!("{} does not exist", path.display())));
    }
    let usage = if let Ok(number) = filesystem::device_number(path) {
        vec![VolumeUsage { total: filesystem::device_size(number)?, unit: Unit::Bytes.into(), ..Default::default() }]
    } else {
        if mounts::at(path).map_err(super::stage::unreadable)?.is_none() {
            return Err(Status::not_found(format!("volume {id} is not mounted at {}", path.display())));
        }
        let path = path.to_owned();
        let asked = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&path)).await;
        let found = asked.map_err(|error| Status::internal(error.to_string()))?;
        usage(&found.map_err(|error| Status::internal(format!("statvfs: {error}")))?)
    };
    let condition = super::super::controller::health(&volume);
    Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
}

fn usage(found: &rustix::fs::StatVfs) -> Vec<VolumeUsage> {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let bytes = |blocks: u64| number(blocks.saturating_mul(found.f_frsize));
    vec![
        VolumeUsage {
            available: bytes(found.f_bavail),
            total: bytes(found.f_blocks),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            unit: Unit::Bytes.into(),
        },
        VolumeUsage {
            available: number(found.f_ffree),
            total: number(found.f_files),
            used: number(found.f_files.saturating_sub(found.f_ffree)),
            unit: Unit::Inodes.into(),
        },
    ]
}
