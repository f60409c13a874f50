//! The production host: one thread, one io_uring, sockets and files and timers on it.
//!
//! ```text
//!   turn:  timers due ─► machine ─► effects ─► submissions ─┐
//!          completions ─► events ─► machine ─► effects ─────┴─► one io_uring_enter (submit and wait)
//! ```
//!
//! Everything that a batch of completions makes the machine do is submitted with one call: the sends of many
//! messages on one connection leave as one vectored send. An idle loop sleeps in that call.

mod clock;
mod conn;
mod devices;
mod files;
mod mailbox;
mod patience;
mod queue;
mod socket;
mod timers;
mod turns;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::{opcode, types};
use socket2::Socket;

pub use clock::now;
pub use mailbox::{Answerer, AskError, Remote};
pub use queue::RingError;

use conn::{Conn, State};
use devices::Devices;
use files::Files;
use mailbox::{Letter, Mailbox, mailbox};
use queue::{Completion, Queue, Tag};
use timers::{Deadline, Timers};

use crate::host::{
    Broken, CallId, CommandId, ConnId, Effects, Event, Finish, IoEffect, IoEvent, ListenerId, Machine, Time,
};

/// How long a closing connection may take to get rid of what was sent.
const LINGER_MS: u64 = 2000;
/// How long a loop that ends waits for the kernel to give back its buffers.
const DRAIN_MS: u64 = 5000;

/// Pause between looks at a device that is still being made.
const EARLY_DEVICE_MS: u64 = 5;

/// Where a machine's calls to the outside go. Must not block.
pub type Calls<M> = Box<dyn FnMut(CallId, <M as Machine>::Call)>;

struct Listener {
    socket: Socket,
    open: bool,
}

/// A machine and everything that it may touch.
pub struct Host<M: Machine> {
    /// There until the end.
    machine: Option<M>,
    effects: Effects<M>,
    taken: Vec<IoEffect>,
    queue: Queue,
    conns: HashMap<u64, Conn>,
    /// Connections with something new to send or to receive.
    stirred: Vec<u64>,
    /// Connections whose inbox is to be shown again.
    resumed: Vec<u64>,
    listeners: HashMap<u64, Listener>,
    timers: Timers,
    files: Files,
    devices: Devices,
    mailbox: Mailbox<M>,
    heard: Box<[u8; 8]>,
    answerers: HashMap<CommandId, Answerer<M>>,
    next_command: u64,
    calls: Calls<M>,
    now: Time,
    drained: bool,
}

/// A mailbox for a machine that is still to be made.
pub struct Door<M: Machine>(Mailbox<M>);

/// The two ends of a mailbox.
pub fn door<M: Machine>() -> io::Result<(Remote<M>, Door<M>)> {
    let (remote, mailbox) = mailbox()?;
    Ok((remote, Door(mailbox)))
}

/// Random bytes of the kernel.
fn kernel_randomness(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel must have random bytes");
}

impl<M: Machine> Host<M> {
    /// To be called on the thread that will run it.
    pub fn new(machine: M, door: Door<M>, calls: Calls<M>) -> Result<Self, RingError> {
        Ok(Self {
            machine: Some(machine),
            effects: Effects::new(Box::new(kernel_randomness)),
            taken: Vec::new(),
            queue: Queue::new()?,
            conns: HashMap::new(),
            stirred: Vec::new(),
            resumed: Vec::new(),
            listeners: HashMap::new(),
            timers: Timers::default(),
            files: Files::default(),
            devices: Devices::default(),
            mailbox: door.0,
            heard: Box::new([0; 8]),
            answerers: HashMap::new(),
            next_command: 0,
            calls,
            now: clock::now(),
            drained: false,
        })
    }

    /// Runs until the machine ends.
    pub fn run(&mut self) -> Result<Finish, RingError> {
        turns::ask();
        self.listen_for_letters();
        self.tell(Event::Started);
        let mut completions = Vec::new();
        loop {
            self.pump();
            if let Some(finish) = self.effects.finished() {
                return Ok(finish.clone());
            }
            let wait =
                if self.resumed.is_empty() { self.timers.wait(self.now) } else { Some(std::time::Duration::ZERO) };
            self.queue.enter(wait, self.machine.as_ref().map_or(0, Machine::in_hand))?;
            self.now = clock::now();
            // What a timer sets again for a moment that is past comes in the next turn, after everybody else.
            let due: Vec<_> = std::iter::from_fn(|| self.timers.due(self.now)).collect();
            for deadline in due {
                self.expired(deadline);
            }
            self.queue.completions(&mut completions);
            for completion in completions.drain(..) {
                self.completed(completion);
            }
            self.show_resumed();
        }
    }

    /// The machine, after the end: everything is taken back from the kernel first.
    pub fn into_machine(mut self) -> M {
        self.finish();
        self.machine.take().expect("a machine is there until it is taken")
    }

