//! Following every instance of this process: what it is now, and again whenever that changes.
//!
//! ```text
//!   registry: instances come and go ─┐
//!   follower of each instance ───────┴─► one task ─► the stream of one watcher
//! ```
//!
//! Followers wait for room in a short queue, and ask their instance for its state only after the last one was taken:
//! so a slow watcher costs nothing and skips states, but always gets the last one: how an instance ended is told before
//! its removal.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;
use uuid::Uuid;

use super::proto::{self, watch_event};
use super::registry::{Entry, Registry, Running};
use super::shown;
use crate::engine_server::{Answer, Command};
use crate::instance::AskFailed;
use crate::ring::AskError;

/// Before an instance that had no room for a question is asked again.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// States on their way to a watcher.
const QUEUE: usize = 16;

pub(super) type Told = Result<proto::WatchEvent, Status>;

struct News {
    name: String,
    uid: Uuid,
    instance: proto::Instance,
}

/// Tells `watcher` until it is gone.
pub(super) async fn watch(registry: Arc<Registry>, watcher: mpsc::Sender<Told>) {
    let mut changes = registry.changes();
    let (told, mut news) = mpsc::channel(QUEUE);
    let mut known: BTreeMap<String, Uuid> = BTreeMap::new();
    let mut followers = Followers::default();
    // Followers that have said everything: it is in the queue.
    let mut silent: BTreeSet<Uuid> = BTreeSet::new();
    // Instances of the beginning that were not told yet; None once `listed` was said.
    let mut missing: Option<BTreeSet<Uuid>> = Some(registry.list().iter().map(|(_, entry)| entry.uid).collect());
    loop {
        changes.borrow_and_update();
        let present = registry.list();
        silent.retain(|uid| known.values().any(|known| known == uid));
        let is_gone = |name: &str| present.iter().all(|(present, _)| present != name);
        let gone = known.iter().filter(|(name, uid)| is_gone(name) && silent.contains(uid));
        let gone: Vec<_> = gone.map(|(name, uid)| (name.clone(), *uid)).collect();
        if !gone.is_empty() {
            while let Ok(last) = news.try_recv() {
                if !tell(&watcher, last, &known, &mut missing).await {
                    return;
                }
            }
        }
        for (name, uid) in gone {
            known.remove(&name);
            if let Some(missing) = &mut missing {
                missing.remove(&uid);
            }
            if !say(&watcher, watch_event::Event::Removed(name)).await {
                return;
            }
        }
        for (name, entry) in present {
            if known.insert(name.clone(), entry.uid) != Some(entry.uid) {
                followers.spawn(entry.uid, follow(name, entry, told.clone()));
            }
        }
        if missing.as_ref().is_some_and(BTreeSet::is_empty) {
            missing = None;
            if !say(&watcher, watch_event::Event::Listed(proto::Empty {})).await {
                return;
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            Some(ended) = followers.next() => drop(silent.insert(ended)),
            Some(news) = news.recv() => {
                if !tell(&watcher, news, &known, &mut missing).await {
                    return;
                }
            }
            () = watcher.closed() => return,
        }
    }
}

/// Those who follow instances, by the runs that they follow.
#[derive(Default)]
struct Followers {
    tasks: JoinSet<()>,
    runs: HashMap<tokio::task::Id, Uuid>,
}

impl Followers {
    fn spawn(&mut self, run: Uuid, following: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(following);
        self.runs.insert(task.id(), run);
    }

    /// The run of whoever ended next; also of one that panicked, for an instance's removal is told whatever became of who
    /// followed it. None while nobody follows anything.
    async fn next(&mut self) -> Option<Uuid> {
        let ended = match self.tasks.join_next_with_id().await? {
            Ok((task, ())) => task,
            Err(error) => {
                tracing::error!(%error, "an instance is not followed any more");
                error.id()
            }
        };
        self.runs.remove(&ended)
    }
}

/// Passes on what a follower said. What an earlier run of the name still had to say is of no use.
async fn tell(
    watcher: &mpsc::Sender<Told>,
    News { name, uid, instance }: News,
    known: &BTreeMap<String, Uuid>,
    missing: &mut Option<BTreeSet<Uuid>>,
) -> bool {
    if let Some(missing) = missing {
        missing.remove(&uid);
    }
    known.get(&name) != Some(&uid) || say(watcher, watch_event::Event::Instance(instance)).await
}

async fn say(watcher: &mpsc::Sender<Told>, event: watch_event::Event) -> bool {
    watcher.send(Ok(proto::WatchEvent { event: Some(event) })).await.is_ok()
}

/// Tells of one instance until it ended.
async fn follow(name: String, entry: Entry, told: mpsc::Sender<News>) {
    let say = async |instance| told.send(News { name: name.clone(), uid: entry.uid, instance }).await.is_ok();
    match &entry.running {
        Running::Engine(engine) => {
            let mut seen = 0;
            loop {
                match engine.get_async(Command::Watch { seen }).await {
                    Ok(Answer::Info(info)) => {
                        seen = info.version;
                        if !say(shown::engine(&name, &entry, *info)).await {
                            return;
                        }
                    }
                    // It is flooded with questions; this one can wait.
                    Err(AskFailed::Ask(AskError::Busy)) => tokio::time::sleep(BUSY_PAUSE).await,
                    _ => break,
                }
            }
            let ended = engine.wait_ended().await;
            say(shown::ended(&name, &entry, &ended)).await;
        }
        Running::Replica(replica) => {
            if !say(shown::instance(&name, &entry).await).await {
                return;
            }
            let ended = replica.wait_ended().await;
            say(shown::ended(&name, &entry, &ended)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_follower_that_panics_has_ended_like_any_other() {
        let mut followers = Followers::default();
        assert_eq!(followers.next().await, None);
        let (well, broken) = (Uuid::from_u128(1), Uuid::from_u128(2));
        followers.spawn(broken, async { panic!("a defect on purpose") });
        assert_eq!(followers.next().await, Some(broken));
        followers.spawn(well, async {});
        assert_eq!(followers.next().await, Some(well));
        assert!(followers.runs.is_empty());
    }
}
