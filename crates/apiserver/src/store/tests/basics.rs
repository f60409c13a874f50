//! What each operation promises, one case at a time.

use super::*;

#[tokio::test]
async fn a_write_is_read_back_with_its_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    assert_eq!(store.revision(), 0);
    let written = store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
    assert_eq!((written.revision, text(&written).as_str()), (1, "a/x=one@1"));
    assert_eq!(store.get(&pod("a", "x")), Some(written));
    assert_eq!(store.get(&pod("a", "y")), None);
    assert_eq!(store.revision(), 1);
    assert_eq!(store.resource_changes("pods"), 1);
    assert_eq!(store.resources(), [("pods".to_owned(), 1)]);
}

#[tokio::test]
async fn expectations_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let x = pod("a", "x");
    for (expect, change) in [(Expect::Any, put("")), (Expect::Revision(1), put("")), (Expect::Absent, delete(""))] {
        let refused = store.write(x.clone(), expect, change).await;
        assert!(matches!(refused, Err(WriteError::Conflict { current: None })), "{expect:?}: {refused:?}");
    }
    let first = store.write(x.clone(), Expect::Absent, put("one")).await.unwrap();
    for expect in [Expect::Absent, Expect::Revision(7)] {
        match store.write(x.clone(), expect, put("")).await {
            Err(WriteError::Conflict { current: Some(current) }) => assert_eq!(current, first),
            other => panic!("{expect:?}: {other:?}"),
        }
    }
    store.write(x.clone(), Expect::Revision(1), put("two")).await.unwrap();
    store.write(x.clone(), Expect::Any, put("three")).await.unwrap();
    let deleted = store.write(x.clone(), Expect::Revision(3), delete("end")).await.unwrap();
    assert_eq!((deleted.revision, text(&deleted).as_str()), (4, "a/x=end@4"));
    assert_eq!(store.get(&x), None);
    assert_eq!(store.revision(), 4, "refused writes take no revision");
}

#[tokio::test]
async fn a_restart_keeps_objects_revision_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let (before, list) = {
        let store = open(&dir);
        store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap();
        store.write(pod("a", "y"), Expect::Absent, put("one")).await.unwrap();
        store.write(pod("a", "x"), Expect::Any, put("two")).await.unwrap();
        store.write(pod("a", "y"), Expect::Any, delete("end")).await.unwrap();
        store.write(pod("b", "y"), Expect::Absent, put("one")).await.unwrap();
        let mut watch = store.watch(WatchQuery { resource: "pods".into(), namespace: None, from: 0 }).unwrap();
        let events: Vec<_> = std::iter::from_fn(|| watch.try_next().unwrap()).collect();
        (events, store.list(ListQuery { resource: "pods", ..ListQuery::default() }).unwrap())
    };
    assert_eq!(before.len(), 5);
    let store = open(&dir);
    assert_eq!(store.revision(), 5);
    assert_eq!(store.list(ListQuery { resource: "pods", ..ListQuery::default() }).unwrap(), list);
    let mut watch = store.watch(WatchQuery { resource: "pods".into(), namespace: None, from: 0 }).unwrap();
    let after: Vec<_> = std::iter::from_fn(|| watch.try_next().unwrap()).collect();
    assert_eq!(after, before);
    assert_eq!(after[3].kind, EventKind::Deleted);
    assert_eq!(after[3].previous.as_ref().map(text).as_deref(), Some("a/y=one@2"));
}

#[tokio::test]
async fn writes_that_cannot_be_stored_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_bounded(&dir, Options { value_bytes: 10, ..Options::default() });
    let large = store.write(pod("a", "x"), Expect::Absent, put("0123456789")).await;
    assert!(matches!(large, Err(WriteError::TooLarge { bytes: 12, limit: 10 })), "{large:?}");
    let panics = Change::put(|_| panic!("an encoder's bug"));
    let panicked = store.write(pod("a", "x"), Expect::Absent, panics).await;
    assert!(matches!(panicked, Err(WriteError::Encoder)), "{panicked:?}");
    assert_eq!(store.write(pod("a", "x"), Expect::Absent, put("one")).await.unwrap().revision, 1);
}

#[tokio::test]
async fn many_small_histories_stay_within_their_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { history_events: 1_000, history_bytes: 20_000, ..Options::default() };
    let store = open_bounded(&dir, options);
    let value = "v".repeat(1_000);
    store.write(pod("a", "x"), Expect::Absent, put(&value)).await.unwrap();
    for _ in 0..50 {
        store.write(pod("a", "x"), Expect::Any, put(&value)).await.unwrap();
        let bytes = store.metrics().history_bytes.get();
        assert!(bytes <= 20_000, "{bytes} bytes of history");
    }
    let kept = store.metrics().history_events.get();
    assert!((10..=20).contains(&kept), "{kept} events of about 1.2 kB");
    drop(store);
    let store = open_bounded(&dir, options);
    assert_eq!(store.metrics().history_events.get(), kept, "the file was trimmed alike");
}
