//! Who the driver is, and whether it is ready.

use tonic::{Request, Response, Status};

use super::Driver;
use crate::proto::identity_server::Identity;
use crate::proto::plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: super::NAME.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: service::Type| plugin_capability::Type::Service(Service { r#type: kind.into() });
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let all = [
            service(service::Type::ControllerService),
            service(service::Type::VolumeAccessibilityConstraints),
            plugin_capability::Type::VolumeExpansion(online),
        ];
        let capabilities = all.map(|kind| PluginCapability { r#type: Some(kind) }).into();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(self.0.view.is_ready()) }))
    }
}
