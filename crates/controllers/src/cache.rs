//! One watch for each kind, shared by all controllers: the objects as they were last seen, and who wants to hear of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::{Stream, StreamExt, pin_mut};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_kind};
use kube::{Resource, ResourceExt};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::trim::Trim;

/// `(namespace, name)`; the namespace of what has none is empty.
pub type Key = (String, String);

/// An object came, changed or went.
pub enum Seen<'a, K> {
    Applied { old: Option<&'a K>, new: &'a K },
    Deleted(&'a K),
}

impl<K> Seen<'_, K> {
    /// The object as it is, or last was.
    pub fn object(&self) -> &K {
        match self {
            Self::Applied { new, .. } => new,
            Self::Deleted(object) => object,
        }
    }
}

/// Listeners must be quick: they note what is to be done and leave the doing to others.
type Listener<K> = Box<dyn Fn(&Seen<'_, K>) + Send + Sync>;
/// Called when everything was listed, with all there is.
type ListListener<K> = Box<dyn Fn(&[Arc<K>]) + Send + Sync>;
/// Under which words an object can be found again.
type Index<K> = fn(&K) -> Vec<String>;
/// Takes off what is not to be kept.
type Lighten<K> = fn(&mut K);

/// The objects of one kind.
pub struct Cache<K> {
    inner: RwLock<Inner<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    list_listeners: RwLock<Vec<ListListener<K>>>,
    index: Option<Index<K>>,
    lighten: Lighten<K>,
    ready: watch::Sender<bool>,
}

struct Inner<K> {
    objects: BTreeMap<Key, Arc<K>>,
    /// Most words have one object or a few: one set of pairs takes a fraction of what a set for each word would.
    by_word: BTreeSet<(String, Key)>,
    /// The newest version that the watch brought; none while everything is being listed.
    watched: Option<u64>,
}

impl<K> Cache<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Trim + Send + Sync + 'static,
{
    #[allow(clippy::new_ret_no_self, reason = "a cache is always shared")]
    pub fn new() -> Arc<Self> {
        Self::indexed(None)
    }

    pub fn indexed(index: Option<Index<K>>) -> Arc<Self> {
        Self::keeping(index, Trim::trim)
    }
}

impl<K> Cache<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Keeps objects as they are, but for the notes on who wrote which field.
    pub fn whole(index: Option<Index<K>>) -> Arc<Self> {
        Self::keeping(index, |object| object.managed_fields_mut().clear())
    }

    fn keeping(index: Option<Index<K>>, lighten: Lighten<K>) -> Arc<Self> {
        let inner = Inner { objects: BTreeMap::new(), by_word: BTreeSet::new(), watched: None };
        Arc::new(Self {
            inner: RwLock::new(inner),
            listeners: RwLock::default(),
            list_listeners: RwLock::default(),
            index,
            lighten,
            ready: watch::Sender::new(false),
        })
    }

    /// Calls `listener` for everything that is seen from now on.
    pub fn subscribe(&self, listener: impl Fn(&Seen<'_, K>) + Send + Sync + 'static) {
        self.listeners.write().push(Box::new(listener));
    }

    /// Calls `listener` whenever everything was listed: what came and went between two watches was not seen.
    pub fn subscribe_lists(&self, listener: impl Fn(&[Arc<K>]) + Send + Sync + 'static) {
        self.list_listeners.write().push(Box::new(listener));
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.inner.read().objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.inner.read().objects.values().cloned().collect()
    }

    /// The objects that the index puts under a word.
    pub fn find(&self, word: &str) -> Vec<Arc<K>> {
        let inner = self.inner.read();
        let found = inner.by_word.range((word.to_owned(), Key::default())..).take_while(|(under, _)| under == word);
        found.filter_map(|(_, key)| inner.objects.get(key).cloned()).collect()
    }

    /// Returns once everything that exists was seen.
    pub async fn ready(&self) {
        // The sender lives in `self`, so this cannot fail while somebody waits.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Takes in what a write of our own has made, so that the next decision sees it: the watch may bring it later.
    ///
    /// A version that the watch has passed already says nothing new: if the object is not here, it was deleted since.
    pub fn wrote(&self, object: K) {
        let version = version(&object);
        let is_news = self.inner.read().watched.is_some_and(|watched| version.is_some_and(|ours| ours > watched));
        if is_news {
            self.applied(object);
        }
    }

    /// Watches until dropped. Failures are logged and followed by a new attempt, with a delay that grows.
    pub async fn run(self: Arc<Self>, api: Api<K>, config: watcher::Config) {
        let kind = api.resource_url().to_owned();
        self.follow(&kind, watch_kind(api, config).default_backoff()).await;
    }

    async fn follow(&self, kind: &str, stream: impl Stream<Item = watcher::Result<Event<K>>>) {
        pin_mut!(stream);
        let mut listed: Option<BTreeSet<Key>> = None;
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => {
                    self.inner.write().watched = None;
                    listed = Some(BTreeSet::new());
                }
                Ok(Event::InitApply(object)) => {
                    if let Some(listed) = &mut listed {
                        listed.insert(key(&object));
                    }
                    self.applied(object);
                }
                Ok(Event::InitDone) => {
                    self.retain(&listed.take().unwrap_or_default());
                    let all = self.list();
                    self.watched(all.iter().filter_map(|object| version(&**object)).max().unwrap_or(0));
                    self.list_listeners.read().iter().for_each(|listener| listener(&all));
                    self.ready.send_replace(true);
                }
                Ok(Event::Apply(object)) => {
                    self.watched(version(&object).unwrap_or(0));
                    self.applied(object);
                }
                Ok(Event::Delete(object)) => {
                    self.watched(version(&object).unwrap_or(0));
                    self.deleted(&key(&object));
                }
                Err(error) => tracing::warn!(kind, %error, "watch failed, trying again"),
            }
        }
    }

    fn watched(&self, version: u64) {
        let watched = &mut self.inner.write().watched;
        *watched = Some(watched.unwrap_or(0).max(version));
    }

    fn applied(&self, mut object: K) {
        (self.lighten)(&mut object);
        let key = key(&object);
        let new = Arc::new(object);
        let old = {
            let mut inner = self.inner.write();
            // The watch is behind a write of our own.
            let is_older = inner.objects.get(&key).is_some_and(|held| {
                held.uid() == new.uid() && version(&**held).zip(version(&*new)).is_some_and(|(held, new)| new < held)
            });
            if is_older {
                return;
            }
            let old = inner.objects.insert(key.clone(), new.clone());
            self.reindex(&mut inner, &key, old.as_deref(), Some(&new));
            old
        };
        if old.as_deref().and_then(ResourceExt::resource_version) != new.resource_version() || old.is_none() {
            self.tell(&Seen::Applied { old: old.as_deref(), new: &new });
        }
    }

    fn deleted(&self, key: &Key) {
        let old = {
            let mut inner = self.inner.write();
            let old = inner.objects.remove(key);
            self.reindex(&mut inner, key, old.as_deref(), None);
            old
        };
        if let Some(old) = old {
            self.tell(&Seen::Deleted(&old));
        }
    }

    /// Everything that was not listed is gone.
    fn retain(&self, listed: &BTreeSet<Key>) {
        let gone: Vec<Key> = self.inner.read().objects.keys().filter(|k| !listed.contains(*k)).cloned().collect();
        for key in gone {
            self.deleted(&key);
        }
    }

    fn tell(&self, seen: &Seen<'_, K>) {
        for listener in self.listeners.read().iter() {
            listener(seen);
        }
    }

    fn reindex(&self, inner: &mut Inner<K>, key: &Key, old: Option<&K>, new: Option<&K>) {
        let Some(index) = self.index else {
            return;
        };
        let (was, is) = (old.map(index).unwrap_or_default(), new.map(index).unwrap_or_default());
        // Most changes leave an object where it is found; that it is new or gone is none of them.
        if was == is {
            return;
        }
        for word in was {
            inner.by_word.remove(&(word, key.clone()));
        }
        inner.by_word.extend(is.into_iter().map(|word| (word, key.clone())));
    }
}

