//! Processes, told apart by more than their pid, and ended without ever hitting a stranger.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::CLUSTER_ENV;

/// How long a process has to end by itself after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a process after SIGKILL; more means that it hangs in the kernel.
const KILL: Duration = Duration::from_secs(10);

/// A process, by a handle that keeps meaning this one even if its pid is used again.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    handle: OwnedFd,
}

impl Process {
    /// A handle on whatever process has this pid now.
    pub(crate) fn open(pid: u32) -> Option<Self> {
        let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()?;
        Some(Self { pid, handle })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended meanwhile: that is what we want.
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    /// Waits until the process has ended; false if it takes longer than `limit`.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&timeout)) {
                Ok(0) => return false,
                Err(rustix::io::Errno::INTR) => {}
                Ok(_) | Err(_) => return true,
            }
        }
    }

    /// The command line, for messages.
    pub(crate) fn command(&self) -> String {
        let bytes = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " ")
    }
}

/// Processes that carry `mark` in their environment, other than this one.
pub(crate) fn marked(mark: &str) -> Vec<Process> {
    let entry = format!("{CLUSTER_ENV}={mark}");
    let carries = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // The handle comes first: what the environment then says, it says of the process that the handle means.
    let opened = pids.filter(|pid| *pid != std::process::id() && carries(*pid)).filter_map(Process::open);
    opened.filter(|process| carries(process.pid)).collect()
}

/// Ends every process that carries `mark`; returns the command lines of those that had to be ended.
pub(crate) fn end_all(mark: &str) -> Vec<String> {
    end(&marked(mark), GRACE)
}

/// Ends the containers that nodes run, and what they left: they outlive their nodes.
pub(crate) fn end_containers(mark: &str) -> Vec<String> {
    let key = format!("{}=", tether_agent::container::RUN_ENV);
    let mut containers = marked(mark);
    containers.retain(|process| {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|found| found.starts_with(key.as_bytes()))
    });
    end(&containers, GRACE)
}

fn end(processes: &[Process], grace: Duration) -> Vec<String> {
    let commands = processes.iter().map(Process::command).collect();
    for process in processes {
        process.signal(Signal::TERM);
    }
    let deadline = Instant::now() + grace;
    for process in processes {
        if !process.wait(deadline.saturating_duration_since(Instant::now())) {
            process.signal(Signal::KILL);
            process.wait(KILL);
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_marked_processes_are_ended() {
        let sleep = |mark: &str| Command::new("sleep").arg("600").env(CLUSTER_ENV, mark).spawn().unwrap();
        let mark = format!("test-{}@/x", std::process::id());
        let (mut ours, mut others) = (sleep(&mark), sleep(&format!("{mark}/y")));
        // The child carries the mark once it has become `sleep`.
        while marked(&mark).is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(end_all(&mark), ["sleep 600"]);
        assert!(!ours.wait().unwrap().success());
        assert_eq!(others.try_wait().unwrap(), None);
        others.kill().unwrap();
        others.wait().unwrap();
        assert_eq!(end_all(&mark), Vec::<String>::new());
    }

    #[test]
    fn a_process_that_does_not_listen_is_killed() {
        let mark = format!("stubborn-{}@/x", std::process::id());
        let script = "trap '' TERM; echo; while :; do sleep 600; done";
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-c", script]).env(CLUSTER_ENV, &mark).stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        assert!(!end(&marked(&mark), Duration::from_millis(100)).is_empty());
        assert!(!child.wait().unwrap().success());
    }
}
