//! Names of objects, and what may be one.

use sha2::{Digest, Sha256};

/// The CSI driver's name; it is part of a ticket's id.
pub const CSI_DRIVER: &str = "driver.longhorn.io";
/// The field of a volume's Secret (see [`data_key_secret`]) that holds the key: 32 random bytes.
pub const DATA_KEY: &str = "key";
/// A volume's name is part of other names (engine, replica, ticket), which have to fit a label of 63 characters.
pub const VOLUME_NAME_MAX: usize = 40;
/// The longest name of a Kubernetes object, and of a ticket.
const OBJECT_NAME_MAX: usize = 253;

/// Whether `name` can be a volume's: a DNS-1123 label of at most 40 characters.
pub fn is_volume_name(name: &str) -> bool {
    name.len() <= VOLUME_NAME_MAX && is_label(name)
}

/// Whether `name` is a DNS-1123 label: lower case letters, digits and `-`, beginning and ending with a letter or digit.
pub fn is_label(name: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

/// The name of a volume's `number`th engine, from 0.
pub fn engine(volume: &str, number: u32) -> String {
    format!("{volume}-e-{number}")
}

/// The volume whose engine this is.
pub fn volume_of_engine(engine: &str) -> Option<&str> {
    engine.rsplit_once("-e-").filter(|(_, number)| number.parse::<u32>().is_ok()).map(|(volume, _)| volume)
}

/// Which engine of its volume this is.
pub fn engine_number(engine: &str) -> Option<u32> {
    engine.rsplit_once("-e-")?.1.parse().ok()
}

/// The name of a replica; `random` tells it from the others.
pub fn replica(volume: &str, random: u32) -> String {
    format!("{volume}-r-{random:08x}")
}

/// The directory of a replica below its disk's `replicas`; it is also the name of the member in the volume's record.
pub fn data_directory(volume: &str, random: u32) -> String {
    format!("{volume}-{random:08x}")
}

/// The path of a replica's data.
pub fn data_path(disk_path: &str, data_directory: &str) -> String {
    format!("{}/replicas/{data_directory}", disk_path.trim_end_matches('/'))
}

/// The id of a controller's ticket: its type and the object that it is for, cut to what a name may be.
pub fn ticket(kind: &str, object: &str) -> String {
    let mut id = format!("{kind}-{object}");
    let end = (0..=OBJECT_NAME_MAX.min(id.len())).rev().find(|&end| id.is_char_boundary(end)).unwrap_or(0);
    id.truncate(end);
    id
}

/// The snapshot that is made of a source for a clone: a uid that follows from those of both volumes.
pub fn clone_snapshot(source_uid: &str, clone_uid: &str) -> String {
    let digest = Sha256::digest(format!("{source_uid}/{clone_uid}"));
    let hex = digest.iter().take(16).fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The id of the CSI attacher's ticket, which is also the name of Kubernetes' VolumeAttachment.
pub fn csi_ticket(volume: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&[volume, CSI_DRIVER, node]))
}

/// The name of the instance manager of a node, and of its pod.
pub fn instance_manager(node: &str, image: &str, data_engine: &str) -> String {
    let hash = sha256_hex(&[node, image, data_engine]);
    format!("instance-manager-{}", &hash[..32])
}

/// The Secret with the key that engine and replicas of a volume prove to each other.
pub fn data_key_secret(volume: &str) -> String {
    format!("{volume}-data-key")
}

fn sha256_hex(parts: &[&str]) -> String {
    use std::fmt::Write as _;
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string must succeed");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_volume() {
        let forty = "a".repeat(40);
        for (name, possible) in [
            ("v1", true),
            ("pvc-0f9d7a3c-1f0e-4f5b-8d8b-111111111111", true),
            (forty.as_str(), true),
            ("", false),
            ("V1", false),
            ("-v1", false),
            ("v1-", false),
            ("v.1", false),
            (&"a".repeat(41), false),
        ] {
            assert_eq!(is_volume_name(name), possible, "{name:?}");
        }
    }

    #[test]
    fn names_of_engines_and_replicas() {
        assert_eq!(engine("v1", 0), "v1-e-0");
        assert_eq!(engine_number("v1-e-12"), Some(12));
        assert_eq!(engine_number("my-e-vol-e-3"), Some(3));
        assert_eq!(engine_number("v1"), None);
        assert_eq!(replica("v1", 0xa1), "v1-r-000000a1");
        assert_eq!(data_path("/var/lib/longhorn/", "v1-000000a1"), "/var/lib/longhorn/replicas/v1-000000a1");
    }

    /// The hash of the external attacher: what `sha256sum` says of `v1driver.longhorn.ionode-1`.
    #[test]
    fn the_csi_ticket_is_the_name_of_kubernetes_attachment() {
        assert_eq!(csi_ticket("v1", "node-1"), "csi-1b8f9fddb8f62bd743c793011f554c23eefd8a4ef2f817d66c50048fe7d87b10");
        assert_eq!(ticket("snapshot-controller", "s1"), "snapshot-controller-s1");
        assert_eq!(ticket("backup-controller", &"x".repeat(300)).len(), 253);
    }
}