/// The version of an object as a number, which is what API servers that store in one sequence give.
fn version<K: ResourceExt>(object: &K) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

/// The key of an object.
pub fn key<K: ResourceExt>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;

    use super::*;

    fn map(name: &str, version: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.into());
        map.metadata.namespace = Some("ns".into());
        map.metadata.resource_version = Some(version.into());
        map
    }

    #[tokio::test]
    async fn what_a_new_listing_lacks_is_gone_and_what_is_the_same_is_not_told() {
        let cache: Arc<Cache<ConfigMap>> =
            Cache::indexed(Some(|map| vec![format!("v{}", map.resource_version().unwrap())]));
        let told = Arc::new(Mutex::new(Vec::new()));
        cache.subscribe({
            let told = told.clone();
            move |seen| {
                let what = match seen {
                    Seen::Applied { old: None, .. } => "new",
                    Seen::Applied { .. } => "changed",
                    Seen::Deleted(_) => "gone",
                };
                told.lock().push(format!("{what} {}", seen.object().name_any()));
            }
        });
        let events = [
            Event::Init,
            Event::InitApply(map("a", "1")),
            Event::InitApply(map("b", "2")),
            Event::InitDone,
            Event::Apply(map("a", "3")),
            Event::Init,
            Event::InitApply(map("a", "3")),
            Event::InitApply(map("c", "4")),
            Event::InitDone,
            Event::Delete(map("c", "5")),
        ];
        cache.follow("configmaps", stream::iter(events.map(Ok))).await;
        assert_eq!(*told.lock(), ["new a", "new b", "changed a", "new c", "gone b", "gone c"]);
        cache.ready().await;
        assert!(cache.get("ns", "b").is_none());
        assert_eq!(cache.find("v3").len(), 1);
        assert!(cache.find("v1").is_empty() && cache.find("v2").is_empty());
    }

    #[tokio::test]
    async fn a_write_of_our_own_is_seen_at_once_and_never_undone_by_a_late_watch() {
        let cache: Arc<Cache<ConfigMap>> = Cache::new();
        cache.wrote(map("early", "9"));
        assert!(cache.get("ns", "early").is_none(), "nothing is listed yet");
        let listed = [Event::Init, Event::InitApply(map("a", "1")), Event::InitDone];
        cache.follow("configmaps", stream::iter(listed.map(Ok))).await;
        cache.wrote(map("a", "5"));
        cache.wrote(map("new", "6"));
        let held = |name: &str| cache.get("ns", name).and_then(|map| map.resource_version());
        assert_eq!((held("a").as_deref(), held("new").as_deref()), (Some("5"), Some("6")));
        let late = [Event::Apply(map("a", "3")), Event::Apply(map("a", "5")), Event::Apply(map("new", "6"))];
        cache.follow("configmaps", stream::iter(late.map(Ok))).await;
        assert_eq!(held("a").as_deref(), Some("5"));
        cache.follow("configmaps", stream::iter([Ok(Event::Delete(map("new", "8")))])).await;
        cache.wrote(map("new", "7"));
        assert_eq!(held("new"), None, "it was deleted since");
    }
}
