//! Sockets, files and timers as values.

use std::fmt;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tether_store::{FileOp, OpId, OpResult};

use super::address::Address;
use super::inbox::{Alignment, Inbox};

/// A moment on a clock that runs through suspend (`CLOCK_BOOTTIME`), in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    pub const fn plus_millis(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis * 1000))
    }
}

/// A connection, dialed or accepted; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// A listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// A timer; setting it again moves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(pub u64);

/// A kernel device that is served through a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u64);

/// What reading a device gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceRead {
    /// One request of the kernel.
    Request,
    /// Nothing is there for now.
    Nothing,
    /// The kernel has no such device any more.
    Gone,
}

/// Where a machine reads a device's requests from, each into a buffer of its own.
pub trait DeviceSource: fmt::Debug {
    fn read(&mut self, buffer: &mut BytesMut) -> DeviceRead;
}

/// Why a connection ended or did not come about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The peer closed it.
    Ended,
    /// The kernel reported an error.
    Failed(io::ErrorKind),
    /// Nobody answered the dial in time.
    TimedOut,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the peer closed the connection"),
            Self::Failed(kind) => write!(f, "{kind}"),
            Self::TimedOut => f.write_str("no answer in time"),
        }
    }
}

/// What happened to sockets, files and timers.
#[derive(Debug)]
pub enum IoEvent<'a> {
    /// Where a listener really listens (a port 0 was replaced).
    Listening {
        listener: ListenerId,
        local: Address,
    },
    /// The listener does not exist.
    ListenFailed {
        listener: ListenerId,
        why: String,
    },
    Accepted {
        listener: ListenerId,
        conn: ConnId,
        peer: Option<Address>,
    },
    Connected {
        conn: ConnId,
    },
    ConnectFailed {
        conn: ConnId,
        why: Broken,
    },
    /// More is in the inbox: bytes of the stream, or the payload that was asked for.
    Received {
        conn: ConnId,
        inbox: &'a mut Inbox,
    },
    Closed {
        conn: ConnId,
        why: Broken,
    },
    FileDone {
        op: OpId,
        result: OpResult,
    },
    /// The kernel asks something of a device.
    DeviceReadable {
        device: DeviceId,
        source: &'a mut dyn DeviceSource,
    },
    /// Bytes left, on a connection that reports it.
    Sent {
        conn: ConnId,
        bytes: u64,
    },
    Timer {
        timer: TimerId,
    },
}

/// What is to be done with them.
#[derive(Debug)]
pub enum IoEffect {
    Listen {
        listener: ListenerId,
        address: Address,
    },
    /// No more connections are accepted; those accepted live on.
    Unlisten {
        listener: ListenerId,
    },
    Dial {
        conn: ConnId,
        address: Address,
        deadline: Time,
    },
    Send {
        conn: ConnId,
        bytes: Bytes,
    },
    /// Ends the connection once everything sent before has left, or after a short while.
    Close {
        conn: ConnId,
    },
    /// Ends it now.
    Abort {
        conn: ConnId,
    },
    /// Receives nothing more, so that the peer waits.
    Pause {
        conn: ConnId,
    },
    /// Goes on; what is in the inbox already is shown again. `most` is the limit of the next receive.
    Resume {
        conn: ConnId,
        most: Option<usize>,
    },
    Align {
        conn: ConnId,
        alignment: Alignment,
    },
    /// `fd` is what the store's files say; a host without descriptors goes by the id in the operation.
    File {
        fd: RawFd,
        op: FileOp,
    },
    /// Serves a device.
    OpenDevice {
        device: DeviceId,
        fd: Arc<OwnedFd>,
    },
    /// Answers the kernel: header and payload at once.
    DeviceReply {
        device: DeviceId,
        header: Bytes,
        payload: Bytes,
    },
    /// Serves it no longer; what waits in it stays there.
    CloseDevice {
        device: DeviceId,
    },
    /// [`IoEvent::Sent`] is wanted for this connection.
    ReportSent {
        conn: ConnId,
    },
    SetTimer {
        timer: TimerId,
        at: Time,
    },
    CancelTimer {
        timer: TimerId,
    },
}

