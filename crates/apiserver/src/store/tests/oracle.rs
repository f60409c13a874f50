//! The store as simply as it can be said: the log of all changes, from the beginning.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::{Entry, Event, EventKind, Expect, Key, Shared, Watch, WatchQuery};
use super::{ListQuery, Listing};

#[derive(Clone, Default)]
pub(super) struct Oracle {
    pub(super) log: Vec<Event>,
}

impl Oracle {
    pub(super) fn revision(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn state_at(&self, revision: u64) -> BTreeMap<Key, Entry> {
        let mut state = BTreeMap::new();
        for event in &self.log[..revision as usize] {
            match event.kind {
                EventKind::Deleted => state.remove(&*event.entry.key),
                _ => state.insert((*event.entry.key).clone(), event.entry.clone()),
            };
        }
        state
    }

    pub(super) fn get(&self, key: &Key) -> Option<Entry> {
        let last = self.log.iter().rev().find(|event| *event.entry.key == *key)?;
        (last.kind != EventKind::Deleted).then(|| last.entry.clone())
    }

    /// Applies a write as the store should; `Err` is a conflict with what is there.
    pub(super) fn write(
        &mut self,
        key: &Key,
        expect: Expect,
        deletes: bool,
        value: impl FnOnce(u64) -> bytes::Bytes,
    ) -> Result<Entry, Option<Entry>> {
        let previous = self.get(key);
        let holds = match expect {
            Expect::Absent => previous.is_none() && !deletes,
            Expect::Any => previous.is_some(),
            Expect::Revision(revision) => previous.as_ref().is_some_and(|entry| entry.revision == revision),
        };
        if !holds {
            return Err(previous);
        }
        let revision = self.revision() + 1;
        let entry = Entry { key: Arc::new(key.clone()), revision, value: value(revision) };
        let kind = match (&previous, deletes) {
            (_, true) => EventKind::Deleted,
            (Some(_), false) => EventKind::Modified,
            (None, false) => EventKind::Added,
        };
        self.log.push(Event { kind, entry: entry.clone(), previous });
        Ok(entry)
    }

    pub(super) fn list(&self, query: ListQuery<'_>) -> Listing {
        let revision = query.at.unwrap_or(self.revision());
        let state = self.state_at(revision);
        let mut entries: Vec<Entry> = state
            .into_values()
            .filter(|entry| entry.key.resource == query.resource)
            .filter(|entry| query.namespace.is_none_or(|namespace| entry.key.namespace == namespace))
            .filter(|entry| {
                query.after.is_none_or(|after| (entry.key.namespace.as_str(), entry.key.name.as_str()) > after)
            })
            .collect();
        let limit = if query.limit == 0 { entries.len() } else { query.limit.min(entries.len()) };
        let remaining = entries.split_off(limit).len();
        Listing { revision, entries, remaining }
    }

    pub(super) fn events(&self, resource: &str, namespace: Option<&str>, from: u64) -> Vec<Event> {
        let concerns = |event: &&Event| {
            let key = &event.entry.key;
            key.resource == resource && namespace.is_none_or(|namespace| key.namespace == namespace)
        };
        self.log[from as usize..].iter().filter(concerns).cloned().collect()
    }

    /// Compares everything that can be asked of the store with what the log says.
    pub(super) fn check(&self, shared: &Arc<Shared>, resources: &[&str], namespaces: &[&str]) {
        let oldest = {
            let state = shared.state.read();
            assert_eq!(state.revision(), self.revision());
            state.oldest()
        };
        for resource in resources {
            for namespace in namespaces.iter().map(|namespace| Some(*namespace)).chain([None]) {
                for at in [None, Some(oldest), Some(u64::midpoint(oldest, self.revision()))] {
                    let query = ListQuery { resource, namespace, at, ..ListQuery::default() };
                    assert_eq!(shared.state.read().list(query), Ok(self.list(query)), "{query:?}");
                }
                let from = oldest;
                let watched = drain(shared, resource, namespace, from);
                assert_eq!(watched, self.events(resource, namespace, from), "{resource} {namespace:?} after {from}");
            }
        }
    }
}

/// Everything that a watch from this revision delivers at once.
pub(super) fn drain(shared: &Arc<Shared>, resource: &str, namespace: Option<&str>, from: u64) -> Vec<Event> {
    let query = WatchQuery { resource: resource.into(), namespace: namespace.map(str::to_owned), from };
    let mut watch = Watch::start(shared.clone(), query).unwrap();
    let mut events = Vec::new();
    while let Some(event) = watch.try_next().unwrap() {
        assert!(watch.progress() >= event.revision(), "progress must cover what was delivered");
        events.push((*event).clone());
    }
    assert_eq!(watch.progress(), shared.state.read().revision(), "an idle watch is up to date");
    events
}
