//! Snapshots of volumes come, go and are listed. An id is `snap://volume/snapshot`.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use tether_crd::snapshot::SnapshotSpec;
use tether_crd::{NAMESPACE, Snapshot};
use tether_plan::clone::{Source, is_pending};
use tether_plan::object::is_deleting;
use tonic::Status;

use super::super::parameters::snapshot_name;
use super::super::{Inner, PATIENCE};
use super::list::Page;
use super::{api_error, required};
use crate::proto::{
    self, CreateSnapshotRequest, CreateSnapshotResponse, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, list_snapshots_response,
};

/// The parameter of a VolumeSnapshotClass that says what becomes of a snapshot.
const TYPE: &str = "type";

pub(super) async fn create(driver: &Inner, request: CreateSnapshotRequest) -> Result<CreateSnapshotResponse, Status> {
    let volume = required("source_volume_id", &request.source_volume_id)?;
    let name = snapshot_name(required("name", &request.name)?);
    match request.parameters.get(TYPE).map(String::as_str).unwrap_or_default() {
        // Without a type Longhorn makes a backup; here it is a snapshot until there are backups.
        "" | "snap" => {}
        kind => {
            let words = format!("parameter type: {kind:?} is not provided; \"snap\" keeps the snapshot in the volume");
            return Err(Status::invalid_argument(words));
        }
    }
    let _claim = driver.busy.claim(format!("snapshot {name}"))?;
    driver.view.ready().await;
    if driver.view.volume(volume).is_none_or(|volume| is_deleting(&*volume)) {
        return Err(Status::not_found(format!("volume {volume} does not exist")));
    }
    let api: Api<Snapshot> = Api::namespaced(driver.client.clone(), NAMESPACE);
    let object = Snapshot {
        metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() },
        spec: SnapshotSpec { volume: volume.to_owned(), create_snapshot: true, ..Default::default() },
        ..Default::default()
    };
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let held = api.get(&name).await.map_err(|error| api_error("get snapshot", &error))?;
            if is_deleting(&held) {
                return Err(Status::aborted(format!("a snapshot called {name} is being deleted")));
            }
            if held.spec.volume != volume {
                let words = format!("snapshot {name} exists, of volume {}", held.spec.volume);
                return Err(Status::already_exists(words));
            }
        }
        Err(error) => return Err(api_error("create snapshot", &error)),
    }
    let ready = |snapshot: Arc<Snapshot>| snapshot.status.ready_to_use.then_some(snapshot);
    if let Some(made) = driver.view.until(PATIENCE, || driver.view.snapshot(&name).and_then(ready)).await {
        return Ok(CreateSnapshotResponse { snapshot: Some(described(&made)) });
    }
    let why = driver.view.snapshot(&name).map(|held| held.status.error.clone()).unwrap_or_default();
    Err(Status::deadline_exceeded(format!("snapshot {name} of volume {volume} is not made yet: {why}")))
}

pub(super) async fn delete(driver: &Inner, id: &str) -> Result<(), Status> {
    let Some(Source { volume, snapshot: Some(name) }) = Source::parse(required("snapshot_id", id)?) else {
        // Not one of ours: there is nothing to delete.
        return Ok(());
    };
    let _claim = driver.busy.claim(format!("snapshot {name}"))?;
    driver.view.ready().await;
    let volumes = driver.view.volumes.list();
    if let Some(clone) = volumes.iter().find(|clone| clone.spec.data_source == id && is_pending(clone)) {
        let words = format!("volume {} is being made from snapshot {name}", clone.name_any());
        return Err(Status::failed_precondition(words));
    }
    match driver.view.snapshot(&name) {
        Some(held) if held.spec.volume == volume => {}
        _ => return Ok(()),
    }
    let api: Api<Snapshot> = Api::namespaced(driver.client.clone(), NAMESPACE);
    match api.delete(&name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(api_error("delete snapshot", &error)),
    }
    // The space of the newest one is given back later; that it is marked is enough.
    let gone = driver.view.until(PATIENCE, || {
        let held = driver.view.snapshot(&name);
        held.is_none_or(|held| is_deleting(&*held) && held.status.mark_removed).then_some(())
    });
    gone.await.ok_or_else(|| Status::deadline_exceeded(format!("snapshot {name} is being deleted")))
}

pub(super) async fn get(driver: &Inner, id: &str) -> Result<GetSnapshotResponse, Status> {
    let id = required("snapshot_id", id)?;
    driver.view.ready().await;
    let held = find(driver, id).ok_or_else(|| Status::not_found(format!("snapshot {id} does not exist")))?;
    Ok(GetSnapshotResponse { snapshot: Some(described(&held)) })
}

/// A snapshot that can be asked for by its id.
pub(super) fn find(driver: &Inner, id: &str) -> Option<Arc<Snapshot>> {
    let Source { volume, snapshot } = Source::parse(id)?;
    let held = driver.view.snapshot(&snapshot?)?;
    (held.spec.volume == volume && is_shown(&held)).then_some(held)
}

pub(super) async fn list(driver: &Inner, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Status> {
    driver.view.ready().await;
    let wanted = |snapshot: &Arc<Snapshot>| {
        let fits = |asked: &str, held: &str| asked.is_empty() || asked == held;
        is_shown(snapshot)
            && fits(&request.source_volume_id, &snapshot.spec.volume)
            && fits(&request.snapshot_id, &id_of(snapshot))
    };
    let all: Vec<_> = driver.view.snapshots.list().into_iter().filter(wanted).collect();
    let page = Page::of(all.len(), request.max_entries, &request.starting_token)?;
    let entry = |snapshot: &Arc<Snapshot>| list_snapshots_response::Entry { snapshot: Some(described(snapshot)) };
    Ok(ListSnapshotsResponse { entries: all[page.range.clone()].iter().map(entry).collect(), next_token: page.next() })
}

/// Those that are made and stay.
fn is_shown(snapshot: &Snapshot) -> bool {
    !is_deleting(snapshot) && !snapshot.status.creation_time.is_empty()
}

fn id_of(snapshot: &Snapshot) -> String {
    format!("snap://{}/{}", snapshot.spec.volume, snapshot.name_any())
}

fn described(snapshot: &Snapshot) -> proto::Snapshot {
    let made: Option<jiff::Timestamp> = snapshot.status.creation_time.parse().ok();
    proto::Snapshot {
        size_bytes: snapshot.status.restore_size,
        snapshot_id: id_of(snapshot),
        source_volume_id: snapshot.spec.volume.clone(),
        creation_time: made.map(|at| prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }),
        ready_to_use: snapshot.status.ready_to_use,
        group_snapshot_id: String::new(),
    }
}
