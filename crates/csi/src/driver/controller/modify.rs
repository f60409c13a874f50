//! A volume that exists is to be kept differently: what a VolumeAttributesClass asks for.

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tether_crd::{NAMESPACE, Volume};
use tonic::Status;

use super::super::{Inner, parameters};
use super::{api_error, required};
use crate::proto::ControllerModifyVolumeRequest;

/// Returns when it is written down; the controllers follow, which may take as long as a new copy takes.
pub(super) async fn modify(driver: &Inner, request: &ControllerModifyVolumeRequest) -> Result<(), Status> {
    let id = required("volume_id", &request.volume_id)?;
    let _claim = driver.busy.claim(id)?;
    driver.view.ready().await;
    if driver.view.volume(id).is_none() {
        return Err(Status::not_found(format!("volume {id} does not exist")));
    }
    let changes = parameters::changes(&request.mutable_parameters);
    let changes = changes.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let api: Api<Volume> = Api::namespaced(driver.client.clone(), NAMESPACE);
    let params = PatchParams { field_manager: Some("tether-csi".into()), ..Default::default() };
    let written = api.patch(id, &params, &Patch::Merge(json!({ "spec": changes }))).await;
    driver.view.volumes.wrote(written.map_err(|error| api_error("change volume", &error))?);
    Ok(())
}
