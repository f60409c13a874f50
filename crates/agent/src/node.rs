//! The Node object: what this node says of itself, and how it enters the cluster.
//!
//! Names, labels, conditions and texts are those of a kubelet, so that whoever reads a Node reads nothing new.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use crate::Options;
use crate::host::{Available, Facts};

/// The attach/detach controller acts for nodes that carry this annotation.
const MANAGED_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// A kubelet's default.
const MAX_PODS: u32 = 110;
/// A kubelet's default for hard eviction.
const MEMORY_PRESSURE_BYTES: u64 = 100 << 20;
/// A kubelet evicts below 10 %; on a laptop that would forbid half of all disks. This is what a small volume needs.
const DISK_PRESSURE_BYTES: u64 = 512 << 20;

/// How long to wait before registering is tried again: at once while the cluster starts, less often later.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// A kubelet's longest pause between attempts.
const LAST_RETRY: Duration = Duration::from_secs(7);

/// What the node says of itself, all but what changes from moment to moment.
#[derive(Clone, Debug)]
pub(crate) struct Description {
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
    status: NodeStatus,
    /// Conditions beyond a kubelet's own.
    extra: Vec<NodeCondition>,
}

impl Description {
    pub(crate) fn new(options: &Options, facts: &Facts, port: u16) -> Self {
        Self {
            name: options.name.clone(),
            labels: labels(options, facts),
            status: NodeStatus {
                addresses: Some(vec![
                    NodeAddress { type_: "InternalIP".into(), address: options.address.to_string() },
                    NodeAddress { type_: "Hostname".into(), address: options.name.clone() },
                ]),
                capacity: Some(resources(facts)),
                allocatable: Some(resources(facts)),
                daemon_endpoints: Some(NodeDaemonEndpoints {
                    kubelet_endpoint: Some(DaemonEndpoint { port: port.into() }),
                }),
                node_info: Some(system_info(options, facts)),
                ..Default::default()
            },
            extra: extra_conditions(options),
        }
    }

    /// The object as it is first created.
    fn node(&self, now: Timestamp, available: Option<Available>) -> Node {
        let annotations = BTreeMap::from([(MANAGED_ATTACH.to_owned(), "true".to_owned())]);
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.labels.clone()),
                annotations: Some(annotations),
                ..Default::default()
            },
            status: Some(self.status(available, &[], now)),
            ..Default::default()
        }
    }

    /// The status at `now`; `old` are the conditions that the server has. Not knowing what is left (`None`) is no
    /// pressure.
    pub(crate) fn status(&self, available: Option<Available>, old: &[NodeCondition], now: Timestamp) -> NodeStatus {
        let mut conditions = kubelet_conditions(available);
        // Ready comes last: old clients read the last condition as the node's state.
        let ready = conditions.len() - 1;
        conditions.splice(ready..ready, self.extra.iter().cloned());
        for condition in &mut conditions {
            let same = old.iter().find(|old| old.type_ == condition.type_ && old.status == condition.status);
            let since = same.and_then(|same| same.last_transition_time.clone());
            condition.last_transition_time = since.or(Some(Time(now)));
            condition.last_heartbeat_time = Some(Time(now));
        }
        NodeStatus { conditions: Some(conditions), ..self.status.clone() }
    }
}

