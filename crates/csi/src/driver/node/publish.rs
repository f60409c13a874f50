//! Once for each user of a volume on a node: what is staged appears at the user's path.

use std::io;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::super::Inner;
use super::super::capability::{check, is_block};
use super::stage::{block_file, touch, unreadable};
use super::{mounts, required};
use crate::proto::NodePublishVolumeRequest;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

pub(super) async fn publish(driver: &Inner, request: NodePublishVolumeRequest) -> Result<(), Status> {
    let id = required("volume_id", &request.volume_id)?;
    let target = PathBuf::from(required("target_path", &request.target_path)?);
    let capability = request.volume_capability.as_ref();
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    check(capability)?;
    if request.staging_target_path.is_empty() {
        return Err(Status::failed_precondition("staging_target_path is missing: the volume has to be staged first"));
    }
    let staging = PathBuf::from(&request.staging_target_path);
    let _claim = driver.busy.claim(target.display().to_string())?;
    let block = is_block(capability);
    let source = if block { block_file(&staging, id) } else { staging };
    let Some(staged) = mounts::at(&source).map_err(unreadable)? else {
        return Err(Status::failed_precondition(format!("volume {id} is not staged at {}", source.display())));
    };
    let alone =
        capability.access_mode.as_ref().is_some_and(|held| held.mode == i32::from(Mode::SingleNodeSingleWriter));
    if alone && let Some(other) = mounts::elsewhere(&staged, &target).map_err(unreadable)? {
        let words = format!("volume {id} is for one user, and published at {}", other.display());
        return Err(Status::failed_precondition(words));
    }
    match mounts::at(&target).map_err(unreadable)? {
        Some(held) if held.device == staged.device && held.root == staged.root => {
            if held.read_only != request.readonly && !block {
                return Err(Status::already_exists(format!(
                    "volume {id} is published at {} with another access",
                    target.display()
                )));
            }
            return Ok(());
        }
        // What an earlier attachment left.
        Some(_) => mounts::unmount(&target).await?,
        None => {}
    }
    make(&target, block)?;
    mounts::bind(&source, &target).await?;
    let flags = match &capability.access_type {
        Some(AccessType::Mount(mount)) => per_mount(&mount.mount_flags),
        _ => Vec::new(),
    };
    let options: Vec<&str> = flags.into_iter().chain(request.readonly.then_some("ro")).collect();
    if options.is_empty() {
        return Ok(());
    }
    let options = format!("remount,bind,{}", options.join(","));
    let done = mounts::succeed("mount", &["-o".as_ref(), options.as_ref(), target.as_os_str()]).await;
    if done.is_err() {
        // Writable where it must not be is worse than not there.
        mounts::unmount(&target).await?;
    }
    done
}

/// Those of the mount options that belong to a mount and not to the file system below it.
fn per_mount(flags: &[String]) -> Vec<&str> {
    const KNOWN: [&str; 8] = ["ro", "noatime", "nodiratime", "relatime", "nodev", "noexec", "nosuid", "strictatime"];
    flags.iter().map(String::as_str).filter(|flag| KNOWN.contains(flag)).collect()
}

fn make(target: &Path, block: bool) -> Result<(), Status> {
    let failed = |error: io::Error| Status::internal(format!("{}: {error}", target.display()));
    if block {
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        return touch(target);
    }
    std::fs::create_dir_all(target).map_err(failed)
}

pub(super) async fn unpublish(driver: &Inner, id: &str, target: &str) -> Result<(), Status> {
    required("volume_id", id)?;
    let target = PathBuf::from(required("target_path", target)?);
    let _claim = driver.busy.claim(target.display().to_string())?;
    mounts::unmount(&target).await?;
    let removed = match std::fs::symlink_metadata(&target) {
        // Never what is in it: a directory that is not empty is not ours to empty.
        Ok(found) if found.is_dir() => std::fs::remove_dir(&target),
        Ok(_) => std::fs::remove_file(&target),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Status::internal(format!("{}: {error}", target.display())))
        }
        _ => Ok(()),
    }
}
