//! The holder's loop: a listening socket, a few connections, and steps that run.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::SUBCOMMAND;
use super::protocol::{Answer, MAX_LINE_BYTES, Message, VERSION};
use super::state::{Decision, Serving, State};
use crate::device::fuse::mount::{MountError, Mounted, mount};
use crate::device::place::{Name, Place, this_program};
use crate::device::sys;

/// Engines, an agent, somebody who looks: more at a time are refused.
const MAX_CONNECTIONS: usize = 16;
/// Steps that wait for their turn.
const MAX_QUEUED_STEPS: usize = 32;

/// Starts a holder that is nobody's child, unless one lives. Run as a process of its own.
pub fn start(run: &str, volume: &str) -> Result<String, String> {
    let volume = Name::new(volume).map_err(|error| error.to_string())?;
    let place = Place { run: PathBuf::from(run), dev: PathBuf::new() };
    start_in(&place, &volume).map(|()| String::new()).map_err(|error| format!("cannot start a device holder: {error}"))
}

fn start_in(place: &Place, volume: &Name) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(place.directory(volume))?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(place.lock(volume))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    let socket = place.socket(volume);
    if UnixStream::connect(&socket).is_ok() {
        return Ok(());
    }
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&socket)?;
    let nowhere = || Stdio::null();
    Command::new(this_program())
        .args([SUBCOMMAND, "serve"])
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .stdout(nowhere())
        .stderr(nowhere())
        .spawn()?;
    Ok(())
}

/// Serves the listening socket that is standard input, until the device is detached.
pub fn serve() -> Result<String, String> {
    // Signals meant for the engine's terminal or group do not reach a session of its own.
    let _ = rustix::process::setsid();
    protect();
    let listener = listener().map_err(|error| format!("cannot listen: {error}"))?;
    let mut holder = Holder::new(listener).map_err(|error| error.to_string())?;
    loop {
        holder.turn().map_err(|error| format!("the device holder failed: {error}"))?;
        if holder.over && holder.connections.is_empty() {
            return Ok(String::new());
        }
    }
}

/// Losing this process costs a pod its disk, and it needs next to no memory: it is the last to be killed for it. Not
/// being allowed to say so is no reason not to serve.
fn protect() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-999");
}

/// Takes the listening socket from standard input, which children get as something else.
fn listener() -> io::Result<UnixListener> {
    let listener = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    listener.set_nonblocking(true)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(listener)
}

struct Connection {
    stream: UnixStream,
    input: Vec<u8>,
}

/// A step that was asked for.
struct Step {
    /// Who waits for the answer.
    asked: u64,
    message: Message,
}

struct Running {
    step: Step,
    child: Child,
    ended: OwnedFd,
}

struct Holder {
    /// None once the device is gone: whoever comes then starts another holder.
    listener: Option<UnixListener>,
    /// `/dev/fuse`; None once the device was given up.
    fuse: Option<OwnedFd>,
    /// The file, until the loop device has it.
    root: Option<OwnedFd>,
    state: State,
    connections: BTreeMap<u64, Connection>,
    next: u64,
    /// The connection of the engine that has the device.
    engine: Option<u64>,
    /// Number of the loop device, and the node.
    device: Option<(u32, PathBuf)>,
    queue: VecDeque<Step>,
    running: Option<Running>,
    over: bool,
}

impl Holder {
    fn new(listener: UnixListener) -> Result<Self, MountError> {
        let Mounted { fuse, root } = mount()?;
        Ok(Self {
            listener: Some(listener),
            fuse: Some(fuse),
            root: Some(root),
            state: State::default(),
            connections: BTreeMap::new(),
            next: 0,
            engine: None,
            device: None,
            queue: VecDeque::new(),
            running: None,
            over: false,
        })
    }

    /// Waits for something to happen and deals with it.
    fn turn(&mut self) -> io::Result<()> {
        let (accept, ended, readable) = self.wait()?;
        if ended {
            self.step_ended()?;
        }
        for id in readable {
            self.read(id);
        }
        if accept {
            self.accept();
        }
        self.next_step();
        Ok(())
    }

