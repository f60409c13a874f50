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
