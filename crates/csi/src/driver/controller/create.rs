//! Volumes come and go.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PostParams};
use tether_crd::volume::State;
use tether_crd::{FINALIZER, NAMESPACE, Volume, settings};
use tonic::Status;

use super::super::capability::{access_mode, is_block};
use super::super::parameters::{self, volume_id};
use super::super::{Inner, PATIENCE};
use super::{api_error, required, snapshot};
use crate::proto::volume_capability::AccessType;
use crate::proto::{self, CreateVolumeRequest, CreateVolumeResponse, VolumeContentSource, volume_content_source};

pub(super) async fn create(driver: &Inner, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
    let id = volume_id(required("name", &request.name)?);
    let _claim = driver.busy.claim(id.clone())?;
    driver.view.ready().await;
    let source = source(driver, request.volume_content_source.as_ref())?;
    let unusable = |error: parameters::ParameterError| match error {
        parameters::ParameterError::TooLarge(_) => Status::out_of_range(error.to_string()),
        other => Status::invalid_argument(other.to_string()),
    };
    let migratable = parameters::is_migratable(&request.parameters).map_err(unusable)?;
    let mode = access_mode(&request.volume_capabilities, migratable)?;
    let mut range = request.capacity_range.unwrap_or_default();
    if let Some(source) = &source {
        if range.limit_bytes > 0 && range.limit_bytes < source.bytes {
            let words = format!("{} has {} bytes, more than limit_bytes", source.data_source, source.bytes);
            return Err(Status::out_of_range(words));
        }
        if range.required_bytes > 0 && range.required_bytes < source.bytes {
            let words = format!("{} has {} bytes, more than required_bytes", source.data_source, source.bytes);
            return Err(Status::out_of_range(words));
        }
        range.required_bytes = range.required_bytes.max(source.bytes);
    }
    let size = parameters::size(range.required_bytes, range.limit_bytes).map_err(unusable)?;
    let fs_type = request.volume_capabilities.iter().find_map(|capability| match &capability.access_type {
        Some(AccessType::Mount(mount)) if !is_block(capability) => Some(mount.fs_type.as_str()),
        _ => None,
    });
    // What a VolumeAttributesClass says counts more than what the StorageClass does.
    parameters::changes(&request.mutable_parameters).map_err(unusable)?;
    let mut asked = request.parameters.clone();
    asked.extend(request.mutable_parameters);
    let mut spec = parameters::spec(&asked, size, mode, fs_type.unwrap_or_default()).map_err(unusable)?;
    if spec.number_of_replicas == 0 {
        spec.number_of_replicas = driver.view.settings().number(settings::DEFAULT_REPLICA_COUNT);
    }
    spec.data_source = source.map(|source| source.data_source).unwrap_or_default();
    let data_source = spec.data_source.clone();
    let api: Api<Volume> = Api::namespaced(driver.client.clone(), NAMESPACE);
    let labels = [(tether_crd::labels::VOLUME.to_owned(), id.clone())].into();
    let metadata = ObjectMeta {
        name: Some(id.clone()),
        namespace: Some(NAMESPACE.into()),
        labels: Some(labels),
        finalizers: Some(vec![FINALIZER.into()]),
        ..Default::default()
    };
    let volume = Volume { metadata, spec, ..Default::default() };
    match api.create(&PostParams::default(), &volume).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let held = api.get(&id).await.map_err(|error| api_error("get volume", &error))?;
            is_same(&held, range.required_bytes, range.limit_bytes, &data_source)?;
        }
        Err(error) => return Err(api_error("create volume", &error)),
    }
    let made = driver.view.until(PATIENCE, || {
        let volume = driver.view.volume(&id)?;
        // A new volume is detached first: only then it can be grown or attached.
        (!matches!(volume.status.state, State::Unset | State::Creating | State::Detaching)).then_some(volume)
    });
    let Some(made) = made.await else {
        return Err(Status::deadline_exceeded(format!("volume {id} was asked for, and is not made yet")));
    };
    Ok(CreateVolumeResponse {
        volume: Some(proto::Volume {
            capacity_bytes: made.spec.size.0,
            volume_id: made.metadata.name.clone().unwrap_or_default(),
            volume_context: request.parameters,
            content_source: request.volume_content_source,
            accessible_topology: Vec::new(),
        }),
    })
}

/// What a volume is to be a copy of.
struct Original {
    /// As the volume's spec says it.
    data_source: String,
    bytes: i64,
}

fn source(driver: &Inner, asked: Option<&VolumeContentSource>) -> Result<Option<Original>, Status> {
    let Some(asked) = asked else { return Ok(None) };
    match &asked.r#type {
        Some(volume_content_source::Type::Snapshot(asked)) => {
            let id = required("snapshot_id", &asked.snapshot_id)?;
            let held = snapshot::find(driver, id);
            let held = held.ok_or_else(|| Status::not_found(format!("snapshot {id} does not exist")))?;
            if !held.status.ready_to_use {
                return Err(Status::unavailable(format!("snapshot {id} cannot be used: {}", held.status.error)));
            }
            Ok(Some(Original { data_source: id.to_owned(), bytes: held.status.restore_size }))
        }
        Some(volume_content_source::Type::Volume(asked)) => {
            let id = required("volume_id", &asked.volume_id)?;
            let held = driver.view.volume(id).filter(|volume| volume.metadata.deletion_timestamp.is_none());
            let held = held.ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
            Ok(Some(Original { data_source: format!("vol://{id}"), bytes: held.spec.size.0 }))
        }
        None => Err(Status::invalid_argument("volume_content_source names neither a snapshot nor a volume")),
    }
}

/// A volume that was asked for before has to be what is asked for now.
fn is_same(held: &Volume, required: i64, limit: i64, data_source: &str) -> Result<(), Status> {
    if held.metadata.deletion_timestamp.is_some() {
        return Err(Status::aborted("a volume of this name is being deleted"));
    }
    let size = held.spec.size.0;
    if size < required || (limit > 0 && size > limit) || parameters::size(required, limit).ok() != Some(size) {
        return Err(Status::already_exists(format!("a volume of this name exists, with {size} bytes")));
    }
    if held.spec.data_source != data_source {
        let words = format!("a volume of this name exists, made from {:?}", held.spec.data_source);
        return Err(Status::already_exists(words));
    }
    Ok(())
}

pub(super) async fn delete(driver: &Inner, id: &str) -> Result<(), Status> {
    let id = required("volume_id", id)?;
    let _claim = driver.busy.claim(id)?;
    driver.view.ready().await;
    if let Some(attachment) = driver.view.attachment(id) {
        let csi = |ticket: &&tether_crd::attachment::Ticket| ticket.kind == tether_crd::attachment::TicketType::Csi;
        if let Some(ticket) = attachment.spec.attachment_tickets.values().find(csi) {
            return Err(Status::failed_precondition(format!("volume {id} is published to node {}", ticket.node_id)));
        }
    }
    let api: Api<Volume> = Api::namespaced(driver.client.clone(), NAMESPACE);
    match api.delete(id, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 400 | 422) => return Ok(()),
        Err(error) => return Err(api_error("delete volume", &error)),
    }
    let gone = driver.view.until(PATIENCE, || driver.view.volume(id).is_none().then_some(()));
    gone.await.ok_or_else(|| Status::deadline_exceeded(format!("volume {id} is being deleted")))
}
