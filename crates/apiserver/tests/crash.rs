//! A whole server, over TLS, killed with -9 at random moments while clients write and watch.
//!
//! The server is this very test binary, running [`child`]. Each writer counts its own ConfigMap up, so that after a kill
//! there are only two states that it may be in: the last acknowledged one, and the one after it. One watch runs through
//! all lives of the server: it resumes where it was and must see every count of every writer, in order.

// Helpers of a test may fail as loudly as the test itself.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use jiff::Timestamp;
use kube::config::{KubeConfigOptions, Kubeconfig as KubeFile};
use serde_json::{Value, json};
use tether_apiserver::pki::{Kubeconfig, Pki};
use tether_apiserver::{Options, run};
use tether_testkit::kill::{Kills, Victim, kill_repeatedly};
use tokio_util::sync::CancellationToken;

const WRITERS: usize = 6;
/// Tells [`child`] where its data is.
const DATA_VARIABLE: &str = "TETHER_CRASH_DATA";
/// How many kills `cargo xtask campaign run server-kill` wants.
const KILLS_VARIABLE: &str = "TETHER_SEEDS";
const SEED_VARIABLE: &str = "TETHER_FIRST_SEED";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
/// A server that is there answers well within this.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "the process that the crash tests kill"]
fn child() {
    let Ok(data_dir) = std::env::var(DATA_VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let options =
        Options { data_dir: data_dir.into(), listen, hosts: Vec::new(), plugins: Vec::new(), objects: Vec::new() };
    let serving = |address: SocketAddr, _: &_| writeln!(std::io::stdout(), "\nserving {address}").unwrap();
    runtime.block_on(run(options, CancellationToken::new(), serving)).unwrap();
}

fn configmap(writer: usize, count: u64) -> Value {
    let payload = "x".repeat((count as usize * 613 + writer) % 5_000);
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("w{writer}")},
        "data": {"count": count.to_string(), "payload": payload},
    })
}

/// The count in an object that is whole: a torn one would not have the payload that belongs to its count.
fn count_of(object: &Value) -> Result<(usize, u64), String> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let writer: usize = name.trim_start_matches('w').parse().map_err(|_| format!("a foreign object: {name:?}"))?;
    let count: u64 = object["data"]["count"].as_str().and_then(|c| c.parse().ok()).ok_or("no count")?;
    if object["data"] != configmap(writer, count)["data"] {
        return Err(format!("{name} is torn at count {count}"));
    }
    Ok((writer, count))
}

/// What a server promised so far.
struct Promises {
    dir: PathBuf,
    runtime: tokio::runtime::Runtime,
    /// For each writer, its last acknowledged count.
    acknowledged: [u64; WRITERS],
    /// The watch: the revision that it has come to, and the last count of each writer that it saw.
    revision: u64,
    seen: BTreeMap<usize, u64>,
}

/// One life of the server.
struct Life {
    address: SocketAddr,
    /// Held open: the server would be killed by its own printing otherwise.
    _output: BufReader<ChildStdout>,
}

impl Promises {
    fn client(&self, address: SocketAddr) -> kube::Client {
        let now = Timestamp::now();
        let pki = Pki::open(&self.dir.join("pki"), now).unwrap();
        let server = format!("https://{address}");
        let credentials = pki.admin(now).unwrap();
        let text = Kubeconfig {
            cluster: "crash",
            server: &server,
            ca_pem: pki.ca_pem(),
            user: "admin",
            credentials: &credentials,
        }
        .render();
        let file = KubeFile::from_yaml(&text).unwrap();
        let config =
            self.runtime.block_on(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())).unwrap();
        let _inside = self.runtime.enter();
        kube::Client::try_from(config).unwrap()
    }

    /// Reads events from where the watch is until `done` or the server is gone.
    async fn watch(
        client: &kube::Client,
        revision: &mut u64,
        seen: &mut BTreeMap<usize, u64>,
        done: impl Fn(&BTreeMap<usize, u64>) -> bool,
    ) -> Result<(), String> {
        if done(seen) {
            return Ok(());
        }
        let path = format!("{CONFIGMAPS}?watch=true&resourceVersion={revision}");
        let request = Request::get(path).body(Vec::new()).unwrap();
        let Ok(stream) = client.request_stream(request).await else { return Ok(()) };
        let mut lines = Box::pin(stream).lines();
        while let Some(Ok(line)) = lines.next().await {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { return Ok(()) };
            if event["type"] == "ERROR" {
                return Err(format!("the watch at {revision} was not resumed: {event}"));
            }
            let (writer, count) = count_of(&event["object"])?;
            let last = seen.insert(writer, count).unwrap_or(0);
            if count != last + 1 {
                return Err(format!("the watch saw count {count} of writer {writer} after {last}"));
            }
            let text = event["object"]["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            *revision = text.parse().map_err(|_| format!("no revision in {event}"))?;
            if done(seen) {
                return Ok(());
            }
        }
        Ok(())
    }
}

