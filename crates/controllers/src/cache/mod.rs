//! One watch for each kind, shared by all controllers: the objects as they were last seen, and who wants to hear of them.
//!
//! A cache of objects of which there are many holds them packed, but for those that were looked at lately ([`shelf`]): a
//! volume at rest, with all that belongs to it, takes a few KiB instead of twenty.

mod packed;
mod shelf;

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::{Stream, StreamExt, pin_mut};
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch_kind};
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, RwLock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use self::shelf::{Packing, Shelf, place};
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
/// Called when everything was listed, with the uids of all there is.
type ListListener = Box<dyn Fn(&HashSet<Box<str>>) + Send + Sync>;
/// Under which words an object can be found again.
type Index<K> = fn(&K) -> Vec<String>;
/// Takes off what is not to be kept.
type Lighten<K> = fn(&mut K);

/// The objects of one kind.
pub struct Cache<K> {
    inner: Mutex<Inner<K>>,
    listeners: RwLock<Vec<Listener<K>>>,
    list_listeners: RwLock<Vec<ListListener>>,
    index: Option<Index<K>>,
    lighten: Lighten<K>,
    ready: watch::Sender<bool>,
}

struct Inner<K> {
    shelf: Shelf<K>,
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
        Self::keeping(index, Trim::trim, None)
    }
}

impl<K> Cache<K>
where
    K: Resource + Clone + Serialize + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Keeps objects as they are, but for the notes on who wrote which field, and in little room: for kinds of which there are
    /// as many as volumes.
    pub fn packed(index: Option<Index<K>>) -> Arc<Self> {
        Self::keeping(index, |object| object.managed_fields_mut().clear(), Some(Packing::USUAL))
    }
}

