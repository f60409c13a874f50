//! The node half: devices become file systems and mounts.
//!
//! ```text
//!   device ── stage ──► <staging>            (file system)  ── publish ──► <target>   bind mount, read-only if asked
//!          └─ stage ──► <staging>/<volume>   (block: file)  ── publish ──► <target>   bind mount of the device
//! ```

mod ext;
mod filesystem;
mod mounts;
mod publish;
mod stage;
mod stats;

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::Api;
use tonic::{Request, Response, Status};

use super::Driver;
use crate::proto::node_server::Node;
use crate::proto::node_service_capability::rpc::Type as Rpc;
use crate::proto::node_service_capability::{self, Rpc as Held};
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, Topology,
};

const CAPABILITIES: [Rpc; 5] =
    [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::SingleNodeMultiWriter, Rpc::VolumeCondition];

/// Labels of a node that say where it is.
const TOPOLOGY: [&str; 3] = ["kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Held { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.node().to_owned();
        let api: Api<KubeNode> = Api::all(self.0.client.clone());
        let found = api.get_opt(&node_id).await;
        let found = found.map_err(|error| Status::unavailable(format!("get node {node_id}: {error}")))?;
        let labels = found.and_then(|node| node.metadata.labels).unwrap_or_default();
        let segments = TOPOLOGY.iter().filter_map(|key| Some(((*key).to_owned(), labels.get(*key)?.clone())));
        let accessible_topology = Some(Topology { segments: segments.collect() });
        Ok(Response::new(NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        stage::stage(&self.0, self.node(), request.into_inner()).await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        stage::unstage(&self.0, self.node(), &request.volume_id, &request.staging_target_path).await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        publish::publish(&self.0, request.into_inner()).await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        publish::unpublish(&self.0, &request.volume_id, &request.target_path).await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        stage::expand(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        stats::stats(&self.0, &request.into_inner()).await.map(Response::new)
    }
}

impl Driver {
    fn node(&self) -> &str {
        self.0.options.node.as_deref().unwrap_or_default()
    }
}

/// A field that has to be there.
fn required<'a>(name: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() { Err(Status::invalid_argument(format!("{name} is missing"))) } else { Ok(value) }
}
