//! A virtual machine that moves: QEMU's own live migration, on a volume that moves with it.
//!
//! The machine writes versions of blocks to its disk and reads them back all the time; the disk is the volume's NBD endpoint on the node
//! that the machine runs on. For each move: the second attachment makes an engine stand by on the other node; a second QEMU opens its
//! endpoint and takes the machine over, whose first write there takes the volume over; the first attachment goes, which confirms the move.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "figures for whoever reads the test's output")]

mod machine;
mod proxy;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tether_crd::{Engine, NAMESPACE, Volume};
use tether_testkit::Cluster;

use crate::machine::{Image, LIMIT, Machine};
use crate::proxy::Proxy;

const NODES: [&str; 2] = ["node-1", "node-2"];
/// Writes of the guest before and after each move.
const SOME: u64 = 50;

/// What one move took.
#[derive(Clone, Copy, Debug)]
struct Move {
    /// The longest time between two signs of life of the guest, from its last one here on.
    blackout: Duration,
    /// What QEMU says that the machine stood still.
    downtime: Duration,
    /// From the arrival of the target's first write to its acknowledgement.
    handover: Duration,
}

struct Lab {
    _cluster: Cluster,
    client: Client,
    volume: String,
}

impl Lab {
    async fn new() -> Self {
        let cluster = Cluster::builder(env!("CARGO_BIN_EXE_tether")).nodes(3).args(&["--no-devices"]).start();
        let client = cluster.client().await;
        let class = json!({
            "metadata": {"name": "vm"}, "provisioner": "driver.longhorn.io",
            "parameters": {"numberOfReplicas": "3", "migratable": "true"},
        });
        create::<StorageClass>(&Api::all(client.clone()), class).await;
        // Without kernel devices the node half of the driver does not run, and nobody else names it.
        let nodes: Api<CSINode> = Api::all(client.clone());
        for node in NODES {
            let drivers = json!({"spec": {"drivers": [{"name": "driver.longhorn.io", "nodeID": node}]}});
            nodes.patch(node, &PatchParams::default(), &Patch::Strategic(drivers)).await.unwrap();
        }
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
        let claim = json!({
            "metadata": {"name": "disk"},
            "spec": {
                "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "vm",
                "resources": {"requests": {"storage": "64Mi"}},
            },
        });
        create(&claims, claim).await;
        let bound = async || {
            let claim = claims.get("disk").await.ok()?;
            claim.status.filter(|status| status.phase.as_deref() == Some("Bound"))?;
            claim.spec?.volume_name
        };
        let volume = eventually("the claim is bound", bound).await;
        Self { _cluster: cluster, client, volume }
    }

    async fn attach(&self, node: &str) {
        let attachment = json!({
            "metadata": {"name": format!("vm-{node}")},
            "spec": {
                "attacher": "driver.longhorn.io", "nodeName": node, "source": {"persistentVolumeName": self.volume},
            },
        });
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        create(&attachments, attachment).await;
        let attached = async || {
            let status = attachments.get(&format!("vm-{node}")).await.ok()?.status?;
            status.attached.then_some(())
        };
        eventually(&format!("the volume is attached to {node}"), attached).await;
    }

    async fn detach(&self, node: &str) {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        attachments.delete(&format!("vm-{node}"), &DeleteParams::default()).await.unwrap();
    }

    /// Where the volume is served on a node.
    async fn endpoint(&self, node: &str) -> SocketAddr {
        let engines: Api<Engine> = Api::namespaced(self.client.clone(), NAMESPACE);
        let served = async || {
            let all = engines.list(&ListParams::default()).await.ok()?;
            let engine = all.items.into_iter().find(|engine| engine.is_available_on(node))?;
            engine.status.endpoint.strip_prefix("nbd://")?.split('/').next()?.parse().ok()
        };
        eventually(&format!("the volume is served on {node}"), served).await
    }

    /// The move is over: one engine is left, and the volume was never detached.
    async fn moved_to(&self, node: &str) {
        let volumes: Api<Volume> = Api::namespaced(self.client.clone(), NAMESPACE);
        let engines: Api<Engine> = Api::namespaced(self.client.clone(), NAMESPACE);
        let over = async || {
            let volume = volumes.get(&self.volume).await.ok()?;
            let state = volume.status.state.as_str();
            assert_eq!(state, "attached", "the volume was detached");
            let count = engines.list(&ListParams::default()).await.ok()?.items.len();
            (volume.status.current_node_id == node && !volume.is_migrating() && count == 1).then_some(())
        };
        eventually(&format!("the volume is on {node}"), over).await;
    }
}

async fn create<K>(api: &Api<K>, object: Value)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn eventually<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Moves the machine, and the volume with it, so many times.
async fn moves(count: u64) -> Vec<Move> {
    let dir = tempfile::tempdir().unwrap();
    let image = match Image::build(dir.path()) {
        Ok(image) => image,
        Err(why) => {
            eprintln!("SKIPPED: no virtual machine: {why}");
            return Vec::new();
        }
    };
    let lab = Lab::new().await;
    lab.attach(NODES[0]).await;
    let disk = lab.endpoint(NODES[0]).await;
    let mut machine = Machine::start(&image, dir.path(), "vm-0", (disk, &lab.volume), false);
    machine.works(SOME);
    let mut moves = Vec::new();
    for number in 1..=count {
        let (from, to) = (NODES[(number as usize - 1) % 2], NODES[number as usize % 2]);
        lab.attach(to).await;
        let proxy = Proxy::start(lab.endpoint(to).await);
        let name = format!("vm-{number}");
        let mut target = Machine::start(&image, dir.path(), &name, (proxy.address, &lab.volume), true);
        let place = target.receive();
        machine.works(SOME);
        let downtime = machine.migrate(&place);
        target.works(SOME);
        let (_, last) = machine.life();
        let (first, _) = target.life();
        let blackout = first.unwrap().saturating_duration_since(last.unwrap()).max(target.gap());
        let handover = proxy.first_write().expect("the target has written");
        eprintln!("move {number} to {to}: blackout {blackout:?} (QEMU: {downtime:?}), storage hand-over {handover:?}");
        moves.push(Move { blackout, downtime, handover });
        lab.detach(from).await;
        lab.moved_to(to).await;
        assert_eq!(machine.bad(), Vec::<String>::new());
        machine = target;
        machine.works(SOME);
    }
    // What was written anywhere on the way is read at the end.
    let swept = machine.sweeps();
    while machine.sweeps() == swept {
        machine.works(SOME);
    }
    assert_eq!(machine.bad(), Vec::<String>::new());
    moves
}

fn median(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() - 1])
}

fn report(moves: &[Move]) {
    for (what, time) in [
        ("blackout of the guest", (|m| m.blackout) as fn(&Move) -> Duration),
        ("stood still, as QEMU says", |m| m.downtime),
        ("storage hand-over", |m| m.handover),
    ] {
        let (median, longest) = median(moves.iter().map(time).collect());
        eprintln!("{what}: median {median:?}, longest {longest:?} of {}", moves.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_virtual_machine_moves_and_its_disk_with_it() {
    let moves = moves(2).await;
    if !moves.is_empty() {
        report(&moves);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a campaign: cargo xtask campaign run vm-migration"]
async fn a_virtual_machine_moves_in_a_long_campaign() {
    let count = std::env::var("TETHER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let moves = moves(count).await;
    assert_eq!(moves.len() as u64, count, "nothing was shown");
    report(&moves);
}
