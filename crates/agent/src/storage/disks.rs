//! What is found at the paths of disks, and the file that names a disk.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tether_plan::disk::Found;

/// Longhorn's name for it.
const CONFIG: &str = "longhorn-disk.cfg";
const REPLICAS: &str = "replicas";
/// What a disk that shares its file system may grow to is told in steps: others use the file system all the time.
const SHARED_STEP_BYTES: i64 = 1 << 30;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    disk_name: String,
    #[serde(rename = "diskUUID")]
    disk_uuid: String,
    #[serde(rename = "diskDriver")]
    driver: String,
    state: String,
}

/// Looks at a disk. `shared`: what others keep on its file system is not the disk's, neither used nor free.
pub(super) fn look(path: &Path, shared: bool) -> io::Result<Found> {
    let uuid = match fs::read(path.join(CONFIG)) {
        Ok(text) => Some(serde_json::from_slice::<Config>(&text)?.disk_uuid),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let space = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(space.f_frsize)).unwrap_or(i64::MAX);
    let available = bytes(space.f_bavail);
    let maximum = match shared {
        true => (available + used(path)) / SHARED_STEP_BYTES * SHARED_STEP_BYTES,
        false => bytes(space.f_blocks),
    };
    let kind = rustix::fs::statfs(path)?.f_type;
    Ok(Found {
        uuid,
        fsid: format!("{:016x}-{}", space.f_fsid, if shared { path.display().to_string() } else { String::new() }),
        filesystem: filesystem(u64::try_from(kind).unwrap_or_default()).to_owned(),
        available,
        maximum,
    })
}

/// Bytes that replicas take.
fn used(path: &Path) -> i64 {
    let folders = fs::read_dir(path.join(REPLICAS)).into_iter().flatten().flatten();
    let files = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten().flatten());
    let blocks = files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512);
    i64::try_from(blocks.sum::<u64>()).unwrap_or(i64::MAX)
}

/// Names of the file systems that replicas are usually on.
fn filesystem(magic: u64) -> &'static str {
    match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x794c_7630 => "overlay",
        _ => "",
    }
}

/// Makes a directory a disk.
pub(super) fn name(path: &Path, disk: &str, uuid: &str) -> io::Result<()> {
    fs::create_dir_all(path.join(REPLICAS))?;
    let config = Config { disk_name: disk.to_owned(), disk_uuid: uuid.to_owned(), ..Config::default() };
    let staging = path.join(format!("{CONFIG}.new"));
    let file = fs::File::create(&staging)?;
    serde_json::to_writer(&file, &config)?;
    file.sync_all()?;
    fs::rename(&staging, path.join(CONFIG))?;
    fs::File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_becomes_a_disk() {
        let dir = tempfile::tempdir().unwrap();
        let found = look(dir.path(), true).unwrap();
        assert_eq!(found.uuid, None);
        assert!(found.maximum <= found.available + SHARED_STEP_BYTES);
        name(dir.path(), "d1", "u1").unwrap();
        assert_eq!(look(dir.path(), false).unwrap().uuid.as_deref(), Some("u1"));
        let text = fs::read_to_string(dir.path().join(CONFIG)).unwrap();
        assert!(text.contains(r#""diskUUID":"u1""#), "{text}");
        assert!(look(&dir.path().join("none"), false).is_err());
    }
}
