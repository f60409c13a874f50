//! What every role of a cluster has in common: it is tied to its supervisor, logs, and says when it is ready.

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::logging::{self, LogArgs};
use crate::output;

/// The pid of the `tether up` that started this process.
pub const SUPERVISOR_ENV: &str = "TETHER_SUPERVISOR_PID";
/// How often this process was started again, and how it ended the last time.
pub const RESTARTS_ENV: &str = "TETHER_RESTARTS";
pub const LAST_EXIT_ENV: &str = "TETHER_LAST_EXIT";

/// Threads for requests, or one thread for a role that mostly waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    One,
    Many,
}

/// Prepares this process for its role; to be called before anything that starts a thread.
pub fn begin(name: &str, logs: LogArgs) -> Result<()> {
    follow_supervisor()?;
    // Children are started from /proc/self/exe, after which they would be named `exe`.
    if let Ok(name) = std::ffi::CString::new(format!("tether-{name}")) {
        let _ = rustix::thread::set_name(&name);
    }
    logging::to_stderr(logs)
}

/// A process that was started by `tether up` does not outlive it, however that ends.
fn follow_supervisor() -> Result<()> {
    let Ok(supervisor) = std::env::var(SUPERVISOR_ENV) else { return Ok(()) };
    let supervisor =
        supervisor.parse().ok().and_then(Pid::from_raw).with_context(|| format!("{SUPERVISOR_ENV}: not a pid"))?;
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot follow the supervisor")?;
    // It may have ended between starting us and the line above.
    if getppid() != Some(supervisor) {
        bail!("the `tether up` that started this process is gone");
    }
    Ok(())
}

pub fn runtime(threads: Threads) -> Result<Runtime> {
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Many => Builder::new_multi_thread(),
    };
    builder.enable_all().build().context("cannot start the runtime")
}

/// Cancelled by SIGTERM or SIGINT. Must be called inside a runtime.
pub fn until_signal() -> Result<CancellationToken> {
    let token = CancellationToken::new();
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let cancel = token.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        cancel.cancel();
    });
    Ok(token)
}

/// Tells whoever started this process that it does its work now.
pub fn ready() {
    tracing::info!("ready");
    output::say("ready\n");
}
