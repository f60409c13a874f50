//! Names and paths of devices.
//!
//! ```text
//!   <run>/<volume>/holder.sock   the holder of this volume's device listens here
//!   <run>/<volume>/lock          taken while a holder is being started
//!   <dev>/<volume>               the block device
//! ```

use std::path::{Path, PathBuf};

/// Where devices appear; the same names as Longhorn's, so that what mounts them need not change.
pub const DEVICES: &str = "/dev/longhorn";
/// Where holders of devices are reached; gone after a reboot, as the devices are.
pub const RUN: &str = "/run/tether/devices";
/// What the names of all loop devices of ours begin with.
pub const TAG: &str = "tether:";
/// Longest name that a loop device can carry, without the zero at its end.
const MAX_TAG_BYTES: usize = 63;
/// Longest volume name: a Kubernetes label value.
const MAX_VOLUME_BYTES: usize = 63;

/// The name of a volume that can have a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A volume's name does not do as the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be the name of a device: up to {MAX_VOLUME_BYTES} letters, digits, '.', '_' and '-', not beginning with '.'"
)]
pub struct BadName(pub String);

impl Name {
    pub fn new(name: &str) -> Result<Self, BadName> {
        let fits = (1..=MAX_VOLUME_BYTES).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if fits { Ok(Self(name.to_owned())) } else { Err(BadName(name.to_owned())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where devices and their holders are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Sockets of holders; must not outlive a reboot (a directory under `/run`), and only root may enter it.
    pub run: PathBuf,
    /// Device nodes.
    pub dev: PathBuf,
}

impl Place {
    pub fn directory(&self, volume: &Name) -> PathBuf {
        self.run.join(volume.as_str())
    }

    pub fn socket(&self, volume: &Name) -> PathBuf {
        self.directory(volume).join("holder.sock")
    }

    pub fn lock(&self, volume: &Name) -> PathBuf {
        self.directory(volume).join("lock")
    }

    pub fn node(&self, volume: &Name) -> PathBuf {
        self.dev.join(volume.as_str())
    }

    /// What the loop devices of this place begin their name with: two places on one machine do not clean up each
    /// other's devices.
    pub fn tag_prefix(&self) -> String {
        format!("{TAG}{:08x}:", fnv(self.run.as_os_str().as_encoded_bytes()))
    }

    /// The name that this volume's loop device carries.
    pub fn tag(&self, volume: &Name) -> String {
        let mut tag = self.tag_prefix() + volume.as_str();
        if tag.len() > MAX_TAG_BYTES {
            let hash = format!("~{:08x}", fnv(volume.as_str().as_bytes()));
            tag.truncate(MAX_TAG_BYTES - hash.len());
            tag += &hash;
        }
        tag
    }
}

/// FNV-1a: names apart, not secrets.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The path of the program whose `device-holder` subcommand runs holders: this one, also after its file was replaced.
pub fn this_program() -> &'static Path {
    Path::new("/proc/self/exe")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_fit_and_tell_volumes_and_places_apart() {
        let one = Place { run: "/run/tether/devices".into(), dev: DEVICES.into() };
        let other = Place { run: "/run/other".into(), ..one.clone() };
        let long = |end: &str| Name::new(&("v".repeat(60) + end)).expect("the name must do");
        let names = [Name::new("v1").expect("the name must do"), long("a"), long("b")];
        let mut tags: Vec<String> = names.iter().flat_map(|n| [one.tag(n), other.tag(n)]).collect();
        assert!(tags.iter().all(|tag| tag.len() <= MAX_TAG_BYTES));
        assert!(names.iter().all(|n| one.tag(n).starts_with(&one.tag_prefix())));
        tags.sort();
        tags.dedup();
        assert_eq!(tags.len(), 6);
    }

    #[test]
    fn names_cannot_leave_their_directory() {
        for bad in ["", ".", "..", "a/b", ".hidden", "a b", "ü", &"x".repeat(64)] {
            assert!(Name::new(bad).is_err(), "{bad:?}");
        }
        for good in ["v1", "pvc-8f2c1d0e-5b7a-4f0e-9a53-0c6f3d1b2a44", "a.b_c"] {
            assert!(Name::new(good).is_ok(), "{good:?}");
        }
    }
}
