//! Processes by what `/proc` says of them: whose children they are, and which run they belong to.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{EXEC_ENV, RUN_ENV};

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub pid: u32,
    pub parent: u32,
    pub session: u32,
    pub is_zombie: bool,
}

/// Between two looks at processes that were killed and are not our children.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Looks after which processes that cannot be killed are left: they hang in the kernel.
const MAX_LOOKS: usize = 400;

fn parse(pid: u32, text: &str) -> Option<Stat> {
    // The name is in parentheses and may contain anything, parentheses too.
    let rest = &text[text.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Stat { pid, parent, session, is_zombie: matches!(state, "Z" | "X") })
}

fn look(pid: u32) -> Option<Stat> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Every process there is.
pub(super) fn all() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(look).collect()
}

/// Whether the process carries this run's name.
fn belongs(pid: u32, run: &str) -> bool {
    carries(pid, &format!("{RUN_ENV}={run}"))
}

/// Whether the process' environment has this entry.
fn carries(pid: u32, entry: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).any(|found| found == entry.as_bytes())
}

/// Sends a signal to every process of a session.
pub(super) fn signal_session(session: u32, sent: Signal) {
    let is_of = |stat: &Stat| stat.session == session && !stat.is_zombie;
    for stat in all().into_iter().filter(is_of) {
        signal(stat.pid, sent, || look(stat.pid).is_some_and(|stat| is_of(&stat)));
    }
}

/// Sends a signal to a process, if `is_meant` still holds once it cannot become another one.
pub(super) fn signal(pid: u32, signal: Signal, is_meant: impl FnOnce() -> bool) -> bool {
    let Some(handle) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let Ok(handle) = pidfd_open(handle, PidfdFlags::empty()) else { return false };
    is_meant() && pidfd_send_signal(&handle, signal).is_ok()
}

/// Kills what a run left behind after its shim was killed, and waits until it is gone; `session`: only those that did
/// not leave it, and further commands, which have sessions of their own.
pub(super) fn kill_run(run: &str, session: Option<u32>) -> bool {
    let exec = format!("{EXEC_ENV}=1");
    for _ in 0..MAX_LOOKS {
        let of_run = |stat: &Stat| {
            stat.pid != std::process::id()
                && !stat.is_zombie
                && belongs(stat.pid, run)
                && session.is_none_or(|session| stat.session == session || carries(stat.pid, &exec))
        };
        let left: Vec<_> = all().into_iter().filter(of_run).collect();
        if left.is_empty() {
            return true;
        }
        for stat in left {
            signal(stat.pid, Signal::KILL, || belongs(stat.pid, run));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    false
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn stat_is_read_whatever_the_name() {
        let found = parse(9, "9 (a) b) c) S 4 9 7 0 -1").unwrap();
        assert_eq!(found, Stat { pid: 9, parent: 4, session: 7, is_zombie: false });
        assert!(parse(9, "9 (x) Z 1 1 1").unwrap().is_zombie);
        assert_eq!(parse(9, "nonsense"), None);
    }

    #[test]
    fn only_processes_of_the_run_are_killed() {
        let run = format!("test/{}/0", std::process::id());
        let spawn = |run: &str| Command::new("sleep").arg("600").env(RUN_ENV, run).spawn().unwrap();
        let (mut ours, mut others) = (spawn(&run), spawn("other/app/0"));
        while !belongs(ours.id(), &run) || !belongs(others.id(), "other/app/0") {
            std::thread::yield_now();
        }
        let me = all().into_iter().find(|stat| stat.pid == std::process::id()).unwrap();
        assert!(kill_run(&run, Some(me.session + 1)), "nobody of that session");
        assert_eq!(ours.try_wait().unwrap(), None);
        assert!(kill_run(&run, None));
        assert!(!ours.wait().unwrap().success());
        assert_eq!(others.try_wait().unwrap(), None);
        others.kill().unwrap();
        others.wait().unwrap();
    }
}
