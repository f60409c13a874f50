//! `tether down`: stops a cluster, wherever it was started.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::DataDir;
use crate::cluster::{self, Held, Layout, Lock, Marker, Process};
use crate::output::{self, Exit};

/// `tether up` gives each child five seconds, nodes before the API server; more than this and it hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const KILL: Duration = Duration::from_secs(10);

/// Stops a cluster that runs in the background or in another terminal; its data stays
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Succeeds too if the cluster does not run; then it removes what a killed `tether up` may have left.\n\n\
                  Example:\n  tether down\n  tether down --data-dir ./demo"
)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let (layout, marker) = Marker::open(&args.data.resolve()?)?;
    let (lock, was_running) = match take(&layout)? {
        Held::ByUs(lock) => (lock, false),
        Held::ByOther(pid) => {
            stop(&layout, pid)?;
            let Held::ByUs(lock) = take(&layout)? else {
                bail!("{}: another tether took over the cluster; see `tether status`", layout.dir.display());
            };
            (lock, true)
        }
    };
    let cleaned = cluster::clean(&layout, &marker)?;
    drop(lock);
    let dir = layout.dir.display();
    output::say(&match (was_running, cleaned.is_empty()) {
        (true, _) => format!("stopped the cluster in {dir}\n"),
        (false, true) => format!("the cluster in {dir} was not running\n"),
        (false, false) => format!("the cluster in {dir} was not running; removed what it had left behind\n"),
    });
    Ok(Exit::Success)
}

fn take(layout: &Layout) -> Result<Held> {
    Lock::take(layout).with_context(|| format!("--data-dir {}: cannot be locked", layout.dir.display()))
}

/// Ends the `tether up` that holds the directory.
fn stop(layout: &Layout, pid: Option<u32>) -> Result<()> {
    let dir = layout.dir.display();
    let pid = pid.with_context(|| format!("--data-dir {dir}: another tether is just starting; try again"))?;
    // If it has ended since, the lock is free and there is nothing to stop.
    let Some(process) = Process::open(pid) else { return Ok(()) };
    process.signal(Signal::TERM);
    if !process.wait(PATIENCE) {
        output::complain(&format!("tether up (pid {pid}) does not stop; killing it"));
        process.signal(Signal::KILL);
        if !process.wait(KILL) {
            bail!("tether up (pid {pid}) cannot be killed: it hangs in the kernel");
        }
    }
    Ok(())
}