    /// Takes back what the kernel has; what it keeps is leaked, so that it is not freed under it.
    fn finish(&mut self) {
        if !self.drain() {
            tracing::error!("the kernel holds on to buffers of an instance that ended; they are leaked");
            std::mem::forget(std::mem::take(&mut self.conns));
            std::mem::forget(std::mem::take(&mut self.files));
            std::mem::forget(std::mem::replace(&mut self.heard, Box::new([0; 8])));
        }
        self.drained = true;
    }

    fn tell(&mut self, event: Event<'_, M>) {
        if let Some(machine) = &mut self.machine {
            machine.handle(event, self.now, &mut self.effects);
        }
        self.obey();
    }

    fn tell_io(&mut self, event: IoEvent<'_>) {
        self.tell(Event::Io(event));
    }

    fn pump(&mut self) {
        for id in std::mem::take(&mut self.stirred) {
            if let Some(conn) = self.conns.get_mut(&id) {
                conn.pump(&mut self.queue);
            }
        }
    }

    fn show_resumed(&mut self) {
        for id in std::mem::take(&mut self.resumed) {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            if conn.state == State::Open && !conn.paused && conn.has_unread() {
                let event = IoEvent::Received { conn: ConnId(id), inbox: &mut conn.inbox };
                if let Some(machine) = &mut self.machine {
                    machine.handle(Event::Io(event), self.now, &mut self.effects);
                }
                self.stirred.push(id);
                self.obey();
            }
        }
    }

    /// Runs the effects of the last event.
    fn obey(&mut self) {
        let mut effects = std::mem::take(&mut self.taken);
        self.effects.io.take(&mut effects);
        // Listening answers at once, and the answer may have effects of its own.
        let mut listening = Vec::new();
        for effect in effects.drain(..) {
            match effect {
                IoEffect::Send { conn, bytes } => self.send(conn, bytes),
                IoEffect::File { fd, op } => self.files.start(fd, op, &mut self.queue),
                IoEffect::OpenDevice { device, fd } => self.devices.open(device, fd, &mut self.queue),
                IoEffect::DeviceReply { device, header, payload } => self.devices.reply(device, &header, &payload),
                IoEffect::CloseDevice { device } => self.devices.close(device, &mut self.queue),
                IoEffect::ReportSent { conn } => self.with(conn, |conn| conn.reports = true),
                IoEffect::SetTimer { timer, at } => self.timers.set(Deadline::Machine(timer), at),
                IoEffect::CancelTimer { timer } => self.timers.cancel(Deadline::Machine(timer)),
                IoEffect::Listen { listener, address } => listening.push((listener, address)),
                IoEffect::Unlisten { listener } => self.unlisten(listener),
                IoEffect::Dial { conn, address, deadline } => self.dial(conn, &address, deadline),
                IoEffect::Close { conn } => self.close(conn),
                IoEffect::Abort { conn } => self.abort(conn.0),
                IoEffect::Pause { conn } => self.with(conn, |conn| conn.paused = true),
                IoEffect::Resume { conn, most } => {
                    self.with(conn, |conn| {
                        conn.paused = false;
                        if let Some(most) = most {
                            conn.inbox.limit(most);
                        }
                    });
                    self.resumed.push(conn.0);
                    self.stirred.push(conn.0);
                }
                IoEffect::Align { conn, alignment } => self.with(conn, |conn| conn.inbox.align(alignment)),
            }
        }
        self.taken = effects;
        for (id, answer) in self.effects.take_answers() {
            if let Some(answerer) = self.answerers.remove(&id) {
                answerer(answer);
            }
        }
        for (id, call) in self.effects.take_calls() {
            (self.calls)(id, call);
        }
        for (listener, address) in listening {
            self.listen(listener, &address);
        }
    }

    fn with(&mut self, conn: ConnId, change: impl FnOnce(&mut Conn)) {
        if let Some(conn) = self.conns.get_mut(&conn.0) {
            change(conn);
        }
    }

    fn send(&mut self, conn: ConnId, bytes: bytes::Bytes) {
        if let Some(found) = self.conns.get_mut(&conn.0).filter(|found| found.state != State::Dead) {
            if found.is_drained() {
                self.stirred.push(conn.0);
            }
            found.enqueue(bytes);
        }
    }

    fn listen(&mut self, listener: ListenerId, address: &crate::host::Address) {
        match socket::listen(address) {
            Ok((socket, local)) => {
                self.listeners.insert(listener.0, Listener { socket, open: true });
                self.accept(listener.0);
                self.tell_io(IoEvent::Listening { listener, local });
            }
            Err(error) => {
                let why = format!("cannot listen on {address}: {error}");
                self.tell_io(IoEvent::ListenFailed { listener, why });
            }
        }
    }

