//! A cluster for the suite: the one that `TETHER_E2E_KUBECONFIG` names, or one of its own. The cases do not know which.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{StorageClass, VolumeAttachment};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tether_testkit::Cluster;

/// A debug build on a machine that is busy with other tests is slow.
const LIMIT: Duration = Duration::from_secs(120);
/// Another limit, in seconds: Kubernetes' own controllers leave volumes on a silent node for six minutes.
const LIMIT_SECONDS: &str = "TETHER_E2E_LIMIT";
/// Names the cluster to use.
const KUBECONFIG: &str = "TETHER_E2E_KUBECONFIG";
/// Another binary than the one of this build, for campaigns that last longer than the next build.
const BINARY: &str = "TETHER_E2E_BINARY";
/// A program for clusters that are not the suite's own. It is called with `stop NODE` and `start NODE` to freeze and thaw a
/// node's agent, `kill NODE` to kill it and have it started anew, `mounts NODE` to print what is mounted on the node.
const NODE_CONTROL: &str = "TETHER_E2E_NODE_CONTROL";
pub(crate) const CLASS: &str = "tether-e2e";
/// Its volumes are made when the first pod that wants them has a node.
pub(crate) const LATE_CLASS: &str = "tether-e2e-late";
const DRIVER: &str = "driver.longhorn.io";

pub(crate) struct Lab {
    pub(crate) client: Client,
    pub(crate) nodes: Vec<String>,
    pub(crate) runtime: tokio::runtime::Runtime,
    pub(crate) cluster: Option<Cluster>,
    /// Versions of events that were there before: a cluster keeps them for an hour, and an earlier run had the same names.
    past: BTreeSet<String>,
}

impl Lab {
    /// `env`: settings of a cluster of the suite's own.
    pub(crate) fn start(env: &[&str]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let external = std::env::var_os(KUBECONFIG);
        let (cluster, client) = if let Some(path) = external {
            (None, runtime.block_on(connect(path.into())))
        } else {
            let wrapper: Vec<&str> = std::iter::once("env").chain(env.iter().copied()).collect();
            let binary = std::env::var_os(BINARY).unwrap_or_else(|| env!("CARGO_BIN_EXE_tether").into());
            let cluster = Cluster::builder(binary).nodes(3).wrapper(&wrapper).start();
            let client = runtime.block_on(cluster.client());
            (Some(cluster), client)
        };
        let mut lab = Self { client, nodes: Vec::new(), runtime, cluster, past: BTreeSet::new() };
        lab.past = lab.list::<Event>().iter().filter_map(ResourceExt::resource_version).collect();
        lab.nodes = lab.list::<Node>().iter().map(ResourceExt::name_any).take(3).collect();
        assert_eq!(lab.nodes.len(), 3, "the suite needs three nodes");
        lab.storage_is_ready();
        lab.class(CLASS, "Immediate");
        lab.class(LATE_CLASS, "WaitForFirstConsumer");
        lab
    }

    fn class(&self, name: &str, binding: &str) {
        let class: StorageClass = of(json!({
            "metadata": {"name": name}, "provisioner": DRIVER, "allowVolumeExpansion": true,
            "parameters": {"numberOfReplicas": "3"}, "volumeBindingMode": binding,
        }));
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let params = PatchParams::apply("tether-e2e");
        self.run(classes.patch(name, &params, &Patch::Apply(with_kind(&class)))).unwrap();
    }

