//! The controller half: volumes come, grow and go, and are made available to nodes.

mod capacity;
mod create;
mod expand;
mod list;
mod modify;
mod publish;
mod snapshot;

pub(super) use self::list::health;
use tonic::{Code, Request, Response, Status};

use super::Driver;
use crate::proto::controller_server::Controller;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::controller_service_capability::{self, Rpc as Held};
use crate::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeRequest, ControllerGetVolumeResponse,
    ControllerModifyVolumeRequest, ControllerModifyVolumeResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse,
    GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};

/// What can be asked for.
const CAPABILITIES: [Rpc; 14] = [
    Rpc::CreateDeleteVolume,
    Rpc::PublishUnpublishVolume,
    Rpc::ExpandVolume,
    Rpc::GetCapacity,
    Rpc::ListVolumes,
    Rpc::ListVolumesPublishedNodes,
    Rpc::GetVolume,
    Rpc::VolumeCondition,
    Rpc::SingleNodeMultiWriter,
    Rpc::CreateDeleteSnapshot,
    Rpc::ListSnapshots,
    Rpc::GetSnapshot,
    Rpc::CloneVolume,
    Rpc::ModifyVolume,
];

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |rpc: Rpc| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Held { r#type: rpc.into() })),
        };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        create::create(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        create::delete(&self.0, &request.into_inner().volume_id).await?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        publish::publish(&self.0, request.into_inner()).await?;
        Ok(Response::new(ControllerPublishVolumeResponse::default()))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        publish::unpublish(&self.0, &request.volume_id, &request.node_id).await?;
        Ok(Response::new(ControllerUnpublishVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        expand::expand(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        list::validate(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        list::list(&self.0, &request.into_inner()).await.map(Response::new)
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        list::get(&self.0, &request.into_inner().volume_id).await.map(Response::new)
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        modify::modify(&self.0, &request.into_inner()).await?;
        Ok(Response::new(ControllerModifyVolumeResponse {}))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        capacity::capacity(&self.0, &request.into_inner()).await.map(Response::new)
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        snapshot::create(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        snapshot::delete(&self.0, &request.into_inner().snapshot_id).await?;
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        snapshot::get(&self.0, &request.into_inner().snapshot_id).await.map(Response::new)
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        snapshot::list(&self.0, &request.into_inner()).await.map(Response::new)
    }
}

/// An error of the API server as CSI says it.
fn api_error(what: &str, error: &kube::Error) -> Status {
    let code = match error {
        kube::Error::Api(status) => match status.code {
            404 => Code::NotFound,
            409 => Code::Aborted,
            400 | 422 => Code::InvalidArgument,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            429 | 500..=599 => Code::Unavailable,
            _ => Code::Internal,
        },
        _ => Code::Unavailable,
    };
    Status::new(code, format!("{what}: {error}"))
}

/// A field that has to be there.
fn required<'a>(name: &str, value: &'a str) -> Result<&'a str, Status> {
    if value.is_empty() { Err(Status::invalid_argument(format!("{name} is missing"))) } else { Ok(value) }
}
