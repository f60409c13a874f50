//! The last changes: a ring in revision order, with an index from each topic to the changes that concern it.
//!
//! A topic is a resource, or a resource in one namespace. Watches are cursors over a topic; a change wakes the watches
//! of its two topics and nobody else, and a woken watch looks only at what concerns it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::{Event, EventKind, Options};

/// What an event costs beside its values: the event, its place in ring and index, its share of key and allocator.
const EVENT_BYTES: usize = 200;

/// What a watch is interested in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    pub(super) resource: String,
    pub(super) namespace: Option<String>,
}

/// Some of the changes asked for are gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trimmed;

#[derive(Default)]
struct TopicLog {
    /// Revisions of the retained events of this topic, ascending.
    revisions: VecDeque<u64>,
    /// The latest revision that was dropped from this topic. A cursor at or after it has missed nothing, however long
    /// the topic was quiet.
    trimmed: u64,
    watchers: usize,
    wake: Arc<Notify>,
}

impl TopicLog {
    fn is_unused(&self) -> bool {
        self.revisions.is_empty() && self.watchers == 0
    }
}

#[derive(Default)]
struct ResourceTopics {
    all: TopicLog,
    namespaces: HashMap<String, TopicLog>,
}

impl ResourceTopics {
    fn log(&self, namespace: Option<&str>) -> Option<&TopicLog> {
        match namespace {
            None => Some(&self.all),
            Some(namespace) => self.namespaces.get(namespace),
        }
    }

    fn log_mut(&mut self, namespace: Option<&str>) -> &mut TopicLog {
        match namespace {
            None => &mut self.all,
            Some(namespace) if self.namespaces.contains_key(namespace) => {
                self.namespaces.get_mut(namespace).expect("the key must be there: it was just looked up")
            }
            Some(namespace) => self.namespaces.entry(namespace.to_owned()).or_default(),
        }
    }
}

pub(super) struct History {
    /// Without gaps: the event of revision `first + i` is at `i`.
    ring: VecDeque<Arc<Event>>,
    /// Revision of the oldest retained event; one past the latest revision when there is none.
    first: u64,
    /// What the events cost together, in the sense of [`charge`].
    bytes: usize,
    topics: HashMap<String, ResourceTopics>,
}

/// The memory that exists only because this event is retained. A value that was superseded is charged to the event
/// that superseded it; one that is still current belongs to the objects.
pub(super) fn charge(event: &Event) -> usize {
    let superseded = event.previous.as_ref().map_or(0, |previous| previous.value.len());
    let last = if event.kind == EventKind::Deleted { event.entry.value.len() } else { 0 };
    EVENT_BYTES + superseded + last
}