/// Where random bytes come from: the kernel, or a seed.
pub type Randomness = Box<dyn FnMut(&mut [u8]) + Send>;

/// What a machine wants from sockets, files and timers, in order.
pub struct Io {
    effects: Vec<IoEffect>,
    next_id: u64,
    randomness: Randomness,
}

impl Io {
    pub fn new(randomness: Randomness) -> Self {
        Self { effects: Vec::new(), next_id: 1, randomness }
    }

    fn id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    /// For hosts: the id of a connection that was accepted.
    pub fn accept(&mut self) -> ConnId {
        ConnId(self.id())
    }

    pub fn listen(&mut self, address: Address) -> ListenerId {
        let listener = ListenerId(self.id());
        self.effects.push(IoEffect::Listen { listener, address });
        listener
    }

    pub fn unlisten(&mut self, listener: ListenerId) {
        self.effects.push(IoEffect::Unlisten { listener });
    }

    pub fn dial(&mut self, address: Address, deadline: Time) -> ConnId {
        let conn = ConnId(self.id());
        self.effects.push(IoEffect::Dial { conn, address, deadline });
        conn
    }

    /// Queues bytes. Pieces queued in one turn leave together.
    pub fn send(&mut self, conn: ConnId, bytes: Bytes) {
        if !bytes.is_empty() {
            self.effects.push(IoEffect::Send { conn, bytes });
        }
    }

    pub fn close(&mut self, conn: ConnId) {
        self.effects.push(IoEffect::Close { conn });
    }

    pub fn abort(&mut self, conn: ConnId) {
        self.effects.push(IoEffect::Abort { conn });
    }

    pub fn pause(&mut self, conn: ConnId) {
        self.effects.push(IoEffect::Pause { conn });
    }

    pub fn resume(&mut self, conn: ConnId) {
        self.effects.push(IoEffect::Resume { conn, most: None });
    }

    /// Goes on with at most so many bytes.
    pub fn resume_with(&mut self, conn: ConnId, most: usize) {
        self.effects.push(IoEffect::Resume { conn, most: Some(most) });
    }

    pub fn report_sent(&mut self, conn: ConnId) {
        self.effects.push(IoEffect::ReportSent { conn });
    }

    /// How payloads received on this connection are laid out.
    pub fn align(&mut self, conn: ConnId, alignment: Alignment) {
        self.effects.push(IoEffect::Align { conn, alignment });
    }

    /// Runs a file operation; its id comes back with the result.
    pub fn file(&mut self, fd: RawFd, op: FileOp) {
        self.effects.push(IoEffect::File { fd, op });
    }

    pub fn open_device(&mut self, fd: Arc<OwnedFd>) -> DeviceId {
        let device = DeviceId(self.id());
        self.effects.push(IoEffect::OpenDevice { device, fd });
        device
    }

    pub fn device_reply(&mut self, device: DeviceId, header: Bytes, payload: Bytes) {
        self.effects.push(IoEffect::DeviceReply { device, header, payload });
    }

    pub fn close_device(&mut self, device: DeviceId) {
        self.effects.push(IoEffect::CloseDevice { device });
    }

    /// A timer that is not set yet.
    pub fn timer(&mut self) -> TimerId {
        TimerId(self.id())
    }

    pub fn set_timer(&mut self, timer: TimerId, at: Time) {
        self.effects.push(IoEffect::SetTimer { timer, at });
    }

    pub fn cancel_timer(&mut self, timer: TimerId) {
        self.effects.push(IoEffect::CancelTimer { timer });
    }

    /// Random bytes of the host.
    pub fn random<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        (self.randomness)(&mut bytes);
        bytes
    }

    /// For hosts: the effects since the last time, into an empty vector whose room is used again.
    pub fn take(&mut self, into: &mut Vec<IoEffect>) {
        debug_assert!(into.is_empty(), "the effects taken before must have been run");
        std::mem::swap(&mut self.effects, into);
    }
}

impl fmt::Debug for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Io").field("effects", &self.effects).field("next_id", &self.next_id).finish_non_exhaustive()
    }
}
