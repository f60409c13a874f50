//! Snapshots at the engines of this node: what each engine has, and what was handed to this node.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tether_controllers::write::WriteError;
use tether_crd::engine::SnapshotInfo;
use tether_crd::{Engine, Snapshot};
use tether_engine::control::proto;
use tether_plan::instance::{SnapshotChange, is_purging};
use tether_plan::object::{Target, name};
use tether_plan::snapshot::{REVERT_REQUESTED, VOLUME_HEAD};

use super::Shared;
use super::manager::refused;

/// An engine answers from memory, unless it is suspended: then it is asked again later.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two questions to an engine that did not answer.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(5);
/// Between two questions while space is being given back.
const WATCH_PURGE: SignedDuration = SignedDuration::from_secs(1);
/// A step with snapshots waits for requests that are under way, and for replicas that are being given up on.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// What engines were last heard to have, by engine.
#[derive(Default)]
pub(super) struct Lists(Mutex<BTreeMap<String, List>>);

struct List {
    /// The run that was asked.
    uid: String,
    listed: Option<BTreeMap<String, SnapshotInfo>>,
    asked: Timestamp,
}

impl Lists {
    /// What is known of a run of an engine, and when it is to be asked again; none: nothing will change it.
    pub fn known(&self, engine: &str, uid: &str) -> (Option<BTreeMap<String, SnapshotInfo>>, Option<Timestamp>) {
        match self.0.lock().get(engine).filter(|list| list.uid == uid) {
            None => (None, Some(Timestamp::MIN)),
            Some(List { listed: None, asked, .. }) => (None, Some(*asked + ASK_AGAIN)),
            Some(List { listed: Some(listed), asked, .. }) => {
                let again = is_purging(listed).then(|| *asked + WATCH_PURGE);
                (Some(listed.clone()), again)
            }
        }
    }

    /// What it has may be something else now.
    pub fn forget(&self, engine: &str) {
        self.0.lock().remove(engine);
    }

    fn heard(&self, engine: &str, uid: &str, listed: Option<BTreeMap<String, SnapshotInfo>>) {
        let list = List { uid: uid.to_owned(), listed, asked: Timestamp::now() };
        self.0.lock().insert(engine.to_owned(), list);
    }
}

/// Takes one step at the engine. What it changed is asked for next.
pub(super) async fn step(
    shared: &Shared,
    lists: &Lists,
    engine: &Engine,
    uid: &str,
    change: SnapshotChange,
) -> Result<(), WriteError> {
    let instance = name(engine).to_owned();
    let named = |snapshot: String| proto::SnapshotRequest { instance: instance.clone(), name: snapshot };
    let mut client = shared.link.engine()?;
    let stepped = match change {
        SnapshotChange::List => return list(shared, lists, engine, uid).await,
        SnapshotChange::Create { name, labels } => {
            let labels = labels.into_iter().collect();
            let request = proto::SnapshotCreateRequest { instance: instance.clone(), name, labels };
            limited(client.snapshot_create(request)).await.map(drop)
        }
        SnapshotChange::Delete { name } => limited(client.snapshot_delete(named(name))).await.map(drop),
        SnapshotChange::Purge => {
            let request = proto::InstanceRequest { instance: instance.clone() };
            limited(client.snapshot_purge(request)).await.map(drop)
        }
        SnapshotChange::Revert { snapshot } => {
            let reverted = limited(client.snapshot_revert(named(snapshot.name.clone()))).await.map(drop);
            if reverted.is_ok() {
                forget_wish(shared, &snapshot).await?;
            }
            reverted
        }
        SnapshotChange::Forget { snapshot } => return forget_wish(shared, &snapshot).await,
    };
    lists.forget(&instance);
    stepped.map_err(|status| refused("work on snapshots", &status))
}

async fn limited<T>(asked: impl Future<Output = Result<T, tonic::Status>>) -> Result<T, tonic::Status> {
    let late = |_| Err(tonic::Status::deadline_exceeded("the engine does not answer"));
    tokio::time::timeout(STEP_TIMEOUT, asked).await.unwrap_or_else(late)
}

async fn list(shared: &Shared, lists: &Lists, engine: &Engine, uid: &str) -> Result<(), WriteError> {
    let request = proto::InstanceRequest { instance: name(engine).to_owned() };
    let asked = async { shared.link.engine()?.snapshot_list(request).await.map_err(|s| refused("list snapshots", &s)) };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
    let listed = match answer {
        Ok(Ok(answer)) => Some(answer.into_inner().snapshots.into_iter().map(shown).collect()),
        Ok(Err(error)) => {
            tracing::debug!(engine = name(engine), %error, "snapshots are not known");
            None
        }
        Err(_) => None,
    };
    lists.heard(name(engine), uid, listed);
    Ok(())
}

async fn forget_wish(shared: &Shared, snapshot: &Target) -> Result<(), WriteError> {
    let metadata = json!({ "uid": snapshot.uid, "annotations": { REVERT_REQUESTED: null } });
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let patched = shared.api::<Snapshot>().patch(&snapshot.name, &PatchParams::default(), &patch).await;
    patched.map(drop).map_err(|error| WriteError::of("take back the wish to revert", error))
}

fn shown(snapshot: proto::Snapshot) -> (String, SnapshotInfo) {
    let name = snapshot.name;
    let is_head = name == VOLUME_HEAD;
    let info = SnapshotInfo {
        name: name.clone(),
        parent: snapshot.parent,
        children: snapshot.children.into_iter().map(|child| (child, true)).collect(),
        removed: snapshot.removed,
        user_created: snapshot.user_created,
        created: snapshot.created,
        // What is being written grows all the time; a status for each look would be one write each.
        size: if is_head { String::new() } else { snapshot.size.to_string() },
        labels: snapshot.labels.into_iter().collect(),
    };
    (name, info)
}
