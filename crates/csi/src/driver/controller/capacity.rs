//! How much room is left: on a node, in a zone, or everywhere.

use std::collections::BTreeSet;

use tether_crd::NAMESPACE;
use tether_plan::placement::room::{offers, room};
use tether_plan::volume;
use tonic::Status;

use super::super::Inner;
use super::super::parameters::list;
use crate::proto::{GetCapacityRequest, GetCapacityResponse};

/// The segment of a topology that names a node.
const HOSTNAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
/// The parameter of a class that says whose room counts for a pod: that of its node, or of its zone.
const MODE: &str = "storageCapacityMode";

pub(super) async fn capacity(driver: &Inner, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Status> {
    driver.view.ready().await;
    let nodes = match place(request)? {
        Place::Everywhere => driver.view.nodes.list(),
        Place::Node(name) => driver.view.nodes.get(NAMESPACE, name).into_iter().collect(),
        Place::Zone(zone) => driver.view.nodes.list().into_iter().filter(|node| node.status.zone == *zone).collect(),
    };
    let policy = volume::Settings::of(&driver.view.settings()).placement;
    let offered: Vec<_> = nodes.iter().flat_map(|node| offers(node, &policy)).collect();
    let selector = |name: &str| -> BTreeSet<String> { list(&request.parameters, name).into_iter().collect() };
    let found = room(&offered, &selector("nodeSelector"), &selector("diskSelector"), &policy);
    Ok(GetCapacityResponse {
        available_capacity: found.total,
        maximum_volume_size: Some(found.largest),
        minimum_volume_size: None,
    })
}

enum Place<'a> {
    Everywhere,
    Node(&'a str),
    Zone(&'a str),
}

fn place(request: &GetCapacityRequest) -> Result<Place<'_>, Status> {
    let Some(topology) = request.accessible_topology.as_ref().filter(|topology| !topology.segments.is_empty()) else {
        return Ok(Place::Everywhere);
    };
    let segment = |key: &str| {
        let found = topology.segments.get(key).map(String::as_str);
        found.ok_or_else(|| Status::invalid_argument(format!("accessible_topology lacks {key}")))
    };
    match request.parameters.get(MODE).map(String::as_str) {
        None | Some("" | "node") => Ok(Place::Node(segment(HOSTNAME)?)),
        Some("zone") => Ok(Place::Zone(segment(ZONE)?)),
        Some(other) => Err(Status::invalid_argument(format!("{MODE} {other:?} is neither \"node\" nor \"zone\""))),
    }
}
