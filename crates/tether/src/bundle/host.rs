//! The machine and the cluster's processes, as text.

use std::fmt::Write as _;
use std::fs;

use tether_agent::host::{Available, Facts};
use tether_agent::{loops, namespace};

use crate::cluster::{Layout, marked};
use crate::output;

/// What the machine is, what it has left, and what of it the cluster uses.
pub(super) fn describe(layout: &Layout) -> String {
    let mut text = String::new();
    match (Facts::read(&layout.dir), Available::read(&layout.dir)) {
        (Ok(facts), Ok(available)) => {
            let _ = writeln!(text, "{facts:#?}\n{available:#?}");
        }
        (Err(error), _) | (_, Err(error)) => {
            let _ = writeln!(text, "the host cannot be read: {error}");
        }
    }
    let _ = writeln!(text, "kernel mounts: {}", namespace::unavailable().unwrap_or_else(|| "available".to_owned()));
    let dir = layout.dir.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let _ = writeln!(text, "\nmounts below {dir}:");
    for line in mounts.lines().filter(|line| line.contains(&dir)) {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "\nloop devices: {:?}", loops::backed_below(&layout.dir));
    text
}

/// Every process of the cluster, with what the kernel tells of its size.
pub(super) fn processes(mark: &str) -> String {
    let mut rows = vec![["PID", "STATE", "RSS", "THREADS", "COMMAND"].map(str::to_owned).to_vec()];
    for process in marked(mark) {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.map(str::trim).unwrap_or_default().to_owned()
        };
        rows.push(vec![process.pid.to_string(), field("State"), field("VmRSS"), field("Threads"), process.command()]);
    }
    output::columns(&rows)
}