async fn count_up(client: &kube::Client, writer: usize, acknowledged: &mut u64) {
    loop {
        let count = *acknowledged + 1;
        let (method, path) = match count {
            1 => ("POST", CONFIGMAPS.to_owned()),
            _ => ("PUT", format!("{CONFIGMAPS}/w{writer}")),
        };
        let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        let request = request.body(configmap(writer, count).to_string().into_bytes()).unwrap();
        if client.request::<Value>(request).await.is_err() {
            return;
        }
        *acknowledged = count;
    }
}

impl Victim for Promises {
    type Link = Life;
    type Error = String;

    fn start(&mut self) -> Result<(Child, Life), String> {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(DATA_VARIABLE, &self.dir)
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        loop {
            line.clear();
            if output.read_line(&mut line).map_err(|error| error.to_string())? == 0 {
                return Err("it ended before it served".to_owned());
            }
            if let Some(address) = line.strip_prefix("serving ") {
                let address = address.trim().parse().map_err(|_| format!("not an address: {line}"))?;
                return Ok((process, Life { address, _output: output }));
            }
        }
    }

    fn work(&mut self, life: Life) {
        let client = self.client(life.address);
        let (revision, seen) = (&mut self.revision, &mut self.seen);
        let mut watched = Ok(());
        self.runtime.block_on(async {
            let writers = self.acknowledged.iter_mut().enumerate();
            let writers = writers.map(|(writer, acknowledged)| count_up(&client, writer, acknowledged));
            let watch = async { watched = Self::watch(&client, revision, seen, |_| false).await };
            tokio::join!(futures::future::join_all(writers), watch);
        });
        assert_eq!(watched, Ok(()));
    }

    fn verify(&mut self) -> Result<(), String> {
        let (mut process, life) = self.start()?;
        let client = self.client(life.address);
        let (acknowledged, revision, seen) = (&mut self.acknowledged, &mut self.revision, &mut self.seen);
        let checked = self.runtime.block_on(async {
            for (writer, acknowledged) in acknowledged.iter_mut().enumerate() {
                let request = Request::get(format!("{CONFIGMAPS}/w{writer}")).body(Vec::new()).unwrap();
                let held = match client.request::<Value>(request).await {
                    Ok(object) => count_of(&object)?.1,
                    Err(kube::Error::Api(status)) if status.code == 404 => 0,
                    Err(error) => return Err(error.to_string()),
                };
                if held != *acknowledged && held != *acknowledged + 1 {
                    return Err(format!("writer {writer} was acknowledged {acknowledged}, the server has {held}"));
                }
                *acknowledged = held;
            }
            let all = |seen: &BTreeMap<usize, u64>| {
                acknowledged.iter().enumerate().all(|(writer, count)| seen.get(&writer).copied().unwrap_or(0) == *count)
            };
            let watch = Self::watch(&client, revision, seen, all);
            tokio::time::timeout(PATIENCE, watch).await.map_err(|_| "the watch lost events".to_owned())?
        });
        let _ = process.kill();
        let _ = process.wait();
        checked
    }
}

fn kill(count: usize, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut promises = Promises {
        dir: dir.path().join("server"),
        runtime,
        acknowledged: [0; WRITERS],
        revision: 1,
        seen: BTreeMap::new(),
    };
    let after = Duration::from_millis(1)..Duration::from_millis(400);
    kill_repeatedly(&mut promises, &Kills { count, seed, after }).unwrap();
    let total: u64 = promises.acknowledged.iter().sum();
    assert!(total > count as u64, "only {total} writes in {count} lives: the servers hardly wrote");
}

#[test]
fn a_killed_server_forgets_nothing_that_it_acknowledged() {
    kill(4, 0);
}

#[test]
#[ignore = "long: cargo xtask campaign run server-kill"]
fn kills_in_a_long_campaign() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    kill(number(KILLS_VARIABLE, 200) as usize, number(SEED_VARIABLE, 0));
}
