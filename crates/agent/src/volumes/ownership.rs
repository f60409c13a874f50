//! The group of a pod's file systems: files of a volume are made the group's, as a kubelet does.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSIDriver;
use tether_plan::attacher::Content;
use tether_plan::kubelet::volume::Wanted;

/// Group may read and write; for a directory also enter, and what is made in it has the group too.
const FILE_BITS: u32 = 0o660;
const DIR_BITS: u32 = 0o2770;

/// Gives the volume at `target` the pod's group, if pod and driver ask for that.
pub(super) async fn apply(pod: &Pod, wanted: &Wanted, driver: Option<&CSIDriver>, target: &Path) -> io::Result<()> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let Some(group) = context.and_then(|context| context.fs_group).and_then(|group| u32::try_from(group).ok()) else {
        return Ok(());
    };
    let policy = driver.and_then(|driver| driver.spec.fs_group_policy.as_deref());
    if wanted.read_only || !applies(policy, wanted) {
        return Ok(());
    }
    let only_root = context.and_then(|context| context.fs_group_change_policy.as_deref()) == Some("OnRootMismatch");
    let target = target.to_owned();
    let changed = tokio::task::spawn_blocking(move || {
        if only_root && matches(&target, group)? {
            return Ok(());
        }
        change(&target, group)
    });
    changed.await.map_err(io::Error::other)?
}

/// Whether the driver leaves this to the node.
fn applies(policy: Option<&str>, wanted: &Wanted) -> bool {
    let has_type = matches!(&wanted.content, Content::Mount { fs_type, .. } if !fs_type.is_empty());
    let once = matches!(wanted.access.as_deref(), Some("ReadWriteOnce" | "ReadWriteOncePod"));
    match policy {
        Some("None") => false,
        Some("File") => true,
        _ => has_type && once,
    }
}

/// Whether the root already is as it has to be.
fn matches(path: &Path, group: u32) -> io::Result<bool> {
    let found = std::fs::symlink_metadata(path)?;
    Ok(found.gid() == group && found.mode() & DIR_BITS == DIR_BITS)
}

/// Changes everything below a path, then the path: an interrupted change is seen by its root.
fn change(path: &Path, group: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if found.is_dir() {
        for entry in std::fs::read_dir(path)? {
            change(&entry?.path(), group)?;
        }
    }
    lchown(path, None, Some(group))?;
    if found.is_symlink() {
        return Ok(());
    }
    let bits = if found.is_dir() { DIR_BITS } else { FILE_BITS };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(found.mode() & 0o7777 | bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_directories_become_the_groups() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, file, link) = (dir.path().join("d"), dir.path().join("d/f"), dir.path().join("l"));
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        let group = std::fs::metadata(dir.path()).unwrap().gid();
        assert!(!matches(dir.path(), group).unwrap());
        change(dir.path(), group).unwrap();
        assert!(matches(dir.path(), group).unwrap() && matches(&inner, group).unwrap());
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o660);
        assert!(std::fs::metadata("/etc/passwd").unwrap().mode() & 0o020 == 0, "links are not followed");
    }
}
