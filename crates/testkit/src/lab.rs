//! A cluster with three nodes and volumes on it, for tests that work with volumes as users do.

use std::fmt::Debug;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_crd::engine::Engine;
use tether_crd::instance_manager::InstanceManagerState;
use tether_crd::volume::{Robustness, State};
use tether_crd::{InstanceManager, NAMESPACE, Node, Volume, VolumeAttachment, names};
use tokio::runtime::{Builder, Runtime};

use crate::Cluster;

/// A debug build on a machine that is busy with other tests is slow.
const LIMIT: Duration = Duration::from_secs(90);
/// The image in the names of instance managers.
const IMAGE: &str = "tether";
/// The nodes of a lab.
pub const NODES: [&str; 3] = ["node-1", "node-2", "node-3"];
/// Size of the volumes that a lab makes.
pub const SIZE_BYTES: i64 = 128 << 20;

/// A cluster, and somebody who works with its volumes.
pub struct Lab {
    pub cluster: Cluster,
    pub client: Client,
    pub runtime: Runtime,
}

impl Lab {
    /// Starts a cluster and waits until its nodes can take volumes.
    pub fn new(binary: &str) -> Self {
        Self::with(binary, &[])
    }

    /// The same, with further arguments of `tether up`.
    pub fn with(binary: &str, args: &[&str]) -> Self {
        let cluster = Cluster::builder(binary).nodes(NODES.len() as u16).args(args).start();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime must be had");
        let client = runtime.block_on(cluster.client());
        let lab = Self { cluster, client, runtime };
        lab.settle();
        lab
    }

    /// Waits until every node can take volumes.
    pub fn settle(&self) {
        for node in NODES {
            self.wait::<InstanceManager>(&manager(node), |found: Option<&InstanceManager>| {
                found.is_some_and(|found| found.status.current_state == InstanceManagerState::Running)
            });
            self.wait::<Node>(node, |node: Option<&Node>| {
                let has_disk = |node: &Node| node.status.disk_status.values().any(|disk| disk.storage_maximum > 0);
                node.is_some_and(|node| node.is_ready() && has_disk(node))
            });
        }
    }

    /// A new client, after the cluster was started again.
    pub fn reconnect(&mut self) {
        self.client = self.runtime.block_on(self.cluster.client());
    }

