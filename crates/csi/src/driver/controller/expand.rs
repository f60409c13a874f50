//! A volume grows.

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tether_crd::volume::State;
use tether_crd::{NAMESPACE, Volume};
use tether_plan::clone::is_pending;
use tonic::Status;

use super::super::capability::is_block;
use super::super::{Inner, PATIENCE, parameters};
use super::{api_error, required};
use crate::proto::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};

pub(super) async fn expand(
    driver: &Inner,
    request: ControllerExpandVolumeRequest,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let id = required("volume_id", &request.volume_id)?;
    let range = request.capacity_range.ok_or_else(|| Status::invalid_argument("capacity_range is missing"))?;
    let _claim = driver.busy.claim(id)?;
    driver.view.ready().await;
    let volume = driver.view.volume(id).ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    let size = parameters::size(range.required_bytes, range.limit_bytes)
        .map_err(|error| Status::out_of_range(error.to_string()))?
        .max(volume.spec.size.0);
    if range.limit_bytes > 0 && size > range.limit_bytes {
        return Err(Status::out_of_range(format!("volume {id} has {size} bytes already")));
    }
    // One that is on its way there or away from there is waited for.
    let settled = driver.view.until(PATIENCE, || {
        let volume = driver.view.volume(id)?;
        matches!(volume.status.state, State::Attached | State::Detached).then_some(volume)
    });
    let Some(volume) = settled.await else {
        return Err(Status::failed_precondition(format!("volume {id} is {}", volume.status.state)));
    };
    if volume.is_migrating() {
        return Err(Status::failed_precondition(format!("volume {id} is being migrated")));
    }
    if is_pending(&volume) {
        return Err(Status::failed_precondition(format!("volume {id} is being copied from its source")));
    }
    let was_attached = volume.status.state == State::Attached;
    if size > volume.spec.size.0 {
        let api: Api<Volume> = Api::namespaced(driver.client.clone(), NAMESPACE);
        let body = json!({ "spec": { "size": size.to_string() } });
        let patched = api.patch(id, &PatchParams::default(), &Patch::Merge(body)).await;
        patched.map_err(|error| match &error {
            kube::Error::Api(status) if status.code == 422 => Status::out_of_range(status.message.clone()),
            _ => api_error("set size", &error),
        })?;
    }
    let grown = driver.view.until(PATIENCE, || {
        let volume = driver.view.volume(id)?;
        let engines = driver.view.engines.find(id);
        let is_told = engines.iter().all(|engine| engine.spec.volume_size.0 >= size);
        let serves = engines.iter().all(|engine| {
            engine.status.current_state != tether_crd::engine::InstanceState::Running
                || engine.status.current_size.0 >= size
        });
        (volume.spec.size.0 >= size && is_told && serves && !volume.status.expansion_required).then_some(())
    });
    if grown.await.is_none() {
        return Err(Status::deadline_exceeded(format!("volume {id} is being grown to {size} bytes")));
    }
    let block = request.volume_capability.as_ref().is_some_and(is_block);
    Ok(ControllerExpandVolumeResponse { capacity_bytes: size, node_expansion_required: was_attached && !block })
}
