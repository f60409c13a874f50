//! Pods with a claim, one after the other on a real cluster: how long each takes until it runs, and what it waits for.
//!
//! Each round makes a claim and a pod that names its node, measures, takes the pod away, and measures another pod with the
//! same claim on the next node.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde_json::{Value, json};

/// The driver of the class that a run makes for itself.
const DRIVER: &str = "driver.longhorn.io";
/// A pod that takes longer will not come.
const SLOW: Duration = Duration::from_secs(120);

/// How often, and what.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub rounds: usize,
    /// A class that is there; without it one is made.
    pub class: Option<String>,
    pub replicas: usize,
    pub size: String,
    pub namespace: String,
}

/// One phase of one kind of pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Figure {
    /// `new` for a volume that is made with the pod, `existing` for one that was used before.
    pub volume: &'static str,
    pub phase: &'static str,
    pub median_ms: f64,
    pub p90_ms: f64,
    pub max_ms: f64,
    pub count: usize,
}

/// When a pod reached each phase, since it was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Reached {
    bound: Option<Duration>,
    attached: Option<Duration>,
    running: Option<Duration>,
}

/// What is seen of the cluster; `None` for what went.
#[allow(clippy::large_enum_variant, reason = "one at a time, and read at once")]
enum Sight {
    Claim(String, Option<PersistentVolumeClaim>),
    Volume(String, Option<PersistentVolume>),
    Attachment(String, Option<VolumeAttachment>),
    Pod(String, Option<Pod>),
}

/// The cluster as it was last seen.
#[derive(Default)]
struct Seen {
    claims: BTreeMap<String, PersistentVolumeClaim>,
    volumes: BTreeMap<String, PersistentVolume>,
    attachments: BTreeMap<String, VolumeAttachment>,
    pods: BTreeMap<String, Pod>,
}

struct Bench<'a> {
    client: &'a Client,
    plan: &'a Plan,
    class: String,
    sights: Pin<Box<dyn Stream<Item = Sight> + Send>>,
    seen: Seen,
}

/// Measures, and takes away what it made.
pub(crate) async fn run(client: &Client, plan: &Plan, progress: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let run = format!("tether-bench-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = match &plan.class {
        Some(name) => classes.get(name).await.with_context(|| format!("StorageClass {name}"))?,
        None => classes.create(&PostParams::default(), &own_class(&run, plan.replicas)?).await?,
    };
    let nodes: Api<CSINode> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await?;
    let has_driver = |node: &&CSINode| node.spec.drivers.iter().any(|driver| driver.name == class.provisioner);
    let nodes: Vec<String> = nodes.iter().filter(has_driver).map(kube::ResourceExt::name_any).collect();
    let sights = watch(client, &plan.namespace);
    let mut bench = Bench { client, plan, class: class.name_any(), sights, seen: Seen::default() };
    let measured = match nodes.is_empty() {
        true => Err(anyhow::anyhow!("no node of the cluster has the driver {}", class.provisioner)),
        false => bench.measure(&run, &nodes, progress).await,
    };
    if plan.class.is_none() {
        classes.delete(&run, &DeleteParams::default()).await?;
    }
    measured
}