fn labels(options: &Options, facts: &Facts) -> BTreeMap<String, String> {
    let pairs = [
        ("beta.kubernetes.io/arch", facts.architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", facts.architecture),
        ("kubernetes.io/hostname", &options.name),
        ("kubernetes.io/os", "linux"),
        ("topology.kubernetes.io/region", &options.region),
        ("topology.kubernetes.io/zone", &options.zone),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn resources(facts: &Facts) -> BTreeMap<String, Quantity> {
    let kibibytes = |bytes: u64| format!("{}Ki", bytes / 1024);
    let pairs = [
        ("cpu", facts.cpus.to_string()),
        ("ephemeral-storage", kibibytes(facts.storage_bytes)),
        ("memory", kibibytes(facts.memory_bytes)),
        ("pods", MAX_PODS.to_string()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), Quantity(value))).collect()
}

fn system_info(options: &Options, facts: &Facts) -> NodeSystemInfo {
    // Nodes of an embedded cluster share a host; each still needs an identity of its own.
    let identity = format!("{}/{}", facts.machine_id, options.name);
    let identity = uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, identity.as_bytes());
    NodeSystemInfo {
        architecture: facts.architecture.into(),
        boot_id: facts.boot_id.clone(),
        container_runtime_version: format!("tether://{}", env!("CARGO_PKG_VERSION")),
        kernel_version: facts.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: options.version.clone(),
        machine_id: identity.simple().to_string(),
        operating_system: "linux".into(),
        os_image: facts.os_image.clone(),
        system_uuid: identity.to_string(),
        swap: None,
    }
}

fn condition(kind: &str, status: bool, reason: &str, message: impl Into<String>) -> NodeCondition {
    NodeCondition {
        type_: kind.into(),
        status: if status { "True" } else { "False" }.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        ..Default::default()
    }
}

fn kubelet_conditions(available: Option<Available>) -> Vec<NodeCondition> {
    let memory = available.is_some_and(|available| available.memory_bytes < MEMORY_PRESSURE_BYTES);
    let disk = available.is_some_and(|available| available.storage_bytes < DISK_PRESSURE_BYTES);
    vec![
        if memory {
            condition(
                "MemoryPressure",
                true,
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            )
        } else {
            condition("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
        },
        if disk {
            condition("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure")
        } else {
            condition("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        },
        condition("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", true, "KubeletReady", "kubelet is posting ready status"),
    ]
}

/// What an embedded node has to say beside what a kubelet says.
fn extra_conditions(options: &Options) -> Vec<NodeCondition> {
    let mut extra = vec![match &options.mounts_unavailable {
        None => condition("KernelMounts", true, "Available", "kernel devices and mounts can be used"),
        Some(why) => condition("KernelMounts", false, "Unavailable", format!("no kernel devices and mounts: {why}")),
    }];
    if let Some(restarts) = &options.restarts {
        let message = match (&restarts.last_exit, restarts.count) {
            (Some(exit), count) => format!("the agent was restarted ({count} so far): {exit}"),
            (None, _) => "the agent runs since the cluster was started".to_owned(),
        };
        let reason = if restarts.last_exit.is_some() { "AgentRestarted" } else { "AgentStarted" };
        extra.push(condition("AgentRunning", true, reason, message));
    }
    extra
}

/// Creates the Node and its CSINode, or brings the ones that are there up to date. Tries until it works: without
/// an API server there is nothing else for a node to do.
pub(crate) async fn register(client: &Client, node: &Description) -> Node {
    let registered = persistently("register the node", || try_register(client, node)).await;
    persistently("create the CSINode", || create_csi_node(client, &registered)).await;
    registered
}

async fn persistently<T, F: Future<Output = kube::Result<T>>>(what: &str, attempt: impl Fn() -> F) -> T {
    let mut pause = FIRST_RETRY;
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => tracing::warn!(%error, "cannot {what}; trying again in {pause:?}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_RETRY);
    }
}

async fn try_register(client: &Client, node: &Description) -> kube::Result<Node> {
    let nodes: Api<Node> = Api::all(client.clone());
    let created = nodes.create(&PostParams::default(), &node.node(Timestamp::now(), None)).await;
    match created {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => return other,
    }
    let found = nodes.get(&node.name).await?;
    let labelled = node.labels.iter().all(|(key, value)| found.labels().get(key) == Some(value));
    if labelled && found.annotations().contains_key(MANAGED_ATTACH) {
        return Ok(found);
    }
    let patch = json!({"metadata": {"labels": node.labels, "annotations": {MANAGED_ATTACH: "true"}}});
    nodes.patch(&node.name, &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn create_csi_node(client: &Client, node: &Node) -> kube::Result<()> {
    let object = CSINode {
        metadata: ObjectMeta {
            name: Some(node.name_any()),
            owner_references: Some(vec![owner(node)]),
            ..Default::default()
        },
        spec: CSINodeSpec { drivers: Vec::new() },
    };
    match Api::all(client.clone()).create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        other => other.map(drop),
    }
}

/// Makes an object go when the node goes.
pub(crate) fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Restarts;

    const PLENTY: Available = Available { memory_bytes: 1 << 40, storage_bytes: 1 << 40 };

    fn options() -> Options {
        Options {
            name: "node-1".into(),
            address: "127.0.0.2".parse().unwrap(),
            zone: "zone-a".into(),
            region: "local".into(),
            data_dir: "/".into(),
            version: "v1.35.0".into(),
            mounts_unavailable: None,
            container_env: Vec::new(),
            host_env: Vec::new(),
            storage: None,
            api: None,
            lease_duration: std::time::Duration::from_secs(40),
            restarts: None,
        }
    }

    fn facts() -> Facts {
        Facts {
            os_image: "Debian".into(),
            kernel: "6.1".into(),
            architecture: "amd64",
            boot_id: "b".into(),
            machine_id: "m".into(),
            cpus: 2,
            memory_bytes: 4 << 30,
            storage_bytes: 8 << 30,
        }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn conditions(options: &Options, available: Available) -> Vec<String> {
        let status = Description::new(options, &facts(), 0).status(Some(available), &[], at("2026-01-01T00:00:00Z"));
        status
            .conditions
            .unwrap()
            .iter()
            .map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_ref().unwrap()))
            .collect()
    }

    #[test]
    fn a_healthy_node_reports_what_a_kubelet_reports() {
        let expected = [
            "MemoryPressure=False KubeletHasSufficientMemory",
            "DiskPressure=False KubeletHasNoDiskPressure",
            "PIDPressure=False KubeletHasSufficientPID",
            "KernelMounts=True Available",
            "Ready=True KubeletReady",
        ];
        assert_eq!(conditions(&options(), PLENTY), expected);
        let node = Description::new(&options(), &facts(), 0).node(at("2026-01-01T00:00:00Z"), None);
        assert_eq!(node.labels()["kubernetes.io/hostname"], "node-1");
        assert_eq!(node.labels()["topology.kubernetes.io/zone"], "zone-a");
        let capacity = node.status.unwrap().capacity.unwrap();
        assert_eq!((capacity["memory"].0.as_str(), capacity["pods"].0.as_str()), ("4194304Ki", "110"));
    }

    #[test]
    fn what_is_short_or_missing_is_a_condition() {
        let options = Options {
            mounts_unavailable: Some("not running as root".into()),
            restarts: Some(Restarts { count: 2, last_exit: Some("killed by signal 9".into()) }),
            ..options()
        };
        let expected = [
            "MemoryPressure=True KubeletHasInsufficientMemory",
            "DiskPressure=True KubeletHasDiskPressure",
            "PIDPressure=False KubeletHasSufficientPID",
            "KernelMounts=False Unavailable",
            "AgentRunning=True AgentRestarted",
            "Ready=True KubeletReady",
        ];
        assert_eq!(conditions(&options, Available { memory_bytes: 1, storage_bytes: 1 }), expected);
    }

    #[test]
    fn a_transition_time_moves_only_with_the_status() {
        let description = Description::new(&options(), &facts(), 0);
        let (then, now) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
        let old = description.status(Some(PLENTY), &[], then).conditions.unwrap();
        let new = description.status(Some(Available { memory_bytes: 1, ..PLENTY }), &old, now).conditions.unwrap();
        let since: Vec<_> = new.iter().map(|c| c.last_transition_time.as_ref().unwrap().0).collect();
        assert_eq!(since, [now, then, then, then, then]);
        assert!(new.iter().all(|c| c.last_heartbeat_time == Some(Time(now))));
    }

    #[test]
    fn nodes_of_one_host_have_identities_of_their_own() {
        let id = |name: &str| system_info(&Options { name: name.into(), ..options() }, &facts()).machine_id;
        assert_eq!(id("node-1"), id("node-1"));
        assert_ne!(id("node-1"), id("node-2"));
    }
}
