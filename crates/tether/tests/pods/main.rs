//! Containers as processes: what a pod says is run, ended, run again, and outlives the agent.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test fails by panicking and tells what it skips")]

mod exec;
#[path = "../support/python.rs"]
mod python;

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, ContainerStatus, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::conditions::is_deleted;
use kube::runtime::wait::{Condition, await_condition};
use rustix::process::Signal;
use serde_json::{Value, json};
use tether_testkit::Cluster;
use tether_testkit::cluster::{eventually, signal};

/// A debug build on a machine that is busy with other tests is slow.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(60);

struct Lab {
    cluster: Cluster,
    pods: Api<Pod>,
    runtime: tokio::runtime::Runtime,
}

impl Lab {
    fn new() -> Self {
        let cluster = Cluster::builder(env!("CARGO_BIN_EXE_tether")).nodes(1).start();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let client = runtime.block_on(cluster.client());
        Self { cluster, pods: Api::default_namespaced(client), runtime }
    }

    /// Creates a pod on the node with one container that runs a script.
    fn pod(&self, name: &str, policy: &str, script: &str, more: Value) -> Pod {
        let mut container = json!({"name": "app", "image": "x", "command": ["sh", "-c", script]});
        container.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let spec = json!({
            "nodeName": "node-1", "restartPolicy": policy, "containers": [container], "terminationGracePeriodSeconds": 2,
        });
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        self.runtime.block_on(self.pods.create(&PostParams::default(), &pod)).unwrap()
    }

    fn wait(&self, name: &str, what: impl Condition<Pod>) -> Option<Pod> {
        let waiting = async { tokio::time::timeout(LIMIT, await_condition(self.pods.clone(), name, what)).await };
        let Ok(found) = self.runtime.block_on(waiting) else {
            panic!("{name} is {:#?}", self.runtime.block_on(self.pods.get_opt(name)))
        };
        found.unwrap()
    }

    fn run_dir(&self, pod: &Pod, attempt: u32) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().unwrap();
        self.cluster.dir().join(format!("nodes/node-1/pods/{uid}/containers/app/{attempt}"))
    }

    /// The pid of the container's process.
    fn pid(&self, pod: &Pod, attempt: u32) -> u32 {
        let started: Value =
            serde_json::from_slice(&fs::read(self.run_dir(pod, attempt).join("started")).unwrap()).unwrap();
        started["pid"].as_u64().unwrap() as u32
    }

    fn log(&self, pod: &Pod, attempt: u32) -> Vec<String> {
        let text = fs::read_to_string(self.run_dir(pod, attempt).join("log")).unwrap_or_default();
        text.lines().map(|line| line.split_once(' ').map_or("", |(_, rest)| rest).to_owned()).collect()
    }
}

fn phase(wanted: &'static str) -> impl Condition<Pod> {
    move |pod: Option<&Pod>| pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()) == Some(wanted)
}

fn app(pod: &Pod) -> ContainerStatus {
    pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].clone()
}

fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

fn namespace(pid: impl std::fmt::Display) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap()
}

#[test]
fn containers_run_with_their_command_environment_and_log() {
    let lab = Lab::new();
    let maps: Api<ConfigMap> = Api::default_namespaced(lab.runtime.block_on(lab.cluster.client()));
    let map = serde_json::from_value(json!({"metadata": {"name": "words"}, "data": {"who": "you"}})).unwrap();
    lab.runtime.block_on(maps.create(&PostParams::default(), &map)).unwrap();
    let more = json!({
        "args": ["$(GREETING)"], "workingDir": "/usr",
        "env": [
            {"name": "WHO", "valueFrom": {"configMapKeyRef": {"name": "words", "key": "who"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "GREETING", "value": "hello $(WHO)"},
        ],
    });
    lab.pod("greets", "Never", "echo \"$0 on $NODE in $PWD\"; echo oh >&2; exit 7", more);
    let pod = lab.wait("greets", phase("Failed")).unwrap();
    let ended = app(&pod).state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (7, Some("Error")));
    let mut log = lab.log(&pod, 0);
    log.sort();
    assert_eq!(log, ["stderr F oh", "stdout F hello you on node-1 in /usr"]);

    lab.pod("missing", "Never", "true", json!({"command": ["/no/such/program"]}));
    let ended = app(&lab.wait("missing", phase("Failed")).unwrap()).state.unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (128, Some("StartError")));
    assert!(ended.message.unwrap().contains("/no/such/program"));

    lab.pod("works", "OnFailure", "exit 0", json!({}));
    lab.wait("works", phase("Succeeded"));
}

