//! The submission and completion queues of one io_uring, and how a kernel that lacks something is met.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, squeue};

use super::clock;
use super::patience::Patience;
use crate::host::Time;

/// Entries submitted at once; a turn that makes more submits in between.
const SUBMISSION_ENTRIES: u32 = 512;
/// Completions that fit before the kernel must queue them elsewhere: every connection and file operation of
/// a turn, several times over.
const COMPLETION_ENTRIES: u32 = 4096;
/// `IORING_ENTER_GETEVENTS`.
const GET_EVENTS: u32 = 1;

/// Why there is no ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    #[error(
        "io_uring is not allowed here: {source}; check `sysctl kernel.io_uring_disabled` (0 allows it), and that the \
         container's seccomp profile lets io_uring_setup, io_uring_enter and io_uring_register through"
    )]
    Refused { source: io::Error },
    #[error("this kernel has no usable io_uring (5.19 or newer is needed): {source}")]
    Unsupported { source: io::Error },
    #[error("cannot set up io_uring: {source}")]
    Setup { source: io::Error },
    #[error("io_uring stopped working: {source}")]
    Enter { source: io::Error },
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Accept(u64),
    Connect(u64),
    Receive(u64),
    Send(u64),
    File(u64),
    Device(u64),
    Wakeup,
    /// Its result does not matter.
    Cancel,
}

const TAG_SHIFT: u32 = 56;

impl Tag {
    pub fn pack(self) -> u64 {
        let (kind, id) = match self {
            Self::Accept(id) => (1, id),
            Self::Connect(id) => (2, id),
            Self::Receive(id) => (3, id),
            Self::Send(id) => (4, id),
            Self::File(id) => (5, id),
            Self::Wakeup => (6, 0),
            Self::Cancel => (7, 0),
            Self::Device(id) => (8, id),
        };
        debug_assert!(id >> TAG_SHIFT == 0, "ids must stay below 2^56");
        (kind << TAG_SHIFT) | id
    }

    fn unpack(word: u64) -> Self {
        let id = word & ((1 << TAG_SHIFT) - 1);
        match word >> TAG_SHIFT {
            1 => Self::Accept(id),
            2 => Self::Connect(id),
            3 => Self::Receive(id),
            4 => Self::Send(id),
            5 => Self::File(id),
            6 => Self::Wakeup,
            8 => Self::Device(id),
            _ => Self::Cancel,
        }
    }
}

/// Something finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub tag: Tag,
    /// Bytes, or a negated error number.
    pub result: i32,
    /// The socket held more than was taken.
    pub more_to_read: bool,
}

impl Completion {
    pub fn outcome(&self) -> io::Result<usize> {
        usize::try_from(self.result).map_err(|_| io::Error::from_raw_os_error(-self.result))
    }
}

pub(super) struct Queue {
    ring: IoUring,
    /// What did not fit; goes first in the next turn.
    waiting: VecDeque<squeue::Entry>,
    /// What goes behind everything else of this turn.
    last: Vec<squeue::Entry>,
    in_flight: usize,
    patience: Patience,
}

impl Queue {
    pub fn new() -> Result<Self, RingError> {
        let ring = Self::setup()?;
        if !ring.params().is_feature_ext_arg() || !ring.params().is_feature_nodrop() {
            let source = io::Error::new(io::ErrorKind::Unsupported, "EXT_ARG or NODROP is missing");
            return Err(RingError::Unsupported { source });
        }
        Ok(Self { ring, waiting: VecDeque::new(), last: Vec::new(), in_flight: 0, patience: Patience::default() })
    }

