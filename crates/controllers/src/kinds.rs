//! Every kind that is served, found by discovery, and every object of it that is seen, by its metadata.
//!
//! Garbage collection and the deletion of namespaces and definitions concern objects of all kinds. A kind that a
//! [`Cache`] holds anyway tells of itself; of all others only the metadata is watched, and none of it is kept here.
//! Which kinds there are is asked once, and again when a CustomResourceDefinition changes.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::{StreamExt, pin_mut};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::core::GroupVersionKind;
use kube::discovery::{Discovery, Scope, verbs};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_kind};
use parking_lot::RwLock;
use tether_plan::garbage::Resource;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Seen};
use crate::clock::Clock;

/// The metadata of an object of any kind.
pub(crate) type Metadata = PartialObjectMeta<DynamicObject>;

/// Group and plural of a kind: what stays the same whichever version is asked for.
pub(crate) type KindKey = (String, String);

/// Events own nothing, nobody deletes them but time, and there are many of them.
const NOT_WATCHED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// A definition is served a moment after it changes; a second look finds what the first one came too early for.
const SECOND_LOOK: SignedDuration = SignedDuration::from_secs(2);

/// Something was seen of an object of some kind.
pub(crate) enum Sighting<'a> {
    Applied {
        resource: &'a Arc<Resource>,
        meta: &'a ObjectMeta,
    },
    Deleted {
        resource: &'a Arc<Resource>,
        meta: &'a ObjectMeta,
    },
    /// All objects of the kind were listed, and these are their uids.
    Relisted {
        resource: &'a Arc<Resource>,
        uids: &'a HashSet<Box<str>>,
    },
}

type Listener = Box<dyn Fn(&Sighting<'_>) + Send + Sync>;

/// A kind that is served.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) resource: Arc<Resource>,
    pub(crate) can_delete_collection: bool,
}

impl Kind {
    /// How requests for it are made.
    pub(crate) fn api_resource(&self) -> ApiResource {
        let Resource { group, version, kind, plural, .. } = &*self.resource;
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }
}

/// The watches of metadata that run, with the version that each asks for; they end when this is dropped.
#[derive(Default)]
struct Watches {
    running: BTreeMap<KindKey, (String, CancellationToken)>,
    tasks: JoinSet<()>,
}

/// All kinds.
pub(crate) struct Kinds {
    client: Client,
    clock: Arc<dyn Clock>,
    served: RwLock<BTreeMap<KindKey, Kind>>,
    /// Kinds whose objects a cache tells of.
    cached: RwLock<HashSet<KindKey>>,
    listeners: RwLock<Vec<Listener>>,
    /// A definition changed, and with it perhaps what is served.
    changed: Notify,
    ready: watch::Sender<bool>,
    failure: RwLock<Option<String>>,
}

