//! The engine's side of its device's holder: find it or start it, take the device, have things done to it.
//!
//! Every call waits for an answer, and some of the answers wait for the engine itself to serve the device: calls are
//! made from a thread of their own, never from the event loop.
//!
//! ```text
//!   Link::open ─► intend (before the change of the record) ─► take (after it) ─► the event loop serves Taken::fuse
//!                                                                └─► attach ─► … capacity, drop_cache … ─► detach
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::Unavailable;
use super::fuse::machine::MAX_WRITE_BYTES;
use super::holder::SUBCOMMAND;
use super::holder::protocol::{Answer, MAX_LINE_BYTES, Message, VERSION};
use super::place::{Name, Place, this_program};
use super::sys;

/// How often a holder is started that turns out to have ended.
const MAX_ATTEMPTS: usize = 4;

/// A holder cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error("cannot run the device holder: {0}")]
    Run(#[source] io::Error),
    #[error("the device holder did not start: {0}")]
    Start(String),
    #[error("cannot connect to the device holder at {path}: {source}")]
    Connect { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// A holder did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("the device holder is gone: {0}")]
    Gone(#[source] io::Error),
    #[error("the device holder said {0:?}, which is no answer")]
    Nonsense(String),
    #[error("{0}")]
    Failed(String),
}

/// The device cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    #[error("engine {uid} (process {pid}) has the device and is alive; it must be stopped first")]
    Busy { uid: String, pid: u32 },
    #[error(
        "another engine held the volume since engine {last} had the device: what waits in it must not be written, and \
         what is mounted on it must not go on"
    )]
    Broken { last: String },
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The device, to be served.
#[derive(Debug)]
pub struct Taken {
    /// `/dev/fuse`, non-blocking.
    pub fuse: OwnedFd,
    /// For [`super::fuse::machine::Fuse::new`].
    pub max_write: u32,
    /// A predecessor had it: write [`super::fuse::abi::resend`] to it first, to get what it left unanswered.
    pub resumed: bool,
}

/// How a device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Logical block size, in bytes.
    pub block: u32,
    pub read_only: bool,
}

/// A connection to the holder of one device. As long as it is open and has taken the device, no other engine can.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    place: Place,
    volume: Name,
    /// The holder's process.
    pub pid: u32,
}

impl Link {
    /// Connects to the holder of a volume's device, and starts one if there is none.
    pub fn open(place: &Place, volume: &Name) -> Result<Self, OpenError> {
        super::available()?;
        // A holder may end between being found and being spoken to.
        for _ in 0..MAX_ATTEMPTS {
            if let Some(link) = Self::find(place, volume)? {
                return Ok(link);
            }
            Self::start(place, volume)?;
        }
        Err(OpenError::Start("each one that was started ended at once".to_owned()))
    }

    fn start(place: &Place, volume: &Name) -> Result<(), OpenError> {
        let started = Command::new(this_program())
            .args([SUBCOMMAND, "start"])
            .arg(&place.run)
            .arg(volume.as_str())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .map_err(OpenError::Run)?;
        if started.status.success() {
            return Ok(());
        }
        Err(OpenError::Start(String::from_utf8_lossy(&started.stdout).trim().to_owned()))
    }

    /// Connects to the holder if one lives.
    pub fn find(place: &Place, volume: &Name) -> Result<Option<Self>, OpenError> {
        let path = place.socket(volume);
        match UnixStream::connect(&path) {
            Ok(stream) => match Self::greet(stream, place, volume) {
                Ok(link) => Ok(Some(link)),
                // It ended while we spoke to it.
                Err(CallError::Gone(_)) => Ok(None),
                Err(error) => Err(error.into()),
            },
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(source) => Err(OpenError::Connect { path, source }),
        }
    }

    fn greet(stream: UnixStream, place: &Place, volume: &Name) -> Result<Self, CallError> {
        let mut link = Self { stream, place: place.clone(), volume: volume.clone(), pid: 0 };
        match link.call(&Message::Hello { version: VERSION })? {
            Answer::Holder { pid, .. } => link.pid = pid,
            other => return Err(unexpected(other)),
        }
        Ok(link)
    }

    /// Another handle of the connection, which can end it while a call waits for its answer.
    pub fn handle(&self) -> io::Result<Handle> {
        self.stream.try_clone().map(Handle)
    }

    /// Says that engine `uid` is about to take the volume from `previous`; see [`super::holder::state`].
    pub fn intend(&mut self, uid: &str, previous: &str) -> Result<(), CallError> {
        self.done(&Message::Intend { uid: uid.to_owned(), previous: previous.to_owned() })
    }

