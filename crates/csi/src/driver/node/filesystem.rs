//! File systems: found, made, checked, grown.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::thread::{CapabilitySet, capabilities};
use tonic::Status;

use super::ext::Geometry;
use super::mounts::{run, said, succeed};

/// The file system of volumes that name none.
pub(super) const DEFAULT: &str = "ext4";

/// blkid's word for: nothing found.
const NOTHING_FOUND: i32 = 2;
/// Bits of fsck's answer: corrected, and corrected but the machine wants a restart.
const CORRECTED: i32 = 0b11;

/// Looks at a device that is in use, and the pause between them: a container that just ended lets go of it in a moment.
const FREE_LOOKS: u32 = 50;
const FREE_PAUSE: Duration = Duration::from_millis(20);

/// Major and minor number of a block device.
pub(super) fn device_number(path: &Path) -> Result<(u64, u64), Status> {
    let metadata = std::fs::metadata(path);
    let metadata =
        metadata.map_err(|error| Status::failed_precondition(format!("device {}: {error}", path.display())))?;
    if !metadata.file_type().is_block_device() {
        return Err(Status::failed_precondition(format!("{} is not a block device", path.display())));
    }
    let number = metadata.rdev();
    Ok((u64::from(rustix::fs::major(number)), u64::from(rustix::fs::minor(number))))
}

/// What is on a device; `None` if it is blank.
pub(super) async fn probe(device: &Path) -> Result<Option<String>, Status> {
    let args: [&OsStr; 6] =
        ["-p".as_ref(), "-s".as_ref(), "TYPE".as_ref(), "-o".as_ref(), "value".as_ref(), device.as_os_str()];
    let output = run("blkid", &args).await?;
    match output.status.code() {
        Some(0) => {
            let found = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            // A partition table has no type, and is no file system: nothing may be made on top of it.
            Ok(Some(if found.is_empty() { "something else".into() } else { found }))
        }
        Some(NOTHING_FOUND) => Ok(None),
        _ => Err(Status::internal(format!("blkid: {}", said(&output)))),
    }
}

/// Makes a file system on a blank device.
pub(super) async fn make(device: &Path, fs_type: &str, more: &str) -> Result<(), Status> {
    let (program, fixed): (&str, &[&str]) = match fs_type {
        // Written at once instead of in the background: the first mount is not followed by minutes of writes.
        "ext4" => ("mkfs.ext4", &["-F", "-q", "-b4096", "-m0", "-E", "lazy_itable_init=1,lazy_journal_init=1"]),
        "ext3" => ("mkfs.ext3", &["-F", "-q", "-b4096", "-m0"]),
        "xfs" => ("mkfs.xfs", &["-f", "-q", "-ssize=4096", "-bsize=4096"]),
        other => return Err(Status::invalid_argument(format!("file system {other:?} is not provided"))),
    };
    let more = more.split_whitespace().map(OsStr::new);
    let args: Vec<&OsStr> = fixed.iter().map(OsStr::new).chain(more).chain([device.as_os_str()]).collect();
    succeed(program, &args).await
}

/// Checks a file system that was not unmounted in order; what can be repaired without asking is.
pub(super) async fn check(device: &Path, fs_type: &str) -> Result<(), Status> {
    if !fs_type.starts_with("ext") {
        // xfs repairs itself when it is mounted.
        return Ok(());
    }
    let output = run("fsck", &["-T".as_ref(), "-a".as_ref(), device.as_os_str()]).await?;
    match output.status.code() {
        Some(code) if code & !CORRECTED == 0 => Ok(()),
        _ => Err(Status::internal(format!("the file system is damaged: {}", said(&output)))),
    }
}

