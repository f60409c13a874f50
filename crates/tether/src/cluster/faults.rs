//! Faults made on purpose: a node that loses power, a node that nobody hears any more.
//!
//! ```text
//!            node-down: all its processes end at once              node-up: its agent is started again
//!   running ───────────────────────────────────────────► off ──────────────────────────────────────► running
//!      │ partition: all its processes stand still (SIGSTOP)
//!      └──────────────────────────────────────────────► cut off ──► heal: they go on where they were
//! ```
//!
//! A node that is off keeps what its processes had written, flushed or not: the machine did not lose power, only the node's
//! processes did. A node that is cut off neither hears nor is heard, like one behind a broken link; unlike such a one it does
//! nothing meanwhile. When it goes on, it believes what it believed before, and sends what it was about to send.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::{Layout, Marker, Process, marked, node_name};

/// Names the node that a process belongs to, in its environment.
pub(crate) const NODE_ENV: &str = "TETHER_NODE";
/// How long the kernel may take to end a process.
const KILL: Duration = Duration::from_secs(10);

/// Ends every process of a node at once, and keeps its agent from being started. Returns how many there were.
pub(crate) fn node_down(layout: &Layout, marker: &Marker, node: &str) -> Result<usize> {
    check(marker, node)?;
    let switch = layout.switched_off(node);
    let folder = switch.parent().expect("a switch must lie in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&switch, b""))
        .with_context(|| format!("cannot create {}", switch.display()))?;
    let deadline = Instant::now() + KILL;
    let mut ended = 0;
    loop {
        // What was about to start another process may just have done so.
        let processes = of_node(layout, marker, node);
        if processes.is_empty() {
            return Ok(ended);
        }
        if Instant::now() > deadline {
            let left: Vec<_> = processes.iter().map(Process::command).collect();
            bail!("these processes of {node} did not end within {KILL:?}: {}", left.join(", "));
        }
        for process in &processes {
            process.signal(Signal::KILL);
        }
        for process in &processes {
            ended += usize::from(process.wait(deadline.saturating_duration_since(Instant::now())));
        }
    }
}

/// Lets the agent of a node be started again; false if the node was not off.
pub(crate) fn node_up(layout: &Layout, marker: &Marker, node: &str) -> Result<bool> {
    check(marker, node)?;
    match fs::remove_file(layout.switched_off(node)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot switch {node} on")),
    }
}

/// Every process of the node stands still.
pub(crate) fn partition(layout: &Layout, marker: &Marker, node: &str) -> Result<usize> {
    signal_all(layout, marker, node, Signal::STOP)
}

/// Every process of the node goes on.
pub(crate) fn heal(layout: &Layout, marker: &Marker, node: &str) -> Result<usize> {
    signal_all(layout, marker, node, Signal::CONT)
}

fn signal_all(layout: &Layout, marker: &Marker, node: &str, signal: Signal) -> Result<usize> {
    check(marker, node)?;
    let processes = of_node(layout, marker, node);
    if processes.is_empty() {
        bail!("{node} has no processes: it is down, or the cluster does not run; see `tether status`");
    }
    for process in &processes {
        process.signal(signal);
    }
    Ok(processes.len())
}

fn of_node(layout: &Layout, marker: &Marker, node: &str) -> Vec<Process> {
    let entry = format!("{NODE_ENV}={node}");
    let mut processes = marked(&layout.process_mark(marker));
    processes.retain(|process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    });
    processes
}

fn check(marker: &Marker, node: &str) -> Result<()> {
    let nodes: Vec<String> = (1..=marker.nodes).map(node_name).collect();
    if nodes.iter().any(|known| known == node) {
        return Ok(());
    }
    bail!("node {node:?} is not one of this cluster's: {}", nodes.join(", "))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::CLUSTER_ENV;
    use super::*;

    #[test]
    fn only_processes_of_the_node_end_and_the_node_stays_off() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, marker) = (Layout { dir: dir.path().to_owned() }, Marker::new(2, 6443));
        let mark = layout.process_mark(&marker);
        let sleep =
            |node: &str| Command::new("sleep").arg("600").env(CLUSTER_ENV, &mark).env(NODE_ENV, node).spawn().unwrap();
        let (mut one, mut two) = (sleep("node-1"), sleep("node-2"));
        while of_node(&layout, &marker, "node-1").is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(node_down(&layout, &marker, "node-1").unwrap(), 1);
        assert!(!one.wait().unwrap().success());
        assert_eq!(two.try_wait().unwrap(), None);
        assert!(layout.switched_off("node-1").exists());
        assert!(node_up(&layout, &marker, "node-1").unwrap() && !node_up(&layout, &marker, "node-1").unwrap());
        assert!(node_down(&layout, &marker, "node-3").unwrap_err().to_string().contains("node-1, node-2"));
        two.kill().unwrap();
        two.wait().unwrap();
    }
}
