//! One volume, attached and detached again and again on a real cluster: how long a ticket waits, and for what.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{Stream, StreamExt as _, stream};
use jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::conditions::is_deleted;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tether_controllers::Phases;
use tether_crd::volume::State;
use tether_crd::{Engine, NAMESPACE, Node, Volume, VolumeAttachment};

use super::{Figure, Samples};

const TICKET: &str = "bench";
const SIZE_BYTES: i64 = 1 << 30;
/// An attachment that takes longer will not come.
const SLOW: Duration = Duration::from_secs(60);

/// How often, and what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub rounds: usize,
    pub replicas: usize,
    pub frontend: bool,
}

/// What is seen of the volume.
#[expect(clippy::large_enum_variant, reason = "one at a time, and read at once")]
enum Sight {
    Attachment(VolumeAttachment),
    Volume(Volume),
    Engine(Engine),
}

struct Bench<'a> {
    client: &'a Client,
    name: String,
    frontend: bool,
    sights: Pin<Box<dyn Stream<Item = Sight> + Send>>,
    phases: Phases,
    volume: Option<Volume>,
    engines: BTreeMap<String, Engine>,
}

/// Makes a volume, measures, and takes it away.
pub(crate) async fn run(client: &Client, plan: &Plan) -> Result<Vec<Figure>> {
    let nodes: Api<Node> = objects(client);
    let nodes: Vec<String> =
        nodes.list(&ListParams::default()).await?.iter().map(kube::ResourceExt::name_any).collect();
    if nodes.is_empty() {
        bail!("the cluster has no storage node");
    }
    let name = format!("bench-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
    let volumes: Api<Volume> = objects(client);
    let object = json!({
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"size": SIZE_BYTES.to_string(), "numberOfReplicas": plan.replicas, "frontend": "blockdev", "accessMode": "rwo"},
    });
    let made = volumes.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    let mut bench = Bench {
        client,
        sights: watch(client, &name),
        name: name.clone(),
        frontend: plan.frontend,
        phases: Phases::default(),
        volume: None,
        engines: BTreeMap::new(),
    };
    let measured = bench.measure(plan, &nodes).await;
    volumes.delete(&name, &DeleteParams::default()).await?;
    let uid = made.uid().unwrap_or_default();
    let gone = await_condition(volumes, &name, is_deleted(&uid));
    tokio::time::timeout(SLOW, gone).await.with_context(|| format!("volume {name} did not go"))??;
    measured
}

impl Bench<'_> {
    async fn measure(&mut self, plan: &Plan, nodes: &[String]) -> Result<Vec<Figure>> {
        self.until_detached().await?;
        let mut samples: BTreeMap<&'static str, Samples> = BTreeMap::new();
        let mut first = Samples::default();
        for round in 0..=plan.rounds {
            let took = self.attach(&nodes[round % nodes.len()]).await?;
            for (phase, seconds) in took {
                let sample = Duration::from_secs_f64(seconds.max(0.0));
                match (round, phase) {
                    (0, "total") => first.add(sample),
                    (0, _) => {}
                    _ => samples.entry(phase).or_default().add(sample),
                }
            }
            self.ticket(None).await?;
            self.until_detached().await?;
        }
        let mut figures = vec![first.figure("first", Duration::ZERO)];
        for phase in ["decide", "replicas", "engine", "tell", "total"] {
            figures.push(samples.remove(phase).unwrap_or_default().figure(phase, Duration::ZERO));
        }
        Ok(figures)
    }

    async fn ticket(&self, node: Option<&str>) -> Result<()> {
        let disable = (!self.frontend).to_string();
        let ticket = node.map(|node| {
            json!({"id": TICKET, "type": "longhorn-api", "nodeID": node, "parameters": {"disableFrontend": disable}})
        });
        let patch: Patch<Value> = Patch::Merge(json!({"spec": {"attachmentTickets": {TICKET: ticket}}}));
        objects::<VolumeAttachment>(self.client).patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Puts a ticket in and waits until it is satisfied.
    async fn attach(&mut self, node: &str) -> Result<Vec<(&'static str, f64)>> {
        let sent = Timestamp::now();
        self.ticket(Some(node)).await?;
        loop {
            let mut took = self.look().await.with_context(|| format!("{} was not attached to {node}", self.name))?;
            let Some(seen) = took.iter().find(|(phase, _)| *phase == "total").map(|(_, seconds)| *seconds) else {
                continue;
            };
            // It began when the ticket was sent, not when the ticket was seen.
            let before = sent.duration_until(Timestamp::now()).as_secs_f64() - seen;
            for (_, seconds) in took.iter_mut().filter(|(phase, _)| matches!(*phase, "total" | "decide")) {
                *seconds += before;
            }
            return Ok(took);
        }
    }

    async fn until_detached(&mut self) -> Result<()> {
        while self.volume.as_ref().is_none_or(|volume| volume.status.state != State::Detached) {
            self.look().await.with_context(|| format!("{} was not detached", self.name))?;
        }
        Ok(())
    }

    /// Takes in the next thing that is seen; returns what a ticket took that is satisfied by it.
    async fn look(&mut self) -> Result<Vec<(&'static str, f64)>> {
        let next = tokio::time::timeout(SLOW, self.sights.next()).await;
        let sight = next.with_context(|| format!("nothing happened for {SLOW:?}"))?.context("the watch ended")?;
        let now = Timestamp::now();
        match sight {
            Sight::Attachment(attachment) => return Ok(self.phases.tickets(&attachment, now)),
            Sight::Volume(volume) => {
                let wanted = &volume.spec.node_id;
                if !wanted.is_empty() && self.volume.as_ref().is_some_and(|old| old.spec.node_id != *wanted) {
                    self.phases.decided(&self.name, now);
                }
                self.volume = Some(volume);
            }
            Sight::Engine(engine) => {
                self.phases.engine(self.engines.get(&engine.name_any()), &engine, now);
                self.engines.insert(engine.name_any(), engine);
            }
        }
        Ok(Vec::new())
    }
}

fn watch(client: &Client, name: &str) -> Pin<Box<dyn Stream<Item = Sight> + Send>> {
    let named = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let of_volume = watcher::Config::default().labels(&format!("{}={name}", tether_crd::labels::VOLUME));
    let attachments = follow(objects(client), named.clone(), Sight::Attachment);
    let volumes = follow(objects(client), named, Sight::Volume);
    let engines = follow(objects(client), of_volume, Sight::Engine);
    stream::select(stream::select(attachments, volumes), engines).boxed()
}

fn follow<K>(api: Api<K>, config: watcher::Config, sight: fn(K) -> Sight) -> Pin<Box<dyn Stream<Item = Sight> + Send>>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let seen = watcher(api, config).filter_map(move |event| async move {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => Some(sight(object)),
            _ => None,
        }
    });
    seen.boxed()
}

fn objects<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), NAMESPACE)
}