impl Kinds {
    pub(crate) fn new(client: Client, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            client,
            clock,
            served: RwLock::default(),
            cached: RwLock::default(),
            listeners: RwLock::default(),
            changed: Notify::new(),
            ready: watch::Sender::new(false),
            failure: RwLock::default(),
        })
    }

    pub(crate) fn subscribe(&self, listener: impl Fn(&Sighting<'_>) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Passes on what a cache sees, so that its kind is not watched twice.
    pub(crate) fn bridge<K>(self: &Arc<Self>, cache: &Cache<K>, is_namespaced: bool)
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let resource = Arc::new(Resource {
            group: K::group(&()).into_owned(),
            version: K::version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
            is_namespaced,
        });
        self.cached.write().insert((resource.group.clone(), resource.plural.clone()));
        cache.subscribe_lists({
            let (kinds, resource) = (Arc::downgrade(self), resource.clone());
            move |uids| {
                if let Some(kinds) = kinds.upgrade() {
                    kinds.tell(&Sighting::Relisted { resource: &resource, uids });
                }
            }
        });
        let kinds = Arc::downgrade(self);
        cache.subscribe(move |seen| {
            let Some(kinds) = kinds.upgrade() else {
                return;
            };
            let meta = seen.object().meta();
            match seen {
                Seen::Applied { .. } => kinds.tell(&Sighting::Applied { resource: &resource, meta }),
                Seen::Deleted(_) => kinds.tell(&Sighting::Deleted { resource: &resource, meta }),
            }
        });
    }

    /// What is served, and what went wrong in finding out.
    pub(crate) fn served(&self) -> (Vec<Kind>, Option<String>) {
        (self.served.read().values().cloned().collect(), self.failure.read().clone())
    }

    /// The kind that an owner reference names.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<Kind> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let served = self.served.read();
        served.values().find(|k| k.resource.group == group && k.resource.kind == kind).cloned()
    }

    /// The objects of a kind, in a namespace or in all.
    pub(crate) fn api(&self, kind: &Kind, namespace: &str) -> Api<Metadata> {
        let resource = kind.api_resource();
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        }
    }

    /// Returns once every kind was found and listed.
    pub(crate) async fn ready(&self) {
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Finds and watches kinds until dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut watches = Watches::default();
        loop {
            let listed = self.look(&mut watches).await;
            if !*self.ready.borrow() {
                for mut listed in listed {
                    // The watch ends only if its kind went, and then there is nothing to wait for.
                    let _ = listed.wait_for(|listed| *listed).await;
                }
                self.ready.send_replace(true);
            }
            self.changed.notified().await;
            loop {
                self.look(&mut watches).await;
                tokio::select! {
                    () = self.changed.notified() => {}
                    () = self.pause() => break,
                }
            }
        }
    }

    /// Finds out what is served, however often that takes, and adjusts the watches to it.
    async fn look(self: &Arc<Self>, watches: &mut Watches) -> Vec<watch::Receiver<bool>> {
        loop {
            match self.discover().await {
                Ok(found) => {
                    self.failure.write().take();
                    // Known before it is watched: whoever hears of a kind's objects can ask for the kind.
                    let before = std::mem::replace(&mut *self.served.write(), found.clone());
                    return self.adjust(&before, &found, watches);
                }
                Err(error) => {
                    tracing::warn!(%error, "discovery failed, trying again");
                    *self.failure.write() = Some(error.to_string());
                    self.pause().await;
                }
            }
        }
    }

    async fn pause(&self) {
        self.clock.sleep_until(self.clock.now() + SECOND_LOOK).await;
    }

    async fn discover(&self) -> Result<BTreeMap<KindKey, Kind>, kube::Error> {
        let discovery = match Discovery::new(self.client.clone()).run_aggregated().await {
            Ok(discovery) => discovery,
            Err(_) => Discovery::new(self.client.clone()).run().await?,
        };
        let all = discovery.groups().flat_map(kube::discovery::ApiGroup::recommended_resources);
        let wanted = all.filter(|(_, capabilities)| {
            [verbs::LIST, verbs::WATCH, verbs::DELETE].iter().all(|verb| capabilities.supports_operation(verb))
        });
        let kinds = wanted.map(|(resource, capabilities)| {
            let key = (resource.group.clone(), resource.plural.clone());
            let found = Resource {
                group: resource.group,
                version: resource.version,
                kind: resource.kind,
                plural: resource.plural,
                is_namespaced: capabilities.scope == Scope::Namespaced,
            };
            let can_delete_collection = capabilities.supports_operation(verbs::DELETE_COLLECTION);
            (key, Kind { resource: Arc::new(found), can_delete_collection })
        });
        Ok(kinds.collect())
    }

    /// Starts watches of new kinds and ends those of kinds that are gone; returns who says when the new ones are listed.
    fn adjust(
        self: &Arc<Self>,
        before: &BTreeMap<KindKey, Kind>,
        found: &BTreeMap<KindKey, Kind>,
        watches: &mut Watches,
    ) -> Vec<watch::Receiver<bool>> {
        watches.running.retain(|key, (version, token)| {
            let stays = found.get(key).is_some_and(|kind| kind.resource.version == *version);
            if !stays {
                token.cancel();
                if let (false, Some(kind)) = (found.contains_key(key), before.get(key)) {
                    self.tell(&Sighting::Relisted { resource: &kind.resource, uids: &HashSet::new() });
                }
            }
            stays
        });
        let mut listed = Vec::new();
        for (key, kind) in found {
            let ignored = NOT_WATCHED.iter().any(|(group, plural)| *group == key.0 && *plural == key.1);
            if ignored || watches.running.contains_key(key) || self.cached.read().contains(key) {
                continue;
            }
            let token = CancellationToken::new();
            watches.running.insert(key.clone(), (kind.resource.version.clone(), token.clone()));
            let (sender, receiver) = watch::channel(false);
            listed.push(receiver);
            let (kinds, kind) = (Arc::downgrade(self), kind.clone());
            let client = self.client.clone();
            watches.tasks.spawn(async move {
                let watching = follow(&kinds, client, &kind, sender);
                token.run_until_cancelled(watching).await;
            });
        }
        while watches.tasks.try_join_next().is_some() {}
        listed
    }

    fn tell(&self, sighting: &Sighting<'_>) {
        if let Sighting::Applied { resource, .. } | Sighting::Deleted { resource, .. } = sighting
            && resource.plural == "customresourcedefinitions"
        {
            self.changed.notify_one();
        }
        for listener in self.listeners.read().iter() {
            listener(sighting);
        }
    }
}

/// Watches the metadata of one kind until dropped.
async fn follow(kinds: &std::sync::Weak<Kinds>, client: Client, kind: &Kind, listed: watch::Sender<bool>) {
    let api: Api<Metadata> = Api::all_with(client, &kind.api_resource());
    let stream = watch_kind(api, watcher::Config::default()).default_backoff();
    pin_mut!(stream);
    let resource = &kind.resource;
    let mut uids: HashSet<Box<str>> = HashSet::new();
    while let Some(event) = stream.next().await {
        let Some(kinds) = kinds.upgrade() else {
            return;
        };
        match event {
            Ok(Event::Init) => uids.clear(),
            Ok(Event::InitApply(object)) => {
                uids.extend(object.metadata.uid.as_deref().map(Into::into));
                kinds.tell(&Sighting::Applied { resource, meta: &object.metadata });
            }
            Ok(Event::InitDone) => {
                kinds.tell(&Sighting::Relisted { resource, uids: &uids });
                uids = HashSet::new();
                listed.send_replace(true);
            }
            Ok(Event::Apply(object)) => kinds.tell(&Sighting::Applied { resource, meta: &object.metadata }),
            Ok(Event::Delete(object)) => kinds.tell(&Sighting::Deleted { resource, meta: &object.metadata }),
            Err(error) => tracing::debug!(kind = resource.plural, %error, "watch failed, trying again"),
        }
    }
}