    /// What kubectl prints; it has to succeed. `input` is what it reads.
    pub(crate) fn kubectl(&self, args: &[&str], input: Option<&Value>) -> String {
        let output = self.try_kubectl(args, input);
        assert!(output.status.success(), "kubectl {args:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn try_kubectl(&self, args: &[&str], input: Option<&Value>) -> Output {
        let external = || PathBuf::from(std::env::var_os(KUBECONFIG).expect("a cluster of our own has its kubeconfig"));
        let kubeconfig = self.cluster.as_ref().map_or_else(external, Cluster::kubeconfig);
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(kubeconfig).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let text = input.map(Value::to_string).unwrap_or_default();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    pub(crate) fn apply(&self, object: Value) {
        self.kubectl(&["apply", "-f", "-"], Some(&object));
    }

    /// A field of an object, as a JSON path names it; empty if it is not there.
    pub(crate) fn field(&self, object: &str, path: &str) -> String {
        let output = self.try_kubectl(&["get", object, "-o", &format!("jsonpath={path}")], None);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until a field of an object is so.
    pub(crate) fn until_field(&self, object: &str, path: &str, wanted: &str) {
        let what = format!("{path} of {object} is {wanted:?}");
        let deadline = Instant::now() + limit();
        while self.field(object, path) != wanted {
            let whole = || self.kubectl(&["get", object, "-o", "yaml"], None);
            assert!(Instant::now() < deadline, "not within {:?}: {what}; it is\n{}", limit(), whole());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until every node has its instance manager and a disk.
    fn storage_is_ready(&self) {
        use tether_crd::instance_manager::InstanceManagerState;
        let api: Api<tether_crd::InstanceManager> = Api::namespaced(self.client.clone(), tether_crd::NAMESPACE);
        let disks: Api<tether_crd::Node> = Api::namespaced(self.client.clone(), tether_crd::NAMESPACE);
        until("instance managers run", || {
            let all = self.run(api.list(&ListParams::default())).ok()?;
            let running = all.iter().filter(|im| im.status.current_state == InstanceManagerState::Running);
            let nodes = self.run(disks.list(&ListParams::default())).ok()?;
            let ready = nodes.iter().filter(|node| {
                node.is_ready() && node.status.disk_status.values().any(|disk| disk.storage_maximum > 0)
            });
            (running.count() >= 3 && ready.count() >= 3).then_some(())
        });
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    fn list<K>(&self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        self.run(Api::<K>::all(self.client.clone()).list(&ListParams::default())).unwrap().items
    }

    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn wait<K>(&self, name: &str, what: impl Condition<K>) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let api = self.api::<K>();
        let waiting = async { tokio::time::timeout(limit(), await_condition(api.clone(), name, what)).await };
        let Ok(found) = self.run(waiting) else {
            let events: Vec<_> = self.events(name).into_iter().map(|(r, m)| format!("{r}: {m}")).collect();
            panic!("{name} is {:#?}\nevents:\n{}", self.run(self.api::<K>().get_opt(name)), events.join("\n"))
        };
        found.unwrap()
    }

    pub(crate) fn claim(&self, name: &str, more: Value) {
        let mut claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                "resources": {"requests": {"storage": "128Mi"}},
            },
        });
        merge(&mut claim["spec"], more);
        self.run(self.api::<PersistentVolumeClaim>().create(&PostParams::default(), &of(claim))).unwrap();
    }

    /// A pod on a node that runs a script, with its claim at `/data`; `more` changes the spec.
    pub(crate) fn pod(&self, name: &str, node: usize, claim: &str, script: &str, more: Value) -> Pod {
        let mut placed = json!({"nodeName": self.nodes[node]});
        merge(&mut placed, more);
        self.pod_anywhere(name, claim, script, placed)
    }

    /// The same on a node that the scheduler chooses.
    pub(crate) fn pod_anywhere(&self, name: &str, claim: &str, script: &str, more: Value) -> Pod {
        let mut spec = json!({
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "app", "image": "tether", "command": ["sh", "-euc", script],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        });
        merge(&mut spec, more);
        let pod = of(json!({"metadata": {"name": name}, "spec": spec}));
        self.run(self.api::<Pod>().create(&PostParams::default(), &pod)).unwrap()
    }

    pub(crate) fn running(&self, name: &str) -> Pod {
        self.wait::<Pod>(name, phase_is("Running")).unwrap()
    }

    /// Waits until the pod's script has succeeded, and removes the pod.
    pub(crate) fn succeeds(&self, name: &str) {
        let over = |pod: Option<&Pod>| matches!(phase(pod), Some("Succeeded" | "Failed"));
        let pod = self.wait::<Pod>(name, over).unwrap();
        assert_eq!(phase(Some(&pod)), Some("Succeeded"), "{name}: {:#?}", pod.status);
        self.delete(name);
    }

    pub(crate) fn delete(&self, name: &str) {
        self.run(self.api::<Pod>().delete(name, &DeleteParams::default())).unwrap();
        self.wait::<Pod>(name, |pod: Option<&Pod>| pod.is_none());
    }

    pub(crate) fn delete_claim(&self, name: &str) {
        self.run(self.api::<PersistentVolumeClaim>().delete(name, &DeleteParams::default())).unwrap();
        self.wait::<PersistentVolumeClaim>(name, |claim: Option<&PersistentVolumeClaim>| claim.is_none());
    }

    /// The volume of a claim, once it is bound.
    pub(crate) fn volume_of(&self, claim: &str) -> String {
        let name = |claim: &PersistentVolumeClaim| claim.spec.as_ref()?.volume_name.clone();
        let bound = self.wait(claim, move |claim: Option<&PersistentVolumeClaim>| claim.and_then(name).is_some());
        bound.as_ref().and_then(name).unwrap()
    }

    /// Reason and message of the events about an object.
    pub(crate) fn events(&self, about: &str) -> Vec<(String, String)> {
        let all = self.run(self.api::<Event>().list(&ListParams::default())).map(|list| list.items);
        let is_new = |event: &Event| !event.resource_version().is_some_and(|version| self.past.contains(&version));
        let is_ours = |event: &Event| event.involved_object.name.as_deref() == Some(about) && is_new(event);
        let ours = all.unwrap_or_default().into_iter().filter(is_ours);
        ours.map(|event| (event.reason.unwrap_or_default(), event.message.unwrap_or_default())).collect()
    }

    pub(crate) fn event(&self, about: &str, reason: &str, part: &str) -> String {
        let found = || self.events(about).into_iter().find(|(r, message)| r == reason && message.contains(part));
        until(&format!("event {reason} about {about}: …{part}…"), found).1
    }

    /// Attachments of this driver.
    pub(crate) fn attachments(&self) -> Vec<VolumeAttachment> {
        self.list::<VolumeAttachment>().into_iter().filter(|held| held.spec.attacher == DRIVER).collect()
    }

    /// Volumes that a node says it uses.
    pub(crate) fn in_use(&self, node: usize) -> Vec<String> {
        let node = self.run(Api::<Node>::all(self.client.clone()).get(&self.nodes[node])).unwrap();
        node.status.and_then(|status| status.volumes_in_use).unwrap_or_default()
    }

    /// Takes a node away (`stop`), gives it back (`start`), or kills its agent, which is started anew (`kill`); false if
    /// this cluster offers no way to.
    pub(crate) fn node(&self, what: &str, node: usize) -> bool {
        use rustix::process::Signal;
        let Some(cluster) = &self.cluster else { return control(what, &self.nodes[node]).is_some() };
        let pid = cluster.pid(&self.nodes[node]).expect("the agent must run");
        let signal = match what {
            "stop" => Signal::STOP,
            "start" => Signal::CONT,
            _ => Signal::KILL,
        };
        tether_testkit::cluster::signal(pid, signal);
        if signal == Signal::KILL {
            until("the agent is back", || cluster.pid(&self.nodes[node]).filter(|new| *new != pid));
        }
        true
    }

    /// Checks that nothing is left: no attachment, ticket, volume in use, and no mount where that can be told.
    pub(crate) fn nothing_is_left(&self) {
        until("no VolumeAttachment is left", || self.attachments().is_empty().then_some(()));
        let tickets: Api<tether_crd::VolumeAttachment> = Api::namespaced(self.client.clone(), tether_crd::NAMESPACE);
        until("no ticket of CSI is left", || {
            let all = self.run(tickets.list(&ListParams::default())).ok()?;
            let held = all.iter().flat_map(|held| held.spec.attachment_tickets.values());
            let csi = held.filter(|ticket| ticket.kind == tether_crd::attachment::TicketType::Csi);
            (csi.count() == 0).then_some(())
        });
        for node in 0..self.nodes.len() {
            until("no volume is in use", || self.in_use(node).is_empty().then_some(()));
        }
        // A node that was just registered anew says that nothing is in use before it has unmounted what its past left.
        let deadline = Instant::now() + limit();
        loop {
            let left = self.mounts();
            if left.values().all(Vec::is_empty) {
                return;
            }
            assert!(Instant::now() < deadline, "still mounted after {:?}: {left:#?}", limit());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What is mounted of volumes, by node, where that can be told.
    pub(crate) fn mounts(&self) -> BTreeMap<String, Vec<String>> {
        let of = |node: &String| {
            let text = match &self.cluster {
                Some(cluster) => {
                    let holder = format!("--mount={}", cluster.dir().join("run").join(node).join("mnt").display());
                    let output = Command::new("nsenter").args([&holder, "cat", "/proc/self/mountinfo"]).output();
                    String::from_utf8_lossy(&output.unwrap().stdout).into_owned()
                }
                None => control("mounts", node)?,
            };
            let ours = text
                .lines()
                .filter(|line| line.contains("/kubernetes.io/csi/") || line.contains("/kubernetes.io~csi/"));
            Some((node.clone(), ours.map(str::to_owned).collect()))
        };
        self.nodes.iter().filter_map(of).collect()
    }
}

/// Whether there is a kubectl; tells if not.
pub(crate) fn has_kubectl(test: &str) -> bool {
    let found = Command::new("kubectl").args(["version", "--client"]).output().is_ok();
    if !found {
        eprintln!("{test}: SKIPPED, kubectl is needed");
    }
    found
}

/// What the program for nodes prints; nothing if there is none, or it cannot do that.
fn control(what: &str, node: &str) -> Option<String> {
    let output = Command::new(std::env::var_os(NODE_CONTROL)?).args([what, node]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// How long anything may take.
fn limit() -> Duration {
    let given = std::env::var(LIMIT_SECONDS).ok();
    given.map_or(LIMIT, |text| Duration::from_secs(text.parse().expect("TETHER_E2E_LIMIT must be a number of seconds")))
}

/// Looks until there is something; panics with `what` after [`limit`].
pub(crate) fn until<T>(what: &str, look: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + limit();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {:?}: {what}", limit());
        std::thread::sleep(Duration::from_millis(50));
    }
}

async fn connect(path: PathBuf) -> Client {
    let file = Kubeconfig::read_from(path).expect("the kubeconfig must be readable");
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

pub(crate) fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn with_kind(class: &StorageClass) -> Value {
    let mut value = serde_json::to_value(class).unwrap();
    merge(&mut value, json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass"}));
    value
}

/// Sets what `more` has in `into`.
pub(crate) fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, Value::Null) if !into.is_null() => {}
        (into, more) => *into = more,
    }
}

pub(crate) fn phase(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.phase.as_deref()
}

pub(crate) fn phase_is(wanted: &'static str) -> impl Condition<Pod> {
    move |pod: Option<&Pod>| phase(pod) == Some(wanted)
}
