//! Where things of volumes lie below a node's directory: as a kubelet has them.
//!
//! ```text
//!   plugins/kubernetes.io/csi/<driver>/<sha256 of handle>/vol_data.json          who it is; written before it is staged
//!                                                        /globalmount            staged
//!   plugins/kubernetes.io/csi/volumeDevices/<volume>/data/vol_data.json          the same for a block volume
//!   plugins/kubernetes.io/csi/volumeDevices/staging/<volume>
//!   plugins/kubernetes.io/csi/volumeDevices/publish/<volume>/<pod uid>
//!   pods/<pod uid>/volumes/kubernetes.io~csi/<volume>/vol_data.json              who it is; written before it is published
//!                                                    /mount                      published
//!   pods/<pod uid>/volumeDevices/kubernetes.io~csi/<volume>                      link to the published device
//! ```

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The file that says which volume a directory is for.
pub const RECORD: &str = "vol_data.json";
/// Below a pod's directory: file systems of drivers.
pub const POD_MOUNTS: &str = "volumes/kubernetes.io~csi";
/// Below a pod's directory: devices of drivers.
pub const POD_DEVICES: &str = "volumeDevices/kubernetes.io~csi";
/// Below the node's directory: what is staged.
pub const STAGED: &str = "plugins/kubernetes.io/csi";
/// In there: what is staged as a device.
pub const DEVICES: &str = "volumeDevices";

/// Where one volume is staged and published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The directory with the record of the staged volume.
    pub record: PathBuf,
    /// What the driver is given to stage at.
    pub staging: PathBuf,
    block: bool,
    root: PathBuf,
    volume: String,
}

impl Places {
    /// `volume` is the PersistentVolume's name.
    pub fn new(root: &Path, driver: &str, handle: &str, volume: &str, block: bool) -> Self {
        let staged = root.join(STAGED);
        let (record, staging) = if block {
            let devices = staged.join(DEVICES);
            (devices.join(volume).join("data"), devices.join("staging").join(volume))
        } else {
            let record = staged.join(driver).join(digest(handle));
            let staging = record.join("globalmount");
            (record, staging)
        };
        Self { record, staging, block, root: root.to_owned(), volume: volume.replace('/', "~") }
    }

    /// The same for a volume whose name was not known: a staged file system does not say it.
    pub fn named(self, volume: &str) -> Self {
        Self { volume: volume.replace('/', "~"), ..self }
    }

    /// The pod's directory for the volume, with the record; the link itself for a device.
    pub fn of_pod(&self, pod: &str) -> PathBuf {
        let kind = if self.block { POD_DEVICES } else { POD_MOUNTS };
        self.root.join("pods").join(pod).join(kind).join(&self.volume)
    }

    /// What the driver is given to publish at.
    pub fn target(&self, pod: &str) -> PathBuf {
        if self.block {
            self.root.join(STAGED).join(DEVICES).join("publish").join(&self.volume).join(pod)
        } else {
            self.of_pod(pod).join("mount")
        }
    }
}

fn digest(handle: &str) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(handle) {
        write!(text, "{byte:02x}").expect("writing into a String must succeed");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_a_kubelet() {
        let root = Path::new("/r");
        let places = Places::new(root, "d", "h", "pvc-1", false);
        let digest = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(places.staging, Path::new(&format!("/r/plugins/kubernetes.io/csi/d/{digest}/globalmount")));
        assert_eq!(places.target("u"), Path::new("/r/pods/u/volumes/kubernetes.io~csi/pvc-1/mount"));
        let places = Places::new(root, "d", "h", "pvc-1", true);
        assert_eq!(places.staging, Path::new("/r/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1"));
        assert_eq!(places.target("u"), Path::new("/r/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u"));
        assert_eq!(places.of_pod("u"), Path::new("/r/pods/u/volumeDevices/kubernetes.io~csi/pvc-1"));
    }
}
