//! Volumes come and go.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, PostParams};
use tether_crd::volume::State;
use tether_crd::{FINALIZER, NAMESPACE, Volume, settings};
use tonic::Status;

use super::super::capability::{access_mode, is_block};
use super::super::parameters::{self, volume_id};
use super::super::{Inner, PATIENCE};
use super::{api_error, required};
use crate::proto::volume_capability::AccessType;
use crate::proto::{self, CreateVolumeRequest, CreateVolumeResponse};

pub(super) async fn create(driver: &Inner, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
    let id = volume_id(required("name", &request.name)?);
    let _claim = driver.busy.claim(id.clone())?;
    driver.view.ready().await;
    if request.volume_content_source.is_some() {
        return Err(Status::invalid_argument("volumes cannot be made from snapshots or other volumes yet"));
    }
    let unusable = |error: parameters::ParameterError| match error {
        parameters::ParameterError::TooLarge(_) => Status::out_of_range(error.to_string()),
        other => Status::invalid_argument(other.to_string()),
    };
    let migratable = parameters::is_migratable(&request.parameters).map_err(unusable)?;
    let mode = access_mode(&request.volume_capabilities, migratable)?;
    let range = request.capacity_range.unwrap_or_default();
    let size = parameters::size(range.required_bytes, range.limit_bytes).map_err(unusable)?;
    let fs_type = request.volume_capabilities.iter().find_map(|capability| match &capability.access_type {
        Some(AccessType::Mount(mount)) if !is_block(capability) => Some(mount.fs_type.as_str()),
        _ => None,
    });
    let mut spec = parameters::spec(&request.parameters, size, mode, fs_type.unwrap_or_default()).map_err(unusable)?;
    if spec.number_of_replicas == 0 {
        spec.number_of_replicas = default_replicas(&driver.view.setting(settings::DEFAULT_REPLICA_COUNT));
    }
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
            is_same(&held, range.required_bytes, range.limit_bytes)?;
        }
        Err(error) => return Err(api_error("create volume", &error)),
    }
    let made = driver.view.until(PATIENCE, || {
        let volume = driver.view.volume(&id)?;
        (!matches!(volume.status.state, State::Unset | State::Creating)).then_some(volume)
    });
    let Some(made) = made.await else {
        return Err(Status::deadline_exceeded(format!("volume {id} was asked for, and is not made yet")));
    };
    Ok(CreateVolumeResponse { volume: Some(answer(&made, request.parameters)) })
}

fn answer(volume: &Arc<Volume>, context: std::collections::HashMap<String, String>) -> proto::Volume {
    proto::Volume {
        capacity_bytes: volume.spec.size.0,
        volume_id: volume.metadata.name.clone().unwrap_or_default(),
        volume_context: context,
        ..Default::default()
    }
}

/// A volume that was asked for before has to be what is asked for now.
fn is_same(held: &Volume, required: i64, limit: i64) -> Result<(), Status> {
    if held.metadata.deletion_timestamp.is_some() {
        return Err(Status::aborted("a volume of this name is being deleted"));
    }
    let size = held.spec.size.0;
    if size < required || (limit > 0 && size > limit) || parameters::size(required, limit).ok() != Some(size) {
        return Err(Status::already_exists(format!("a volume of this name exists, with {size} bytes")));
    }
    Ok(())
}

/// The setting is a number, or one for each data engine.
fn default_replicas(setting: &str) -> i64 {
    /// What is kept if the setting cannot be read.
    const REPLICAS: i64 = 3;
    let by_engine = || {
        let all: serde_json::Value = serde_json::from_str(setting).ok()?;
        all["v1"].as_str()?.parse().ok()
    };
    setting.parse().ok().or_else(by_engine).unwrap_or(REPLICAS)
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
