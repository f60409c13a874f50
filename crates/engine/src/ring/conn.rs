//! One connection on the ring: at most one receive and one send in flight.
//!
//! `unsafe` because the kernel is given pointers to what is kept here until the operation completed.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::net::Shutdown;
use std::os::fd::AsRawFd as _;

use bytes::{Buf as _, Bytes};
use io_uring::{opcode, types};
use socket2::{SockAddr, Socket};

use super::queue::{Queue, Tag};
use super::socket;
use crate::host::{Inbox, MAX_BACKLOG_BYTES};

/// Pieces that leave with one call: 64 messages of a header and a payload.
const MAX_PIECES: usize = 128;
/// `IORING_RECVSEND_POLL_FIRST`: do not even try before the socket says that there is something.
const POLL_FIRST: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Dialing,
    Open,
    /// What is queued still leaves; nothing is received and nothing is reported any more.
    Closing,
    /// Waits for its operations to come back.
    Dead,
}

pub(super) struct Conn {
    socket: Socket,
    id: u64,
    pub state: State,
    pub inbox: Inbox,
    pub paused: bool,
    /// The machine wants to know what left.
    pub reports: bool,
    /// The socket was seen empty: wait instead of trying.
    idle: bool,
    flight: Flight,
    outbound: VecDeque<Bytes>,
    backlog: usize,
    /// Where the kernel reads what a dial or a send in flight is about; boxed so that it stays in place.
    kernel: Box<Kernel>,
}

/// Which operations are in the kernel's hands.
#[derive(Clone, Copy, Default)]
struct Flight {
    receiving: bool,
    sending: bool,
    connecting: bool,
}

struct Kernel {
    message: libc::msghdr,
    pieces: [libc::iovec; MAX_PIECES],
    address: Option<SockAddr>,
}

impl Conn {
    pub fn new(socket: Socket, id: u64, state: State) -> Self {
        // SAFETY: both are plain C structs of integers and pointers, for which all zeroes is a valid value.
        let (message, pieces) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            socket,
            id,
            state,
            inbox: Inbox::new(),
            paused: false,
            reports: false,
            idle: true,
            flight: Flight::default(),
            outbound: VecDeque::new(),
            backlog: 0,
            kernel: Box::new(Kernel { message, pieces, address: None }),
        }
    }

    /// No operation is in the kernel's hands.
    pub fn is_quiet(&self) -> bool {
        !self.flight.receiving && !self.flight.sending && !self.flight.connecting
    }

    pub fn dial(&mut self, address: SockAddr, queue: &mut Queue) {
        let address = self.kernel.address.insert(address);
        let entry = opcode::Connect::new(types::Fd(self.socket.as_raw_fd()), address.as_ptr().cast(), address.len());
        self.flight.connecting = true;
        // SAFETY: the address lies in the box and is not replaced while `connecting`.
        unsafe { queue.push(entry.build(), Tag::Connect(self.id)) };
    }

    pub fn dialed(&mut self) {
        self.flight.connecting = false;
    }

    /// The dial succeeded.
    pub fn opened(&mut self) {
        self.state = State::Open;
        socket::tune(&self.socket);
    }

    pub fn enqueue(&mut self, bytes: Bytes) {
        self.backlog += bytes.len();
        self.outbound.push_back(bytes);
    }

    pub fn is_drained(&self) -> bool {
        self.outbound.is_empty()
    }

    /// Starts whatever can go on.
    pub fn pump(&mut self, queue: &mut Queue) {
        if !self.flight.sending && !self.outbound.is_empty() && matches!(self.state, State::Open | State::Closing) {
            self.send(queue);
        }
        let listening = self.state == State::Open && !self.paused && self.backlog < MAX_BACKLOG_BYTES;
        if listening && !self.flight.receiving {
            self.receive(queue);
        }
    }

    fn send(&mut self, queue: &mut Queue) {
        let kernel = &mut *self.kernel;
        let mut count = 0;
        for (piece, slot) in self.outbound.iter().zip(kernel.pieces.iter_mut()) {
            *slot = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            count += 1;
        }
        kernel.message.msg_iov = kernel.pieces.as_mut_ptr();
        kernel.message.msg_iovlen = count;
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let entry = opcode::SendMsg::new(types::Fd(self.socket.as_raw_fd()), &raw const kernel.message);
        self.flight.sending = true;
        // SAFETY: message and pieces lie in the box and are not touched while `sending`; the bytes they point to
        // are on the heap and are kept in `outbound` until `sent`.
        unsafe { queue.push(entry.flags(flags as u32).build(), Tag::Send(self.id)) };
    }

    /// A send came back after `len` bytes.
    pub fn sent(&mut self, mut len: usize) {
        self.backlog -= len;
        while len > 0 {
            let first = self.outbound.front_mut().expect("no more can be sent than was queued");
            if first.len() > len {
                first.advance(len);
                return;
            }
            len -= first.len();
            self.outbound.pop_front();
        }
    }

    pub fn send_returned(&mut self) {
        self.flight.sending = false;
    }

    fn receive(&mut self, queue: &mut Queue) {
        let room = self.inbox.room();
        let entry = opcode::Recv::new(types::Fd(self.socket.as_raw_fd()), room.as_mut_ptr().cast(), room.len() as u32);
        let entry = if self.idle { entry.ioprio(POLL_FIRST) } else { entry };
        self.flight.receiving = true;
        // SAFETY: the room is on the heap, and the inbox is not touched while `receiving`: the machine sees it
        // only in the event of a receive that completed.
        unsafe { queue.push_last(entry.build(), Tag::Receive(self.id)) };
    }

    /// A receive came back with `len` bytes; true if the machine is to be told.
    pub fn received(&mut self, len: usize, more_to_read: bool) -> bool {
        self.idle = !more_to_read;
        // SAFETY: the kernel wrote `len` bytes into the room of this receive.
        unsafe { self.inbox.filled(len) }
    }

    pub fn receive_returned(&mut self) {
        self.flight.receiving = false;
    }

    /// Whether the machine may look into the inbox now.
    pub fn has_unread(&mut self) -> bool {
        !self.flight.receiving && !self.inbox.stream().is_empty()
    }

    /// Ends it: what is in flight comes back, then it can be dropped.
    pub fn kill(&mut self, queue: &mut Queue) {
        self.state = State::Dead;
        self.outbound_forget();
        let _ = self.socket.shutdown(Shutdown::Both);
        if self.flight.connecting {
            let entry = opcode::AsyncCancel::new(Tag::Connect(self.id).pack());
            // SAFETY: a cancel points to nothing.
            unsafe { queue.push(entry.build(), Tag::Cancel) };
        }
    }

    /// Frees what nobody will get, unless the kernel still reads it.
    fn outbound_forget(&mut self) {
        if !self.flight.sending {
            self.outbound.clear();
            self.backlog = 0;
        }
    }
}
