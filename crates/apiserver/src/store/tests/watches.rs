//! Watches: what they deliver, when they wake, and how they end.

use std::time::Duration;

use tokio::time::timeout;

use super::*;

/// Far longer than anything here takes; only a hang reaches it.
const HANG: Duration = Duration::from_secs(60);

fn watch(store: &Store, namespace: Option<&str>, from: u64) -> Watch {
    store.watch(WatchQuery { resource: "pods".into(), namespace: namespace.map(str::to_owned), from }).unwrap()
}

async fn next(watch: &mut Watch) -> String {
    let event = timeout(HANG, watch.next()).await.expect("the watch must wake").unwrap();
    format!("{:?} {}", event.kind, text(&event.entry))
}

#[tokio::test]
async fn a_watch_gets_what_concerns_it_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let (mut all, mut a, mut b) = (watch(&store, None, 0), watch(&store, Some("a"), 0), watch(&store, Some("b"), 0));
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    store.write(Key::new("nodes", "", "n"), Expect::Absent, put("one")).await.unwrap();
    store.write(pod("b", "x"), Expect::Absent, put("one")).await.unwrap();
    store.write(pod("a", "x"), Expect::Any, put("two")).await.unwrap();
    store.write(pod("a", "x"), Expect::Any, delete("end")).await.unwrap();
    for expected in ["Added a/x=one@1", "Added b/x=one@3", "Modified a/x=two@4", "Deleted a/x=end@5"] {
        assert_eq!(next(&mut all).await, expected);
    }
    for expected in ["Added a/x=one@1", "Modified a/x=two@4", "Deleted a/x=end@5"] {
        assert_eq!(next(&mut a).await, expected);
    }
    assert_eq!(b.progress(), 2, "what comes before its next event");
    assert_eq!(next(&mut b).await, "Added b/x=one@3");
    assert_eq!(b.progress(), 5, "nothing more concerns it");
    assert_eq!(b.try_next(), Ok(None));
}

#[tokio::test]
async fn previous_states_come_with_the_events() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    store.write(pod("a", "x"), Expect::Any, put("two")).await.unwrap();
    store.write(pod("a", "x"), Expect::Any, delete("end")).await.unwrap();
    let mut watch = watch(&store, None, 0);
    let previous: Vec<_> =
        std::iter::from_fn(|| watch.try_next().unwrap()).map(|event| event.previous.as_ref().map(text)).collect();
    assert_eq!(previous, [None, Some("a/x=one@1".into()), Some("a/x=two@2".into())]);
}

#[tokio::test]
async fn a_waiting_watch_wakes_for_its_own_topic_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut watching = watch(&store, Some("a"), 0);
    let mut waiting = std::pin::pin!(watching.next());
    let counter = CountWakes::default();
    let waker = std::task::Waker::from(Arc::new(counter.clone()));
    let mut context = std::task::Context::from_waker(&waker);
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    store.write(pod("b", "x"), Expect::Absent, put("one")).await.unwrap();
    store.write(Key::new("nodes", "", "a"), Expect::Absent, put("one")).await.unwrap();
    assert_eq!(counter.count(), 0, "others' changes");
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    assert_eq!(counter.count(), 1);
    assert!(waiting.as_mut().poll(&mut context).is_ready());
}

#[derive(Clone, Default)]
struct CountWakes(Arc<std::sync::atomic::AtomicUsize>);

impl CountWakes {
    fn count(&self) -> usize {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}

impl std::task::Wake for CountWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_slow_watch_catches_up_or_is_told_that_it_cannot() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_bounded(&dir, Options { history_events: 100, ..Options::default() });
    let (mut slow, mut quiet) = (watch(&store, None, 0), watch(&store, Some("quiet"), 0));
    store.write(pod("a", "x"), Expect::Absent, put("0")).await.unwrap();
    for i in 1..100 {
        store.write(pod("a", "x"), Expect::Any, put(&i.to_string())).await.unwrap();
    }
    for i in 1..=100 {
        assert_eq!(slow.next().await.unwrap().revision(), i, "all of it is still there");
    }
    for i in 100..300 {
        store.write(pod("a", "x"), Expect::Any, put(&i.to_string())).await.unwrap();
    }
    assert_eq!(slow.progress(), 100, "a watch that fell behind claims no progress");
    assert_eq!(slow.next().await, Err(WatchEnd::Compacted { oldest: 200 }));
    assert_eq!(store.metrics().watchers_behind.get(), 1);

    store.write(pod("quiet", "x"), Expect::Absent, put("one")).await.unwrap();
    assert_eq!(next(&mut quiet).await, "Added quiet/x=one@301", "a quiet topic has missed nothing");
}

#[tokio::test]
async fn closing_the_store_ends_watches_after_their_last_event() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let mut reading = watch(&store, None, 0);
    let mut waiting = watch(&store, Some("b"), 0);
    store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    let waiter = tokio::spawn(async move { waiting.next().await });
    drop(store);
    assert_eq!(next(&mut reading).await, "Added a/x=one@1");
    assert_eq!(reading.next().await, Err(WatchEnd::Closed));
    assert_eq!(timeout(HANG, waiter).await.unwrap().unwrap(), Err(WatchEnd::Closed));
}

#[tokio::test]
async fn watches_are_counted_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let watches: Vec<_> = (0..10).map(|i| watch(&store, Some(&format!("ns{i}")), 0)).collect();
    assert_eq!(store.metrics().watchers.get(), 10);
    drop(watches);
    assert_eq!(store.metrics().watchers.get(), 0);
    assert_eq!(store.shared.state.read().history().topics(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_and_watchers_agree() {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let watchers: Vec<_> = (0..4)
        .map(|_| {
            let mut watch = watch(&store, None, 0);
            tokio::spawn(async move {
                for revision in 1..=WRITERS * WRITES {
                    assert_eq!(watch.next().await.unwrap().revision(), revision);
                }
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let key = pod("a", &format!("w{writer}"));
                let mut last = store.write(key.clone(), Expect::Absent, put("0")).await.unwrap();
                for i in 1..WRITES {
                    let expect = Expect::Revision(last.revision);
                    last = store.write(key.clone(), expect, put(&i.to_string())).await.unwrap();
                    assert_eq!(store.get(&key), Some(last.clone()), "an acknowledged write is visible");
                }
            })
        })
        .collect();
    for task in writers.into_iter().chain(watchers) {
        timeout(HANG, task).await.unwrap().unwrap();
    }
    assert_eq!(store.revision(), WRITERS * WRITES);
    let commits = store.metrics().commits.get();
    assert!(commits < WRITERS * WRITES, "{commits} commits: concurrent writes must share them");
}