    /// The cheapest mode first: completions run on this thread only and only when it waits. Kernels before
    /// 6.1 do not know it and say so with EINVAL; then without.
    fn setup() -> Result<IoUring, RingError> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETION_ENTRIES).setup_clamp().setup_submit_all().setup_coop_taskrun();
        // The kernel says in shared memory that completions wait to be taken: a look needs no system call.
        builder.setup_taskrun_flag();
        let plain = builder.clone();
        let ring = match builder.setup_single_issuer().setup_defer_taskrun().build(SUBMISSION_ENTRIES) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                tracing::info!("io_uring without deferred task work: the kernel is older than 6.1");
                plain.build(SUBMISSION_ENTRIES)
            }
            other => other,
        };
        ring.map_err(|source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => RingError::Refused { source },
            Some(libc::ENOSYS | libc::EINVAL) => RingError::Unsupported { source },
            _ => RingError::Setup { source },
        })
    }

    /// Queues an operation for the next [`Queue::enter`].
    ///
    /// # Safety
    /// Whatever `entry` points to must stay valid and in place until the completion with `tag` arrived.
    #[allow(unsafe_code)]
    pub unsafe fn push(&mut self, entry: squeue::Entry, tag: Tag) {
        self.in_flight += 1;
        self.waiting.push_back(entry.user_data(tag.pack()));
    }

    /// Queues an operation behind everything else of this turn: one that only gets ready for what may come, while
    /// somebody waits for the others. Each one that is submitted before a send costs the send about a microsecond.
    ///
    /// # Safety
    /// As for [`Queue::push`].
    #[allow(unsafe_code)]
    pub unsafe fn push_last(&mut self, entry: squeue::Entry, tag: Tag) {
        self.in_flight += 1;
        self.last.push(entry.user_data(tag.pack()));
    }

    /// Operations whose completion has not been seen.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Submits everything queued and waits for at least one completion, or until `timeout`. `in_hand`: how many requests
    /// the machine works on.
    pub fn enter(&mut self, timeout: Option<Duration>, in_hand: usize) -> Result<(), RingError> {
        self.patience.works_on(in_hand);
        self.waiting.extend(self.last.drain(..));
        self.fill();
        while !self.waiting.is_empty() {
            ignore_transient(self.ring.submit())?;
            self.fill();
        }
        let from = clock::now();
        self.wait(from, timeout)?;
        self.patience.waited(from, clock::now());
        Ok(())
    }

    fn wait(&mut self, now: Time, timeout: Option<Duration>) -> Result<(), RingError> {
        if !self.ring.completion().is_empty() {
            return ignore_transient(self.ring.submit());
        }
        let look = self.patience.look(now).min(timeout.unwrap_or(Duration::MAX));
        if !look.is_zero() && self.look(now, look)? {
            return Ok(());
        }
        match timeout {
            None => ignore_transient(self.ring.submit_and_wait(1)),
            Some(timeout) => {
                let timespec = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timespec);
                ignore_transient(self.ring.submitter().submit_with_args(1, &args))
            }
        }
    }

    /// Submits, then looks for completions for a while; true if there are any.
    fn look(&mut self, now: Time, long: Duration) -> Result<bool, RingError> {
        let end = Time(now.0.saturating_add(long.as_micros() as u64));
        let queued = self.ring.submission().len() as u32;
        self.take_in(queued)?;
        loop {
            if !self.ring.completion().is_empty() {
                return Ok(true);
            }
            if self.ring.submission().taskrun() {
                self.take_in(0)?;
                continue;
            }
            let before = clock::now();
            if before >= end {
                return Ok(false);
            }
            std::thread::yield_now();
            if self.patience.yielded(before, clock::now()) {
                return Ok(false);
            }
        }
    }

    /// Submits `queued` entries and has the kernel do what completions wait for, without waiting itself.
    fn take_in(&mut self, queued: u32) -> Result<(), RingError> {
        // SAFETY: no signal mask is passed.
        #[allow(unsafe_code)]
        let entered = unsafe { self.ring.submitter().enter::<libc::sigset_t>(queued, 0, GET_EVENTS, None) };
        ignore_transient(entered)
    }

    fn fill(&mut self) {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.waiting.pop_front() {
            // SAFETY: `push` was promised that what the entry points to stays.
            #[allow(unsafe_code)]
            let pushed = unsafe { submission.push(&entry) };
            if pushed.is_err() {
                self.waiting.push_front(entry);
                break;
            }
        }
    }

    pub fn completions(&mut self, into: &mut Vec<Completion>) {
        for entry in self.ring.completion() {
            let more_to_read = io_uring::cqueue::sock_nonempty(entry.flags());
            into.push(Completion { tag: Tag::unpack(entry.user_data()), result: entry.result(), more_to_read });
        }
        self.in_flight -= into.len();
    }
}

/// A timeout, a signal and a full completion queue are all answered by going on.
fn ignore_transient(result: io::Result<usize>) -> Result<(), RingError> {
    match result {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)) => {
            Ok(())
        }
        Err(source) => Err(RingError::Enter { source }),
    }
}