impl History {
    /// An empty history whose next event has revision `next`.
    pub(super) fn starting_at(next: u64) -> Self {
        Self { ring: VecDeque::new(), first: next, bytes: 0, topics: HashMap::new() }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn len(&self) -> usize {
        self.ring.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where history begins once `new` is appended and the bounds are kept. New events always stay: the watches that
    /// are up to date must get them.
    pub(super) fn first_with(&self, new: &[Arc<Event>], options: &Options) -> u64 {
        let mut events = self.ring.len() + new.len();
        let mut bytes = self.bytes + new.iter().map(|event| charge(event)).sum::<usize>();
        let mut dropped = 0;
        for event in &self.ring {
            if events <= options.history_events && bytes <= options.history_bytes {
                break;
            }
            events -= 1;
            bytes -= charge(event);
            dropped += 1;
        }
        self.first + dropped
    }

    /// Appends the next event and returns whom to wake.
    pub(super) fn push(&mut self, event: Arc<Event>) -> [Arc<Notify>; 2] {
        debug_assert_eq!(event.revision(), self.first + self.ring.len() as u64, "revisions must not have gaps");
        let revision = event.revision();
        let key = event.entry.key.clone();
        if !self.topics.contains_key(&key.resource) {
            self.topics.insert(key.resource.clone(), ResourceTopics::default());
        }
        let topics = self.topics.get_mut(&key.resource).expect("the topic must be there: it was just added");
        self.bytes += charge(&event);
        self.ring.push_back(event);
        [None, Some(key.namespace.as_str())].map(|namespace| {
            let log = topics.log_mut(namespace);
            log.revisions.push_back(revision);
            log.wake.clone()
        })
    }

    /// Drops every event before revision `first`.
    pub(super) fn trim_to(&mut self, first: u64) {
        while self.first < first {
            let Some(event) = self.ring.pop_front() else { break };
            self.bytes -= charge(&event);
            self.first += 1;
            let (revision, key) = (event.revision(), &event.entry.key);
            for namespace in [None, Some(key.namespace.as_str())] {
                let topics = self.topics.get_mut(&key.resource).expect("a retained event must be indexed");
                let log = topics.log_mut(namespace);
                debug_assert_eq!(log.revisions.front(), Some(&revision));
                log.revisions.pop_front();
                log.trimmed = revision;
                self.release_unused(&key.resource, namespace);
            }
        }
    }

    /// Events of the topic after `cursor`, oldest first, at most `limit` of them.
    pub(super) fn after(&self, topic: &Topic, cursor: u64, limit: usize) -> Result<Vec<Arc<Event>>, Trimmed> {
        let Some(log) = self.log(topic) else { return Ok(Vec::new()) };
        if cursor < log.trimmed {
            return Err(Trimmed);
        }
        let start = log.revisions.partition_point(|&revision| revision <= cursor);
        Ok(log.revisions.iter().skip(start).take(limit).map(|&revision| self.event(revision).clone()).collect())
    }

    /// Every event of the topic after `cursor`, oldest first, without taking part in its ownership.
    pub(super) fn iter_after<'a>(
        &'a self,
        resource: &str,
        namespace: Option<&str>,
        cursor: u64,
    ) -> impl Iterator<Item = &'a Arc<Event>> + use<'a> {
        let log = self.topics.get(resource).and_then(|topics| topics.log(namespace));
        log.into_iter().flat_map(move |log| {
            let start = log.revisions.partition_point(|&revision| revision <= cursor);
            log.revisions.iter().skip(start).map(|&revision| self.event(revision))
        })
    }

    /// The first revision of the topic after `cursor`, if there is one.
    pub(super) fn next_after(&self, topic: &Topic, cursor: u64) -> Result<Option<u64>, Trimmed> {
        let Some(log) = self.log(topic) else { return Ok(None) };
        if cursor < log.trimmed {
            return Err(Trimmed);
        }
        let start = log.revisions.partition_point(|&revision| revision <= cursor);
        Ok(log.revisions.get(start).copied())
    }

    pub(super) fn subscribe(&mut self, topic: &Topic) -> Arc<Notify> {
        let log = self.topics.entry(topic.resource.clone()).or_default().log_mut(topic.namespace.as_deref());
        log.watchers += 1;
        log.wake.clone()
    }

    pub(super) fn unsubscribe(&mut self, topic: &Topic) {
        if let Some(topics) = self.topics.get_mut(&topic.resource) {
            topics.log_mut(topic.namespace.as_deref()).watchers -= 1;
            self.release_unused(&topic.resource, topic.namespace.as_deref());
        }
    }

    pub(super) fn wake_all(&self) {
        for topics in self.topics.values() {
            topics.all.wake.notify_waiters();
            topics.namespaces.values().for_each(|log| log.wake.notify_waiters());
        }
    }

    /// How many topics take up room.
    #[cfg(test)]
    pub(super) fn topics(&self) -> usize {
        self.topics.values().map(|topics| 1 + topics.namespaces.len()).sum()
    }

    fn event(&self, revision: u64) -> &Arc<Event> {
        &self.ring[(revision - self.first) as usize]
    }

    fn log(&self, topic: &Topic) -> Option<&TopicLog> {
        self.topics.get(&topic.resource)?.log(topic.namespace.as_deref())
    }

    fn release_unused(&mut self, resource: &str, namespace: Option<&str>) {
        let Some(topics) = self.topics.get_mut(resource) else { return };
        if let Some(namespace) = namespace
            && topics.namespaces.get(namespace).is_some_and(TopicLog::is_unused)
        {
            topics.namespaces.remove(namespace);
        }
        if topics.namespaces.is_empty() && topics.all.is_unused() {
            self.topics.remove(resource);
        }
    }
}
