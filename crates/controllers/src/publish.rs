//! Events, as `kubectl get events` shows them: told once, counted when they repeat, and not repeated at every look.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event as ApiEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tether_plan::event::Event;

use crate::clock::Clock;

/// An event that is still true is not told again within this time: a rest costs no writes.
const QUIET: SignedDuration = SignedDuration::from_mins(5);
/// After this time a repeated event is a new one.
const SERIES: SignedDuration = SignedDuration::from_mins(30);
/// How many events are remembered. Beyond that the oldest are forgotten, which costs no more than a new event object.
const REMEMBERED: usize = 4_096;
/// How often those that are forgotten are looked for, at most: a burst would look through all of them with every event.
const SWEEP: SignedDuration = SignedDuration::from_secs(10);
/// The API server's limit.
const LONGEST_NOTE_BYTES: usize = 1_024;

/// Publishes the events of one controller.
#[derive(Clone)]
pub struct Publisher {
    client: Client,
    clock: Arc<dyn Clock>,
    controller: &'static str,
    instance: Arc<str>,
    told: Arc<Mutex<Memory>>,
    names: Arc<Names>,
}

/// What was told lately.
#[derive(Default)]
struct Memory {
    events: HashMap<Told, Last>,
    /// When those that may be told again were last thrown out.
    swept: Option<Timestamp>,
}

impl Memory {
    fn remember(&mut self, told: Told, last: Last, now: Timestamp) {
        let is_due = self.swept.is_none_or(|swept| now >= swept + SWEEP);
        if self.events.len() >= REMEMBERED && is_due {
            self.swept = Some(now);
            self.events.retain(|_, last| now < last.at + QUIET);
        }
        if self.events.len() < REMEMBERED || self.events.contains_key(&told) {
            self.events.insert(told, last);
        }
    }
}

/// Makes the names of events differ, even of those that fall into one tick of a coarse clock.
#[derive(Default)]
pub struct Names(AtomicU64);

impl Names {
    /// The name that Kubernetes' recorders would give: the object's, and the time in hexadecimal.
    fn next(&self, object: &str, now: Timestamp) -> String {
        let more = i128::from(self.0.fetch_add(1, Ordering::Relaxed));
        format!("{object}.{:x}", now.as_nanosecond() + more)
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Told {
    uid: String,
    namespace: String,
    name: String,
    reason: &'static str,
    note: String,
}

#[derive(Clone)]
struct Last {
    at: Timestamp,
    event: String,
    count: i32,
}

impl Publisher {
    pub fn new(
        client: Client,
        clock: Arc<dyn Clock>,
        controller: &'static str,
        instance: &str,
        names: Arc<Names>,
    ) -> Self {
        Self { client, clock, controller, instance: instance.into(), told: Arc::default(), names }
    }

    /// Publishes events. One that cannot be published is logged: nothing depends on it.
    pub async fn publish(&self, events: Vec<Event>) {
        for event in events {
            if let Err(error) = self.publish_one(&event).await {
                tracing::warn!(controller = self.controller, ?event, %error, "an event could not be published");
            }
        }
    }

    async fn publish_one(&self, event: &Event) -> Result<(), kube::Error> {
        let now = self.clock.now();
        let key = key(event);
        let last = self.told.lock().events.get(&key).cloned();
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), home(&event.about));
        let last = match last {
            Some(last) if now < last.at + QUIET => return Ok(()),
            Some(last) if now < last.at + SERIES => {
                let series = EventSeries { count: last.count + 1, last_observed_time: MicroTime(now) };
                let patch = Patch::Merge(json!({ "series": series }));
                match api.patch(&last.event, &PatchParams::default(), &patch).await {
                    Ok(_) => Last { at: now, count: last.count + 1, ..last },
                    // It expired meanwhile.
                    Err(kube::Error::Api(status)) if status.code == 404 => self.create(&api, event, now).await?,
                    Err(error) => return Err(error),
                }
            }
            _ => self.create(&api, event, now).await?,
        };
        self.told.lock().remember(key, last, now);
        Ok(())
    }

    async fn create(&self, api: &Api<ApiEvent>, event: &Event, now: Timestamp) -> Result<Last, kube::Error> {
        let object = event.about.name.clone().unwrap_or_default();
        let body = ApiEvent {
            metadata: ObjectMeta {
                name: Some(self.names.next(&object, now)),
                namespace: Some(home(&event.about).to_owned()),
                ..Default::default()
            },
            action: Some(action(event).to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(shorten(&event.note)),
            reason: Some(event.reason.code().to_owned()),
            regarding: Some(event.about.clone()),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Default::default()
        };
        let created = api.create(&PostParams::default(), &body).await?;
        Ok(Last { at: now, event: created.name_any(), count: 1 })
    }
}

fn key(event: &Event) -> Told {
    let part = |field: &Option<String>| field.clone().unwrap_or_default();
    let ObjectReference { uid, namespace, name, .. } = &event.about;
    Told {
        uid: part(uid),
        namespace: part(namespace),
        name: part(name),
        reason: event.reason.code(),
        note: event.note.clone(),
    }
}

/// The namespace in which events about an object live; those about what has none are in `default`.
fn home(about: &ObjectReference) -> &str {
    about.namespace.as_deref().filter(|namespace| !namespace.is_empty()).unwrap_or("default")
}

/// What was being done; Kubernetes' scheduler has words for it, others repeat the reason.
fn action(event: &Event) -> &'static str {
    match event.reason.code() {
        "FailedScheduling" => "Scheduling",
        "Scheduled" => "Binding",
        code => code,
    }
}

fn shorten(note: &str) -> String {
    let mut end = note.len().min(LONGEST_NOTE_BYTES);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    note[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(number: usize) -> Told {
        let (uid, name) = (number.to_string(), format!("v{number}"));
        Told { uid, namespace: "ns".into(), name, reason: "Attached", note: "attached".into() }
    }

    #[test]
    fn what_was_told_lately_is_remembered_up_to_a_bound() {
        let (start, mut memory) = (Timestamp::UNIX_EPOCH, Memory::default());
        let last = |at: Timestamp, count: i32| Last { at, event: "e".into(), count };
        for number in 0..REMEMBERED + 10 {
            memory.remember(told(number), last(start, 1), start);
        }
        assert_eq!(memory.events.len(), REMEMBERED, "nothing may be told again yet");
        memory.remember(told(1), last(start, 2), start);
        assert_eq!(memory.events[&told(1)].count, 2, "one that is known is kept up to date all the same");
        let later = start + QUIET + SWEEP;
        memory.remember(told(REMEMBERED + 10), last(later, 1), later);
        assert_eq!(memory.events.len(), 1, "all others may be told again");
    }
}
