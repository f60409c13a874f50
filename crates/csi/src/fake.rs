//! A CSI driver without storage: it answers at once, or as it was told to, and remembers what it was asked.
//!
//! Tests script it; `tether bench attacher` measures with it what the caller costs.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use crate::proto::controller_server::{Controller, ControllerServer};
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::identity_server::{Identity, IdentityServer};
use crate::proto::{
    self, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, ListVolumesRequest, ListVolumesResponse, PluginCapability, ProbeRequest, ProbeResponse,
    Volume, list_volumes_response,
};
use crate::serve::{ServeError, serve};

/// What the driver is, and what it was made to do.
#[derive(Clone)]
pub struct Driver {
    profile: Arc<Profile>,
    state: Arc<Mutex<State>>,
}

/// What the driver says of itself.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: String,
    /// Without it the driver has no controller service at all.
    pub controller: bool,
    /// Its volumes are not equally near to all nodes.
    pub topology: bool,
    pub capabilities: Vec<Rpc>,
}

impl Profile {
    /// A driver that publishes.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), controller: true, topology: false, capabilities: vec![Rpc::PublishUnpublishVolume] }
    }

    /// A driver that makes volumes where it is told to.
    pub fn provisions(name: &str) -> Self {
        Self { topology: true, ..Self::new(name).with(Rpc::CreateDeleteVolume) }
    }

    pub fn with(mut self, capability: Rpc) -> Self {
        self.capabilities.push(capability);
        self
    }
}

/// The call that an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    Probe,
    Create,
    Delete,
    Publish,
    Unpublish,
    List,
}

/// An answer, for the next call of its kind.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The context that a publish returns.
    Context(BTreeMap<String, String>),
    Fail(Code, String),
    /// Nothing, for so long; then as usual.
    Delay(Duration),
    /// A probe that says that the driver is not ready.
    NotReady,
}

/// A call as it came.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Create(CreateVolumeRequest),
    Delete(DeleteVolumeRequest),
    Publish(ControllerPublishVolumeRequest),
    Unpublish(ControllerUnpublishVolumeRequest),
}

#[derive(Default)]
struct State {
    answers: HashMap<Call, VecDeque<Answer>>,
    asked: Vec<Asked>,
    keep_asked: bool,
    published: BTreeMap<String, BTreeSet<String>>,
}

impl Driver {
    pub fn new(profile: Profile) -> Self {
        let state = State { keep_asked: true, ..State::default() };
        Self { profile: Arc::new(profile), state: Arc::new(Mutex::new(state)) }
    }

    /// The same without a memory of what was asked: for load.
    pub fn forgetful(self) -> Self {
        self.state.lock().keep_asked = false;
        self
    }

    /// The next call of this kind gets this answer; answers queue up.
    pub fn answer(&self, call: Call, answer: Answer) {
        self.state.lock().answers.entry(call).or_default().push_back(answer);
    }

    /// What was asked since the last time this was called.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().asked)
    }

    /// The nodes that a volume is published to.
    pub fn published(&self, volume: &str) -> BTreeSet<String> {
        self.state.lock().published.get(volume).cloned().unwrap_or_default()
    }

    /// Changes what is published without being asked, as a person at the storage's console would.
    pub fn set_published(&self, volume: &str, nodes: &[&str]) {
        let nodes: BTreeSet<String> = nodes.iter().map(|node| (*node).to_owned()).collect();
        self.state.lock().published.insert(volume.to_owned(), nodes);
    }

    /// Serves on a socket until `stop`.
    pub async fn serve(&self, listener: UnixListener, stop: CancellationToken) -> Result<(), ServeError> {
        let router = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()));
        serve(router, listener, stop.cancelled_owned()).await
    }

    async fn scripted(&self, call: Call) -> Result<Option<Answer>, Status> {
        let answer = self.state.lock().answers.get_mut(&call).and_then(VecDeque::pop_front);
        match answer {
            Some(Answer::Fail(code, message)) => Err(Status::new(code, message)),
            Some(Answer::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    fn note(&self, asked: Asked) {
        let mut state = self.state.lock();
        if state.keep_asked {
            state.asked.push(asked);
        }
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let info =
            GetPluginInfoResponse { name: self.profile.name.clone(), vendor_version: "0".into(), ..Default::default() };
        Ok(Response::new(info))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        use proto::plugin_capability::{Service, Type, service};
        let says = |is_so: bool, what: service::Type| {
            is_so.then_some(PluginCapability { r#type: Some(Type::Service(Service { r#type: what.into() })) })
        };
        let controller = says(self.profile.controller, service::Type::ControllerService);
        let topology = says(self.profile.topology, service::Type::VolumeAccessibilityConstraints);
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: controller.into_iter().chain(topology).collect(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        let ready = !matches!(self.scripted(Call::Probe).await?, Some(Answer::NotReady));
        Ok(Response::new(ProbeResponse { ready: Some(ready) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(Asked::Create(request.clone()));
        self.scripted(Call::Create).await?;
        let volume = Volume {
            volume_id: format!("handle-{}", request.name),
            capacity_bytes: request.capacity_range.map_or(0, |range| range.required_bytes),
            accessible_topology: request.accessibility_requirements.map_or_else(Vec::new, |asked| asked.requisite),
            ..Default::default()
        };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        self.note(Asked::Delete(request.into_inner()));
        self.scripted(Call::Delete).await?;
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(Asked::Publish(request.clone()));
        let answer = self.scripted(Call::Publish).await?;
        self.state.lock().published.entry(request.volume_id).or_default().insert(request.node_id);
        let publish_context = match answer {
            Some(Answer::Context(context)) => context.into_iter().collect(),
            _ => HashMap::new(),
        };
        Ok(Response::new(ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.note(Asked::Unpublish(request.clone()));
        self.scripted(Call::Unpublish).await?;
        let mut state = self.state.lock();
        if let Some(nodes) = state.published.get_mut(&request.volume_id) {
            nodes.remove(&request.node_id);
            if nodes.is_empty() {
                state.published.remove(&request.volume_id);
            }
        }
        Ok(Response::new(ControllerUnpublishVolumeResponse {}))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.scripted(Call::List).await?;
        let request = request.into_inner();
        let from: usize = match request.starting_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| Status::aborted("no such token"))?,
        };
        let state = self.state.lock();
        let most = usize::try_from(request.max_entries).ok().filter(|most| *most > 0).unwrap_or(usize::MAX);
        let entry = |(id, nodes): (&String, &BTreeSet<String>)| list_volumes_response::Entry {
            volume: Some(Volume { volume_id: id.clone(), ..Default::default() }),
            status: Some(list_volumes_response::VolumeStatus {
                published_node_ids: nodes.iter().cloned().collect(),
                volume_condition: None,
            }),
        };
        let entries: Vec<_> = state.published.iter().skip(from).take(most).map(entry).collect();
        let next = from + entries.len();
        let next_token = if next < state.published.len() { next.to_string() } else { String::new() };
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        use proto::controller_service_capability::{Rpc as Held, Type};
        let capability =
            |rpc: &Rpc| ControllerServiceCapability { r#type: Some(Type::Rpc(Held { r#type: (*rpc).into() })) };
        let capabilities = self.profile.capabilities.iter().map(capability).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }
}
