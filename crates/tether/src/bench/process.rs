//! What a process takes of the machine, as the kernel counts it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;

/// Short against what fills memory, long against what a look costs.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The kernel counts processor time in these, whatever it ticks in itself.
const TICKS_PER_SECOND: f64 = 100.0;

/// The most that was resident, in MiB: as a whole, and the most of each part, which need not be of the same moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Memory {
    pub peak: f64,
    /// Heap and stacks: nobody else has them.
    pub own: f64,
    /// The program, as far as it is mapped: shared with every process that runs it, and given back when memory is short.
    pub program: f64,
}

/// Looks at a process's memory until dropped.
pub(crate) struct Watched {
    pid: u32,
    most: Arc<Mutex<Memory>>,
    looking: JoinHandle<()>,
}

impl Watched {
    pub(crate) fn start(pid: u32) -> Self {
        let most = Arc::new(Mutex::new(Memory::default()));
        let seen = most.clone();
        let looking = tokio::spawn(async move {
            while let Ok(now) = memory(pid) {
                let most = *seen.lock();
                *seen.lock() = Memory {
                    peak: most.peak.max(now.peak),
                    own: most.own.max(now.own),
                    program: most.program.max(now.program),
                };
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { pid, most, looking }
    }

    /// The most so far; an error if the process is gone.
    pub(crate) fn memory(&self) -> Result<Memory> {
        let now = memory(self.pid)?;
        Ok(Memory { peak: now.peak, ..*self.most.lock() })
    }

    pub(crate) fn processor_seconds(&self) -> Result<f64> {
        processor_seconds(self.pid)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

fn read(pid: u32, name: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_to_string(&path).with_context(|| format!("{path}: has the process ended?"))
}

fn memory(pid: u32) -> Result<Memory> {
    read(pid, "status").map(|status| parse_memory(&status))
}

fn parse_memory(status: &str) -> Memory {
    let mib = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0.0) / 1024.0
    };
    Memory { peak: mib("VmHWM:"), own: mib("RssAnon:"), program: mib("RssFile:") }
}

/// Processor time of a process since it began, in its own code and in the kernel for it.
pub(crate) fn processor_seconds(pid: u32) -> Result<f64> {
    read(pid, "stat").map(|stat| parse_processor_seconds(&stat))
}

fn parse_processor_seconds(stat: &str) -> f64 {
    // After the name, which may contain anything: the state is the third field, times in user and system the 14th and 15th.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let status = "Name:\tx\nVmHWM:\t   2048 kB\nRssAnon:\t    512 kB\nRssFile:\t   1024 kB\n";
        assert_eq!(parse_memory(status), Memory { peak: 2.0, own: 0.5, program: 1.0 });
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 0 0 0 150 50 0 0 20 0 1 0 5 6 7";
        assert!((parse_processor_seconds(stat) - 2.0).abs() < 1e-9);
    }
}