    fn unlisten(&mut self, listener: ListenerId) {
        if let Some(found) = self.listeners.get_mut(&listener.0) {
            found.open = false;
            let _ = found.socket.shutdown(std::net::Shutdown::Both);
            let entry = opcode::AsyncCancel::new(Tag::Accept(listener.0).pack());
            // SAFETY: a cancel points to nothing.
            #[allow(unsafe_code)]
            unsafe {
                self.queue.push(entry.build(), Tag::Cancel);
            };
        }
    }

    fn accept(&mut self, id: u64) {
        let Some(listener) = self.listeners.get(&id) else { return };
        let fd = types::Fd(listener.socket.as_raw_fd());
        let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut()).flags(libc::SOCK_CLOEXEC);
        // SAFETY: nothing but null pointers is passed; the socket is kept until the completion.
        #[allow(unsafe_code)]
        unsafe {
            self.queue.push(entry.build(), Tag::Accept(id));
        };
    }

    fn dial(&mut self, conn: ConnId, address: &crate::host::Address, deadline: Time) {
        match socket::dial(address) {
            Ok((socket, to)) => {
                let mut made = Conn::new(socket, conn.0, State::Dialing);
                made.dial(to, &mut self.queue);
                self.conns.insert(conn.0, made);
                self.timers.set(Deadline::Dial(conn), deadline);
            }
            Err(error) => {
                // Reported by an expired deadline, so that the machine is not called from within itself.
                tracing::debug!(%error, %address, "dial");
                self.timers.set(Deadline::Dial(conn), self.now);
            }
        }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(found) = self.conns.get_mut(&conn.0) else { return };
        if found.state != State::Open || found.is_drained() {
            self.abort(conn.0);
            return;
        }
        found.state = State::Closing;
        self.timers.set(Deadline::Linger(conn), self.now.plus_millis(LINGER_MS));
        self.stirred.push(conn.0);
    }

    fn abort(&mut self, id: u64) {
        self.timers.cancel(Deadline::Dial(ConnId(id)));
        self.timers.cancel(Deadline::Linger(ConnId(id)));
        if let Some(conn) = self.conns.get_mut(&id) {
            if conn.state != State::Dead {
                conn.kill(&mut self.queue);
            }
            self.bury(id);
        }
    }

    /// Drops a dead connection that the kernel has nothing of any more.
    fn bury(&mut self, id: u64) {
        if self.conns.get(&id).is_some_and(|conn| conn.state == State::Dead && conn.is_quiet()) {
            self.conns.remove(&id);
        }
    }

    fn expired(&mut self, deadline: Deadline) {
        match deadline {
            Deadline::Machine(timer) => self.tell_io(IoEvent::Timer { timer }),
            Deadline::Linger(conn) => self.abort(conn.0),
            Deadline::Device(device) => self.device_wants(device),
            Deadline::Dial(conn) => match self.conns.get(&conn.0).map(|found| found.state) {
                Some(State::Dialing) => {
                    self.abort(conn.0);
                    self.tell_io(IoEvent::ConnectFailed { conn, why: Broken::TimedOut });
                }
                Some(_) => {}
                None => {
                    let why = Broken::Failed(io::ErrorKind::AddrNotAvailable);
                    self.tell_io(IoEvent::ConnectFailed { conn, why });
                }
            },
        }
    }

    fn completed(&mut self, completion: Completion) {
        match completion.tag {
            Tag::Receive(id) => self.received(id, completion),
            Tag::Send(id) => self.sent(id, completion),
            Tag::File(slot) => {
                let done = self.files.completed(slot, completion.outcome(), &mut self.queue);
                if let Some((op, result)) = done {
                    self.tell_io(IoEvent::FileDone { op, result });
                }
            }
            Tag::Accept(id) => self.accepted(id, completion),
            Tag::Connect(id) => self.connected(id, completion),
            Tag::Device(id) => self.device_wants(crate::host::DeviceId(id)),
            Tag::Wakeup => self.read_letters(),
            Tag::Cancel => {}
        }
    }

    fn received(&mut self, id: u64, completion: Completion) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.receive_returned();
        if conn.state == State::Dead {
            return self.bury(id);
        }
        if conn.state == State::Closing {
            return;
        }
        match completion.outcome() {
            Ok(0) => self.broke(id, Broken::Ended),
            Ok(len) => {
                self.stirred.push(id);
                if conn.received(len, completion.more_to_read) {
                    let event = IoEvent::Received { conn: ConnId(id), inbox: &mut conn.inbox };
                    if let Some(machine) = &mut self.machine {
                        machine.handle(Event::Io(event), self.now, &mut self.effects);
                    }
                    self.obey();
                }
            }
            Err(error) => self.broke(id, Broken::Failed(error.kind())),
        }
    }

    fn sent(&mut self, id: u64, completion: Completion) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.send_returned();
        if conn.state == State::Dead {
            return self.bury(id);
        }
        match completion.outcome() {
            Ok(len) => {
                conn.sent(len);
                let reports = conn.reports && conn.state == State::Open;
                if conn.is_drained() && conn.state == State::Closing {
                    return self.abort(id);
                }
                self.stirred.push(id);
                if reports {
                    self.tell_io(IoEvent::Sent { conn: ConnId(id), bytes: len as u64 });
                }
            }
            Err(error) => self.broke(id, Broken::Failed(error.kind())),
        }
    }

    /// A connection ended from outside; the machine is told unless it had closed it.
    fn broke(&mut self, id: u64, why: Broken) {
        let open = self.conns.get(&id).is_some_and(|conn| conn.state == State::Open);
        self.abort(id);
        if open {
            self.tell_io(IoEvent::Closed { conn: ConnId(id), why });
        }
    }

    fn accepted(&mut self, id: u64, completion: Completion) {
        if !self.listeners.get(&id).is_some_and(|listener| listener.open) {
            self.listeners.remove(&id);
            return;
        }
        match completion.outcome() {
            Ok(fd) => {
                // SAFETY: the kernel just made this descriptor for this accept; nobody else has it.
                #[allow(unsafe_code)]
                let socket = unsafe { <Socket as std::os::fd::FromRawFd>::from_raw_fd(fd as i32) };
                socket::tune(&socket);
                let peer = socket::peer(&socket);
                let conn = self.effects.io.accept();
                self.conns.insert(conn.0, Conn::new(socket, conn.0, State::Open));
                self.stirred.push(conn.0);
                self.tell_io(IoEvent::Accepted { listener: ListenerId(id), conn, peer });
            }
            // Out of descriptors, or the peer gave up: the listener goes on with the next.
            Err(error) => tracing::warn!(%error, "accept"),
        }
        self.accept(id);
    }

    fn connected(&mut self, id: u64, completion: Completion) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.dialed();
        if conn.state == State::Dead {
            return self.bury(id);
        }
        self.timers.cancel(Deadline::Dial(ConnId(id)));
        let conn = ConnId(id);
        match completion.outcome() {
            Ok(_) => {
                self.with(conn, Conn::opened);
                self.stirred.push(id);
                self.tell_io(IoEvent::Connected { conn });
            }
            Err(error) => {
                self.abort(id);
                self.tell_io(IoEvent::ConnectFailed { conn, why: Broken::Failed(error.kind()) });
            }
        }
    }

    fn device_wants(&mut self, device: crate::host::DeviceId) {
        if let Some(mut source) = self.devices.source(device) {
            self.tell_io(IoEvent::DeviceReadable { device, source: &mut source });
            if source.early {
                self.timers.set(Deadline::Device(device), self.now.plus_millis(EARLY_DEVICE_MS));
            } else {
                self.devices.wait(device, &mut self.queue);
            }
        }
    }

    fn listen_for_letters(&mut self) {
        let entry = opcode::Read::new(types::Fd(self.mailbox.descriptor()), self.heard.as_mut_ptr(), 8);
        // SAFETY: the eight bytes are boxed in the host, which drains the ring before it is dropped.
        #[allow(unsafe_code)]
        unsafe {
            self.queue.push(entry.build(), Tag::Wakeup);
        };
    }

    fn read_letters(&mut self) {
        self.mailbox.heard();
        self.listen_for_letters();
        while let Some(letter) = self.mailbox.take() {
            match letter {
                Letter::Command { command, answer } => {
                    let id = CommandId(self.next_command);
                    self.next_command += 1;
                    self.answerers.insert(id, answer);
                    self.tell(Event::Command { id, command });
                }
                Letter::Returned { id, value } => self.tell(Event::Returned { id, value }),
            }
        }
    }

    /// Takes everything back from the kernel, so that no buffer is freed under it.
    fn drain(&mut self) -> bool {
        for conn in self.conns.values_mut() {
            conn.kill(&mut self.queue);
        }
        let cancel = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build();
        // SAFETY: a cancel points to nothing.
        #[allow(unsafe_code)]
        unsafe {
            self.queue.push(cancel, Tag::Cancel);
        };
        let end = clock::now().plus_millis(DRAIN_MS);
        let mut completions = Vec::new();
        while self.queue.in_flight() > 0 {
            let now = clock::now();
            if now >= end || self.queue.enter(Some(std::time::Duration::from_micros(end.0 - now.0)), 0).is_err() {
                return false;
            }
            completions.clear();
            self.queue.completions(&mut completions);
        }
        true
    }
}

impl<M: Machine> Drop for Host<M> {
    fn drop(&mut self) {
        if !self.drained {
            self.finish();
        }
    }
}
