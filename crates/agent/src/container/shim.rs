//! The process between agent and container: starts it, waits for it, keeps its log, ends what it leaves behind, and
//! writes down how it ended.
//!
//! It is told what to do on standard input and says `started` on standard output once that is written down. SIGTERM is
//! handed on to the container; SIGINT means that it is to be killed. It holds nothing that its death would lose but the
//! exit code. Further commands in the container are its children too ([`super::exec`]).

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tokio::signal::unix::{SignalKind, signal};

use super::exec::door::{Door, Guests};
use super::files::{Ended, RunDir, Started};
use super::log::Log;
use super::{Order, Place, processes, root};
use crate::namespace;

/// The subcommand of the binary that is a shim.
pub const SUBCOMMAND: &str = "container-shim";
/// The name by which containers call this program.
const THIS_PROGRAM: &str = "tether";
/// What a shim says when the container was started, or could not be.
pub(super) const STARTED: &str = "started";
/// As container runtimes number a container that could not be started.
const START_ERROR: i32 = 128;
/// What a shell adds to the number of a signal.
const SIGNAL_BASE: i32 = 128;
/// The rest of a log may still be in the pipe when the container has ended; a process that was left keeps it open.
const DRAIN: Duration = Duration::from_millis(200);

/// Why a container was not run.
#[derive(Debug, thiserror::Error)]
pub enum ShimError {
    #[error("cannot use the directory of the run: {0}")]
    Directory(io::Error),
    #[error("another process runs it")]
    Taken,
    #[error("was not told what to run: {0}")]
    Order(io::Error),
    #[error("cannot leave the agent: {0}")]
    Leave(io::Error),
    #[error("cannot wait for the container: {0}")]
    Wait(io::Error),
}

/// Runs the container whose run has this directory; returns when it has ended. To be called by a process with one
/// thread.
pub fn run(dir: &Path) -> Result<(), ShimError> {
    let dir = RunDir { path: dir.to_owned() };
    let lock = dir.claim().map_err(ShimError::Directory)?.ok_or(ShimError::Taken)?;
    let order = match read_order() {
        Ok(order) => order,
        Err(error) => {
            dir.disclaim(lock).map_err(ShimError::Directory)?;
            return Err(ShimError::Order(error));
        }
    };
    leave().map_err(ShimError::Leave)?;
    let ended = match Door::open(&dir).and_then(|door| Ok((door, start(&dir, &order)?))) {
        Ok((door, mut child)) => {
            let guests = door.guests();
            let started = Started { pid: child.id(), at: Timestamp::now(), on_node: order.place == Place::Node };
            dir.write_started(&started).map_err(ShimError::Directory)?;
            let logs = keep_log(&dir, &mut child);
            say_started();
            let order = Arc::new(order);
            let status = wait(&mut child, &order, door).map_err(ShimError::Wait)?;
            end_rest(&order, &guests);
            drain(logs);
            ended(status)
        }
        Err(error) => {
            let message = Some(format!("cannot run {:?}: {error}", order.argv.first().map_or("", String::as_str)));
            Ended {
                at: Timestamp::now(),
                exit_code: START_ERROR,
                signal: None,
                reason: "StartError".to_owned(),
                message,
            }
        }
    };
    dir.write_ended(&ended).map_err(ShimError::Directory)?;
    say_started();
    Ok(())
}

