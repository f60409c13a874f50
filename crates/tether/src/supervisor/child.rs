//! One child: started, listened to, restarted when it ends, stopped when asked.
//!
//! A child says that it is ready by a line on its standard output that begins with `ready`; what it writes to
//! standard error is its log.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::backoff::{Backoff, Life};
use super::log_file::LogFile;
use crate::cluster::{CLUSTER_ENV, NODE_ENV};
use crate::commands::role::{LAST_EXIT_ENV, RESTARTS_ENV, SUPERVISOR_ENV};

/// How long a child has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// After a child has ended, its log may still be in the pipe; a grandchild that keeps the pipe open is not waited for.
const DRAIN: Duration = Duration::from_millis(500);
/// How often is looked whether a node that is off was switched on; a file tells nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Read from a child's log at once.
const LOG_CHUNK_BYTES: usize = 16 << 10;

/// What to run: this same binary, with a role.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) args: Vec<OsString>,
    pub(crate) log: PathBuf,
    /// The node whose agent this is.
    pub(crate) node: Option<String>,
    /// While this file exists, the node is switched off: nothing is started, and nothing is said.
    pub(crate) off: Option<PathBuf>,
}

/// Something that happened to a child.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Started { pid: u32 },
    Ready,
    Exited { how: String, restart_in: Duration, node: Option<String> },
    Stopped,
}

/// How children are asked to stop.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop {
    pub(super) gently: CancellationToken,
    pub(super) at_once: CancellationToken,
}

pub(super) struct Child {
    pub(super) index: usize,
    pub(super) program: Program,
    pub(super) mark: String,
    pub(super) events: mpsc::Sender<(usize, Event)>,
    pub(super) stop: Stop,
}

/// How a predecessor ended, for its successor to tell.
#[derive(Debug, Default)]
struct Past {
    restarts: u32,
    last_exit: Option<String>,
}

impl Child {
    /// Runs until it is stopped.
    pub(super) async fn run(self) {
        let mut backoff = Backoff::default();
        let mut past = Past::default();
        while !self.stop.gently.is_cancelled() {
            if self.is_off() {
                let _ = timeout(LOOK_AGAIN, self.stop.gently.cancelled()).await;
                continue;
            }
            let started = Instant::now();
            let was_ready = Arc::new(AtomicBool::new(false));
            let Some(how) = self.live(&past, &was_ready).await else { break };
            let life = Life { lasted: started.elapsed(), was_ready: was_ready.load(Ordering::Relaxed) };
            let restart_in = backoff.pause(life);
            past = Past { restarts: past.restarts + 1, last_exit: Some(how.clone()) };
            // A machine that lost its power tells nobody.
            let node = self.program.node.clone().filter(|_| !self.is_off());
            self.tell(Event::Exited { how, restart_in, node }).await;
            // Whether the pause ends or is cut short, the loop's head decides what comes next.
            let _ = timeout(restart_in, self.stop.gently.cancelled()).await;
        }
        self.tell(Event::Stopped).await;
    }

    fn is_off(&self) -> bool {
        self.program.off.as_ref().is_some_and(|off| off.exists())
    }

    /// One life of the process; how it ended, or `None` if it was stopped.
    async fn live(&self, past: &Past, was_ready: &Arc<AtomicBool>) -> Option<String> {
        let mut process = match self.command(past).spawn() {
            Ok(process) => process,
            Err(error) => return Some(format!("cannot be started: {error}")),
        };
        self.tell(Event::Started { pid: process.id().unwrap_or_default() }).await;
        let log = self.keep_log(process.stderr.take());
        let ready = self.await_ready(process.stdout.take(), was_ready.clone());
        let ended = tokio::select! {
            status = process.wait() => Some(status),
            () = self.stop.gently.cancelled() => None,
        };
        if ended.is_none() {
            self.end(&mut process).await;
        }
        let _ = timeout(DRAIN, log).await;
        ready.abort();
        ended.map(|ended| match ended {
            Ok(status) => describe(status),
            Err(error) => format!("cannot be waited for: {error}"),
        })
    }

    fn command(&self, past: &Past) -> Command {
        // Not the path of this binary: that may have been rebuilt meanwhile, and versions must not mix.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tether").args(&self.program.args);
        command.env(CLUSTER_ENV, &self.mark).env(SUPERVISOR_ENV, std::process::id().to_string());
        if let Some(node) = &self.program.node {
            command.env(NODE_ENV, node);
        }
        command.env(RESTARTS_ENV, past.restarts.to_string());
        match &past.last_exit {
            Some(exit) => command.env(LAST_EXIT_ENV, exit),
            None => command.env_remove(LAST_EXIT_ENV),
        };
        // A Ctrl-C at the terminal is for us; children are stopped in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Asks the process to end, and ends it if it does not.
    async fn end(&self, process: &mut tokio::process::Child) {
        let pid = process.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            // It is our child and not waited for yet: the pid cannot mean another process.
            let _ = kill_process(pid, Signal::TERM);
        }
        tokio::select! {
            _ = process.wait() => return,
            () = tokio::time::sleep(GRACE) => tracing::warn!("{} did not end and is killed", self.program.name),
            () = self.stop.at_once.cancelled() => {}
        }
        let _ = process.kill().await;
    }

    fn keep_log(&self, from: Option<impl AsyncRead + Unpin + Send + 'static>) -> JoinHandle<()> {
        let path = self.program.log.clone();
        tokio::spawn(async move {
            if let Err(error) = copy_log(from, &path).await {
                tracing::warn!(%error, "cannot write {}", path.display());
            }
        })
    }

    fn await_ready(
        &self,
        from: Option<impl AsyncRead + Unpin + Send + 'static>,
        is_ready: Arc<AtomicBool>,
    ) -> JoinHandle<()> {
        let (index, events) = (self.index, self.events.clone());
        tokio::spawn(async move {
            let Some(from) = from else { return };
            let mut lines = BufReader::new(from).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if line.starts_with("ready") {
                    is_ready.store(true, Ordering::Relaxed);
                    let _ = events.send((index, Event::Ready)).await;
                }
            }
        })
    }

    async fn tell(&self, event: Event) {
        // Nobody listens any more once the supervisor has given up; then there is nothing to tell.
        let _ = self.events.send((self.index, event)).await;
    }
}

/// Copies to the end, even if the file cannot be written: a full pipe would stop the child.
async fn copy_log(from: Option<impl AsyncRead + Unpin>, path: &std::path::Path) -> std::io::Result<()> {
    let Some(mut from) = from else { return Ok(()) };
    let mut log = LogFile::open(path);
    let mut chunk = vec![0; LOG_CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).await?;
        if count == 0 {
            return log.map(drop);
        }
        if let Ok(file) = &mut log
            && let Err(error) = std::io::Write::write_all(file, &chunk[..count])
        {
            log = Err(error);
        }
    }
}

/// How a process ended, in words.
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_described() {
        assert_eq!(describe(ExitStatus::from_raw(1 << 8)), "exited with code 1");
        assert_eq!(describe(ExitStatus::from_raw(9)), "killed by signal 9");
    }
}