/// Mounts a device.
pub(super) async fn mount(device: &Path, at: &Path, fs_type: &str, flags: &[String]) -> Result<(), Status> {
    let mut options: Vec<&str> = flags.iter().map(String::as_str).collect();
    if fs_type == "xfs" && !options.contains(&"nouuid") {
        // A clone has the same uuid, and may be on the same node.
        options.push("nouuid");
    }
    let joined = OsString::from(options.join(","));
    let mut args: Vec<&OsStr> = vec!["-t".as_ref(), fs_type.as_ref()];
    if !joined.is_empty() {
        args.extend([OsStr::new("-o"), &joined]);
    }
    args.extend([device.as_os_str(), at.as_os_str()]);
    succeed("mount", &args).await
}

/// Grows a mounted file system to the size of its device; nothing happens if it has that size.
pub(super) async fn grow(device: &Path, mounted_at: &Path, fs_type: &str) -> Result<(), Status> {
    match fs_type {
        "xfs" => succeed("xfs_growfs", &[mounted_at.as_os_str()]).await,
        fs_type if fs_type.starts_with("ext") => {
            let grown = succeed("resize2fs", &[device.as_os_str()]).await;
            grown.map_err(|status| if may_grow_mounted() { status } else { lacking(fs_type, &status) })
        }
        other => Err(Status::internal(format!("file system {other:?} cannot be grown"))),
    }
}

/// The kernel asks for this capability beside that to mount.
fn may_grow_mounted() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE))
}

fn lacking(fs_type: &str, status: &Status) -> Status {
    Status::failed_precondition(format!(
        "{}: this node lacks CAP_SYS_RESOURCE, without which a mounted {fs_type} cannot grow; it grows when it is next mounted",
        status.message()
    ))
}

/// Grows a file system that is about to be mounted to the size of its device: it may have become larger while nobody had
/// it. Those that grow mounted only are left to [`grow`].
pub(super) async fn fit(device: &Path, fs_type: &str) -> Result<(), Status> {
    if !fs_type.starts_with("ext") {
        return Ok(());
    }
    let path = device.to_owned();
    let read = tokio::task::spawn_blocking(move || Geometry::read(&path)).await;
    let read = read.map_err(|error| Status::internal(error.to_string()))?;
    let read = read.map_err(|error| Status::internal(format!("{}: {error}", device.display())))?;
    let held = read.ok_or_else(|| Status::internal(format!("{}: no superblock", device.display())))?;
    let bytes = u64::try_from(device_size(device_number(device)?)?).unwrap_or_default();
    if !held.can_grow_to(bytes) {
        return Ok(());
    }
    // The program insists on a full check first.
    let output = run("e2fsck", &["-f".as_ref(), "-p".as_ref(), device.as_os_str()]).await?;
    match output.status.code() {
        Some(code) if code & !CORRECTED == 0 => succeed("resize2fs", &[device.as_os_str()]).await,
        _ => Err(Status::internal(format!("the file system is damaged: {}", said(&output)))),
    }
}

/// Returns once nobody has the device mounted or to himself: in another mount namespace it may be mounted still.
pub(super) async fn until_free(device: &Path) -> Result<(), Status> {
    for _ in 0..FREE_LOOKS {
        let path = device.to_owned();
        let look = tokio::task::spawn_blocking(move || {
            let flags = i32::try_from(OFlags::EXCL.bits()).unwrap_or_default();
            std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)
        });
        match look.await.map_err(|error| Status::internal(error.to_string()))? {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => tokio::time::sleep(FREE_PAUSE).await,
            // One that is gone, or has nothing behind it, is nobody's.
            _ => return Ok(()),
        }
    }
    let words = format!("device {} is in use when it was no longer expected to be in use", device.display());
    Err(Status::internal(words))
}

/// Bytes of a block device, by its number.
pub(super) fn device_size((major, minor): (u64, u64)) -> Result<i64, Status> {
    /// The kernel counts in these, whatever the device does.
    const SECTOR: i64 = 512;
    let path = format!("/sys/dev/block/{major}:{minor}/size");
    let text = std::fs::read_to_string(&path).map_err(|error| Status::internal(format!("{path}: {error}")))?;
    let sectors: i64 = text.trim().parse().map_err(|_| Status::internal(format!("{path}: not a number")))?;
    Ok(sectors * SECTOR)
}
