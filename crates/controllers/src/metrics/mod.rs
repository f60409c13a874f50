//! Metrics of the controllers: what the objects say, how long attachments take, how much work waits.
//!
//! Objects are looked at when somebody asks, in the caches that the controllers have anyway; nothing is kept up to date for
//! metrics but how long attachments take.

mod objects;
mod phases;

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::objects::Objects;
pub use self::phases::{Phases, Took};
use crate::cache::Seen;
use crate::context::Context;
use crate::queue::Load;

/// Seconds; from a volume that is there already to one that waits for a node.
const BUCKETS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];

/// What a queue counts: name, help, and how it is read.
type Counter = (&'static str, &'static str, fn(&dyn Load) -> u64);

type Durations = Family<[(&'static str, &'static str); 1], Histogram, fn() -> Histogram>;

fn buckets() -> Histogram {
    Histogram::new(BUCKETS)
}

/// What is known to those who ask for metrics. One that does not lead knows nothing of objects.
pub struct Metrics {
    registry: Mutex<Registry>,
    attach: Durations,
    leading: Arc<Leading>,
}

#[derive(Default)]
struct Leading {
    context: RwLock<Option<Weak<Context>>>,
    queues: Mutex<Vec<(&'static str, Weak<dyn Load>)>>,
}

impl fmt::Debug for Leading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leading").finish_non_exhaustive()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let attach = Durations::new_with_constructor(buckets);
        let help = "Seconds from an attachment ticket to its satisfaction, by phase";
        registry.register("tether_attach_seconds", help, attach.clone());
        let leading = Arc::<Leading>::default();
        registry.register_collector(Box::new(leading.clone()));
        Self { registry: Mutex::new(registry), attach, leading }
    }
}

impl Metrics {
    /// All metrics, as Prometheus reads them.
    pub fn render(&self) -> String {
        let mut text = String::new();
        text::encode(&mut text, &self.registry.lock()).expect("a string must take what is written");
        text
    }

    /// Listens to what the controllers see, from now on.
    pub(crate) fn observe(&self, context: &Arc<Context>) {
        *self.leading.context.write() = Some(Arc::downgrade(context));
        self.leading.queues.lock().clear();
        let phases = Arc::<Phases>::default();
        let clock = context.clock.clone();
        let longhorn = &context.longhorn;
        let (known, attach, now) = (phases.clone(), self.attach.clone(), clock.clone());
        longhorn.attachments.subscribe(move |seen| {
            if let Seen::Deleted(gone) = seen {
                return known.forget(&gone.spec.volume);
            }
            for (phase, seconds) in known.tickets(seen.object(), now.now()) {
                attach.get_or_create(&[("phase", phase)]).observe(seconds);
            }
        });
        let (known, now) = (phases.clone(), clock.clone());
        longhorn.volumes.subscribe(move |seen| {
            if let Seen::Applied { old: Some(old), new } = seen
                && !new.spec.node_id.is_empty()
                && old.spec.node_id != new.spec.node_id
            {
                known.decided(new.metadata.name.as_deref().unwrap_or_default(), now.now());
            }
        });
        longhorn.engines.subscribe(move |seen| {
            if let Seen::Applied { old, new } = seen {
                phases.engine(*old, new, clock.now());
            }
        });
    }

    /// Tells how much waits in a queue.
    pub(crate) fn queue(&self, name: &'static str, queue: &Arc<impl Load>) {
        let queue: Arc<dyn Load> = queue.clone();
        self.leading.queues.lock().push((name, Arc::downgrade(&queue)));
    }
}

impl Collector for Leading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.queues(&mut encoder)?;
        let context = self.context.read().as_ref().and_then(Weak::upgrade);
        let mut family = encoder.encode_descriptor(
            "tether_controller_leading",
            "Whether this process runs the controllers; another one may",
            None,
            MetricType::Gauge,
        )?;
        family.encode_gauge(&u32::from(context.is_some()))?;
        let Some(context) = context else { return Ok(()) };
        let now = context.clock.now();
        objects::encode(&Objects::of(&context.longhorn, now), now, &mut encoder)
    }
}

impl Leading {
    fn queues(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues: Vec<_> = {
            let held = self.queues.lock();
            held.iter().filter_map(|(name, queue)| Some((*name, queue.upgrade()?))).collect()
        };
        let mut family = encoder.encode_descriptor(
            "longhorn_workqueue_depth",
            "Keys that wait to be worked on",
            None,
            MetricType::Gauge,
        )?;
        for (name, queue) in &queues {
            family.encode_family(&[("name", *name)])?.encode_gauge(&(queue.depth() as f64))?;
        }
        let counters: [Counter; 2] = [
            ("longhorn_workqueue_adds", "Keys that were added", Load::added),
            ("longhorn_workqueue_retries", "Keys that came back because the work on them failed", Load::retried),
        ];
        for (name, help, count) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (queue_name, queue) in &queues {
                let labels = [("name", *queue_name)];
                let mut series = family.encode_family(&labels)?;
                series.encode_counter::<prometheus_client::encoding::NoLabelSet, _, u64>(&count(&**queue), None)?;
            }
        }
        Ok(())
    }
}
