//! How a volume will be used, in the driver's words.

use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolumeSpec};
use tether_model::reason::Reason;

use super::{Driver, Refusal};

/// How a volume will be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capability {
    pub content: Content,
    pub mode: AccessMode,
}

/// As a device or as a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Block,
    Mount { fs_type: String, flags: Vec<String> },
}

/// Who may write, from where. The numbers are those of the Container Storage Interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum AccessMode {
    SingleNodeWriter = 1,
    MultiNodeReaderOnly = 3,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

/// The capability that a volume is published with.
pub(super) fn capability(
    spec: &PersistentVolumeSpec,
    csi: &CSIPersistentVolumeSource,
    driver: &Driver,
) -> Result<Capability, Refusal> {
    let content = if spec.volume_mode.as_deref() == Some("Block") {
        Content::Block
    } else {
        let named = csi.fs_type.clone().filter(|fs| !fs.is_empty());
        let fs_type = named.unwrap_or_else(|| driver.default_fs_type.clone());
        Content::Mount { fs_type, flags: spec.mount_options.clone().unwrap_or_default() }
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    Ok(Capability { content, mode: access_mode(modes, driver.single_node_multi_writer)? })
}

fn access_mode(modes: &[String], knows_single_node: bool) -> Result<AccessMode, Refusal> {
    let has = |mode: &str| modes.iter().any(|held| held == mode);
    let mode = if has("ReadWriteOncePod") {
        let alone = modes.iter().all(|held| held == "ReadWriteOncePod");
        alone.then_some(if knows_single_node {
            AccessMode::SingleNodeSingleWriter
        } else {
            AccessMode::SingleNodeWriter
        })
    } else if has("ReadWriteMany") {
        Some(AccessMode::MultiNodeMultiWriter)
    } else if has("ReadOnlyMany") {
        (!has("ReadWriteOnce")).then_some(AccessMode::MultiNodeReaderOnly)
    } else if has("ReadWriteOnce") {
        Some(if knows_single_node { AccessMode::SingleNodeMultiWriter } else { AccessMode::SingleNodeWriter })
    } else {
        None
    };
    mode.ok_or_else(|| {
        let message = format!("unsupported AccessMode combination: [{}]", modes.join(" "));
        Refusal::new(Reason::AccessModesUnsupported, message)
    })
}