fn read_order() -> io::Result<Order> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Leaves the agent's session.
fn leave() -> io::Result<()> {
    rustix::process::setsid()?;
    // What the container's processes leave behind becomes our child, and can be ended.
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Starts the container's process: unless it acts on the node, in a mount namespace with a root of its own. The shim
/// itself stays where it is, for its files may be out of the container's sight.
fn start(dir: &RunDir, order: &Order) -> io::Result<Child> {
    // The log is opened by `keep_log`; that it can be is checked before anything runs.
    Log::open(dir.log())?;
    let mut command = command(order, &order.argv)?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if order.place != Place::Own {
        return spawn_as(order, command);
    }
    let base = dir.path.join("root");
    std::fs::create_dir_all(&base)?;
    namespace::apart(|| {
        root::build(&base, &order.view)?;
        become_user(order)?;
        command.spawn()
    })
}

/// Starts a command as the container's user, where it has no root of its own.
pub(super) fn spawn_as(order: &Order, mut command: Command) -> io::Result<Child> {
    if let Some(user) = order.user {
        command.uid(user);
    }
    if let Some(group) = order.group {
        command.gid(group);
    }
    command.spawn()
}

/// Gives this thread, and what it starts, the container's user and groups.
pub(super) fn become_user(order: &Order) -> io::Result<()> {
    if order.user.is_none() && order.group.is_none() && order.groups.is_empty() {
        return Ok(());
    }
    let groups: Vec<Gid> = order.groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    if let Some(group) = order.group {
        let group = Gid::from_raw(group);
        set_thread_res_gid(group, group, group)?;
    }
    if let Some(user) = order.user {
        let user = Uid::from_raw(user);
        set_thread_res_uid(user, user, user)?;
    }
    Ok(())
}

/// A command with the container's environment and working directory.
pub(super) fn command(order: &Order, argv: &[String]) -> io::Result<Command> {
    let (program, args) = argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = match program.as_str() {
        // The one image that there is. Not its path: that may have been rebuilt meanwhile, and versions must not mix.
        THIS_PROGRAM => Command::new("/proc/self/exe"),
        other => Command::new(other),
    };
    command.arg0(program).args(args).env_clear().envs(order.env.iter().cloned());
    command.current_dir(order.working_dir.as_deref().unwrap_or("/"));
    Ok(command)
}

/// Copies both streams, each on a thread.
fn keep_log(dir: &RunDir, child: &mut Child) -> Vec<thread::JoinHandle<()>> {
    let Ok(log) = Log::open(dir.log()) else { return Vec::new() };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut threads = Vec::new();
    if let Some(out) = out {
        let log = log.clone();
        threads.push(thread::spawn(move || log.copy("stdout", out)));
    }
    if let Some(err) = err {
        threads.push(thread::spawn(move || log.copy("stderr", err)));
    }
    threads
}

fn drain(threads: Vec<thread::JoinHandle<()>>) {
    let deadline = std::time::Instant::now() + DRAIN;
    for thread in threads {
        while !thread.is_finished() && std::time::Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Tells the agent, which waits for this line, and lets go of the pipe.
fn say_started() {
    let mut out = io::stdout();
    let _ = writeln!(out, "{STARTED}").and_then(|()| out.flush());
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Waits for the container; hands on what it is told, and reaps what others left.
fn wait(child: &mut Child, order: &Arc<Order>, door: Door) -> io::Result<ExitStatus> {
    let main = Pid::from_child(child);
    let guests = door.guests();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut kill = signal(SignalKind::interrupt())?;
        let mut ended = signal(SignalKind::child())?;
        tokio::spawn(door.serve(order.clone(), main));
        loop {
            reap_others(main, &guests);
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            tokio::select! {
                // It is our child and not waited for: the pid means it and nothing else.
                _ = terminate.recv() => drop(kill_process(main, Signal::TERM)),
                _ = kill.recv() => drop(kill_process(main, Signal::KILL)),
                _ = ended.recv() => {}
            }
        }
    })
}

/// Reaps what the container's processes left behind and has ended since; its own process and further commands are left to
/// be waited for.
fn reap_others(main: Pid, guests: &Guests) {
    let me = std::process::id();
    let others = processes::all().into_iter().filter(|stat| stat.parent == me && stat.is_zombie);
    for stat in others.filter(|stat| !guests.is_awaited(stat.pid)) {
        if let Some(pid) = i32::try_from(stat.pid).ok().and_then(Pid::from_raw).filter(|pid| *pid != main) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }
}

/// Ends everything that the container left behind: its children have become ours.
fn end_rest(order: &Order, guests: &Guests) {
    let me = std::process::id();
    loop {
        let all = processes::all();
        let ours = all.iter().filter(|stat| stat.parent == me);
        // See `Place::Node`: what has left the session is the node's.
        let is_here = |session| session == me || guests.is_theirs(session);
        let left = ours.filter(|stat| order.place != Place::Node || is_here(stat.session) || stat.is_zombie);
        let left: Vec<_> = left.map(|stat| stat.pid).collect();
        if left.is_empty() {
            return;
        }
        for pid in left.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) {
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    let (signal, exit_code) = (status.signal(), exit_code(status));
    let reason = if exit_code == 0 { "Completed" } else { "Error" }.to_owned();
    Ended { at: Timestamp::now(), exit_code, signal, reason, message: None }
}

/// As shells number it.
pub(super) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| SIGNAL_BASE + status.signal().unwrap_or_default())
}