    fn wait(&self) -> io::Result<(bool, bool, Vec<u64>)> {
        let mut fds: Vec<PollFd<'_>> = self.listener.iter().map(|l| PollFd::new(l, PollFlags::IN)).collect();
        let listening = fds.len();
        fds.extend(self.running.as_ref().map(|running| PollFd::new(&running.ended, PollFlags::IN)));
        let first = fds.len();
        fds.extend(self.connections.values().map(|c| PollFd::new(&c.stream, PollFlags::IN)));
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => return Ok((false, false, Vec::new())),
            result => result?,
        };
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let ids = self.connections.keys().zip(&happened[first..]);
        let readable = ids.filter(|(_, happened)| **happened).map(|(id, _)| *id).collect();
        Ok((listening == 1 && happened[0], first > listening && happened[listening], readable))
    }

    fn accept(&mut self) {
        while let Some(Ok((stream, _))) = self.listener.as_ref().map(UnixListener::accept) {
            if self.connections.len() < MAX_CONNECTIONS && stream.set_nonblocking(true).is_ok() {
                self.connections.insert(self.next, Connection { stream, input: Vec::new() });
                self.next += 1;
            }
        }
    }

    fn read(&mut self, id: u64) {
        let mut bytes = [0; MAX_LINE_BYTES];
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            match sys::receive(connection.stream.as_fd(), &mut bytes) {
                Ok((0, _)) => return self.drop_connection(id),
                Ok((len, _)) => connection.input.extend_from_slice(&bytes[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.drop_connection(id),
            }
            while let Some(line) = self.line(id) {
                self.understand(id, &line);
            }
        }
    }

    fn line(&mut self, id: u64) -> Option<String> {
        let input = &mut self.connections.get_mut(&id)?.input;
        match input.iter().position(|b| *b == b'\n') {
            Some(end) => {
                let line: Vec<u8> = input.drain(..=end).collect();
                Some(String::from_utf8_lossy(&line[..end]).into_owned())
            }
            None if input.len() > MAX_LINE_BYTES => {
                self.drop_connection(id);
                None
            }
            None => None,
        }
    }

    fn drop_connection(&mut self, id: u64) {
        self.connections.remove(&id);
        if self.engine == Some(id) {
            self.engine = None;
            self.state.left();
            if self.device.is_none() {
                // Nobody has the device yet, and what binds it would wait for the engine that is gone, under a lock that
                // everybody waits for who looks for a free loop device. The next engine gets another device.
                self.retire(id);
            }
        }
    }

    fn answer(&mut self, id: u64, answer: &Answer) {
        let with_fuse = matches!(answer, Answer::Taken { .. });
        let fuse = self.fuse.as_ref().filter(|_| with_fuse).map(AsFd::as_fd);
        let Some(connection) = self.connections.get(&id) else { return };
        let line = format!("{answer}\n");
        // A line is far shorter than a socket's buffer: what does not fit at once is not being read.
        if sys::send(connection.stream.as_fd(), line.as_bytes(), fuse).ok() != Some(line.len()) {
            self.drop_connection(id);
        }
    }

    fn understand(&mut self, id: u64, line: &str) {
        if self.over || self.fuse.is_none() {
            // Whoever came too late looks for another holder when this one hangs up.
            return self.drop_connection(id);
        }
        let answer = match Message::parse(line) {
            Err(why) => Answer::Failed { why },
            Ok(Message::Hello { version }) if version < 1 => {
                Answer::Failed { why: format!("this holder speaks version {VERSION}, not {version}") }
            }
            Ok(Message::Hello { .. }) => Answer::Holder { version: VERSION, pid: std::process::id() },
            Ok(Message::Intend { uid, previous }) => {
                self.state.intend(&uid, &previous);
                Answer::Done
            }
            Ok(Message::Take { uid, previous, pid, max_write }) => {
                self.take(id, Serving { uid, pid }, &previous, max_write)
            }
            Ok(Message::Retire) => {
                self.retire(id);
                return;
            }
            Ok(message) => match self.enqueue(id, message) {
                Some(answer) => answer,
                None => return,
            },
        };
        self.answer(id, &answer);
    }

    fn take(&mut self, id: u64, wish: Serving, previous: &str, max_write: u32) -> Answer {
        let decision = self.state.take(wish, previous, max_write);
        let resumed = match decision {
            Decision::Busy(Serving { uid, pid }) => return Answer::Busy { uid, pid },
            Decision::Broken { last } => return Answer::Broken { last },
            Decision::Fresh => false,
            Decision::Resumed => true,
        };
        self.engine = Some(id);
        Answer::Taken { max_write: self.state.max_write().unwrap_or(max_write), resumed }
    }

    /// Puts a step into the queue, or answers at once.
    fn enqueue(&mut self, id: u64, message: Message) -> Option<Answer> {
        if let (Message::Attach { .. }, Some((number, _))) = (&message, &self.device) {
            return Some(Answer::Attached { number: *number });
        }
        if self.queue.len() == MAX_QUEUED_STEPS {
            return Some(Answer::Failed { why: "too many steps wait for the device".to_owned() });
        }
        self.queue.push_back(Step { asked: id, message });
        None
    }

    fn next_step(&mut self) {
        while self.running.is_none() {
            let Some(step) = self.queue.pop_front() else { return };
            match self.start_step(&step.message) {
                Ok(Some((child, ended))) => self.running = Some(Running { step, child, ended }),
                Ok(None) => self.nothing_to_do(&step),
                Err(error) => {
                    let why = format!("cannot start a step: {error}");
                    self.answer(step.asked, &Answer::Failed { why });
                }
            }
        }
    }

    /// The step is done already: bound by the one before, or there is no device.
    fn nothing_to_do(&mut self, step: &Step) {
        let answer = match (&step.message, &self.device) {
            (Message::Attach { .. }, Some((number, _))) => Answer::Attached { number: *number },
            (Message::Detach | Message::Retire, None) => {
                self.end();
                Answer::Done
            }
            _ => Answer::Failed { why: "there is no device yet".to_owned() },
        };
        self.answer(step.asked, &answer);
    }

    fn start_step(&self, message: &Message) -> io::Result<Option<(Child, OwnedFd)>> {
        let (args, stdin) = match (message, &self.device, &self.root) {
            (Message::Attach { block, read_only, tag, node }, None, Some(root)) => {
                let mode = if *read_only { "ro" } else { "rw" };
                let args = vec!["attach".to_owned(), block.to_string(), mode.to_owned(), tag.clone(), text(node)];
                (args, Stdio::from(root.try_clone()?))
            }
            (Message::Capacity, Some((number, _)), _) => {
                (vec!["capacity".to_owned(), number.to_string()], Stdio::null())
            }
            (Message::DropCache, Some((number, _)), _) => {
                (vec!["drop-cache".to_owned(), number.to_string()], Stdio::null())
            }
            (Message::Detach, Some((number, node)), _) => {
                (vec!["detach".to_owned(), number.to_string(), text(node)], Stdio::null())
            }
            (Message::Retire, Some((number, node)), _) => {
                (vec!["abandon".to_owned(), number.to_string(), text(node)], Stdio::null())
            }
            _ => return Ok(None),
        };
        let child = Command::new(this_program())
            .arg(SUBCOMMAND)
            .args(args)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = Pid::from_child(&child);
        Ok(Some((child, pidfd_open(pid, PidfdFlags::empty())?)))
    }

    fn step_ended(&mut self) -> io::Result<()> {
        let Some(Running { step, child, .. }) = self.running.take() else { return Ok(()) };
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let answer = match (&step.message, output.status.success()) {
            (Message::Retire, _) | (Message::Detach, true) => {
                self.end();
                Answer::Done
            }
            (_, false) if said.is_empty() => Answer::Failed { why: format!("the step ended with {}", output.status) },
            (_, false) => Answer::Failed { why: said },
            (Message::Attach { node, .. }, true) => match said.parse() {
                Ok(number) => {
                    self.device = Some((number, node.clone()));
                    self.root = None;
                    Answer::Attached { number }
                }
                Err(_) => Answer::Failed { why: format!("the step said {said:?}") },
            },
            (_, true) => Answer::Done,
        };
        self.answer(step.asked, &answer);
        Ok(())
    }

    /// Gives the device up: with the last descriptor of `/dev/fuse` the kernel fails everything that waits. A step that
    /// runs ends with that; then what is bound is let go.
    fn retire(&mut self, id: u64) {
        // Whoever comes now starts another holder, and does not wait for this one.
        self.stop_listening();
        self.fuse = None;
        self.root = None;
        if let Some(engine) = self.engine.filter(|engine| *engine != id) {
            self.drop_connection(engine);
        }
        for step in std::mem::take(&mut self.queue) {
            self.answer(step.asked, &Answer::Failed { why: "the device was given up".to_owned() });
        }
        if self.device.is_some() || self.running.is_some() {
            self.queue.push_back(Step { asked: id, message: Message::Retire });
        } else {
            self.end();
            self.answer(id, &Answer::Done);
        }
    }

    /// No more: whoever is still connected gets its last answer and is waited for.
    fn end(&mut self) {
        self.over = true;
        self.root = None;
        self.stop_listening();
        self.fuse = None;
        self.device = None;
        self.engine = None;
    }

    fn stop_listening(&mut self) {
        let path = self.listener.take().and_then(|l| l.local_addr().ok()?.as_pathname().map(Path::to_owned));
        if let Some(path) = path {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
