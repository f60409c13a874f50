//! What readers see: the objects as of the latest durable revision, and the history that led there.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Notify;

use super::history::History;
use super::{Entry, Event, EventKind, Key, ListError, ListQuery, Listing};

struct Versioned {
    revision: u64,
    value: Bytes,
}

#[derive(Default)]
struct Resource {
    objects: BTreeMap<Arc<Key>, Versioned>,
    /// Revision of the latest change.
    changed: u64,
}

pub(super) struct State {
    revision: u64,
    resources: HashMap<String, Resource>,
    history: History,
    closed: bool,
}

impl State {
    /// A state without objects, whose history starts after `revision`.
    pub(super) fn empty(revision: u64) -> Self {
        let history = History::starting_at(revision + 1);
        Self { revision, resources: HashMap::new(), history, closed: false }
    }

    /// Adds an object that was loaded.
    pub(super) fn restore(&mut self, entry: &Entry) {
        self.put(entry);
    }

    /// Sets the history that was loaded: the changes that led to these objects.
    pub(super) fn restore_history(&mut self, history: History) {
        self.history = history;
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn history(&self) -> &History {
        &self.history
    }

    pub(super) fn history_mut(&mut self) -> &mut History {
        &mut self.history
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The oldest revision whose state is still known.
    pub(super) fn oldest(&self) -> u64 {
        self.history.first() - 1
    }

    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        let (key, object) = self.resources.get(&key.resource)?.objects.get_key_value(key)?;
        Some(entry(key, object))
    }

    /// The objects of a namespace whose names begin with `prefix`, in order.
    pub(super) fn named(&self, resource: &str, namespace: &str, prefix: &str) -> Vec<Entry> {
        let from = Key::new(resource, namespace, prefix);
        let resource = self.resources.get(resource).into_iter();
        let objects = resource.flat_map(|resource| resource.objects.range::<Key, _>(&from..));
        let meant = |key: &Arc<Key>| key.namespace == namespace && key.name.starts_with(prefix);
        objects.take_while(|(key, _)| meant(key)).map(|(key, object)| entry(key, object)).collect()
    }

    pub(super) fn changed(&self, resource: &str) -> u64 {
        self.resources.get(resource).map_or(0, |resource| resource.changed)
    }

    pub(super) fn counts(&self) -> Vec<(String, usize)> {
        let with_objects = self.resources.iter().filter(|(_, resource)| !resource.objects.is_empty());
        let mut counts: Vec<_> = with_objects.map(|(name, resource)| (name.clone(), resource.objects.len())).collect();
        counts.sort();
        counts
    }

    /// Makes durable events visible and returns whom to wake.
    pub(super) fn publish(&mut self, events: &[Arc<Event>], first: u64) -> Vec<Arc<Notify>> {
        let mut wake: Vec<Arc<Notify>> = Vec::new();
        for event in events {
            match event.kind {
                EventKind::Added | EventKind::Modified => self.put(&event.entry),
                EventKind::Deleted => self.remove(&event.entry),
            }
            self.revision = event.revision();
            wake.extend(self.history.push(event.clone()));
        }
        self.history.trim_to(first);
        wake.sort_unstable_by_key(Arc::as_ptr);
        wake.dedup_by(|a, b| Arc::ptr_eq(a, b));
        wake
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
        self.history.wake_all();
    }

    fn put(&mut self, entry: &Entry) {
        if !self.resources.contains_key(&entry.key.resource) {
            self.resources.insert(entry.key.resource.clone(), Resource::default());
        }
        let resource = self.resources.get_mut(&entry.key.resource).expect("the resource must be there: just added");
        let object = Versioned { revision: entry.revision, value: entry.value.clone() };
        resource.objects.insert(entry.key.clone(), object);
        resource.changed = resource.changed.max(entry.revision);
    }

    fn remove(&mut self, entry: &Entry) {
        let resource = self.resources.get_mut(&entry.key.resource).expect("a deleted object must have existed");
        resource.objects.remove(&*entry.key);
        resource.changed = entry.revision;
    }

    pub(super) fn list(&self, query: ListQuery<'_>) -> Result<Listing, ListError> {
        let at = query.at.unwrap_or(self.revision);
        if at > self.revision {
            return Err(ListError::Future { latest: self.revision });
        }
        if at < self.oldest() {
            return Err(ListError::Compacted { oldest: self.oldest() });
        }
        let page = Page::of(&query);
        let undone = self.undone(&query, at, &page);
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let mut rows = Merge { current: self.current(&query, &page).peekable(), undone: undone.into_iter().peekable() };
        let entries = rows.by_ref().take(limit).collect();
        Ok(Listing { revision: at, entries, remaining: rows.count() })
    }

    fn current<'a>(
        &'a self,
        query: &ListQuery<'a>,
        page: &'a Page,
    ) -> impl Iterator<Item = (&'a Arc<Key>, &'a Versioned)> {
        let resource = self.resources.get(query.resource).into_iter();
        let objects = resource.flat_map(|resource| resource.objects.range::<Key, _>((page.start(), Bound::Unbounded)));
        objects.take_while(|(key, _)| page.holds_namespace(key))
    }