    /// Objects of a kind, in the namespace of volumes.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Waits until an object is as wanted; panics with what it is if it does not get there.
    pub fn wait<K>(&self, name: &str, what: impl Condition<K>) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        self.wait_in(self.api(), name, what)
    }

    /// The same for objects elsewhere.
    pub fn wait_in<K>(&self, api: Api<K>, name: &str, what: impl Condition<K>) -> Option<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let waiting = async { tokio::time::timeout(LIMIT, await_condition(api.clone(), name, what)).await };
        let Ok(found) = self.runtime.block_on(waiting) else {
            let kind = K::plural(&()).into_owned();
            let found = self.kubectl(&["get", &kind, name, "-o", "yaml"]);
            let why = self.cluster.tether(&["explain", "volume", name]);
            let selector = format!("longhornvolume={name}");
            let parts = self.kubectl(&["get", "lhe,lhr", "-l", &selector, "-o", "yaml"]);
            let words = |output: &Output| {
                String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
            };
            let (found, why, parts) = (words(&found), words(&why), words(&parts));
            panic!("{kind} {name} did not become what is wanted: {found}\n{why}\n{parts}\n{}", self.pod_logs())
        };
        found.expect("the API server must answer")
    }

    /// The ends of the logs of all containers, which are those of instance managers for the most part.
    fn pod_logs(&self) -> String {
        let script = "for log in nodes/*/pods/*/containers/*/*/log; do echo \"--- $log\"; tail -n 60 \"$log\"; done";
        let output = Command::new("sh").args(["-c", script]).current_dir(self.cluster.dir()).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
    }

    /// An object as it is.
    pub fn get<K>(&self, name: &str) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        self.runtime.block_on(self.api::<K>().get(name)).expect("it must exist")
    }

    /// Makes a volume and waits until it can be attached.
    pub fn create(&self, volume: &str, replicas: usize) {
        let object = json!({"metadata": {"name": volume}, "spec": {
            "size": SIZE_BYTES.to_string(), "numberOfReplicas": replicas, "frontend": "blockdev", "accessMode": "rwo",
            "dataEngine": "v1",
        }});
        let object: Volume = serde_json::from_value(object).expect("it must be a volume");
        self.runtime.block_on(self.api::<Volume>().create(&PostParams::default(), &object)).expect("create");
        self.until_detached(volume);
    }

    /// Puts tickets in, changes them, or takes out those that are null.
    pub fn tickets(&self, volume: &str, tickets: &Value) {
        let patch = Patch::Merge(json!({"spec": {"attachmentTickets": tickets}}));
        let api = self.api::<VolumeAttachment>();
        self.runtime.block_on(api.patch(volume, &PatchParams::default(), &patch)).expect("patch of tickets");
    }

    /// Asks for the volume on a node, or nowhere.
    pub fn ticket(&self, volume: &str, node: Option<&str>) {
        self.tickets(volume, &json!({"t": node.map(|node| ticket("t", "longhorn-api", node, "false"))}));
    }

    /// Attaches a volume to a node and waits until it is there with all its replicas.
    pub fn attach(&self, volume: &str, node: &'static str) -> Volume {
        self.ticket(volume, Some(node));
        self.until_healthy(volume, node)
    }

    /// Waits until the volume is on the node with all its replicas.
    pub fn until_healthy(&self, volume: &str, node: &str) -> Volume {
        let node = node.to_owned();
        let attached = move |found: Option<&Volume>| {
            found.is_some_and(|found| {
                found.status.state == State::Attached
                    && found.status.current_node_id == node
                    && found.status.robustness == Robustness::Healthy
            })
        };
        self.wait::<Volume>(volume, attached).expect("it must exist")
    }

    /// Waits until the volume is on the node, with however many replicas.
    pub fn until_attached(&self, volume: &str, node: &str) {
        let node = node.to_owned();
        self.wait::<Volume>(volume, move |found: Option<&Volume>| {
            found.is_some_and(|found| found.status.state == State::Attached && found.status.current_node_id == node)
        });
    }

    /// Takes the ticket of [`Lab::ticket`] out and waits until the volume is nowhere.
    pub fn detach(&self, volume: &str) {
        self.ticket(volume, None);
        self.until_detached(volume);
    }

    /// Waits until the volume is nowhere.
    pub fn until_detached(&self, volume: &str) {
        let detached = |found: Option<&Volume>| found.is_some_and(|found| found.status.state == State::Detached);
        self.wait::<Volume>(volume, detached);
    }

    /// The first engine of a volume.
    pub fn engine(&self, volume: &str) -> Engine {
        self.get(&names::engine(volume, 0))
    }

    /// Runs a command on a node: in its mount namespace.
    pub fn on(&self, node: &str, script: &str) -> Output {
        let holder = self.cluster.dir().join("run").join(node).join("mnt");
        let holder = format!("--mount={}", holder.display());
        Command::new("nsenter").args([&holder, "sh", "-euc", script]).output().expect("nsenter must start")
    }

    /// The same; it has to succeed. Returns what it prints.
    pub fn must(&self, node: &str, script: &str) -> String {
        let output = self.on(node, script);
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Runs kubectl in the namespace of volumes.
    pub fn kubectl(&self, args: &[&str]) -> Output {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.cluster.kubeconfig()).args(["-n", NAMESPACE]).args(args);
        command.output().expect("kubectl must start")
    }

    /// The same; it has to succeed. Returns what it prints.
    pub fn must_kubectl(&self, args: &[&str]) -> String {
        let output = self.kubectl(args);
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {words}", args.join(" "));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

/// A ticket as JSON.
pub fn ticket(id: &str, kind: &str, node: &str, disable_frontend: &str) -> Value {
    json!({"id": id, "type": kind, "nodeID": node, "parameters": {"disableFrontend": disable_frontend}})
}

/// The name of a node's instance manager, and of its pod.
pub fn manager(node: &str) -> String {
    names::instance_manager(node, IMAGE, "v1")
}

/// Whether kernel devices can be had.
pub fn has_devices() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

/// Whether there is a kubectl.
pub fn has_kubectl() -> bool {
    Command::new("kubectl").args(["version", "--client"]).output().is_ok_and(|output| output.status.success())
}