impl<K> Cache<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Keeps objects as they are, but for the notes on who wrote which field.
    pub fn whole(index: Option<Index<K>>) -> Arc<Self> {
        Self::keeping(index, |object| object.managed_fields_mut().clear(), None)
    }

    fn keeping(index: Option<Index<K>>, lighten: Lighten<K>, packing: Option<Packing<K>>) -> Arc<Self> {
        let inner = Inner { shelf: Shelf::new(packing), watched: None };
        Arc::new(Self {
            inner: Mutex::new(inner),
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
    pub fn subscribe_lists(&self, listener: impl Fn(&HashSet<Box<str>>) + Send + Sync + 'static) {
        self.list_listeners.write().push(Box::new(listener));
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.inner.lock().shelf.get(&place(namespace, name))
    }

    /// All objects at once. For those of a packed cache, of which there are many, [`Cache::each`] is better.
    pub fn list(&self) -> Vec<Arc<K>> {
        let inner = self.inner.lock();
        inner.shelf.places().iter().filter_map(|place| inner.shelf.glance(place)).collect()
    }

    /// Shows all objects, one after the other: those that come or go meanwhile may be among them.
    pub fn each(&self, mut look: impl FnMut(&K)) {
        let places = self.inner.lock().shelf.places();
        for place in places {
            let found = self.inner.lock().shelf.glance(&place);
            if let Some(object) = found {
                look(&object);
            }
        }
    }

    /// The objects that the index puts under a word.
    pub fn find(&self, word: &str) -> Vec<Arc<K>> {
        let mut inner = self.inner.lock();
        let found = inner.shelf.found(word);
        found.iter().filter_map(|place| inner.shelf.get(place)).collect()
    }

    /// Whether the index puts any object under a word.
    pub fn finds(&self, word: &str) -> bool {
        !self.inner.lock().shelf.found(word).is_empty()
    }

    /// The names of all objects.
    pub fn names(&self) -> Vec<String> {
        let places = self.inner.lock().shelf.places();
        places.iter().filter_map(|place| Some(place.split_once('\0')?.1.to_owned())).collect()
    }

    /// The names of the objects that the index puts under a word.
    pub fn names_under(&self, word: &str) -> Vec<String> {
        let found = self.inner.lock().shelf.found(word);
        found.iter().filter_map(|place| Some(place.split_once('\0')?.1.to_owned())).collect()
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
        let is_news = self.inner.lock().watched.is_some_and(|watched| version.is_some_and(|ours| ours > watched));
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
        let mut listing = Listing::default();
        while let Some(event) = stream.next().await {
            match event {
                Ok(Event::Init) => {
                    self.inner.lock().watched = None;
                    listing = Listing::default();
                }
                Ok(Event::InitApply(object)) => {
                    listing.note(&object);
                    self.applied(object);
                }
                Ok(Event::InitDone) => {
                    let listed = std::mem::take(&mut listing);
                    self.retain(&listed.places);
                    self.watched(listed.newest);
                    self.list_listeners.read().iter().for_each(|listener| listener(&listed.uids));
                    self.ready.send_replace(true);
                }
                Ok(Event::Apply(object)) => {
                    self.watched(version(&object).unwrap_or(0));
                    self.applied(object);
                }
                Ok(Event::Delete(object)) => {
                    self.watched(version(&object).unwrap_or(0));
                    self.deleted(&place_of(&object));
                }
                Err(error) => tracing::warn!(kind, %error, "watch failed, trying again"),
            }
        }
    }

    fn watched(&self, version: u64) {
        let watched = &mut self.inner.lock().watched;
        *watched = Some(watched.unwrap_or(0).max(version));
    }

    fn applied(&self, mut object: K) {
        (self.lighten)(&mut object);
        let place = place_of(&object);
        let new = Arc::new(object);
        let old = {
            let mut inner = self.inner.lock();
            let old = inner.shelf.get(&place);
            // The watch is behind a write of our own.
            let is_older = old.as_ref().is_some_and(|held| {
                held.uid() == new.uid() && version(&**held).zip(version(&*new)).is_some_and(|(held, new)| new < held)
            });
            if is_older {
                return;
            }
            inner.shelf.put(&place, new.clone());
            self.reindex(&mut inner, &place, old.as_deref(), Some(&new));
            old
        };
        if old.as_deref().and_then(ResourceExt::resource_version) != new.resource_version() || old.is_none() {
            self.tell(&Seen::Applied { old: old.as_deref(), new: &new });
        }
    }

    fn deleted(&self, place: &str) {
        let old = {
            let mut inner = self.inner.lock();
            let old = inner.shelf.get(place);
            self.reindex(&mut inner, place, old.as_deref(), None);
            inner.shelf.remove(place);
            old
        };
        if let Some(old) = old {
            self.tell(&Seen::Deleted(&old));
        }
    }

    /// Everything that was not listed is gone.
    fn retain(&self, listed: &BTreeSet<String>) {
        let mut gone = self.inner.lock().shelf.places();
        gone.retain(|place| !listed.contains(&**place));
        for place in gone {
            self.deleted(&place);
        }
    }

    fn tell(&self, seen: &Seen<'_, K>) {
        for listener in self.listeners.read().iter() {
            listener(seen);
        }
    }

    fn reindex(&self, inner: &mut Inner<K>, place: &str, old: Option<&K>, new: Option<&K>) {
        if let Some(index) = self.index {
            let (was, is) = (old.map(index).unwrap_or_default(), new.map(index).unwrap_or_default());
            inner.shelf.reindex(place, was, is);
        }
    }
}

/// What a listing brought so far.
#[derive(Default)]
struct Listing {
    places: BTreeSet<String>,
    uids: HashSet<Box<str>>,
    newest: u64,
}

impl Listing {
    fn note<K: ResourceExt>(&mut self, object: &K) {
        self.places.insert(place_of(object));
        self.uids.extend(object.meta().uid.as_deref().map(Into::into));
        self.newest = self.newest.max(version(object).unwrap_or(0));
    }
}

fn place_of<K: ResourceExt>(object: &K) -> String {
    let meta = object.meta();
    place(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
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
    use proptest::prelude::*;

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

    /// Every change that listeners are told of, and what they are told.
    fn listened(cache: &Cache<ConfigMap>) -> Arc<Mutex<Vec<String>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let log = told.clone();
        cache.subscribe(move |seen| {
            let words = match seen {
                Seen::Applied { old, new } => format!("{old:?} -> {new:?}"),
                Seen::Deleted(old) => format!("{old:?} -> nothing"),
            };
            log.lock().push(words);
        });
        told
    }

    fn labelled(index: u8, version: usize, label: u8) -> ConfigMap {
        let mut map = map(&format!("m{index}"), &version.to_string());
        map.metadata.uid = Some(format!("uid-{index}"));
        map.data = Some([("label".to_owned(), format!("l{label}"))].into());
        map
    }

    fn words(map: &ConfigMap) -> Vec<String> {
        map.data.iter().flatten().map(|(_, label)| label.clone()).collect()
    }

    fn same(one: &[Arc<ConfigMap>], other: &[Arc<ConfigMap>]) -> bool {
        one.iter().map(AsRef::as_ref).eq(other.iter().map(AsRef::<ConfigMap>::as_ref))
    }

    proptest! {
        /// However few objects stay as they are, nobody can tell.
        #[test]
        fn a_packed_cache_answers_like_any_other(
            steps in prop::collection::vec((0..12_u8, 0..4_u8, 0..4_u8), 0..80),
            limit in 0..6_usize,
        ) {
            let (packed, whole) = (Cache::packed(Some(words)), Cache::indexed(Some(words)));
            packed.inner.lock().shelf.limit_to(limit);
            let (told, expected) = (listened(&packed), listened(&whole));
            for (version, (index, label, what)) in steps.into_iter().enumerate() {
                let object = labelled(index, version, label);
                let place = place_of(&object);
                match what {
                    0 => [&packed, &whole].into_iter().for_each(|cache| cache.deleted(&place)),
                    1 => {
                        let (name, word) = (format!("m{index}"), format!("l{label}"));
                        prop_assert_eq!(packed.get("ns", &name), whole.get("ns", &name));
                        prop_assert!(same(&packed.find(&word), &whole.find(&word)));
                        prop_assert_eq!(packed.names_under(&word), whole.names_under(&word));
                        prop_assert_eq!(packed.finds(&word), whole.finds(&word));
                    }
                    _ => [&packed, &whole].into_iter().for_each(|cache| cache.applied(object.clone())),
                }
                let (as_they_are, _) = packed.inner.lock().shelf.counts();
                prop_assert!(as_they_are <= limit.max(1), "{} stay as they are", as_they_are);
            }
            prop_assert!(same(&packed.list(), &whole.list()));
            let mut each = Vec::new();
            packed.each(|object| each.push(Arc::new(object.clone())));
            prop_assert!(same(&each, &whole.list()));
            prop_assert_eq!(packed.names(), whole.names());
            prop_assert_eq!(&*told.lock(), &*expected.lock());
        }
    }

    #[test]
    fn what_is_looked_at_again_and_again_stays_as_it_is() {
        let cache: Arc<Cache<ConfigMap>> = Cache::packed(None);
        cache.inner.lock().shelf.limit_to(4);
        for index in 0..40 {
            cache.applied(labelled(index, 1, 0));
            assert!(cache.get("ns", "m0").is_some());
        }
        let first = cache.get("ns", "m0").unwrap();
        assert!(Arc::ptr_eq(&first, &cache.get("ns", "m0").unwrap()));
        assert_eq!(cache.inner.lock().shelf.counts(), (4, 36));
        drop(cache.list());
        assert_eq!(cache.inner.lock().shelf.counts(), (4, 36), "a look at everything changes nothing");
    }
}
