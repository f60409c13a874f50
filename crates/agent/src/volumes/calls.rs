//! Calls to a driver's node service, as a kubelet makes them: one connection and one deadline for each operation.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use tether_csi::connect::{Address, connect};
use tether_csi::proto::node_client::NodeClient;
use tether_csi::proto::node_service_capability::rpc::Type as Rpc;
use tether_csi::proto::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use tether_csi::proto::{
    CapacityRange, NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    VolumeCapability, node_service_capability,
};
use tether_plan::attacher::Content;
use tether_plan::kubelet::volume::{Class, Wanted};
use tonic::transport::Channel;
use tonic::{Request, Status};

/// A kubelet's limit for an operation.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Why a call to a driver came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NoDriver(String),
    #[error("{0}")]
    Unreachable(#[from] tether_csi::connect::ConnectError),
    #[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
    Refused(Box<Status>),
    #[error("{0}")]
    Host(#[from] std::io::Error),
    #[error("{0}")]
    Object(String),
    /// The driver did its part; what is left to do failed.
    #[error("{0}")]
    Afterwards(String),
}

impl CallError {
    pub fn class(&self) -> Class {
        match self {
            Self::NoDriver(_) | Self::Unreachable(_) | Self::Object(_) | Self::Host(_) => Class::Transient,
            Self::Refused(status) => Class::of(status.code().into()),
            Self::Afterwards(_) => Class::Uncertain,
        }
    }
}

impl From<Status> for CallError {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

pub(super) type Secrets = BTreeMap<String, String>;

/// A driver that can be called.
pub(super) struct Driver {
    client: NodeClient<Channel>,
    capabilities: Vec<i32>,
}

impl Driver {
    /// Connects to the driver and asks what it can do.
    pub async fn open(name: &str, socket: &Path) -> Result<Self, CallError> {
        if !socket.exists() {
            return Err(CallError::NoDriver(name.to_owned()));
        }
        let connection = connect(&Address(socket.to_owned())).await?;
        let mut client = NodeClient::new(connection.channel);
        let answer = client.node_get_capabilities(limited(NodeGetCapabilitiesRequest {})).await?.into_inner();
        let capabilities = answer.capabilities.into_iter().filter_map(|capability| {
            let node_service_capability::Type::Rpc(rpc) = capability.r#type?;
            Some(rpc.r#type)
        });
        Ok(Self { client, capabilities: capabilities.collect() })
    }

    pub fn can(&self, rpc: Rpc) -> bool {
        self.capabilities.contains(&i32::from(rpc))
    }

    pub async fn info(&mut self) -> Result<NodeGetInfoResponse, CallError> {
        Ok(self.client.node_get_info(limited(NodeGetInfoRequest {})).await?.into_inner())
    }

    pub async fn stage(
        &mut self,
        wanted: &Wanted,
        staging: &Path,
        context: &BTreeMap<String, String>,
        secrets: Secrets,
        group: Option<i64>,
    ) -> Result<(), CallError> {
        if !self.can(Rpc::StageUnstageVolume) {
            return Ok(());
        }
        let request = NodeStageVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: map(context),
            staging_target_path: text(staging),
            volume_capability: Some(self.capability(wanted, group)),
            secrets: secrets.into_iter().collect(),
            volume_context: map(&wanted.attributes),
        };
        self.client.node_stage_volume(limited(request)).await?;
        Ok(())
    }

    pub async fn publish(&mut self, wanted: &Wanted, order: Publish<'_>) -> Result<(), CallError> {
        let with_staging = wanted.is_block() || self.can(Rpc::StageUnstageVolume);
        let mut volume_context = map(&wanted.attributes);
        volume_context.extend(order.more_context);
        let request = NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: map(order.context),
            staging_target_path: if with_staging { text(order.staging) } else { String::new() },
            target_path: text(order.target),
            volume_capability: Some(self.capability(wanted, order.group)),
            readonly: wanted.read_only,
            secrets: order.secrets.into_iter().collect(),
            volume_context,
        };
        self.client.node_publish_volume(limited(request)).await?;
        Ok(())
    }

    pub async fn unpublish(&mut self, handle: &str, target: &Path) -> Result<(), CallError> {
        let request = NodeUnpublishVolumeRequest { volume_id: handle.to_owned(), target_path: text(target) };
        self.client.node_unpublish_volume(limited(request)).await?;
        Ok(())
    }

    pub async fn unstage(&mut self, handle: &str, staging: &Path) -> Result<(), CallError> {
        if !self.can(Rpc::StageUnstageVolume) {
            return Ok(());
        }
        let request = NodeUnstageVolumeRequest { volume_id: handle.to_owned(), staging_target_path: text(staging) };
        self.client.node_unstage_volume(limited(request)).await?;
        Ok(())
    }

    /// Grows what is on the volume; false if the driver has nothing to do on a node.
    pub async fn expand(
        &mut self,
        wanted: &Wanted,
        staging: &Path,
        target: &Path,
        secrets: Secrets,
    ) -> Result<bool, CallError> {
        if !self.can(Rpc::ExpandVolume) {
            return Ok(false);
        }
        let request = NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: text(target),
            capacity_range: Some(CapacityRange { required_bytes: wanted.capacity.volume_bytes, limit_bytes: 0 }),
            staging_target_path: text(staging),
            volume_capability: Some(self.capability(wanted, None)),
            secrets: secrets.into_iter().collect(),
        };
        self.client.node_expand_volume(limited(request)).await?;
        Ok(true)
    }

    fn capability(&self, wanted: &Wanted, group: Option<i64>) -> VolumeCapability {
        let access_type = match &wanted.content {
            Content::Block => AccessType::Block(BlockVolume {}),
            Content::Mount { fs_type, flags } => AccessType::Mount(MountVolume {
                fs_type: fs_type.clone(),
                mount_flags: flags.clone(),
                volume_mount_group: group
                    .filter(|_| self.can(Rpc::VolumeMountGroup))
                    .map(|group| group.to_string())
                    .unwrap_or_default(),
            }),
        };
        let mode = wanted.access_mode(self.can(Rpc::SingleNodeMultiWriter)) as i32;
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode }) }
    }
}

/// What one pod's mount takes beside the volume.
pub(super) struct Publish<'a> {
    pub staging: &'a Path,
    pub target: &'a Path,
    pub context: &'a BTreeMap<String, String>,
    pub more_context: Vec<(String, String)>,
    pub secrets: Secrets,
    pub group: Option<i64>,
}

fn limited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TIMEOUT);
    request
}

fn map(from: &BTreeMap<String, String>) -> HashMap<String, String> {
    from.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
