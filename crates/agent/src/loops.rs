//! Loop devices: which ones are backed by files of a directory, and how to let them go.
#![allow(unsafe_code, reason = "a device is detached by an ioctl")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::ioctl::{NoArg, Opcode, ioctl};

/// From the kernel's `loop.h`.
const LOOP_CLR_FD: Opcode = 0x4c01;

/// A loop device and the file behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// `loop3`
    pub name: String,
    pub backing_file: PathBuf,
}

/// Why loop devices could not be listed or detached.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}: {source}", path = path.display())]
pub struct LoopError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Every loop device that is backed by a file below `dir`.
pub fn backed_below(dir: &Path) -> Result<Vec<LoopDevice>, LoopError> {
    let block = Path::new("/sys/block");
    let failed = |source| LoopError { action: "list", path: block.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(block).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        // A device without a file has no such entry.
        let Ok(text) = fs::read(block.join(&name).join("loop/backing_file")) else { continue };
        let backing_file = backing_file(&text);
        if backing_file.starts_with(dir) {
            found.push(LoopDevice { name, backing_file });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The path in sysfs' text, which ends in a newline and says so if the file was deleted.
fn backing_file(text: &[u8]) -> PathBuf {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b" (deleted)").unwrap_or(text);
    PathBuf::from(OsStr::from_bytes(text))
}

/// Detaches the device; one that is still in use goes with its last user.
pub fn detach(device: &LoopDevice) -> Result<(), LoopError> {
    let path = Path::new("/dev").join(&device.name);
    let failed = |source| LoopError { action: "detach", path: path.clone(), source };
    let file = File::open(&path).map_err(failed)?;
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    match unsafe { ioctl(&file, NoArg::<LOOP_CLR_FD>::new()) } {
        Ok(()) | Err(rustix::io::Errno::NXIO) => Ok(()),
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn sysfs_text() {
        assert_eq!(backing_file(b"/a b/disk.img\n"), Path::new("/a b/disk.img"));
        assert_eq!(backing_file(b"/a/disk.img (deleted)\n"), Path::new("/a/disk.img"));
    }

    #[test]
    fn only_devices_of_the_directory_are_found_and_detached() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, others) = (dir.path().join("ours"), dir.path().join("others"));
        let attach = |folder: &Path| {
            fs::create_dir(folder).unwrap();
            let file = folder.join("disk.img");
            File::create(&file).unwrap().set_len(1 << 20).unwrap();
            Command::new("losetup").args(["--find", "--show"]).arg(file).output()
        };
        match attach(&ours) {
            Ok(output) if output.status.success() => {}
            other => return eprintln!("SKIPPED: no loop device can be had here: {other:?}"),
        }
        attach(&others).unwrap();
        let found = backed_below(&ours).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        detach(&found[0]).unwrap();
        assert_eq!(backed_below(&ours).unwrap(), []);
        let others = backed_below(&others).unwrap();
        assert_eq!(others.len(), 1);
        detach(&others[0]).unwrap();
        detach(&others[0]).unwrap();
    }
}
