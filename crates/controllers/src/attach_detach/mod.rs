//! Volumes are attached to the nodes whose pods use them, and taken away when none does.

mod apply;
mod memory;
mod observe;

use std::sync::Arc;

use jiff::Timestamp;
use tether_plan::attach_detach::{Change, Settings, decide, decide_node};

use self::memory::Memory;
use self::observe::{NodeView, VolumeView};
use crate::context::Context;
use crate::publish::Publisher;
use crate::queue::Queue;
use crate::worker::{Reconcile, log};
use crate::write::WriteError;

/// How many volumes and nodes are worked on at once: each takes a request or two, and none waits for a driver.
pub(crate) const AT_ONCE: usize = 16;

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The list of attached volumes of a node.
    Node(String),
    /// A volume, by driver and handle.
    Volume(String),
}

/// One volume or node at a time.
pub(crate) struct AttachDetach {
    context: Arc<Context>,
    settings: Settings,
    events: Publisher,
    memory: Arc<Memory>,
    queue: Arc<Queue<Key>>,
}

impl AttachDetach {
    pub(crate) fn new(context: &Arc<Context>, settings: Settings) -> (Arc<Self>, Arc<Queue<Key>>) {
        let queue = Queue::new(context.clock.clone());
        let memory = Arc::new(Memory::default());
        observe::subscribe(context, &queue, &memory);
        let events = context.publisher("attachdetach-controller");
        let controller = Self { context: context.clone(), settings, events, memory, queue: queue.clone() };
        (Arc::new(controller), queue)
    }

    async fn volume(&self, csi_name: &str) -> Result<Option<Timestamp>, WriteError> {
        let now = self.context.clock.now();
        let Some(view) = VolumeView::of(&self.context, &self.memory, csi_name, now) else { return Ok(None) };
        let plan = decide(&view.observed(), &self.settings, now);
        log(Self::NAME, &plan);
        let wake_at = plan.wake_at();
        for change in plan.changes {
            match change {
                Change::List { node } | Change::Unlist { node } => self.queue.add(Key::Node(node)),
                other => apply::apply(&self.context, &self.memory, &view.unique_name, other).await?,
            }
        }
        self.events.publish(plan.events).await;
        Ok(wake_at)
    }

    async fn node(&self, name: &str) -> Result<(), WriteError> {
        let now = self.context.clock.now();
        let Some(view) = NodeView::of(&self.context, &self.memory, name, &self.settings, now) else { return Ok(()) };
        let plan = decide_node(&view.observed());
        log(Self::NAME, &plan);
        for change in plan.changes {
            apply::apply_node(&self.context, change).await?;
        }
        self.events.publish(plan.events).await;
        Ok(())
    }
}

impl Reconcile for AttachDetach {
    type Key = Key;
    const NAME: &'static str = "attachdetach";

    async fn reconcile(&self, key: &Key) -> Result<Option<Timestamp>, WriteError> {
        match key {
            Key::Volume(csi_name) => self.volume(csi_name).await,
            Key::Node(name) => self.node(name).await.map(|()| None),
        }
    }
}
