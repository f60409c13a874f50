//! Figures, not promises: run one with
//! `cargo test --release -p tether-apiserver --lib store::tests::measure::<name> -- --ignored --nocapture --exact`.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

const VALUE_BYTES: usize = 1024;
/// Tells [`opened`] what to open.
const OPEN_VARIABLE: &str = "TETHER_MEASURE_OPEN";

macro_rules! report {
    ($($arg:tt)*) => { writeln!(std::io::stdout(), $($arg)*).unwrap() };
}

/// About what a ConfigMap of 1 KiB is as stored.
fn config_map(name: &str, revision: u64) -> Bytes {
    let filler = "d".repeat(VALUE_BYTES);
    Bytes::from(format!(
        r#"{{"apiVersion":"v1","data":{{"key":"{filler}"}},"kind":"ConfigMap","metadata":{{"name":"{name}","resourceVersion":"{revision}"}}}}"#
    ))
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn summary(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let [p50, p99, max] = [50, 99, 100].map(|percent| percentile(&latencies, percent).as_secs_f64() * 1e3);
    format!("p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms")
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

/// Processor time of this process so far, in units of 10 ms: what a busy machine does not distort.
fn processor_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap() * 10).sum()
}

async fn create_many(
    store: &Arc<Store>,
    writers: usize,
    for_each: impl Fn(usize, usize) -> bool + Send + Copy + 'static,
) -> Vec<Duration> {
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while for_each(writer, latencies.len()) {
                    let name = format!("w{writer}-{}", latencies.len());
                    let key = Key::new("configmaps", format!("ns{}", writer % 100), name.clone());
                    let started = Instant::now();
                    let change = Change::put(move |revision| config_map(&name, revision));
                    store.write(key, Expect::Absent, change).await.unwrap();
                    latencies.push(started.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn durable_creates() {
    for writers in [1, 16, 64] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        let started = Instant::now();
        let until = started + Duration::from_secs(5);
        let latencies = create_many(&store, writers, move |_, _| Instant::now() < until).await;
        let rate = latencies.len() as f64 / started.elapsed().as_secs_f64();
        let batch = latencies.len() as f64 / store.metrics().commits.get() as f64;
        report!("{writers} writers: {rate:.0} creates/s, {}, {batch:.1} per commit", summary(latencies));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn watch_fan_out() {
    const WATCHERS: usize = 1_000;
    const NAMESPACES: usize = 100;
    const RATE: usize = 1_000;
    const SECONDS: usize = 5;
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let base = Instant::now();
    let watchers: Vec<_> = (0..WATCHERS)
        .map(|watcher| {
            let namespace = Some(format!("ns{}", watcher % NAMESPACES));
            let mut watch = store.watch(WatchQuery { resource: "pods".into(), namespace, from: 0 }).unwrap();
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                for _ in 0..RATE * SECONDS / NAMESPACES {
                    let event = watch.next().await.unwrap();
                    let sent =
                        Duration::from_nanos(String::from_utf8_lossy(&event.entry.value).trim().parse().unwrap());
                    latencies.push(base.elapsed().saturating_sub(sent));
                }
                latencies
            })
        })
        .collect();
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    for i in 0..RATE * SECONDS {
        tick.tick().await;
        let store = store.clone();
        tokio::spawn(async move {
            let sent = base.elapsed().as_nanos();
            let key = pod(&format!("ns{}", i % NAMESPACES), &format!("p{i}"));
            let value = Bytes::from(format!("{sent:VALUE_BYTES$}"));
            store.write(key, Expect::Absent, Change::put(move |_| value)).await.unwrap();
        });
    }
    let mut latencies = Vec::new();
    for watcher in watchers {
        latencies.extend(watcher.await.unwrap());
    }
    let seconds = base.elapsed().as_secs_f64();
    let rate = (RATE * SECONDS) as f64 / seconds;
    report!("{WATCHERS} watchers, {rate:.0} writes/s: from write to delivery {}", summary(latencies));
}

/// Opens a store in a process of its own, whose memory nothing else has used.
fn reopened(path: &Path, how: &str) {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::measure::opened", "--ignored", "--nocapture"])
        .env(OPEN_VARIABLE, format!("{how}:{}", path.display()))
        .status();
    assert!(status.unwrap().success());
}

#[test]
#[ignore = "a part of twenty_thousand_objects"]
fn opened() {
    let Ok(argument) = std::env::var(OPEN_VARIABLE) else { return };
    let (how, path) = argument.split_once(':').unwrap();
    let started = Instant::now();
    let store = Store::open(path, Options::default()).unwrap();
    let took = started.elapsed().as_secs_f64() * 1e3;
    let query = || WatchQuery { resource: "configmaps".into(), namespace: None, from: store.revision() };
    let watches: Vec<_> = (0..10).map(|_| store.watch(query()).unwrap()).collect();
    let (processor, resident) = (processor_ms(), resident_mib());
    report!("\nopened after {how} in {took:.0} ms ({processor} ms of processor)");
    report!("{resident:.0} MiB resident with {} watches", watches.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn twenty_thousand_objects() {
    const OBJECTS: usize = 20_000;
    const WRITERS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("objects.redb");
    report!("{:.0} MiB resident before", resident_mib());
    let store = open(&dir);
    create_many(&store, WRITERS, |_, done| done < OBJECTS / WRITERS).await;
    report!("{:.0} MiB resident after {OBJECTS} creates", resident_mib());
    let started = Instant::now();
    let all = store.list(ListQuery { resource: "configmaps", ..ListQuery::default() }).unwrap();
    report!("listed {} in {:.1} ms", all.entries.len(), started.elapsed().as_secs_f64() * 1e3);
    drop(all);
    let killed = dir.path().join("killed.redb");
    std::fs::copy(&path, &killed).unwrap();
    std::fs::File::open(&killed).unwrap().sync_all().unwrap();
    drop(store);
    report!("{} MiB file", std::fs::metadata(&path).unwrap().len() >> 20);
    reopened(&path, "a clean end");
    reopened(&killed, "a kill");
}
