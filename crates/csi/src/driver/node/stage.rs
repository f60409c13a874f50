//! Once for a volume on a node: its file system is mounted, or its device bound to a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Status;

use super::super::Inner;
use super::super::capability::check;
use super::{filesystem, mounts, required};
use crate::proto::volume_capability::AccessType;
use crate::proto::{NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeStageVolumeRequest};

/// How far one watch may be behind another.
const BEHIND: Duration = Duration::from_secs(2);

/// The parameter of a class with further words for mkfs.
const MKFS_PARAMETERS: &str = "mkfsParams";

pub(super) async fn stage(driver: &Inner, node: &str, request: NodeStageVolumeRequest) -> Result<(), Status> {
    let id = required("volume_id", &request.volume_id)?;
    let staging = PathBuf::from(required("staging_target_path", &request.staging_target_path)?);
    let capability = request.volume_capability.as_ref();
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    check(capability)?;
    let _claim = driver.busy.claim(format!("{id} on this node"))?;
    driver.view.ready().await;
    // The controller half saw it attached; what this process watches may be a moment behind.
    driver.view.until(BEHIND, || driver.view.engine_on(id, node)).await;
    let device = device(driver, node, id)?;
    match &capability.access_type {
        Some(AccessType::Mount(wanted)) => {
            let fs_type = if wanted.fs_type.is_empty() { filesystem::DEFAULT } else { &wanted.fs_type };
            let more = request.volume_context.get(MKFS_PARAMETERS).map(String::as_str).unwrap_or_default();
            mount(&device, &staging, fs_type, &wanted.mount_flags, more).await
        }
        _ => bind(&device, &staging, id).await,
    }
}

/// The device that the node's engine shows the volume as.
fn device(driver: &Inner, node: &str, id: &str) -> Result<PathBuf, Status> {
    if driver.view.volume(id).is_none() {
        return Err(Status::not_found(format!("volume {id} does not exist")));
    }
    let engine = driver.view.engine_on(id, node);
    let engine = engine.ok_or_else(|| Status::failed_precondition(format!("volume {id} is not attached to {node}")))?;
    let endpoint = &engine.status.endpoint;
    if !endpoint.starts_with('/') {
        let words =
            format!("volume {id} is shown as {endpoint}, which cannot be mounted: this node has no kernel devices");
        return Err(Status::failed_precondition(words));
    }
    Ok(PathBuf::from(endpoint))
}

async fn mount(device: &Path, staging: &Path, fs_type: &str, flags: &[String], more: &str) -> Result<(), Status> {
    let number = filesystem::device_number(device)?;
    if let Some(held) = mounts::at(staging).map_err(unreadable)? {
        if held.device == number {
            return Ok(());
        }
        // What an earlier attachment left: its device is gone.
        mounts::unmount(staging).await?;
    }
    std::fs::create_dir_all(staging).map_err(|error| Status::internal(format!("{}: {error}", staging.display())))?;
    let read_only = flags.iter().any(|flag| flag == "ro");
    match filesystem::probe(device).await? {
        None => filesystem::make(device, fs_type, more).await?,
        Some(found) if found == fs_type => {
            filesystem::check(device, fs_type).await?;
            if !read_only {
                filesystem::fit(device, fs_type).await?;
            }
        }
        Some(found) => {
            let words = format!("the volume is to be mounted as {fs_type}, and contains {found}");
            return Err(Status::failed_precondition(words));
        }
    }
    filesystem::mount(device, staging, fs_type, flags).await?;
    if fs_type == "xfs" && !read_only {
        filesystem::grow(device, staging, fs_type).await?;
    }
    Ok(())
}

/// The file of a block volume in its staging directory.
pub(super) fn block_file(staging: &Path, id: &str) -> PathBuf {
    staging.join(id)
}

async fn bind(device: &Path, staging: &Path, id: &str) -> Result<(), Status> {
    let number = filesystem::device_number(device)?;
    let file = block_file(staging, id);
    if mounts::at(&file).map_err(unreadable)?.is_some() {
        if filesystem::device_number(&file).is_ok_and(|held| held == number) {
            return Ok(());
        }
        mounts::unmount(&file).await?;
    }
    std::fs::create_dir_all(staging).map_err(|error| Status::internal(format!("{}: {error}", staging.display())))?;
    touch(&file)?;
    mounts::bind(device, &file).await
}

pub(super) fn touch(file: &Path) -> Result<(), Status> {
    let made = std::fs::OpenOptions::new().create(true).append(true).open(file);
    made.map(drop).map_err(|error| Status::internal(format!("{}: {error}", file.display())))
}

pub(super) fn unreadable(error: std::io::Error) -> Status {
    Status::internal(format!("cannot read mounts: {error}"))
}

pub(super) async fn unstage(driver: &Inner, node: &str, id: &str, staging: &str) -> Result<(), Status> {
    let id = required("volume_id", id)?;
    let staging = PathBuf::from(required("staging_target_path", staging)?);
    let _claim = driver.busy.claim(format!("{id} on this node"))?;
    let file = block_file(&staging, id);
    let staged = mounts::at(&staging).map_err(unreadable)?.map(|mount| mount.device);
    let held = staged.or_else(|| filesystem::device_number(&file).ok());
    mounts::unmount(&file).await?;
    mounts::unmount(&staging).await?;
    let device = match held {
        Some((major, minor)) => device_path(major, minor).ok(),
        // An earlier call unmounted it and may not have seen it free.
        None => self::device(driver, node, id).ok(),
    };
    if let Some(device) = device {
        filesystem::until_free(&device).await?;
    }
    // Only now: in a mounted file system the name could be a user's file.
    match std::fs::remove_file(&file) {
        Err(error) if !matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Err(Status::internal(format!("{}: {error}", file.display())))
        }
        _ => Ok(()),
    }
}

pub(super) async fn expand(
    driver: &Inner,
    request: NodeExpandVolumeRequest,
) -> Result<NodeExpandVolumeResponse, Status> {
    let id = required("volume_id", &request.volume_id)?;
    let path = PathBuf::from(required("volume_path", &request.volume_path)?);
    let _claim = driver.busy.claim(format!("{id} on this node"))?;
    driver.view.ready().await;
    if driver.view.volume(id).is_none() {
        return Err(Status::not_found(format!("volume {id} does not exist")));
    }
    if !path.exists() {
        return Err(Status::not_found(format!("{} does not exist", path.display())));
    }
    if let Ok(number) = filesystem::device_number(&path) {
        return Ok(NodeExpandVolumeResponse { capacity_bytes: filesystem::device_size(number)? });
    }
    let staging = PathBuf::from(&request.staging_target_path);
    let candidates = [path.as_path(), staging.as_path()];
    let mount = candidates.iter().find_map(|path| mounts::at(path).ok().flatten());
    let mount = mount.ok_or_else(|| Status::failed_precondition(format!("volume {id} is not mounted")))?;
    let (major, minor) = mount.device;
    let device = device_path(major, minor)?;
    filesystem::grow(&device, &mount.point, &mount.fs_type).await?;
    Ok(NodeExpandVolumeResponse { capacity_bytes: filesystem::device_size(mount.device)? })
}

/// The device file of a number.
fn device_path(major: u64, minor: u64) -> Result<PathBuf, Status> {
    let link = format!("/sys/dev/block/{major}:{minor}");
    let target = std::fs::read_link(&link).map_err(|error| Status::internal(format!("{link}: {error}")))?;
    let name = target.file_name().ok_or_else(|| Status::internal(format!("{link}: no name")))?;
    Ok(Path::new("/dev").join(name))
}
