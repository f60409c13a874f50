//! The agent's side of containers: starts them, signals them, hears of their end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::process::Signal;
use tether_plan::kubelet::{Launch, Runs};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;

use super::files::{Ended, PodDir, RunDir, State, names};
use super::handle::Handle;
use super::shim::{STARTED, SUBCOMMAND};
use super::{Order, View, processes};

/// How long a shim may take to start a container. It only forks; a machine in trouble is told apart from a bug by this.
const START_LIMIT: Duration = Duration::from_secs(30);
/// A run whose shim has yet to say who it is, is looked at again after this: it was started by an agent that is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Why something could not be done to a container.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    #[error("cannot read or write {path}: {source}", path = path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("cannot start container {container}: {source}")]
    Start { container: String, source: io::Error },
    #[error("container {container} did not start within {START_LIMIT:?}")]
    Hangs { container: String },
}

/// Runs the containers of a node.
pub struct Runner {
    /// Where pods have their directories.
    dir: PathBuf,
    /// Added to the environment of every container.
    env: Vec<(String, String)>,
    /// Added to that of containers that act on the node.
    host_env: Vec<(String, String)>,
    /// Whether containers can have mount namespaces of their own.
    namespaces: bool,
    /// Runs whose end is waited for.
    watched: Mutex<BTreeSet<RunDir>>,
    /// Called with the uid of a pod when one of its runs has ended.
    ended: Box<dyn Fn(&str) + Send + Sync>,
}

