//! What there is: volumes, where they are published, how they are.

use std::ops::Range;
use std::sync::Arc;

use kube::ResourceExt;
use tether_crd::Volume;
use tether_crd::attachment::TicketType;
use tether_crd::volume::Robustness;
use tonic::Status;

use super::super::Inner;
use super::super::capability::{access_mode, check};
use super::required;
use crate::proto::{
    self, ControllerGetVolumeResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse, VolumeCondition, controller_get_volume_response, list_volumes_response,
    validate_volume_capabilities_response,
};

pub(super) async fn list(driver: &Inner, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Status> {
    driver.view.ready().await;
    let volumes = driver.view.volumes.list();
    let page = Page::of(volumes.len(), request.max_entries, &request.starting_token)?;
    let entry = |volume: &Arc<Volume>| list_volumes_response::Entry {
        volume: Some(described(volume)),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids: published(driver, &volume.name_any()),
            volume_condition: Some(health(volume)),
        }),
    };
    Ok(ListVolumesResponse {
        entries: volumes[page.range.clone()].iter().map(entry).collect(),
        next_token: page.next(),
    })
}

/// The part of a list that is answered. A token is the place where the next part begins.
pub(super) struct Page {
    pub(super) range: Range<usize>,
    total: usize,
}

impl Page {
    pub(super) fn of(total: usize, max_entries: i32, token: &str) -> Result<Self, Status> {
        let most = usize::try_from(max_entries).map_err(|_| Status::invalid_argument("max_entries is negative"))?;
        let from = match token {
            "" => 0,
            token => token.parse::<usize>().ok().filter(|from| *from <= total).ok_or_else(|| {
                Status::aborted(format!("starting_token {token:?} is not one of this driver's; begin again"))
            })?,
        };
        let end = if most == 0 { total } else { from.saturating_add(most).min(total) };
        Ok(Self { range: from..end, total })
    }

    pub(super) fn next(&self) -> String {
        if self.range.end < self.total { self.range.end.to_string() } else { String::new() }
    }
}

pub(super) async fn get(driver: &Inner, id: &str) -> Result<ControllerGetVolumeResponse, Status> {
    let id = required("volume_id", id)?;
    driver.view.ready().await;
    let volume = driver.view.volume(id).ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    Ok(ControllerGetVolumeResponse {
        volume: Some(described(&volume)),
        status: Some(controller_get_volume_response::VolumeStatus {
            published_node_ids: published(driver, id),
            volume_condition: Some(health(&volume)),
        }),
    })
}

fn described(volume: &Volume) -> proto::Volume {
    proto::Volume { capacity_bytes: volume.spec.size.0, volume_id: volume.name_any(), ..Default::default() }
}

/// The nodes that tickets of pods are for.
fn published(driver: &Inner, id: &str) -> Vec<String> {
    let attachment = driver.view.attachment(id);
    let tickets = attachment.iter().flat_map(|attachment| attachment.spec.attachment_tickets.values());
    tickets.filter(|ticket| ticket.kind == TicketType::Csi).map(|ticket| ticket.node_id.clone()).collect()
}

pub(in super::super) fn health(volume: &Volume) -> VolumeCondition {
    let (abnormal, message) = match volume.status.robustness {
        Robustness::Healthy => (false, "all wanted copies of the data are there"),
        Robustness::Unknown => (false, "the volume is not attached"),
        Robustness::Degraded => (true, "fewer copies of the data are there than are wanted"),
        Robustness::Faulted => (true, "no copy of the data can be used"),
    };
    VolumeCondition { abnormal, message: message.into() }
}

pub(super) async fn validate(
    driver: &Inner,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Status> {
    let id = required("volume_id", &request.volume_id)?;
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    driver.view.ready().await;
    let volume = driver.view.volume(id).ok_or_else(|| Status::not_found(format!("volume {id} does not exist")))?;
    let can = request.volume_capabilities.iter().try_for_each(|capability| check(capability).map(drop));
    let can = can.and_then(|()| access_mode(&request.volume_capabilities, volume.is_migratable()).map(drop));
    Ok(match can {
        Ok(()) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(validate_volume_capabilities_response::Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
        Err(refusal) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: refusal.message().to_owned() },
    })
}
