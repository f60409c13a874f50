//! Everything that was seen of one volume: each version of it and of its engines and replicas, as a watch brings them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_kind};
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tether_crd::engine::InstanceState;
use tether_crd::volume::{Robustness, State};
use tether_crd::{Engine, NAMESPACE, Replica, Volume, VolumeAttachment, labels};
use tokio::task::AbortHandle;

use super::guest::Whereabouts;

/// What a watch tells; ends with the last of its copies.
#[derive(Clone)]
pub(crate) struct Watch {
    seen: Arc<Mutex<Seen>>,
    _tasks: Arc<Tasks>,
}

struct Tasks(Vec<AbortHandle>);

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) volume: Option<Volume>,
    /// Its tickets.
    pub(crate) attachment: Option<VolumeAttachment>,
    pub(crate) engines: BTreeMap<String, Engine>,
    pub(crate) replicas: BTreeMap<String, Replica>,
    /// The node ids and states of the volume, each time that one of them changed.
    pub(crate) places: Vec<Place>,
    /// How many versions of objects were seen.
    pub(crate) versions: u64,
    /// What must not be, in any version.
    pub(crate) violations: Vec<String>,
    /// Since when the volume was attached, or was not.
    attached: Vec<(Instant, bool)>,
}

/// Where a volume is, in one version of it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    pub(crate) node: String,
    pub(crate) current: String,
    pub(crate) migration: String,
    pub(crate) current_migration: String,
    #[serde(serialize_with = "word")]
    pub(crate) state: State,
    #[serde(serialize_with = "word")]
    pub(crate) robustness: Robustness,
}

fn word<T: ToString, S: serde::Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

impl Place {
    pub(crate) fn of(volume: &Volume) -> Self {
        Self {
            node: volume.spec.node_id.clone(),
            current: volume.status.current_node_id.clone(),
            migration: volume.spec.migration_node_id.clone(),
            current_migration: volume.status.current_migration_node_id.clone(),
            state: volume.status.state,
            robustness: volume.status.robustness,
        }
    }
}

impl Watch {
    /// Begins to watch a volume.
    pub(crate) fn start(client: &Client, volume: &str) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let own = watcher::Config::default().fields(&format!("metadata.name={volume}"));
        let of_volume = watcher::Config::default().labels(&format!("{}={volume}", labels::VOLUME));
        let tasks = vec![
            follow(client, own.clone(), seen.clone(), Seen::volume),
            follow(client, own, seen.clone(), Seen::attachment),
            follow(client, of_volume.clone(), seen.clone(), Seen::engine),
            follow(client, of_volume, seen.clone(), Seen::replica),
        ];
        Self { seen, _tasks: Arc::new(Tasks(tasks)) }
    }

    /// Looks at what was seen so far.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock())
    }

    /// From now on the history of places begins anew; what must not be stays noted.
    pub(crate) fn begin(&self) {
        let mut seen = self.seen.lock();
        let last = seen.places.pop();
        seen.places = last.into_iter().collect();
    }
}

impl Whereabouts for Watch {
    /// Where the volume is served: by the engine that counts, if the volume is attached.
    fn endpoint(&self) -> Option<String> {
        let seen = self.seen.lock();
        let volume = seen.volume.as_ref().filter(|volume| volume.status.state == State::Attached)?;
        let serves = |engine: &&Engine| {
            engine.spec.active
                && engine.metadata.deletion_timestamp.is_none()
                && engine.spec.node_id == volume.status.current_node_id
                && engine.status.current_state == InstanceState::Running
        };
        let engine = seen.engines.values().find(serves)?;
        Some(engine.status.endpoint.clone()).filter(|endpoint| !endpoint.is_empty())
    }

    /// For how long the volume was attached between two moments.
    fn attached_between(&self, from: Instant, to: Instant) -> Duration {
        attached_between(&self.seen.lock().attached, from, to)
    }
}

fn attached_between(history: &[(Instant, bool)], from: Instant, to: Instant) -> Duration {
    let ends = history.iter().skip(1).map(|(at, _)| *at).chain([to]);
    let spans = history.iter().zip(ends).filter(|((_, attached), _)| *attached);
    spans.map(|((begin, _), end)| end.min(to).saturating_duration_since((*begin).max(from))).sum()
}

/// Brings every version of what the configuration selects to `take`; `true` for one that is gone.
fn follow<K>(
    client: &Client,
    config: watcher::Config,
    seen: Arc<Mutex<Seen>>,
    take: fn(&mut Seen, K, bool),
) -> AbortHandle
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), NAMESPACE);
    let task = tokio::spawn(async move {
        let mut events = watch_kind(api, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let mut seen = seen.lock();
            match event {
                Ok(Event::Apply(object) | Event::InitApply(object)) => take(&mut seen, object, false),
                Ok(Event::Delete(object)) => take(&mut seen, object, true),
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
        }
    });
    task.abort_handle()
}

impl Seen {
    fn volume(&mut self, volume: Volume, gone: bool) {
        self.versions += 1;
        if gone {
            self.volume = None;
            return;
        }
        let place = Place::of(&volume);
        let attached = place.state == State::Attached;
        if self.attached.last().is_none_or(|(_, last)| *last != attached) {
            self.attached.push((Instant::now(), attached));
        }
        if self.places.last() != Some(&place) {
            self.places.push(place);
        }
        let epoch = |volume: &Volume| volume.status.record.as_ref().map(|record| record.epoch);
        if let Some(before) = &self.volume
            && epoch(before) > epoch(&volume)
        {
            self.violations.push("the epoch in the record went back".to_owned());
        }
        self.volume = Some(volume);
    }

    fn attachment(&mut self, attachment: VolumeAttachment, gone: bool) {
        self.versions += 1;
        self.attachment = Some(attachment).filter(|_| !gone);
    }

    fn engine(&mut self, engine: Engine, gone: bool) {
        self.versions += 1;
        let name = engine.name_any();
        if gone {
            self.engines.remove(&name);
        } else {
            self.engines.insert(name, engine);
        }
        let counts = |engine: &&Engine| engine.spec.active && engine.metadata.deletion_timestamp.is_none();
        let active: Vec<_> = self.engines.values().filter(counts).map(Engine::name_any).collect();
        if active.len() > 1 {
            self.violations.push(format!("several engines count: {}", active.join(", ")));
        }
    }

    fn replica(&mut self, replica: Replica, gone: bool) {
        self.versions += 1;
        let name = replica.name_any();
        if gone {
            self.replicas.remove(&name);
        } else {
            self.replicas.insert(name, replica);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_while_the_volume_is_attached() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let history = [(at(0), false), (at(10), true), (at(20), false), (at(30), true)];
        for (from, to, seconds) in [(0, 10, 0), (0, 15, 5), (12, 18, 6), (15, 35, 10), (20, 30, 0), (31, 40, 9)] {
            let found = attached_between(&history, at(from), at(to));
            assert_eq!(found, Duration::from_secs(seconds), "{from} to {to}");
        }
    }
}