impl Bench<'_> {
    async fn measure(&mut self, run: &str, nodes: &[String], progress: &dyn Fn(&str)) -> Result<Vec<Figure>> {
        let mut samples: BTreeMap<&'static str, Vec<Reached>> = BTreeMap::new();
        for round in 0..self.plan.rounds {
            progress(&format!("round {} of {}", round + 1, self.plan.rounds));
            let claim = format!("{run}-{round}");
            for (turn, kind) in ["new", "existing"].into_iter().enumerate() {
                let node = &nodes[(round + turn) % nodes.len()];
                let pod = format!("{claim}-{kind}");
                let reached = self.start(&pod, &claim, node, turn == 0).await?;
                samples.entry(kind).or_default().push(reached);
                self.stop(&pod, &claim).await?;
            }
            self.drop_claim(&claim).await?;
        }
        Ok(samples.into_iter().rev().flat_map(|(kind, reached)| figures(kind, &reached)).collect())
    }

    /// Sends a pod, and its claim if it has none, and notes what is reached when.
    async fn start(&mut self, pod: &str, claim: &str, node: &str, with_claim: bool) -> Result<Reached> {
        let begun = Instant::now();
        if with_claim {
            let claims: Api<PersistentVolumeClaim> = self.objects();
            claims.create(&PostParams::default(), &serde_json::from_value(self.claim(claim))?).await?;
        }
        let pods: Api<Pod> = self.objects();
        pods.create(&PostParams::default(), &serde_json::from_value(pod_object(pod, claim, node))?).await?;
        let mut reached = Reached::default();
        while reached.running.is_none() {
            self.look(&format!("pod {pod} does not run on {node}"), &reached).await?;
            reached.note(&self.seen, pod, claim, node, begun.elapsed());
            if let Some(phase @ ("Failed" | "Succeeded")) = self.seen.phase(pod) {
                bail!("pod {pod} ended on {node}: {phase}");
            }
        }
        Ok(reached)
    }

    /// Deletes a pod and waits until its volume is detached: the next one finds it at rest.
    async fn stop(&mut self, pod: &str, claim: &str) -> Result<()> {
        self.objects::<Pod>().delete(pod, &DeleteParams::default()).await?;
        let volume = self.seen.volume_of(claim).unwrap_or_default().to_owned();
        while self.seen.pods.contains_key(pod) || self.seen.attachments.values().any(|va| is_of(va, &volume)) {
            self.look(&format!("pod {pod} or the attachment of {volume} did not go"), &Reached::default()).await?;
        }
        Ok(())
    }

    async fn drop_claim(&mut self, claim: &str) -> Result<()> {
        let volume = self.seen.volume_of(claim).unwrap_or_default().to_owned();
        self.objects::<PersistentVolumeClaim>().delete(claim, &DeleteParams::default()).await?;
        while self.seen.claims.contains_key(claim) || self.seen.volumes.contains_key(&volume) {
            self.look(&format!("claim {claim} or its volume did not go"), &Reached::default()).await?;
        }
        Ok(())
    }

    /// Takes in the next thing that is seen.
    async fn look(&mut self, waiting: &str, reached: &Reached) -> Result<()> {
        let next = tokio::time::timeout(SLOW, self.sights.next()).await;
        let sight = next.with_context(|| format!("{waiting}: nothing happened for {SLOW:?} ({})", reached.words()))?;
        match sight.context("the watch ended")? {
            Sight::Claim(name, object) => put(&mut self.seen.claims, name, object),
            Sight::Volume(name, object) => put(&mut self.seen.volumes, name, object),
            Sight::Attachment(name, object) => put(&mut self.seen.attachments, name, object),
            Sight::Pod(name, object) => put(&mut self.seen.pods, name, object),
        }
        Ok(())
    }

    fn claim(&self, name: &str) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
                "resources": {"requests": {"storage": self.plan.size}},
            },
        })
    }

    fn objects<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.plan.namespace)
    }
}

impl Seen {
    fn phase(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod)?.status.as_ref()?.phase.as_deref()
    }

    /// The volume of a claim that is bound.
    fn volume_of(&self, claim: &str) -> Option<&str> {
        let claim = self.claims.get(claim)?;
        claim.status.as_ref().filter(|status| status.phase.as_deref() == Some("Bound"))?;
        claim.spec.as_ref()?.volume_name.as_deref()
    }
}

impl Reached {
    fn note(&mut self, seen: &Seen, pod: &str, claim: &str, node: &str, now: Duration) {
        let Some(volume) = seen.volume_of(claim) else { return };
        self.bound.get_or_insert(now);
        let is_attached = |va: &VolumeAttachment| {
            is_of(va, volume) && va.spec.node_name == node && va.status.as_ref().is_some_and(|status| status.attached)
        };
        if seen.attachments.values().any(is_attached) {
            self.attached.get_or_insert(now);
        }
        if seen.phase(pod) == Some("Running") {
            self.running.get_or_insert(now);
        }
    }

    fn words(&self) -> &'static str {
        match (self.bound, self.attached) {
            (None, _) => "its claim is not bound",
            (_, None) => "its volume is not attached",
            _ => "its volume is attached",
        }
    }
}

