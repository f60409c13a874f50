//! Lists: order, pages, and the past.

use super::*;

async fn filled() -> (tempfile::TempDir, Arc<Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    for (namespace, name) in [("b", "x"), ("a", "y"), ("a", "x"), ("ab", "x")] {
        store.write(pod(namespace, name), Expect::Absent, put("one")).await.unwrap();
    }
    store.write(Key::new("podsx", "a", "x"), Expect::Absent, put("one")).await.unwrap();
    store.write(Key::new("nodes", "", "n"), Expect::Absent, put("one")).await.unwrap();
    (dir, store)
}

fn pods() -> ListQuery<'static> {
    ListQuery { resource: "pods", ..ListQuery::default() }
}

fn texts(listing: &Listing) -> Vec<String> {
    listing.entries.iter().map(text).collect()
}

#[tokio::test]
async fn lists_are_ordered_by_namespace_and_name() {
    let (_dir, store) = filled().await;
    let all = store.list(pods()).unwrap();
    assert_eq!(texts(&all), ["a/x=one@3", "a/y=one@2", "ab/x=one@4", "b/x=one@1"]);
    assert_eq!((all.revision, all.remaining), (6, 0));
    let one = store.list(ListQuery { namespace: Some("a"), ..pods() }).unwrap();
    assert_eq!(texts(&one), ["a/x=one@3", "a/y=one@2"]);
    let cluster_scoped = store.list(ListQuery { resource: "nodes", ..ListQuery::default() }).unwrap();
    assert_eq!(texts(&cluster_scoped), ["/n=one@6"]);
    let unknown = store.list(ListQuery { resource: "secrets", ..ListQuery::default() }).unwrap();
    assert!(unknown.entries.is_empty());
}

#[tokio::test]
async fn pages_of_one_revision_do_not_see_later_changes() {
    let (_dir, store) = filled().await;
    let first = store.list(ListQuery { limit: 2, ..pods() }).unwrap();
    assert_eq!((texts(&first), first.remaining), (vec!["a/x=one@3".into(), "a/y=one@2".into()], 2));

    store.write(pod("aa", "new"), Expect::Absent, put("one")).await.unwrap();
    store.write(pod("ab", "x"), Expect::Any, put("two")).await.unwrap();
    store.write(pod("ab", "x"), Expect::Any, put("three")).await.unwrap();
    store.write(pod("b", "x"), Expect::Any, delete("end")).await.unwrap();
    store.write(pod("b", "x"), Expect::Absent, put("again")).await.unwrap();

    let at = Some(first.revision);
    let second = store.list(ListQuery { limit: 1, at, after: Some(("a", "y")), ..pods() }).unwrap();
    assert_eq!((texts(&second), second.remaining, second.revision), (vec!["ab/x=one@4".into()], 1, 6));
    let third = store.list(ListQuery { limit: 1, at, after: Some(("ab", "x")), ..pods() }).unwrap();
    assert_eq!((texts(&third), third.remaining), (vec!["b/x=one@1".into()], 0));
    let latest = store.list(ListQuery { after: Some(("a", "y")), ..pods() }).unwrap();
    assert_eq!(texts(&latest), ["aa/new=one@7", "ab/x=three@9", "b/x=again@11"]);
    let deleted = store.list(ListQuery { at: Some(10), namespace: Some("b"), ..pods() }).unwrap();
    assert!(deleted.entries.is_empty());
}

#[tokio::test]
async fn revisions_outside_history_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_bounded(&dir, Options { history_events: 3, ..Options::default() });
    for i in 0..5 {
        store.write(pod("a", &i.to_string()), Expect::Absent, put("one")).await.unwrap();
    }
    assert_eq!(store.list(ListQuery { at: Some(1), ..pods() }), Err(ListError::Compacted { oldest: 2 }));
    assert_eq!(store.list(ListQuery { at: Some(2), ..pods() }).unwrap().entries.len(), 2);
    assert_eq!(store.list(ListQuery { at: Some(6), ..pods() }), Err(ListError::Future { latest: 5 }));
    let watch = |from| store.watch(WatchQuery { resource: "pods".into(), namespace: None, from });
    assert_eq!(watch(1).err(), Some(WatchError::Compacted { oldest: 2 }));
    assert_eq!(watch(6).err(), Some(WatchError::Future { latest: 5 }));
    assert!(watch(2).is_ok());
}