    /// For each object of the page that changed after `at`, what it was at `at`: the state before the first of its
    /// later changes.
    fn undone(&self, query: &ListQuery<'_>, at: u64, page: &Page) -> BTreeMap<&Arc<Key>, Option<&Entry>> {
        let mut undone = BTreeMap::new();
        for event in self.history.iter_after(query.resource, query.namespace, at) {
            if page.holds(&event.entry.key) {
                undone.entry(&event.entry.key).or_insert(event.previous.as_ref());
            }
        }
        undone
    }
}

/// The part of a resource's keys that a list is about.
struct Page {
    after: Option<Key>,
    from: Key,
    namespace: Option<String>,
}

impl Page {
    fn of(query: &ListQuery<'_>) -> Self {
        Self {
            after: query.after.map(|(namespace, name)| Key::new(query.resource, namespace, name)),
            from: Key::new(query.resource, query.namespace.unwrap_or_default(), ""),
            namespace: query.namespace.map(str::to_owned),
        }
    }

    fn start(&self) -> Bound<&Key> {
        match &self.after {
            Some(after) if *after >= self.from => Bound::Excluded(after),
            _ => Bound::Included(&self.from),
        }
    }

    fn holds_namespace(&self, key: &Key) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
    }

    fn holds(&self, key: &Key) -> bool {
        let started = match self.start() {
            Bound::Excluded(after) => key > after,
            Bound::Included(from) => key >= from,
            Bound::Unbounded => true,
        };
        started && self.holds_namespace(key)
    }
}

/// Current objects and undone ones, in key order; an undone state takes the place of the current one.
struct Merge<'a, I: Iterator<Item = (&'a Arc<Key>, &'a Versioned)>> {
    current: Peekable<I>,
    undone: Peekable<btree_map::IntoIter<&'a Arc<Key>, Option<&'a Entry>>>,
}

impl<'a, I: Iterator<Item = (&'a Arc<Key>, &'a Versioned)>> Iterator for Merge<'a, I> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let undone_first = match (self.current.peek(), self.undone.peek()) {
                (None, None) => return None,
                (Some(_), None) => false,
                (None, Some(_)) => true,
                (Some((current, _)), Some((undone, _))) => undone <= current,
            };
            if !undone_first {
                return self.current.next().map(|(key, object)| entry(key, object));
            }
            let (key, state) = self.undone.next()?;
            if self.current.peek().is_some_and(|(current, _)| *current == key) {
                self.current.next();
            }
            if let Some(entry) = state {
                return Some(entry.clone());
            }
        }
    }
}

fn entry(key: &Arc<Key>, object: &Versioned) -> Entry {
    Entry { key: key.clone(), revision: object.revision, value: object.value.clone() }
}
