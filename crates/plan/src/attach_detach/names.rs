//! Names of volumes and attachments, exactly as Kubernetes derives them.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// A volume of a driver: `<driver>^<handle>`.
pub fn csi_name(driver: &str, handle: &str) -> String {
    format!("{driver}^{handle}")
}

/// The same as nodes list it.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The name of the attachment of a volume to a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let mut hash = Sha256::new();
    for part in [handle, driver, node] {
        hash.update(part);
    }
    let mut name = "csi-".to_owned();
    for byte in hash.finalize() {
        write!(name, "{byte:02x}").expect("writing into a String must succeed");
    }
    name
}
