//! What is known of the volumes of this node: who wants each, and how far it got.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tether_plan::attach_detach::unique_name;
use tether_plan::kubelet::volume::layout::Places;
use tether_plan::kubelet::volume::{ALONE, Attachment, Observed, Progress, User, Wanted};
use tether_plan::object::uid;

use super::records::{Left, places};

/// All volumes, and what is not known of pods.
#[derive(Default)]
pub(super) struct State {
    /// By unique name.
    pub volumes: BTreeMap<String, Held>,
    /// Pods that have something here and were not looked at yet.
    pub unsure: BTreeSet<String>,
}

impl State {
    /// What an earlier agent left; nothing of it is certain.
    pub fn found(root: &Path, left: BTreeMap<(String, String), Left>) -> Self {
        let mut state = Self::default();
        for ((driver, handle), left) in left {
            let name = unique_name(&driver, &handle);
            state.unsure.extend(left.published.iter().cloned());
            let unknown = |_: &String| Stage { progress: Progress::Unknown, kept: true };
            let held = Held {
                places: places(root, &left),
                staged: if left.staged { unknown(&name) } else { Stage::default() },
                published: left.published.iter().map(|pod| (pod.clone(), unknown(pod))).collect(),
                volume: left.record.volume,
                block: left.block,
                driver,
                handle,
                users: BTreeMap::new(),
                failures: None,
                words: None,
            };
            state.volumes.insert(name, held);
        }
        state
    }
}

/// How far staging or publishing got.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stage {
    pub progress: Progress,
    /// It was found when the agent started.
    pub kept: bool,
}

/// A pod that wants a volume.
#[derive(Clone)]
pub(super) struct Wish {
    pub pod: Arc<Pod>,
    pub wanted: Wanted,
}

/// One volume.
pub(super) struct Held {
    pub driver: String,
    pub handle: String,
    /// The PersistentVolume.
    pub volume: String,
    pub block: bool,
    pub places: Places,
    pub staged: Stage,
    /// By uid of the pod.
    pub published: BTreeMap<String, Stage>,
    pub users: BTreeMap<String, Wish>,
    pub failures: Option<(u32, Timestamp)>,
    /// What the last failure said.
    pub words: Option<String>,
}

impl Held {
    pub fn new(root: &Path, wanted: &Wanted) -> Self {
        let places = Places::new(root, &wanted.driver, &wanted.handle, &wanted.persistent_volume, wanted.is_block());
        Self {
            driver: wanted.driver.clone(),
            handle: wanted.handle.clone(),
            volume: wanted.persistent_volume.clone(),
            block: wanted.is_block(),
            places,
            staged: Stage::default(),
            published: BTreeMap::new(),
            users: BTreeMap::new(),
            failures: None,
            words: None,
        }
    }

    /// Notes a wish; whether it is news.
    pub fn want(&mut self, pod: &Arc<Pod>, wanted: Wanted) -> bool {
        if self.volume.is_empty() {
            // A staged file system that was found does not say its volume's name.
            self.volume.clone_from(&wanted.persistent_volume);
            self.places = self.places.clone().named(&self.volume);
        }
        let wish = Wish { pod: pod.clone(), wanted };
        let old = self.users.insert(uid(&**pod).to_owned(), wish.clone());
        old.is_none_or(|old| old.wanted != wish.wanted)
    }

    pub fn observed<'a>(&'a self, name: &'a str, unsure: &'a BTreeSet<String>, attachment: Attachment) -> Observed<'a> {
        let user = |wish: &Wish| User { alone: wish.wanted.alone, grows: wish.wanted.grows() };
        Observed {
            name,
            users: self.users.iter().map(|(pod, wish)| (pod.as_str(), user(wish))).collect(),
            staged: self.staged.progress,
            published: self.published.iter().map(|(pod, stage)| (pod.as_str(), stage.progress)).collect(),
            unsure: unsure.iter().map(String::as_str).collect(),
            attachment,
            failures: self.failures,
        }
    }

    /// Whether a change of the node's object can bring it on.
    pub fn waits_for_attachment(&self) -> bool {
        !self.users.is_empty() && self.staged.progress != Progress::Done
    }

    /// Whether the node has to say that it uses the volume.
    pub fn is_in_use(&self) -> bool {
        !self.users.is_empty() || !self.published.is_empty() || self.staged.progress != Progress::Nothing
    }

    /// Why the pod does not have it; `None` if it does.
    pub fn obstacle(&self, pod: &str) -> Option<String> {
        let published = self.published.get(pod).map(|stage| stage.progress).unwrap_or_default();
        let wish = self.users.get(pod)?;
        if published == Progress::Done && !wish.wanted.grows() {
            return None;
        }
        if let Some(words) = &self.words {
            return Some(words.clone());
        }
        if wish.wanted.alone && self.published.keys().any(|other| other != pod) {
            return Some(ALONE.to_owned());
        }
        let what = if self.staged.progress == Progress::Done { "mounted" } else { "attached and mounted" };
        Some(format!("volume {:?} is being {what}", self.volume))
    }

    /// Notes that a step failed.
    pub fn failed(&mut self, words: String, now: Timestamp) {
        let count = self.failures.map_or(0, |(count, _)| count);
        self.failures = Some((count.saturating_add(1), now));
        self.words = Some(words);
    }

    /// Notes that a step succeeded.
    pub fn succeeded(&mut self) {
        self.failures = None;
        self.words = None;
    }
}
