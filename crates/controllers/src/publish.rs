//! Events, as `kubectl get events` shows them. What is written, and how often, is decided by `tether_plan::recorder`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::events::v1::{Event as ApiEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tether_plan::event::Event;
use tether_plan::recorder::{Recorder, Series, Step, home};

use crate::clock::Clock;
use crate::write::code;

/// The API server's limit.
const LONGEST_NOTE_BYTES: usize = 1_024;

/// Publishes the events of one controller.
#[derive(Clone)]
pub struct Publisher(Arc<Inner>);

struct Inner {
    client: Client,
    clock: Arc<dyn Clock>,
    controller: &'static str,
    instance: String,
    recorder: Mutex<Recorder>,
    /// Somebody waits to write counts.
    is_waiting: AtomicBool,
    names: Arc<Names>,
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

impl Publisher {
    pub fn new(
        client: Client,
        clock: Arc<dyn Clock>,
        controller: &'static str,
        instance: &str,
        names: Arc<Names>,
    ) -> Self {
        let (recorder, is_waiting) = (Mutex::default(), AtomicBool::new(false));
        Self(Arc::new(Inner { client, clock, controller, instance: instance.to_owned(), recorder, is_waiting, names }))
    }

    /// Publishes events. One that cannot be published is logged: nothing depends on it.
    pub async fn publish(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        for event in events {
            self.0.tell(&event).await;
        }
        self.0.count().await;
        self.wait();
    }

    /// Counts that are not to be written yet are written when they are, also if nothing is told any more.
    fn wait(&self) {
        let inner = &self.0;
        if inner.recorder.lock().wake_at().is_none() || inner.is_waiting.swap(true, Ordering::AcqRel) {
            return;
        }
        let inner = inner.clone();
        tokio::spawn(async move {
            loop {
                let next = inner.recorder.lock().wake_at();
                let Some(at) = next else {
                    inner.is_waiting.store(false, Ordering::Release);
                    // Somebody may have seen that there was one who waits.
                    if inner.recorder.lock().wake_at().is_none() || inner.is_waiting.swap(true, Ordering::AcqRel) {
                        return;
                    }
                    continue;
                };
                inner.clock.sleep_until(at).await;
                inner.count().await;
            }
        });
    }
}

impl Inner {
    async fn tell(&self, event: &Event) {
        let now = self.clock.now();
        let step = self.recorder.lock().see(event, now);
        let controller = self.controller;
        match step {
            Step::Counted => {}
            Step::Dropped => tracing::debug!(controller, ?event, "too many events about one object, one is dropped"),
            Step::Create { id, note } => match self.create(event, &note, now).await {
                Ok(name) => self.recorder.lock().created(&id, &name),
                Err(error) => {
                    self.recorder.lock().refused(&id);
                    tracing::warn!(controller, ?event, %error, "an event could not be published");
                }
            },
        }
    }

    /// Writes the counts that are due.
    async fn count(&self) {
        let due = self.recorder.lock().due(self.clock.now());
        for Series { id, namespace, event, count, last_seen } in due {
            let series = EventSeries { count, last_observed_time: MicroTime(last_seen) };
            let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), &namespace);
            match api.patch(&event, &PatchParams::default(), &Patch::Merge(json!({ "series": series }))).await {
                Ok(_) => {}
                // It expired meanwhile.
                Err(error) if code(&error) == Some(404) => self.recorder.lock().refused(&id),
                Err(error) => {
                    tracing::warn!(controller = self.controller, event, %error, "an event could not be counted");
                }
            }
        }
    }

    async fn create(&self, event: &Event, note: &str, now: Timestamp) -> Result<String, kube::Error> {
        let object = event.about.name.clone().unwrap_or_default();
        let namespace = home(event.about.namespace.as_deref().unwrap_or_default());
        let api: Api<ApiEvent> = Api::namespaced(self.client.clone(), namespace);
        let body = ApiEvent {
            metadata: ObjectMeta {
                name: Some(self.names.next(&object, now)),
                namespace: Some(namespace.to_owned()),
                ..Default::default()
            },
            action: Some(action(event).to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(shorten(note)),
            reason: Some(event.reason.code().to_owned()),
            regarding: Some(event.about.clone()),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            ..Default::default()
        };
        let created = api.create(&PostParams::default(), &body).await?;
        Ok(created.name_any())
    }
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
