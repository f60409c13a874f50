//! The agent's side: asks a container's shim to run a command, and has its streams.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tether_machinery::remote_command::{Size, Streams};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::super::files::RunDir;
use super::{DESCRIPTORS, News, Wish, socket};

/// As container runtimes number a process that was killed, which is what happens when its container ends.
const KILLED: i32 = 137;

/// Why a command was not run.
#[derive(Debug, thiserror::Error)]
pub enum VisitError {
    #[error("cannot make its streams: {0}")]
    Streams(io::Error),
    #[error("its container cannot be reached, it may just have ended: {0}")]
    Reach(io::Error),
    #[error("{0}")]
    Refused(String),
}

/// A command that runs. Dropping it ends the command.
pub struct Visit {
    pub stdin: Option<Sender>,
    pub stdout: Option<Receiver>,
    pub stderr: Option<Receiver>,
    pub terminal: Option<Terminal>,
    pub end: Ending,
}

/// The terminal of a command, as its user has it.
pub struct Terminal(OwnedFd);

impl Terminal {
    pub fn resize(&self, size: Size) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }
}

/// Tells how a command ended.
pub struct Ending {
    news: BufReader<OwnedReadHalf>,
    _held: OwnedWriteHalf,
}

impl Ending {
    /// The exit code, once it has ended.
    pub async fn wait(&mut self) -> i32 {
        match next(&mut self.news).await {
            Ok(Some(News::Ended { exit_code })) => exit_code,
            _ => KILLED,
        }
    }
}

/// Runs a command in the container of this run.
pub async fn begin(dir: &RunDir, argv: Vec<String>, wanted: Streams) -> Result<Visit, VisitError> {
    let made = if wanted.tty { terminal(wanted) } else { pipes(wanted) };
    let (ours, theirs) = made.map_err(VisitError::Streams)?;
    let stream = connect(dir).await.map_err(VisitError::Reach)?;
    let wish = Wish { argv, tty: wanted.tty };
    send(&stream, &theirs).await.map_err(VisitError::Reach)?;
    drop(theirs);
    let (read, mut write) = stream.into_split();
    let mut news = BufReader::new(read);
    let told = async {
        let mut line = serde_json::to_vec(&wish)?;
        line.push(b'\n');
        write.write_all(&line).await?;
        next(&mut news).await
    };
    match told.await.map_err(VisitError::Reach)? {
        Some(News::Started) => {}
        Some(News::Refused { why }) => return Err(VisitError::Refused(why)),
        Some(News::Ended { .. }) | None => return Err(VisitError::Reach(io::ErrorKind::UnexpectedEof.into())),
    }
    let Ours { stdin, stdout, stderr, terminal } = ours;
    Ok(Visit { stdin, stdout, stderr, terminal, end: Ending { news, _held: write } })
}

async fn connect(dir: &RunDir) -> io::Result<UnixStream> {
    let (_open, path) = socket(dir)?;
    UnixStream::connect(path).await
}

async fn next(news: &mut BufReader<OwnedReadHalf>) -> io::Result<Option<News>> {
    let mut line = String::new();
    if news.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_str(&line)?))
}

/// Our ends of a command's streams.
struct Ours {
    stdin: Option<Sender>,
    stdout: Option<Receiver>,
    stderr: Option<Receiver>,
    terminal: Option<Terminal>,
}

/// What becomes the command's standard streams.
type Theirs = [OwnedFd; 3];

/// A pipe for each stream that is wanted, nothing for the others.
fn pipes(wanted: Streams) -> io::Result<(Ours, Theirs)> {
    let output = |wanted: bool| -> io::Result<(Option<Receiver>, OwnedFd)> {
        if !wanted {
            return Ok((None, nothing()?));
        }
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((Some(Receiver::from_owned_fd(read)?), write))
    };
    let (stdin, read) = if wanted.stdin {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&write, true)?;
        (Some(Sender::from_owned_fd(write)?), read)
    } else {
        (None, nothing()?)
    };
    let (stdout, out) = output(wanted.stdout)?;
    let (stderr, err) = output(wanted.stderr)?;
    Ok((Ours { stdin, stdout, stderr, terminal: None }, [read, out, err]))
}

fn nothing() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A terminal: ours to read, write and resize, theirs as all three streams.
fn terminal(wanted: Streams) -> io::Result<(Ours, Theirs)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let copy = |of: &OwnedFd| of.try_clone();
    // A terminal is no pipe, and is read and written like one.
    let stdin = wanted.stdin.then(|| Sender::from_owned_fd_unchecked(copy(&master)?)).transpose()?;
    let stdout = Some(Receiver::from_owned_fd_unchecked(copy(&master)?)?);
    let theirs = [copy(&slave)?, copy(&slave)?, slave];
    Ok((Ours { stdin, stdout, stderr: None, terminal: Some(Terminal(master)) }, theirs))
}

async fn send(stream: &UnixStream, theirs: &Theirs) -> io::Result<()> {
    let descriptors: [BorrowedFd<'_>; 3] = [theirs[0].as_fd(), theirs[1].as_fd(), theirs[2].as_fd()];
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        Ok(sendmsg(stream, &[IoSlice::new(&[DESCRIPTORS])], &mut control, SendFlags::NOSIGNAL)?)
    });
    sent.await.map(drop)
}
