//! Getting to know a driver: whether it is ready, who it is, what it can do.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::{Code, Request, Status};

use crate::connect::Connection;
use crate::proto::controller_client::ControllerClient;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::identity_client::IdentityClient;
use crate::proto::plugin_capability::{self, service};
use crate::proto::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest,
    controller_service_capability,
};

/// Between two probes of a driver that is not ready.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// For questions that a driver answers from memory.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a driver cannot be worked with.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    #[error("the CSI driver failed at {call}: {} ({:?})", .source.message(), .source.code())]
    Refused { call: &'static str, source: Box<Status> },
    #[error("the CSI driver has no name")]
    Nameless,
}

/// What a driver said of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    pub name: String,
    /// Empty where it has no controller service.
    pub controller: BTreeSet<i32>,
    /// Where volumes are matters to it.
    pub topology: bool,
}

impl About {
    /// Whether its controller service has the capability.
    pub fn can(&self, capability: Rpc) -> bool {
        self.controller.contains(&i32::from(capability))
    }
}

/// Waits until the driver is ready, and asks it. `probe_timeout` is for each probe.
pub async fn handshake(connection: &Connection, probe_timeout: Duration) -> Result<About, HandshakeError> {
    let mut identity = IdentityClient::new(connection.channel.clone());
    until_ready(&mut identity, probe_timeout).await?;
    let info = identity.get_plugin_info(limited(GetPluginInfoRequest {})).await;
    let name = info.map_err(|source| refused("GetPluginInfo", source))?.into_inner().name;
    if name.is_empty() {
        return Err(HandshakeError::Nameless);
    }
    let plugin = identity.get_plugin_capabilities(limited(GetPluginCapabilitiesRequest {})).await;
    let plugin = plugin.map_err(|source| refused("GetPluginCapabilities", source))?.into_inner();
    let services: BTreeSet<i32> = plugin
        .capabilities
        .into_iter()
        .filter_map(|capability| match capability.r#type {
            Some(plugin_capability::Type::Service(service)) => Some(service.r#type),
            _ => None,
        })
        .collect();
    let mut controller = BTreeSet::new();
    if services.contains(&i32::from(service::Type::ControllerService)) {
        let mut client = ControllerClient::new(connection.channel.clone());
        let answer = client.controller_get_capabilities(limited(ControllerGetCapabilitiesRequest {})).await;
        let answer = answer.map_err(|source| refused("ControllerGetCapabilities", source))?.into_inner();
        controller.extend(answer.capabilities.into_iter().filter_map(|capability| {
            let controller_service_capability::Type::Rpc(rpc) = capability.r#type?;
            Some(rpc.r#type)
        }));
    }
    let topology = services.contains(&i32::from(service::Type::VolumeAccessibilityConstraints));
    Ok(About { name, controller, topology })
}

async fn until_ready(
    identity: &mut IdentityClient<tonic::transport::Channel>,
    timeout: Duration,
) -> Result<(), HandshakeError> {
    loop {
        let mut request = Request::new(ProbeRequest {});
        request.set_timeout(timeout);
        match identity.probe(request).await {
            // A driver that does not say is ready.
            Ok(answer) if answer.get_ref().ready.unwrap_or(true) => return Ok(()),
            Ok(_) => tracing::info!("the CSI driver is not ready yet"),
            Err(status) if matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) => {
                tracing::warn!("the CSI driver did not answer a probe in time");
            }
            Err(source) => return Err(refused("Probe", source)),
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
}

fn limited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(QUESTION_TIMEOUT);
    request
}

fn refused(call: &'static str, source: Status) -> HandshakeError {
    HandshakeError::Refused { call, source: Box::new(source) }
}
