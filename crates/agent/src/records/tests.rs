//! Records against a real API server, and against one whose answers get lost.

use std::sync::atomic::{AtomicBool, Ordering};

use kube::api::{DeleteParams, PostParams};
use tether_apiserver::Server;
use tether_apiserver::auth::User;
use tether_crd::{Engine, Volume};
use tether_replication::ids::{Epoch, Holder, MemberId};
use tether_replication::record::Refusal;

use super::*;

struct Lab {
    server: Server,
    admin: Api<Volume>,
}

impl Lab {
    async fn new() -> Self {
        let server = Server::ephemeral().await;
        tether_apiserver::install(&server, &tether_crd::install::objects()).await.expect("a cluster for volumes");
        let client = server.client(User::new("admin", ["system:masters"]));
        let lab = Self { server, admin: Api::namespaced(client.clone(), NAMESPACE) };
        lab.make_volume().await;
        // A node writes records of volumes that have an engine on it.
        let engine = json!({"metadata": {"name": "v1-e-0"}, "spec": {"volumeName": "v1", "nodeID": "node-1"}});
        let engines: Api<Engine> = Api::namespaced(client, NAMESPACE);
        engines.create(&PostParams::default(), &serde_json::from_value(engine).unwrap()).await.expect("an engine");
        lab
    }

    /// Nobody but the test cleans up after the volume.
    async fn remove_volume(&self) {
        self.admin.delete("v1", &DeleteParams::default()).await.unwrap();
        let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        self.admin.patch("v1", &PatchParams::default(), &released).await.unwrap();
    }

    async fn make_volume(&self) {
        let volume = json!({"metadata": {"name": "v1"}, "spec": {"size": "2097152"}});
        self.admin.create(&PostParams::default(), &serde_json::from_value(volume).unwrap()).await.expect("a volume");
    }

    /// The record as a node sees it.
    fn record(&self) -> Box<dyn RecordStore> {
        let node = self.server.client(User::new("system:node:node-1", ["system:nodes", "system:authenticated"]));
        VolumeRecords::new(node).open("v1", "").unwrap()
    }
}

/// Records block; tests do not.
async fn blocking<T: Send + 'static>(record: Box<dyn RecordStore>, act: fn(&dyn RecordStore) -> T) -> T {
    tokio::task::spawn_blocking(move || act(&*record)).await.unwrap()
}

fn fresh() -> Record {
    Record::new([MemberId::new("v1-0001").expect("a name")])
}

fn start(record: &dyn RecordStore, holder: u128) -> CasOutcome {
    record.change(&Change::Start { holder: Holder(holder) }, &mut |_| Ok(()))
}

#[tokio::test]
async fn a_record_is_made_once_and_then_only_changed() {
    let lab = Lab::new().await;
    assert_eq!(blocking(lab.record(), |record| record.load()).await, Ok(None));
    assert_eq!(blocking(lab.record(), |record| start(record, 1)).await, CasOutcome::NotSent);
    assert_eq!(blocking(lab.record(), |record| record.create(&fresh())).await, Ok(fresh()));
    let CasOutcome::Applied(started) = blocking(lab.record(), |record| start(record, 1)).await else {
        panic!("a first start is legal")
    };
    assert_eq!(blocking(lab.record(), |record| record.create(&fresh())).await, Ok(started.clone()), "there already");
    let refused = CasOutcome::Refused { refusal: Refusal::SameHolder { holder: Holder(1) }, current: started };
    assert_eq!(blocking(lab.record(), |record| start(record, 1)).await, refused);
    let vetoed = |record: &dyn RecordStore| {
        record.change(&Change::Start { holder: Holder(2) }, &mut |_| Err("no device".into()))
    };
    assert_eq!(blocking(lab.record(), vetoed).await, CasOutcome::NotSent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_race_get_an_epoch_each_while_others_write_the_status() {
    let lab = Lab::new().await;
    blocking(lab.record(), |record| record.create(&fresh())).await.unwrap();
    let racing: Vec<_> = (1..=8)
        .map(|holder| {
            let record = lab.record();
            tokio::task::spawn_blocking(move || match start(&*record, holder) {
                CasOutcome::Applied(record) => record.epoch,
                other => panic!("{other:?}"),
            })
        })
        .collect();
    for n in 0..20 {
        let patch = Patch::Merge(json!({"status": {"currentNodeID": format!("node-{n}")}}));
        lab.admin.patch_status("v1", &PatchParams::default(), &patch).await.unwrap();
    }
    let mut epochs = Vec::new();
    for task in racing {
        epochs.push(task.await.unwrap());
    }
    epochs.sort_unstable();
    assert_eq!(epochs, (1..=8).map(Epoch).collect::<Vec<_>>());
    let volume = lab.admin.get("v1").await.unwrap();
    assert_eq!(volume.status.current_node_id, "node-19", "what others wrote stays");
    assert_eq!(volume.status.record.unwrap().epoch, 8);
}

#[tokio::test]
async fn another_volume_of_the_same_name_is_none_of_ours() {
    let lab = Lab::new().await;
    let record = lab.record();
    let record = tokio::task::spawn_blocking(move || {
        record.create(&fresh()).unwrap();
        record
    })
    .await
    .unwrap();
    lab.remove_volume().await;
    lab.make_volume().await;
    let (loaded, changed) = blocking(record, |record| (record.load(), start(record, 1))).await;
    assert!(loaded.unwrap_err().contains("made anew"));
    assert_eq!(changed, CasOutcome::NotSent);
    lab.remove_volume().await;
    let gone = blocking(lab.record(), |record| record.load()).await;
    assert!(gone.is_err(), "a volume that is gone is not one without a record: {gone:?}");
}

/// An answer that gets lost after the server did its work leaves the outcome unknown; a request that never arrives too,
/// unless it was the read before.
#[tokio::test]
async fn lost_answers_are_unknown_and_lost_reads_are_not_sent() {
    static LOSES: AtomicBool = AtomicBool::new(false);
    let lab = Lab::new().await;
    blocking(lab.record(), |record| record.create(&fresh())).await.unwrap();
    let inner = lab.server.client(User::new("admin", ["system:masters"]));
    let lossy = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let inner = inner.clone();
        async move {
            let loses = LOSES.load(Ordering::Relaxed) == (request.method() == http::Method::GET);
            let answer = inner.send(request).await?;
            if loses { Err(tower::BoxError::from("the connection broke")) } else { Ok(answer) }
        }
    });
    let open = || VolumeRecords::new(Client::new(lossy.clone(), NAMESPACE)).open("v1", "").unwrap();
    // Answers to everything but reads get lost.
    assert_eq!(blocking(open(), |record| start(record, 1)).await, CasOutcome::Unknown);
    let CasOutcome::Refused { current, .. } = blocking(lab.record(), |record| start(record, 1)).await else {
        panic!("it did happen")
    };
    assert_eq!(current.epoch, Epoch(1));
    LOSES.store(true, Ordering::Relaxed);
    assert_eq!(blocking(open(), |record| start(record, 2)).await, CasOutcome::NotSent);
    assert_eq!(blocking(lab.record(), |record| record.load()).await, Ok(Some(current)));
}

#[test]
fn only_an_answer_tells_that_nothing_happened() {
    for (code, expected) in [
        (Some(403), CasOutcome::NotSent),
        (Some(404), CasOutcome::NotSent),
        (Some(429), CasOutcome::NotSent),
        (Some(500), CasOutcome::Unknown),
        (Some(504), CasOutcome::Unknown),
        (None, CasOutcome::Unknown),
    ] {
        assert_eq!(outcome(code), expected, "{code:?}");
    }
}
