//! A real cluster for a test: `tether up` in a directory of its own, gone with the value.
//!
//! ```no_run
//! # use tether_testkit::Cluster;
//! let cluster = Cluster::builder("target/debug/tether").nodes(2).start();
//! let nodes = cluster.tether(&["status", "-o", "json"]);
//! ```
//!
//! If the test fails, the ends of all logs are printed. However it ends, no process, mount or file is left.
#![allow(clippy::print_stderr, reason = "a failing test shows the cluster's logs")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A debug build on a machine that is busy with other tests is slow; a cluster that hangs is found all the same.
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// For [`eventually`].
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks at something that sends no event.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Lines of each log that are shown after a failure.
const TAIL_LINES: usize = 30;

/// How a cluster is to be started.
#[derive(Debug)]
pub struct Builder {
    binary: PathBuf,
    nodes: Option<u16>,
    dir: Option<PathBuf>,
    wrapper: Vec<String>,
    extra: Vec<String>,
}

impl Builder {
    pub fn nodes(mut self, nodes: u16) -> Self {
        self.nodes = Some(nodes);
        self
    }

    /// Uses this directory, which is kept, instead of a temporary one.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Runs `tether up` by this command, to which its command line is appended (`setpriv --reuid=65534 …`).
    pub fn wrapper(mut self, command: &[&str]) -> Self {
        self.wrapper = command.iter().map(ToString::to_string).collect();
        self
    }

    /// Further arguments of `tether up`.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.extra = args.iter().map(ToString::to_string).collect();
        self
    }

    /// Starts the cluster and waits until it is ready; panics with its words and logs if it does not get there.
    pub fn start(self) -> Cluster {
        let temporary = self.dir.is_none().then(|| {
            let dir = tempfile::Builder::new().prefix("tether-test-").tempdir();
            dir.expect("a temporary directory must be had")
        });
        let dir = self.dir.clone().unwrap_or_else(|| temporary.as_ref().expect("one of both").path().join("data"));
        let mut cluster = Cluster { settings: self, dir, _temporary: temporary, process: None, table: String::new() };
        cluster.up();
        cluster
    }
}

/// A cluster that runs.
#[derive(Debug)]
pub struct Cluster {
    settings: Builder,
    dir: PathBuf,
    _temporary: Option<TempDir>,
    process: Option<Child>,
    table: String,
}

impl Cluster {
    /// A cluster of the binary at `binary`: in a test of the crate `tether`, `env!("CARGO_BIN_EXE_tether")`.
    pub fn builder(binary: impl Into<PathBuf>) -> Builder {
        Builder { binary: binary.into(), nodes: None, dir: None, wrapper: Vec::new(), extra: Vec::new() }
    }

    /// Starts it again after [`Cluster::stop`] or [`Cluster::kill`], on the same directory.
    pub fn up(&mut self) {
        assert!(self.process.is_none(), "the cluster runs already");
        let mut command = self.command();
        command.arg("up").arg("--data-dir").arg(&self.dir);
        if !self.dir.join("tether.json").exists() {
            command.args(["--api-port", "0"]);
        }
        if let Some(nodes) = self.settings.nodes {
            command.arg("--nodes").arg(nodes.to_string());
        }
        command.args(&self.settings.extra);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("tether must start");
        let lines = lines(process.stdout.take().expect("standard output must be a pipe"));
        self.process = Some(process);
        match until_ready(&lines) {
            Ok(table) => self.table = table,
            Err(why) => {
                let words = self.last_words();
                panic!("tether up: {why}\n{words}\n{}", self.logs());
            }
        }
    }

    /// What `tether up` printed until it was ready.
    pub fn table(&self) -> &str {
        &self.table
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// A client with the administrator's credentials.
    pub async fn client(&self) -> kube::Client {
        let file = Kubeconfig::read_from(self.kubeconfig()).expect("the kubeconfig must be readable");
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("the kubeconfig must be complete")).expect("a client must be had")
    }

    /// Runs another command of the same binary on this cluster's directory.
    pub fn tether(&self, args: &[&str]) -> Output {
        let mut command = self.command();
        command.args(args).env("TETHER_DATA_DIR", &self.dir).stdin(Stdio::null());
        command.output().expect("tether must start")
    }

    /// `tether status`, whatever it says.
    pub fn status(&self) -> Value {
        serde_json::from_slice(&self.tether(&["status", "-o", "json"]).stdout).expect("status must be JSON")
    }

    /// The pid of a component, as `tether status` tells it.
    pub fn pid(&self, component: &str) -> Option<u32> {
        let status = self.status();
        let found = status["components"].as_array()?.iter().find(|found| found["name"] == component)?;
        found["pid"].as_u64()?.try_into().ok()
    }

    /// The pid of `tether up`.
    pub fn supervisor(&self) -> u32 {
        self.process.as_ref().expect("the cluster must run").id()
    }

    /// Kills `tether up` without a warning, as `kill -9` does.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the cluster must run");
        process.kill().expect("a child can be killed");
        process.wait().expect("a child can be waited for");
    }

    /// Stops the cluster as Ctrl-C does, and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        signal(self.supervisor(), Signal::INT);
        self.wait()
    }

    /// Waits for `tether up` to end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut process = self.process.take().expect("the cluster must run");
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            if let Some(status) = process.try_wait().expect("a child can be waited for") {
                return status;
            }
            if Instant::now() > deadline {
                process.kill().expect("a child can be killed");
                panic!("tether up did not end within {STOP_LIMIT:?}\n{}", self.logs());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        let mut paths: Vec<_> = std::fs::read_dir(self.dir.join("logs"))
            .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
            .unwrap_or_default();
        paths.sort();
        for path in paths {
            let log = std::fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
            let _ = writeln!(text, "--- {}\n{tail}", path.display());
        }
        text
    }

    fn command(&self) -> Command {
        let mut words = self.settings.wrapper.iter();
        let Some(program) = words.next() else { return Command::new(&self.settings.binary) };
        let mut command = Command::new(program);
        command.args(words).arg(&self.settings.binary);
        command
    }

    fn last_words(&mut self) -> String {
        let mut words = String::new();
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            if let Some(mut stderr) = process.stderr.take() {
                let _ = stderr.read_to_string(&mut words);
            }
            let _ = process.wait();
        }
        words
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
        // Also what a killed `up` leaves: namespaces are mounts, and hold the directory.
        if self.dir.join("tether.json").exists() {
            let _ = self.tether(&["down"]);
        }
    }
}

/// Looks until `check` gives something; for what sends no event. Panics with `what` after a minute.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {WAIT_LIMIT:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Sends a signal to a process of a cluster.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid must be positive");
    kill_process(pid, signal).expect("the process must exist");
}

/// The lines of a pipe, as they come; the pipe is read to its end even if nobody listens any more.
fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Everything up to the line that begins with `ready`.
fn until_ready(lines: &Receiver<String>) -> Result<String, String> {
    let deadline = Instant::now() + START_LIMIT;
    let mut text = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                let _ = writeln!(text, "{line}");
                if line.starts_with("ready") {
                    return Ok(text);
                }
            }
            Err(RecvTimeoutError::Timeout) => return Err(format!("not ready within {START_LIMIT:?}: {text}")),
            Err(RecvTimeoutError::Disconnected) => return Err(format!("ended before it was ready: {text}")),
        }
    }
}