    /// Takes the device for engine `uid`, which took the volume from `previous`.
    pub fn take(&mut self, uid: &str, previous: &str) -> Result<Taken, TakeError> {
        let message = Message::Take {
            uid: uid.to_owned(),
            previous: previous.to_owned(),
            pid: std::process::id(),
            max_write: MAX_WRITE_BYTES,
        };
        let (answer, fuse) = self.exchange(&message)?;
        match (answer, fuse) {
            (Answer::Taken { max_write, resumed }, Some(fuse)) => Ok(Taken { fuse, max_write, resumed }),
            (Answer::Busy { uid, pid }, _) => Err(TakeError::Busy { uid, pid }),
            (Answer::Broken { last }, _) => Err(TakeError::Broken { last }),
            (other, _) => Err(unexpected(other).into()),
        }
    }

    /// Binds the device, or finds it bound. Returns its node and the number of its loop device.
    pub fn attach(&mut self, shape: Shape) -> Result<(PathBuf, u32), CallError> {
        let node = self.place.node(&self.volume);
        let tag = self.place.tag(&self.volume);
        let message = Message::Attach { block: shape.block, read_only: shape.read_only, tag, node: node.clone() };
        match self.call(&message)? {
            Answer::Attached { number } => Ok((node, number)),
            other => Err(unexpected(other)),
        }
    }

    /// The volume has grown and the machine knows it: the block device learns it.
    pub fn capacity(&mut self) -> Result<(), CallError> {
        self.done(&Message::Capacity)
    }

    /// Throws away what the kernel has cached of the device.
    pub fn drop_cache(&mut self) -> Result<(), CallError> {
        self.done(&Message::DropCache)
    }

    /// Removes the device in order, while the engine still serves it. Refused while it is mounted; it can be asked again.
    pub fn detach(&mut self) -> Result<(), CallError> {
        self.done(&Message::Detach)
    }

    /// Removes the device by force: everything pending fails. Whoever calls this must have closed its own
    /// [`Taken::fuse`], for the kernel notices only when the last one is gone.
    pub fn retire(mut self) -> Result<(), CallError> {
        self.done(&Message::Retire)
    }

    fn done(&mut self, message: &Message) -> Result<(), CallError> {
        match self.call(message)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    fn call(&mut self, message: &Message) -> Result<Answer, CallError> {
        self.exchange(message).map(|(answer, _)| answer)
    }

    fn exchange(&mut self, message: &Message) -> Result<(Answer, Option<OwnedFd>), CallError> {
        let line = format!("{message}\n");
        let mut rest = line.as_bytes();
        while !rest.is_empty() {
            let sent = sys::send(self.stream.as_fd(), rest, None).map_err(CallError::Gone)?;
            rest = &rest[sent..];
        }
        let (mut answer, mut bytes, mut fd) = (Vec::new(), [0; MAX_LINE_BYTES], None);
        while answer.last() != Some(&b'\n') {
            match sys::receive(self.stream.as_fd(), &mut bytes) {
                Ok((0, _)) => return Err(CallError::Gone(io::ErrorKind::UnexpectedEof.into())),
                Ok((len, received)) => {
                    answer.extend_from_slice(&bytes[..len]);
                    fd = received.or(fd);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CallError::Gone(error)),
            }
        }
        let text = String::from_utf8_lossy(&answer).trim_end().to_owned();
        let answer = Answer::parse(&text).ok_or(CallError::Nonsense(text))?;
        Ok((answer, fd))
    }
}

/// A handle of a [`Link`].
#[derive(Debug)]
pub struct Handle(UnixStream);

impl Handle {
    /// Ends the connection: for the holder the engine is gone, and a call that waits fails.
    pub fn hang_up(&self) {
        // It may have ended already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

fn unexpected(answer: Answer) -> CallError {
    match answer {
        Answer::Failed { why } => CallError::Failed(why),
        other => CallError::Nonsense(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// A holder whose step waits for an engine that will not come.
    #[test]
    fn a_call_that_waits_for_the_device_ends_when_the_engine_hangs_up() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { run: dir.path().into(), dev: dir.path().join("dev") };
        let volume = Name::new("v1").unwrap();
        std::fs::create_dir(place.directory(&volume)).unwrap();
        let listener = UnixListener::bind(place.socket(&volume)).unwrap();
        let (heard, is_heard) = std::sync::mpsc::channel();
        let holder = thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            assert!(lines.next().unwrap().unwrap().starts_with("hello"));
            (&stream).write_all(b"holder 1 7\n").unwrap();
            assert!(lines.next().unwrap().unwrap().starts_with("attach"));
            heard.send(()).unwrap();
            assert!(lines.next().is_none(), "the engine is gone");
        });
        let mut link = Link::find(&place, &volume).unwrap().unwrap();
        let handle = link.handle().unwrap();
        let waiting = thread::spawn(move || link.attach(Shape { block: 512, read_only: false }));
        is_heard.recv().unwrap();
        handle.hang_up();
        assert!(matches!(waiting.join().unwrap(), Err(CallError::Gone(_))));
        holder.join().unwrap();
    }
}