/// When a phase ended, and when the one before it had.
type Ends = fn(&Reached) -> (Option<Duration>, Option<Duration>);

/// How long each phase took, which is since the phase before it, and all of them together.
fn figures(volume: &'static str, reached: &[Reached]) -> Vec<Figure> {
    let since = |at: Option<Duration>, before: Option<Duration>| Some(at?.saturating_sub(before.unwrap_or_default()));
    let phases: [(&'static str, Ends); 4] = [
        ("bound", |r| (r.bound, None)),
        ("attached", |r| (r.attached, r.bound)),
        ("running", |r| (r.running, r.attached)),
        ("total", |r| (r.running, None)),
    ];
    let phases = phases.into_iter().filter(|(phase, _)| volume == "new" || *phase != "bound");
    let figure = |(phase, ends): (&'static str, Ends)| {
        let mut took: Vec<Duration> = reached.iter().map(ends).filter_map(|(at, before)| since(at, before)).collect();
        took.sort_unstable();
        let at = |percent: usize| {
            let place = (took.len() * percent / 100).min(took.len().saturating_sub(1));
            took.get(place).map_or(0.0, |took| took.as_secs_f64() * 1e3)
        };
        Figure { volume, phase, median_ms: at(50), p90_ms: at(90), max_ms: at(100), count: took.len() }
    };
    phases.map(figure).collect()
}

fn is_of(attachment: &VolumeAttachment, volume: &str) -> bool {
    attachment.spec.source.persistent_volume_name.as_deref() == Some(volume)
}

fn own_class(name: &str, replicas: usize) -> Result<StorageClass> {
    let class = json!({
        "metadata": {"name": name}, "provisioner": DRIVER, "parameters": {"numberOfReplicas": replicas.to_string()},
    });
    Ok(serde_json::from_value(class)?)
}

fn pod_object(name: &str, claim: &str, node: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "none", "command": ["sleep", "infinity"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

fn put<T>(into: &mut BTreeMap<String, T>, name: String, object: Option<T>) {
    match object {
        Some(object) => drop(into.insert(name, object)),
        None => drop(into.remove(&name)),
    }
}

fn watch(client: &Client, namespace: &str) -> Pin<Box<dyn Stream<Item = Sight> + Send>> {
    let claims = follow(Api::namespaced(client.clone(), namespace), Sight::Claim);
    let pods = follow(Api::namespaced(client.clone(), namespace), Sight::Pod);
    let volumes = follow(Api::all(client.clone()), Sight::Volume);
    let attachments = follow(Api::all(client.clone()), Sight::Attachment);
    stream::select(stream::select(claims, pods), stream::select(volumes, attachments)).boxed()
}

fn follow<K>(api: Api<K>, sight: fn(String, Option<K>) -> Sight) -> Pin<Box<dyn Stream<Item = Sight> + Send>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let seen = watcher::watcher(api, watcher::Config::default()).filter_map(move |event| async move {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => Some(sight(object.name_any(), Some(object))),
            Ok(Event::Delete(object)) => Some(sight(object.name_any(), None)),
            _ => None,
        }
    });
    seen.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_takes_from_the_one_before_it_and_an_existing_volume_is_not_bound_again() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let slow = Reached { bound: ms(300), attached: ms(500), running: ms(900) };
        let fast = Reached { bound: ms(100), attached: ms(200), running: ms(300) };
        let all = figures("new", &[slow, fast, fast]);
        let of = |phase: &str| all.iter().find(|figure| figure.phase == phase).expect("phase");
        assert_eq!((of("bound").median_ms, of("bound").max_ms), (100.0, 300.0));
        assert_eq!((of("attached").median_ms, of("running").max_ms), (100.0, 400.0));
        assert_eq!((of("total").median_ms, of("total").p90_ms, of("total").count), (300.0, 900.0, 3));
        let phases: Vec<_> = figures("existing", &[fast]).into_iter().map(|figure| figure.phase).collect();
        assert_eq!(phases, ["attached", "running", "total"]);
    }
}