#[test]
fn containers_outlive_the_agent_and_their_end_is_not_missed() {
    let lab = Lab::new();
    lab.pod("lasts", "Always", "sleep 600 & wait", json!({}));
    lab.pod("ends", "Never", "while [ ! -e \"$FLAG\" ]; do sleep 0.05; done; exit 5", {
        json!({"env": [{"name": "FLAG", "value": lab.cluster.dir().join("flag")}]})
    });
    let lasts = lab.wait("lasts", phase("Running")).unwrap();
    let ends = lab.wait("ends", phase("Running")).unwrap();
    let (lasting, ending) = (lab.pid(&lasts, 0), lab.pid(&ends, 0));
    if rustix::process::geteuid().is_root() {
        assert_ne!(namespace(lasting), namespace(lab.cluster.pid("node-1").unwrap()), "it has mounts of its own");
    }

    // The agent is away when one of them ends.
    let agent = lab.cluster.pid("node-1").unwrap();
    signal(agent, Signal::STOP);
    fs::write(lab.cluster.dir().join("flag"), "").unwrap();
    eventually("the container sees its flag", || (!lives(ending)).then_some(()));
    signal(agent, Signal::KILL);
    let pod = lab.wait("ends", phase("Failed")).unwrap();
    assert_eq!(app(&pod).state.unwrap().terminated.unwrap().exit_code, 5);
    let pod = lab.runtime.block_on(lab.pods.get("lasts")).unwrap();
    assert!(lives(lasting), "killing the agent kills no container");
    assert_eq!((app(&pod).restart_count, app(&pod).state), (0, app(&lasts).state));

    // Killing the process that watches over a container ends the container, and it is run again.
    let shim: u32 = fs::read_to_string(lab.run_dir(&lasts, 0).join("lock")).unwrap().parse().unwrap();
    signal(shim, Signal::KILL);
    let restarted = |pod: Option<&Pod>| pod.is_some_and(|pod| app(pod).restart_count == 1 && app(pod).ready);
    let pod = lab.wait("lasts", restarted).unwrap();
    assert!(!lives(lasting));
    let last = app(&pod).last_state.unwrap().terminated.unwrap();
    assert_eq!(last.reason.as_deref(), Some("ContainerStatusUnknown"));
}

#[test]
fn nothing_of_a_deleted_pod_is_left() {
    let lab = Lab::new();
    // It does not listen, and it has a child that left its session.
    let script = "trap '' TERM; setsid sleep 600 & echo $!; while :; do sleep 0.1; done";
    let pod = lab.pod("stubborn", "Always", script, json!({}));
    lab.wait("stubborn", phase("Running"));
    let child = eventually("the child is told", || {
        let line = lab.log(&pod, 0).first().cloned()?;
        line.strip_prefix("stdout F ")?.parse::<u32>().ok()
    });
    let main = lab.pid(&pod, 0);
    lab.runtime.block_on(lab.pods.delete("stubborn", &DeleteParams::default())).unwrap();
    lab.wait("stubborn", is_deleted(pod.metadata.uid.as_deref().unwrap()));
    assert!(!lives(main) && !lives(child));
    eventually("its directory goes", || (!uid_dir(&lab, &pod).exists()).then_some(()));

    // Without grace the object is gone at once; the process follows.
    let pod = lab.pod("sudden", "Always", "sleep 600", json!({}));
    lab.wait("sudden", phase("Running"));
    let main = lab.pid(&pod, 0);
    lab.runtime.block_on(lab.pods.delete("sudden", &DeleteParams::default().grace_period(0))).unwrap();
    eventually("the process goes", || (!lives(main) && !uid_dir(&lab, &pod).exists()).then_some(()));
}

fn uid_dir(lab: &Lab, pod: &Pod) -> PathBuf {
    lab.run_dir(pod, 0).ancestors().nth(3).map(Path::to_owned).unwrap()
}

#[test]
fn a_stopped_cluster_leaves_no_container() {
    let mut lab = Lab::new();
    let pod = lab.pod("lasts", "Always", "sleep 600", json!({}));
    lab.wait("lasts", phase("Running"));
    let main = lab.pid(&pod, 0);
    lab.cluster.stop();
    assert!(!lives(main));
    lab.cluster.up();
    let restarted = |pod: Option<&Pod>| pod.is_some_and(|pod| app(pod).restart_count == 1 && app(pod).ready);
    lab.wait("lasts", restarted);
    let main = lab.pid(&pod, 1);
    lab.cluster.kill();
    assert!(lives(main), "nobody told it to end");
    lab.cluster.up();
    assert!(!lives(main), "the next start cleans up");
}
