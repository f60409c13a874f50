//! The shim's side: takes orders at a socket in the run's directory, starts commands, tells how they ended.
#![allow(unsafe_code, reason = "a session of its own is begun between fork and exec")]

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Gid, Uid};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

use super::super::files::RunDir;
use super::super::handle::Handle;
use super::super::{EXEC_ENV, Order, Place, processes, shim};
use super::{DESCRIPTORS, MAX_ORDER_BYTES, News, Wish, socket};
use crate::namespace;

/// Commands in one container at the same time.
const MAX_GUESTS: usize = 64;
/// Between the hang-up and the kill of a command whose client is gone.
const HANG_UP_GRACE: Duration = Duration::from_secs(1);
/// As container runtimes do for a terminal.
const TERM: (&str, &str) = ("TERM", "xterm");

/// Where orders come in.
pub struct Door {
    listener: StdListener,
    guests: Guests,
}

/// The commands: those that run, and the sessions that were begun for them.
#[derive(Clone, Default)]
pub struct Guests(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    running: BTreeSet<u32>,
    sessions: BTreeSet<u32>,
}

impl Guests {
    /// A command was started, which leads its session.
    fn note(&self, pid: u32) {
        let mut inner = self.0.lock();
        inner.running.insert(pid);
        inner.sessions.insert(pid);
    }

    /// Whether somebody waits for this process.
    pub fn is_awaited(&self, pid: u32) -> bool {
        self.0.lock().running.contains(&pid)
    }

    /// Whether this session was begun for a command.
    pub fn is_theirs(&self, session: u32) -> bool {
        self.0.lock().sessions.contains(&session)
    }
}

impl Door {
    pub fn open(dir: &RunDir) -> io::Result<Self> {
        let (_open, path) = socket(dir)?;
        let listener = StdListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, guests: Guests::default() })
    }

    pub fn guests(&self) -> Guests {
        self.guests.clone()
    }

    /// Takes orders for as long as it is polled. `main` is the container's process, which nobody has waited for yet.
    pub async fn serve(self, order: Arc<Order>, main: Pid) -> io::Result<()> {
        let listener = UnixListener::from_std(self.listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let (order, guests) = (order.clone(), self.guests.clone());
            tokio::spawn(async move {
                // Whoever asked is gone if he cannot be answered.
                let _ = visit(stream, &order, main, &guests).await;
            });
        }
    }
}

async fn visit(stream: UnixStream, order: &Order, main: Pid, guests: &Guests) -> io::Result<()> {
    let streams = receive(&stream).await?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = String::new();
    (&mut read).take(MAX_ORDER_BYTES).read_line(&mut line).await?;
    let wish: Wish = serde_json::from_str(&line)?;
    // From here to where it is noted nothing else runs on this thread: it cannot be reaped by somebody else meanwhile.
    let started = if guests.0.lock().running.len() < MAX_GUESTS {
        start(order, main, &wish, streams)
    } else {
        Err(io::Error::other(format!("{MAX_GUESTS} commands run in this container already")))
    };
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let why = format!("{:?}: {error}", wish.argv.first().map_or("", String::as_str));
            return tell(&mut write, &News::Refused { why }).await;
        }
    };
    let pid = child.id();
    guests.note(pid);
    let told = tell(&mut write, &News::Started).await;
    let status = watch(&mut child, pid, read).await;
    guests.0.lock().running.remove(&pid);
    told?;
    tell(&mut write, &News::Ended { exit_code: shim::exit_code(status?) }).await
}

async fn tell(to: &mut OwnedWriteHalf, news: &News) -> io::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    to.write_all(&line).await
}

/// Waits for the command; when its client goes first, ends it.
async fn watch(
    child: &mut Child,
    pid: u32,
    mut client: BufReader<OwnedReadHalf>,
) -> io::Result<std::process::ExitStatus> {
    // Our child, which nobody else waits for: the pid means it and nothing else.
    let handle = Handle::open(pid).ok_or(io::ErrorKind::NotFound)?;
    let mut rest = Vec::new();
    tokio::select! {
        () = handle.ended() => return child.wait(),
        // Nothing more is said; the end of the connection is the message.
        _ = client.read_to_end(&mut rest) => {}
    }
    processes::signal_session(pid, Signal::HUP);
    if tokio::time::timeout(HANG_UP_GRACE, handle.ended()).await.is_err() {
        processes::signal_session(pid, Signal::KILL);
        handle.ended().await;
    }
    processes::signal_session(pid, Signal::KILL);
    child.wait()
}

/// The three standard streams of a command.
async fn receive(stream: &UnixStream) -> io::Result<[OwnedFd; 3]> {
    let taken = stream.async_io(Interest::READABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        Ok((byte[0], rights.flatten().collect::<Vec<OwnedFd>>()))
    });
    match taken.await? {
        (DESCRIPTORS, descriptors) => {
            descriptors.try_into().map_err(|_| io::Error::other("a command needs three descriptors"))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Starts a command as the container's own process was started.
fn start(order: &Order, main: Pid, wish: &Wish, streams: [OwnedFd; 3]) -> io::Result<Child> {
    let mut command = shim::command(order, &wish.argv)?;
    if order.place == Place::Node {
        // What leaves the container's session is the node's; these did not mean to.
        command.env(EXEC_ENV, "1");
    }
    if wish.tty {
        if !order.env.iter().any(|(name, _)| name == TERM.0) {
            command.env(TERM.0, TERM.1);
        }
        rustix::fs::fchown(&streams[0], order.user.map(Uid::from_raw), order.group.map(Gid::from_raw))?;
    }
    let [stdin, stdout, stderr] = streams;
    command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
    in_session(&mut command, wish.tty);
    if order.place != Place::Own {
        return shim::spawn_as(order, command);
    }
    let inside = File::open(format!("/proc/{}/ns/mnt", main.as_raw_nonzero()))?;
    namespace::within(&inside, || {
        shim::become_user(order)?;
        command.spawn()
    })
}

/// Gives the command a session, and its terminal to the session.
fn in_session(command: &mut Command, tty: bool) {
    // SAFETY: between fork and exec only two system calls are made; neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            rustix::process::setsid()?;
            if tty {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
            }
            Ok(())
        });
    }
}
