//! What volumes can be used for.

use tether_crd::volume::AccessMode;
use tonic::Status;

use crate::proto::VolumeCapability;
use crate::proto::volume_capability::AccessType;
use crate::proto::volume_capability::access_mode::Mode;

/// Why a use is refused, in words for whoever asked.
pub(super) const NO_SHARES: &str = "file system volumes that several nodes use at once (ReadWriteMany) need a share, which \
                                    is not provided; use volumeMode Block with parameter migratable \"true\", or \
                                    ReadWriteOnce";

/// The access mode of a volume that is used like this. `migratable`: it may be on two nodes while it moves.
pub(super) fn access_mode(capabilities: &[VolumeCapability], migratable: bool) -> Result<AccessMode, Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume capabilities are missing"));
    }
    let mut found = AccessMode::ReadWriteOnce;
    for capability in capabilities {
        match check(capability)? {
            AccessMode::ReadWriteMany if !is_block(capability) || !migratable => {
                return Err(Status::invalid_argument(NO_SHARES));
            }
            AccessMode::ReadWriteOnce => {}
            mode => found = mode,
        }
    }
    Ok(found)
}

/// One capability by itself: it is complete, and its mode is known.
pub(super) fn check(capability: &VolumeCapability) -> Result<AccessMode, Status> {
    if capability.access_type.is_none() {
        return Err(Status::invalid_argument("a volume capability says neither block nor mount"));
    }
    let mode = capability.access_mode.as_ref().map(|held| Mode::try_from(held.mode).unwrap_or(Mode::Unknown));
    match mode {
        Some(Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter) => Ok(AccessMode::ReadWriteOnce),
        Some(Mode::SingleNodeSingleWriter) => Ok(AccessMode::ReadWriteOncePod),
        Some(Mode::MultiNodeMultiWriter) => Ok(AccessMode::ReadWriteMany),
        Some(other) => Err(Status::invalid_argument(format!("access mode {} is not provided", other.as_str_name()))),
        None => Err(Status::invalid_argument("a volume capability has no access mode")),
    }
}

pub(super) fn is_block(capability: &VolumeCapability) -> bool {
    matches!(capability.access_type, Some(AccessType::Block(_)))
}