impl Runner {
    pub fn new(
        dir: PathBuf,
        env: Vec<(String, String)>,
        host_env: Vec<(String, String)>,
        namespaces: bool,
        ended: impl Fn(&str) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { dir, env, host_env, namespaces, watched: Mutex::default(), ended: Box::new(ended) })
    }

    pub fn pod(&self, uid: &str) -> PodDir {
        PodDir { path: self.dir.join(uid) }
    }

    /// The uids of pods that have something here.
    pub fn pods(&self) -> Result<Vec<String>, RunnerError> {
        names(&self.dir).map_err(|source| RunnerError::Directory { path: self.dir.clone(), source })
    }

    /// What is known of a pod's containers; whose end is not known yet is waited for.
    pub fn observe(self: &Arc<Self>, uid: &str) -> Result<Runs, RunnerError> {
        let pod = self.pod(uid);
        let failed = |source| RunnerError::Directory { path: pod.path.clone(), source };
        for (container, attempt, dir) in pod.runs().map_err(failed)? {
            match dir.state().map_err(failed)? {
                State::Alive { shim, .. } => self.watch(uid, dir, shim),
                State::Lost { shim, started } => {
                    let session = started.is_some_and(|started| started.on_node).then_some(shim);
                    lost(&run_name(uid, &container, attempt), &dir, session).map_err(failed)?;
                }
                State::Nothing | State::Ended { .. } => {}
            }
        }
        pod.observe().map_err(failed)
    }

    /// Starts a run; returns when it runs, or when it is known that it cannot.
    pub async fn start(
        self: &Arc<Self>,
        uid: &str,
        container: &str,
        attempt: u32,
        launch: Launch,
        view: View,
    ) -> Result<(), RunnerError> {
        let pod = self.pod(uid);
        let _ = pod.forget_old_runs(container);
        let dir = RunDir::new(&pod.container(container), attempt);
        let failed = |source| RunnerError::Start { container: container.to_owned(), source };
        dir.create().map_err(failed)?;
        let mut extra = self.env.clone();
        if launch.on_host {
            extra.extend(self.host_env.iter().cloned());
        }
        let order = Order::new(launch, view, &extra, run_name(uid, container, attempt), self.namespaces);
        let started = tokio::time::timeout(START_LIMIT, start_shim(&dir, &order)).await;
        let hangs = || RunnerError::Hangs { container: container.to_owned() };
        started.map_err(|_| hangs())?.map_err(failed)
    }

    /// Asks the runs of a container to end.
    pub fn terminate(&self, uid: &str, container: &str) -> Result<(), RunnerError> {
        self.each_alive(uid, Some(container), |dir, shim| {
            dir.write_stopping()?;
            processes::signal(shim, Signal::TERM, || is_shim(dir, shim));
            Ok(())
        })
    }

    /// Ends the runs of a container.
    pub fn kill(&self, uid: &str, container: &str) -> Result<(), RunnerError> {
        self.each_alive(uid, Some(container), |dir, shim| {
            processes::signal(shim, Signal::INT, || is_shim(dir, shim));
            Ok(())
        })
    }

    /// Ends everything of a pod that does not exist any more; true once nothing of it runs.
    pub fn end(self: &Arc<Self>, uid: &str) -> Result<bool, RunnerError> {
        let runs = self.observe(uid)?;
        if tether_plan::kubelet::is_alive(&runs) {
            self.each_alive(uid, None, |dir, shim| {
                processes::signal(shim, Signal::INT, || is_shim(dir, shim));
                Ok(())
            })?;
            return Ok(false);
        }
        Ok(true)
    }

    fn each_alive(
        &self,
        uid: &str,
        only: Option<&str>,
        act: impl Fn(&RunDir, u32) -> io::Result<()>,
    ) -> Result<(), RunnerError> {
        let pod = self.pod(uid);
        let failed = |source| RunnerError::Directory { path: pod.path.clone(), source };
        for (container, _, dir) in pod.runs().map_err(failed)? {
            if only.is_none_or(|only| only == container)
                && let State::Alive { shim, .. } = dir.state().map_err(failed)?
            {
                act(&dir, shim).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Tells of the end of a run, once.
    fn watch(self: &Arc<Self>, uid: &str, dir: RunDir, shim: u32) {
        if !self.watched.lock().insert(dir.clone()) {
            return;
        }
        let (runner, uid) = (self.clone(), uid.to_owned());
        tokio::spawn(async move {
            wait_for_shim(&dir, shim).await;
            runner.watched.lock().remove(&dir);
            (runner.ended)(&uid);
        });
    }
}

/// As [`super::RUN_ENV`] says it.
fn run_name(uid: &str, container: &str, attempt: u32) -> String {
    format!("{uid}/{container}/{attempt}")
}

/// Whether this process still is the run's shim: only a living shim holds the lock.
fn is_shim(dir: &RunDir, pid: u32) -> bool {
    matches!(dir.state(), Ok(State::Alive { shim, .. }) if shim == pid)
}

async fn start_shim(dir: &RunDir, order: &Order) -> io::Result<()> {
    // Not the path of this binary: that may have been rebuilt meanwhile, and versions must not mix.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("tether").arg(SUBCOMMAND).arg(&dir.path).env_clear();
    let carried = order.env.iter().filter(|(name, _)| name.starts_with("TETHER_"));
    command.envs(carried.map(|(name, value)| (OsString::from(name), OsString::from(value))));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut shim = command.spawn()?;
    let mut input = shim.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    let output = shim.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    // Whoever starts a process has to wait for it, or it stays as a zombie.
    tokio::spawn(async move { shim.wait().await });
    input.write_all(&serde_json::to_vec(order)?).await?;
    input.shutdown().await?;
    drop(input);
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).await?;
    if line.trim() == STARTED {
        return Ok(());
    }
    Err(io::Error::other("its process ended before it had started anything"))
}

async fn wait_for_shim(dir: &RunDir, shim: u32) {
    match Handle::open(shim) {
        // The handle may mean another process that has its pid now; then it has ended.
        Some(handle) if is_shim(dir, shim) => handle.ended().await,
        _ => tokio::time::sleep(LOOK_AGAIN).await,
    }
}

/// The shim was killed: ends what it left and writes down that nobody knows how it went.
/// `session`: what has left it is the node's.
fn lost(run: &str, dir: &RunDir, session: Option<u32>) -> io::Result<()> {
    if !processes::kill_run(run, session) {
        return Err(io::Error::other(format!("processes of {run} cannot be killed")));
    }
    let message = "the process that watched over the container was killed".to_owned();
    dir.write_ended(&Ended {
        at: Timestamp::now(),
        exit_code: 137,
        signal: None,
        reason: "ContainerStatusUnknown".to_owned(),
        message: Some(message),
    })
}
