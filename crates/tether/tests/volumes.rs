//! Volumes on a whole cluster: tickets, engines, replicas, instance managers and kernel devices, as a user meets them.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_deleted;
use kube::runtime::wait::{Condition, await_condition};
use serde_json::json;
use tether_crd::engine::{Engine, InstanceState};
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::volume::{Robustness, State};
use tether_crd::{InstanceManager, NAMESPACE, Node, Replica, Volume, VolumeAttachment, names};
use tether_plan::instance_manager::IMAGE;
use tether_testkit::Cluster;
use tether_testkit::cluster::eventually;

/// A debug build on a machine that is busy with other tests is slow.
const LIMIT: Duration = Duration::from_secs(90);
const SIZE: &str = "134217728";

struct Lab {
    cluster: Cluster,
    client: kube::Client,
    runtime: tokio::runtime::Runtime,
}

impl Lab {
    fn new() -> Self {
        let cluster = Cluster::builder(env!("CARGO_BIN_EXE_tether")).nodes(3).start();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(cluster.client());
        let lab = Self { cluster, client, runtime };
        for node in ["node-1", "node-2", "node-3"] {
            let manager = names::instance_manager(node, IMAGE, "v1");
            lab.wait::<InstanceManager>(&manager, |im: Option<&InstanceManager>| {
                im.is_some_and(|im| im.status.current_state == InstanceManagerState::Running)
            });
            lab.wait::<Node>(node, |node: Option<&Node>| {
                node.is_some_and(|node| {
                    node.is_ready() && node.status.disk_status.values().any(|d| d.storage_maximum > 0)
                })
            });
        }
        lab
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn wait<K>(&self, name: &str, what: impl Condition<K>) -> Option<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned
            + Send
            + 'static,
    {
        let waiting = async { tokio::time::timeout(LIMIT, await_condition(self.api::<K>(), name, what)).await };
        let Ok(found) = self.runtime.block_on(waiting) else {
            panic!("{name} is {:#?}", self.runtime.block_on(self.api::<K>().get_opt(name)))
        };
        found.unwrap()
    }

    fn create(&self, volume: &str) {
        let object = json!({"metadata": {"name": volume}, "spec": {
            "size": SIZE, "numberOfReplicas": 3, "frontend": "blockdev", "accessMode": "rwo", "dataEngine": "v1",
        }});
        let object: Volume = serde_json::from_value(object).unwrap();
        self.runtime.block_on(self.api::<Volume>().create(&PostParams::default(), &object)).unwrap();
        self.wait::<Volume>(volume, |v: Option<&Volume>| v.is_some_and(|v| v.status.state == State::Detached));
    }

    /// Asks for the volume on a node, or nowhere.
    fn ticket(&self, volume: &str, node: Option<&str>) {
        let ticket = node.map(|node| {
            json!({"id": "t", "type": "longhorn-api", "nodeID": node, "parameters": {"disableFrontend": "false"}})
        });
        let patch = Patch::Merge(json!({"spec": {"attachmentTickets": {"t": ticket}}}));
        let api = self.api::<VolumeAttachment>();
        self.runtime.block_on(api.patch(volume, &PatchParams::default(), &patch)).unwrap();
    }

    fn attach(&self, volume: &str, node: &'static str) -> Volume {
        self.ticket(volume, Some(node));
        let attached = move |v: Option<&Volume>| {
            v.is_some_and(|v| {
                v.status.state == State::Attached
                    && v.status.current_node_id == node
                    && v.status.robustness == Robustness::Healthy
            })
        };
        self.wait::<Volume>(volume, attached).unwrap()
    }

    fn detach(&self, volume: &str) {
        self.ticket(volume, None);
        self.wait::<Volume>(volume, |v: Option<&Volume>| v.is_some_and(|v| v.status.state == State::Detached));
    }

    fn engine(&self, volume: &str) -> Engine {
        self.runtime.block_on(self.api::<Engine>().get(&names::engine(volume, 0))).unwrap()
    }

    /// Runs a command on a node: in its mount namespace.
    fn on(&self, node: &str, script: &str) -> Output {
        let holder = self.cluster.dir().join("run").join(node).join("mnt");
        let holder = format!("--mount={}", holder.display());
        Command::new("nsenter").args([&holder, "sh", "-euc", script]).output().unwrap()
    }

    fn must(&self, node: &str, script: &str) -> String {
        let output = self.on(node, script);
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// Whether kernel devices can be had; tells if not.
fn has_devices(test: &str) -> bool {
    let found = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !found {
        eprintln!("{test}: SKIPPED, kernel devices need root and /dev/fuse");
    }
    found
}

#[test]
fn a_volume_keeps_its_data_from_node_to_node() {
    if !has_devices("a_volume_keeps_its_data_from_node_to_node") {
        return;
    }
    let mut lab = Lab::new();
    lab.create("v1");
    let volume = lab.attach("v1", "node-1");
    let record = volume.status.record.unwrap();
    assert_eq!((record.epoch, record.in_sync.len()), (1, 3));
    let engine = lab.engine("v1");
    assert_eq!(engine.status.endpoint, "/dev/longhorn/v1");
    assert_eq!(record.holder.as_deref(), Some(engine.status.uuid.as_str()), "the process that runs holds the volume");
    let mount = lab.cluster.dir().join("mount");
    fs::create_dir(&mount).unwrap();
    let mount = mount.display();
    let write = format!(
        "mkfs.ext4 -q /dev/longhorn/v1; mount /dev/longhorn/v1 {mount}; dd if=/dev/urandom of={mount}/data bs=1M count=8 2>&1; \
         sync; sha256sum < {mount}/data | tee {mount}/sum"
    );
    let sum = lab.must("node-1", &write).lines().last().unwrap_or_default().to_owned();
    assert!(!lab.on("node-2", "test -e /dev/longhorn/v1").status.success(), "other nodes do not have the device");
    lab.must("node-1", &format!("umount {mount}"));
    lab.detach("v1");
    assert!(!lab.on("node-1", "test -e /dev/longhorn/v1").status.success(), "nothing is left there");

    let record = lab.attach("v1", "node-2").status.record.unwrap();
    assert_eq!((record.epoch, record.in_sync.len()), (2, 3));
    let read = format!("mount /dev/longhorn/v1 {mount}; sha256sum < {mount}/data; cat {mount}/sum; umount {mount}");
    assert_eq!(lab.must("node-2", &read), format!("{sum}\n{sum}"));

    // It comes back where it was after the whole cluster was killed.
    lab.cluster.kill();
    lab.cluster.up();
    lab.client = lab.runtime.block_on(lab.cluster.client());
    let again = |v: Option<&Volume>| {
        v.is_some_and(|v| {
            v.status.state == State::Attached
                && v.status.robustness == Robustness::Healthy
                && v.status.record.as_ref().is_some_and(|record| record.epoch > 2)
        })
    };
    lab.wait::<Volume>("v1", again);
    assert_eq!(lab.must("node-2", &read), format!("{sum}\n{sum}"));

    // And goes with everything that belongs to it.
    lab.detach("v1");
    let uid = lab.runtime.block_on(lab.api::<Volume>().get("v1")).unwrap().metadata.uid.unwrap();
    lab.runtime.block_on(lab.api::<Volume>().delete("v1", &DeleteParams::default())).unwrap();
    lab.wait::<Volume>("v1", is_deleted(&uid));
    let replicas = lab.runtime.block_on(lab.api::<Replica>().list(&ListParams::default())).unwrap();
    assert!(replicas.items.is_empty());
    for node in ["node-1", "node-2", "node-3"] {
        let folder = lab.cluster.dir().join("nodes").join(node).join("disk/replicas");
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "{node} still has data");
    }
}

#[test]
fn an_instance_manager_whose_pod_is_deleted_comes_back_unless_its_node_is_cordoned() {
    if !has_devices("an_instance_manager_whose_pod_is_deleted_comes_back_unless_its_node_is_cordoned") {
        return;
    }
    let lab = Lab::new();
    lab.create("v1");
    let engine = lab.attach("v1", "node-1").status.record.unwrap().holder;
    let manager = names::instance_manager("node-1", IMAGE, "v1");
    let pods = lab.api::<Pod>();
    let uid = lab.runtime.block_on(pods.get(&manager)).unwrap().metadata.uid.unwrap();
    lab.runtime.block_on(pods.delete(&manager, &DeleteParams::default().grace_period(0))).unwrap();
    lab.wait::<Pod>(&manager, move |pod: Option<&Pod>| {
        pod.is_some_and(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.uid.as_ref() != Some(&uid) && phase == Some("Running")
        })
    });
    // What ran in it is started again, as another process, with every replica.
    let back = move |v: Option<&Volume>| {
        v.is_some_and(|v| {
            v.status.state == State::Attached
                && v.status.robustness == Robustness::Healthy
                && v.status.record.as_ref().is_some_and(|record| record.holder != engine && record.in_sync.len() == 3)
        })
    };
    lab.wait::<Volume>("v1", back);

    let nodes: Api<KubeNode> = Api::all(lab.client.clone());
    let cordon = |value: bool| {
        let patch = Patch::Merge(json!({"spec": {"unschedulable": value}}));
        lab.runtime.block_on(nodes.patch("node-3", &PatchParams::default(), &patch)).unwrap();
    };
    cordon(true);
    lab.wait::<Node>("node-3", |node: Option<&Node>| {
        node.is_some_and(|node| node.status.conditions.iter().any(|c| c.reason == "KubernetesNodeCordoned"))
    });
    let manager = names::instance_manager("node-3", IMAGE, "v1");
    lab.runtime.block_on(pods.delete(&manager, &DeleteParams::default().grace_period(0))).unwrap();
    lab.wait::<InstanceManager>(&manager, |im: Option<&InstanceManager>| {
        im.is_some_and(|im| im.status.current_state == InstanceManagerState::Error)
    });
    lab.wait::<Volume>("v1", |v: Option<&Volume>| v.is_some_and(|v| v.status.robustness == Robustness::Degraded));
    assert!(lab.runtime.block_on(pods.get_opt(&manager)).unwrap().is_none(), "a cordoned node gets no new one");
    assert_eq!(lab.engine("v1").status.current_state, InstanceState::Running, "the others go on");
    cordon(false);
    lab.wait::<InstanceManager>(&manager, |im: Option<&InstanceManager>| {
        im.is_some_and(|im| im.status.current_state == InstanceManagerState::Running)
    });
}

#[test]
fn killing_the_agent_stops_nothing() {
    if !has_devices("killing_the_agent_stops_nothing") {
        return;
    }
    let lab = Lab::new();
    lab.create("v1");
    let before = lab.attach("v1", "node-1").status.record.unwrap();
    let agent = lab.cluster.pid("node-1").unwrap();
    tether_testkit::cluster::signal(agent, rustix::process::Signal::KILL);
    eventually("the agent is back", || lab.cluster.pid("node-1").filter(|pid| *pid != agent));
    lab.must("node-1", "dd if=/dev/zero of=/dev/longhorn/v1 bs=1M count=4 oflag=direct 2>&1");
    // The new agent finds the engine: it can stop it.
    let volume = lab.runtime.block_on(lab.api::<Volume>().get("v1")).unwrap();
    assert_eq!(volume.status.record.unwrap(), before, "the same process still holds the volume");
    lab.detach("v1");
    assert!(!lab.on("node-1", "test -e /dev/longhorn/v1").status.success());
}
