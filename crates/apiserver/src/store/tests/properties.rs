//! Random operations, with restarts in between, against the oracle.

use proptest::prelude::*;

use super::oracle::{Oracle, drain};
use super::power::PowerDisk;
use super::*;

const RESOURCES: [&str; 2] = ["pods", "podsx"];
const NAMESPACES: [&str; 3] = ["", "a", "ab"];

#[derive(Clone, Debug)]
enum Op {
    Write { key: Key, expect: Expecting, deletes: bool, size: usize },
    List { resource: usize, namespace: Option<usize>, back: u64, after: Option<(usize, String)>, limit: usize },
    Watch { resource: usize, namespace: Option<usize>, back: u64 },
    Reopen,
}

/// An expectation, relative to what is there when the write happens.
#[derive(Clone, Copy, Debug)]
enum Expecting {
    Absent,
    Any,
    Current,
    Stale,
}

fn name() -> impl Strategy<Value = String> {
    "[x-z]{1,2}"
}

fn op() -> impl Strategy<Value = Op> {
    let key = (0..RESOURCES.len(), 0..NAMESPACES.len(), name());
    let key = key.prop_map(|(resource, namespace, name)| Key::new(RESOURCES[resource], NAMESPACES[namespace], name));
    let expect = prop_oneof![
        3 => Just(Expecting::Absent),
        2 => Just(Expecting::Any),
        3 => Just(Expecting::Current),
        1 => Just(Expecting::Stale)
    ];
    let namespace = || prop::option::of(0..NAMESPACES.len());
    prop_oneof![
        12 => (key, expect, prop::bool::weighted(0.3), 0..300_usize)
            .prop_map(|(key, expect, deletes, size)| Op::Write { key, expect, deletes, size }),
        4 => (0..RESOURCES.len(), namespace(), 0..30_u64, prop::option::of((0..NAMESPACES.len(), name())), 0..5_usize)
            .prop_map(|(resource, namespace, back, after, limit)| Op::List { resource, namespace, back, after, limit }),
        2 => (0..RESOURCES.len(), namespace(), 0..30_u64)
            .prop_map(|(resource, namespace, back)| Op::Watch { resource, namespace, back }),
        1 => Just(Op::Reopen),
    ]
}

fn value(size: usize) -> impl FnOnce(u64) -> Bytes + Send + 'static {
    move |revision| Bytes::from(format!("{}{revision}", "v".repeat(size)))
}

async fn write(store: &Store, oracle: &mut Oracle, key: Key, expecting: Expecting, deletes: bool, size: usize) {
    let current = oracle.get(&key).map(|entry| entry.revision);
    let expect = match (expecting, current) {
        (Expecting::Any, _) => Expect::Any,
        (Expecting::Current, Some(revision)) => Expect::Revision(revision),
        (Expecting::Absent, _) | (Expecting::Current, None) => Expect::Absent,
        (Expecting::Stale, current) => Expect::Revision(current.unwrap_or(1).saturating_sub(1)),
    };
    let expected = oracle.write(&key, expect, deletes, value(size));
    let change = if deletes { Change::delete(value(size)) } else { Change::put(value(size)) };
    let got = store.write(key, expect, change).await.map_err(|error| match error {
        WriteError::Conflict { current } => current,
        other => panic!("{other}"),
    });
    assert_eq!(got, expected);
}

fn check_list(store: &Store, oracle: &Oracle, query: ListQuery<'_>) {
    let oldest = store.shared.state.read().oldest();
    match store.list(query) {
        Ok(listing) => assert_eq!(listing, oracle.list(query), "{query:?}"),
        Err(error) => {
            assert_eq!(error, ListError::Compacted { oldest });
            assert!(query.at.is_some_and(|at| at < oldest), "{query:?}");
        }
    }
}

async fn run(ops: Vec<Op>) {
    let options = Options { history_events: 20, history_bytes: 6_000, ..Options::default() };
    let disk = PowerDisk::default();
    let mut store = Store::open_with(disk.clone(), options).unwrap();
    let mut oracle = Oracle::default();
    for op in ops {
        match op {
            Op::Write { key, expect, deletes, size } => {
                write(&store, &mut oracle, key, expect, deletes, size).await;
            }
            Op::List { resource, namespace, back, after, limit } => {
                let after = after.as_ref().map(|(namespace, name)| (NAMESPACES[*namespace], name.as_str()));
                let namespace = namespace.map(|namespace| NAMESPACES[namespace]);
                let at = Some(oracle.revision().saturating_sub(back));
                check_list(&store, &oracle, ListQuery { resource: RESOURCES[resource], namespace, at, after, limit });
            }
            Op::Watch { resource, namespace, back } => {
                let from = oracle.revision().saturating_sub(back).max(store.shared.state.read().oldest());
                let (resource, namespace) = (RESOURCES[resource], namespace.map(|namespace| NAMESPACES[namespace]));
                let events = drain(&store.shared, resource, namespace, from);
                assert_eq!(events, oracle.events(resource, namespace, from));
            }
            Op::Reopen => {
                drop(store);
                store = Store::open_with(disk.clone(), options).unwrap();
            }
        }
    }
    oracle.check(&store.shared, &RESOURCES, &NAMESPACES);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_oracle_does(ops in prop::collection::vec(op(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run(ops));
    }
}
