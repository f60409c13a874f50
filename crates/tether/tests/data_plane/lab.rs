//! A volume by hand: replicas and engines as processes of their own, in a directory of the test.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tether_testkit::proxy::Proxy;

/// Size of the volume.
pub const SIZE: u64 = 128 << 20;
/// What is waited for comes sooner than this, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of the test; killed with it.
pub struct Process {
    child: Child,
    pub line: String,
}

impl Process {
    fn start(mut command: Command, until: &str, log: &Path) -> Self {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.by_ref().map_while(Result::ok).find(|line| line.starts_with(until));
        // Somebody must go on reading, or a later line would end the process.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        let line = line.unwrap_or_else(|| panic!("it ended without {until:?}: {command:?}"));
        Self { child, line }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end in order.
    pub fn terminate(self) {
        self.signal(Signal::TERM);
        self.ends();
    }

    /// Waits for its end.
    pub fn ends(mut self) {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with replicas `r0`, `r1`, …, a record and sockets.
pub struct Lab {
    dir: tempfile::TempDir,
    addresses: Vec<String>,
    /// Ways to the replicas that can be cut; none if engines connect directly.
    pub ways: Vec<Proxy>,
    pub replicas: Vec<Option<Process>>,
}

impl Lab {
    /// Starts `count` new replicas.
    pub fn new(count: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut lab = Self { dir, addresses: vec![String::new(); count], ways: Vec::new(), replicas: Vec::new() };
        for at in 0..count {
            lab.replicas.push(None);
            lab.start_replica(at);
        }
        lab
    }

    /// Replicas that engines reach on ways that can be cut.
    pub fn behind_proxies(count: usize) -> Self {
        let mut lab = Self::new(count);
        lab.ways = lab.addresses.iter().map(|address| Proxy::to(address).unwrap()).collect();
        lab
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn tether(&self, instance: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tether"));
        command.env("HOME", self.dir.path()).env("XDG_RUNTIME_DIR", self.path(instance));
        command.env_remove("XDG_STATE_HOME").env_remove("TETHER_KEY_FILE");
        command
    }

    /// Starts a replica; at the address that it had, if it had one.
    pub fn start_replica(&mut self, at: usize) {
        let listen = match self.addresses[at].as_str() {
            "" => "127.0.0.1:0",
            known => known,
        };
        let mut command = self.tether("run");
        command.args(["replica", "--size", "128MiB", "--listen", listen, "--dir"]).arg(self.path(&format!("r{at}")));
        let process = Process::start(command, "ready ", &self.path(&format!("r{at}.log")));
        process.line.trim_start_matches("ready tcp:").clone_into(&mut self.addresses[at]);
        self.replicas[at] = Some(process);
    }

    pub fn replica(&self, at: usize) -> &Process {
        self.replicas[at].as_ref().unwrap()
    }

    pub fn kill_replica(&mut self, at: usize) {
        self.replicas[at].take().unwrap().kill();
    }

    pub fn socket(&self, engine: &str) -> PathBuf {
        self.path(&format!("{engine}.sock"))
    }

    pub fn record(&self) -> PathBuf {
        self.path("v1.record")
    }

    /// Starts an engine and waits until it serves. `engine` tells engines of one volume apart.
    pub fn start_engine(&self, engine: &str) -> Process {
        Process::start(self.engine(engine), "serving ", &self.path(&format!("{engine}.log")))
    }

    /// Starts a standby that reads through the engine called `source`.
    pub fn start_standby(&self, engine: &str, source: &str) -> Process {
        let mut command = self.engine(engine);
        command.arg("--standby").arg("--source").arg(self.peer(source));
        let process = Process::start(command, "standby ", &self.path(&format!("{engine}.log")));
        self.wait(engine, "standby", |info| info["phase"] == "Standby" && info["standby"] == info["holder"]);
        process
    }

    fn peer(&self, engine: &str) -> String {
        format!("unix:{}", self.path(&format!("{engine}.peer")).display())
    }

    fn engine(&self, engine: &str) -> Command {
        let mut command = self.tether(engine);
        command.args(["engine", "--volume", "v1", "--size", "128MiB", "--record"]).arg(self.record());
        command.arg("--nbd").arg(format!("unix:{}", self.socket(engine).display()));
        command.arg("--peer-listen").arg(self.peer(engine));
        for (at, address) in self.addresses.iter().enumerate() {
            command.args(["--replica", self.ways.get(at).map_or(address, |way| &way.address)]);
        }
        command
    }

    /// Asks a running engine.
    pub fn ask(&self, engine: &str, args: &[&str]) -> Result<Value, String> {
        let output = self.tether(engine).arg("engine").args(args).args(["-o", "json"]).output().unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Asks a running replica for the sum of a snapshot.
    pub fn hash(&self, at: usize, snapshot: &str, rehash: bool) -> Value {
        let mut command = self.tether("run");
        command.args(["replica", "hash", &format!("r{at}"), snapshot, "-o", "json"]).args(rehash.then_some("--rehash"));
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{snapshot}: {error}"))
    }

    pub fn info(&self, engine: &str) -> Value {
        self.ask(engine, &["info", "v1"]).unwrap_or_default()
    }

    /// Waits until what the engine says of itself is as wanted.
    pub fn wait(&self, engine: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let info = self.info(engine);
            if wanted(&info) {
                return info;
            }
            let logs = || std::fs::read_to_string(self.path(&format!("{engine}.log"))).unwrap_or_default();
            assert!(start.elapsed() < PATIENCE, "{what} does not happen: {info:#}\n{}", logs());
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn wait_in_sync(&self, engine: &str, count: usize) -> Value {
        self.wait(engine, &format!("{count} replicas in sync"), |info| in_sync(info) == count)
    }

    /// Stops the replicas in order and compares their directories byte by byte.
    pub fn assert_equal(&mut self) {
        for replica in self.replicas.iter_mut().filter_map(Option::take) {
            replica.terminate();
        }
        let dirs = (0..self.addresses.len()).map(|at| self.path(&format!("r{at}")));
        let output = self.tether("run").args(["replica", "diff"]).args(dirs).output().unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}");
    }
}

pub fn in_sync(info: &Value) -> usize {
    info["inSync"].as_array().map_or(0, Vec::len)
}

/// What the engine said about copies: the last event that names them.
pub fn copied(info: &Value) -> String {
    let mut events = info["events"].as_array().into_iter().flatten().filter_map(Value::as_str);
    events.rfind(|event| event.contains("were copied")).unwrap_or("nothing was copied").to_owned()
}

/// The number in it.
pub fn copied_bytes(info: &Value) -> u64 {
    let text = copied(info);
    let number = text.split(" bytes were copied").next().and_then(|text| text.rsplit(' ').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
