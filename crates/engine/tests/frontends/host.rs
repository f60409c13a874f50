//! A small host for the frontends' machines: one thread, `poll`, a [`Ram`] engine behind.
#![allow(unsafe_code)] // one set_len after a read into spare capacity

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tether_engine::device::fuse::abi;
use tether_engine::device::fuse::machine::{Fuse, Outcome, Reply};
use tether_engine::frontend::block::{ClientId, Completion, Request};
use tether_engine::frontend::nbd::connection::{Connection, Limits};
use tether_engine::frontend::nbd::export::Volume;
use tether_engine::frontend::nbd::listen::Security;
use tether_engine::host::Address;
use tether_replication::engine::IoError;

use crate::ram::Ram;

/// The client of the device; connections count up from the next one.
pub const DEVICE: ClientId = ClientId(0);
/// As many segments as one vectored write takes here.
const SEGMENTS: usize = 64;

pub enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    pub fn bind(address: &Address) -> io::Result<Self> {
        let listener = match address {
            Address::Unix(path) => Self::Unix(UnixListener::bind(path)?),
            Address::Tcp(address) => Self::Tcp(TcpListener::bind(address)?),
        };
        match &listener {
            Self::Unix(l) => l.set_nonblocking(true)?,
            Self::Tcp(l) => l.set_nonblocking(true)?,
        }
        Ok(listener)
    }

    pub fn address(&self) -> io::Result<Address> {
        Ok(match self {
            Self::Unix(l) => Address::Unix(l.local_addr()?.as_pathname().expect("sockets here have paths").to_owned()),
            Self::Tcp(l) => Address::Tcp(l.local_addr()?),
        })
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Unix(l) => {
                let stream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                stream.into()
            }
            Self::Tcp(l) => {
                let stream = l.accept()?.0;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                stream.into()
            }
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(l) => l.as_fd(),
            Self::Tcp(l) => l.as_fd(),
        }
    }
}

struct Client {
    socket: OwnedFd,
    connection: Connection,
    stream: BytesMut,
    sending: VecDeque<Bytes>,
}

pub struct Device {
    pub fuse: OwnedFd,
    pub machine: Fuse,
}

/// What a test may do to a running host.
pub enum Order {
    Resize(u64),
    /// I/O is not completed from now on, until it is false again.
    Suspend(bool),
    /// Everything fails from now on.
    Fence,
    Stop,
}

/// Gives orders from another thread.
pub struct Handle {
    orders: mpsc::Sender<(Order, mpsc::Sender<()>)>,
    wake: UnixStream,
}

impl Handle {
    /// Gives an order and waits until it is obeyed.
    pub fn order(&self, order: Order) {
        let (obeyed, wait) = mpsc::channel();
        self.orders.send((order, obeyed)).expect("the host must live");
        rustix::io::write(&self.wake, b"!").expect("the host must live");
        wait.recv().expect("the host must live");
    }
}

pub struct Host {
    pub ram: Ram,
    pub volume: Volume,
    pub listeners: Vec<(Listener, Security)>,
    pub device: Option<Device>,
    /// How long each request takes.
    pub delay: Duration,
    clients: BTreeMap<u32, Client>,
    next_client: u32,
    orders: mpsc::Receiver<(Order, mpsc::Sender<()>)>,
    wake: UnixStream,
    waiting: VecDeque<(Instant, Request)>,
    suspended: bool,
    fenced: bool,
}

/// Reads behind what `buffer` holds, at most `most` bytes.
fn read(fd: BorrowedFd<'_>, buffer: &mut BytesMut, most: usize) -> rustix::io::Result<usize> {
    let spare = buffer.spare_capacity_mut();
    let most = most.min(spare.len());
    let len = rustix::io::read(fd, &mut spare[..most])?.0.len();
    // SAFETY: the read initialised `len` bytes behind the end.
    unsafe { buffer.set_len(buffer.len() + len) };
    Ok(len)
}

impl Host {
    pub fn new(ram: Ram, volume: Volume) -> (Self, Handle) {
        let (send, orders) = mpsc::channel();
        let (wake, woken) = UnixStream::pair().expect("a socket pair must be possible");
        woken.set_nonblocking(true).expect("a socket must become non-blocking");
        let host = Self {
            ram,
            volume,
            listeners: Vec::new(),
            device: None,
            delay: Duration::ZERO,
            clients: BTreeMap::new(),
            next_client: 1,
            orders,
            wake: woken,
            waiting: VecDeque::new(),
            suspended: false,
            fenced: false,
        };
        (host, Handle { orders: send, wake })
    }

    /// Serves until it is told to stop.
    pub fn run(mut self) {
        loop {
            let ready = self.wait();
            if ready.wake && self.obey() {
                return;
            }
            let mut submit = Vec::new();
            if ready.device {
                self.read_device(&mut submit);
            }
            for id in ready.clients {
                self.read_client(id, &mut submit);
            }
            for index in ready.listeners {
                self.accept(index);
            }
            self.serve(submit);
            self.flush();
        }
    }

    fn wait(&self) -> Ready {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.device.iter().map(|d| PollFd::new(&d.fuse, PollFlags::IN)));
        let devices = fds.len();
        fds.extend(self.listeners.iter().map(|(l, _)| PollFd::new(l, PollFlags::IN)));
        let listeners = fds.len();
        fds.extend(self.clients.values().map(|client| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, client.connection.wanted() > 0);
            flags.set(PollFlags::OUT, !client.sending.is_empty());
            PollFd::new(&client.socket, flags)
        }));
        let due = self.waiting.front().filter(|_| !self.suspended);
        let timeout = due.map(|(at, _)| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("poll: {error}"),
        }
        let on = |range: std::ops::Range<usize>| -> Vec<usize> {
            range.clone().filter(|i| !fds[*i].revents().is_empty()).map(|i| i - range.start).collect()
        };
        let ids: Vec<u32> = self.clients.keys().copied().collect();
        Ready {
            wake: !on(0..1).is_empty(),
            device: !on(1..devices).is_empty(),
            listeners: on(devices..listeners),
            clients: on(listeners..fds.len()).into_iter().map(|i| ids[i]).collect(),
        }
    }

    fn obey(&mut self) -> bool {
        let mut bytes = [0; 64];
        let _ = rustix::io::read(&self.wake, &mut bytes);
        let mut stop = false;
        while let Ok((order, obeyed)) = self.orders.try_recv() {
            match order {
                Order::Resize(size) => {
                    self.ram.resize(size).expect("the file must grow");
                    self.volume.size = size;
                    self.clients.values_mut().for_each(|client| client.connection.resize(size));
                    if let Some(device) = &mut self.device {
                        let notification = device.machine.resize(size);
                        write_reply(device.fuse.as_fd(), &notification);
                    }
                }
                Order::Suspend(suspended) => self.suspended = suspended,
                Order::Fence => self.fenced = true,
                Order::Stop => stop = true,
            }
            let _ = obeyed.send(());
        }
        stop
    }

    fn accept(&mut self, index: usize) {
        let (listener, security) = &self.listeners[index];
        while let Ok(socket) = listener.accept() {
            let id = self.next_client;
            self.next_client += 1;
            let connection = Connection::new(ClientId(id), &self.volume, security.clone(), Limits::default());
            let stream = BytesMut::with_capacity(64 * 1024);
            self.clients.insert(id, Client { socket, connection, stream, sending: VecDeque::new() });
        }
    }

    fn read_client(&mut self, id: u32, submit: &mut Vec<Request>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let wanted = client.connection.wanted();
        if wanted == 0 {
            return;
        }
        assert!(client.stream.capacity() > client.stream.len(), "there must be room to receive");
        match read(client.socket.as_fd(), &mut client.stream, wanted) {
            Ok(0) => client.connection.gone("the client went away"),
            Ok(_) => client.connection.feed(&mut client.stream, submit),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => client.connection.gone(error.to_string()),
        }
    }

    fn read_device(&mut self, submit: &mut Vec<Request>) {
        let Some(device) = &mut self.device else { return };
        loop {
            let mut buffer = device.machine.receive();
            let most = buffer.capacity();
            let result = read(device.fuse.as_fd(), &mut buffer, most);
            let mut outcome = Outcome::default();
            device.machine.received(buffer, &mut outcome);
            submit.append(&mut outcome.requests);
            for reply in outcome.replies {
                write_reply(device.fuse.as_fd(), &reply);
            }
            match result {
                Ok(_) | Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return,
                // The loop device was detached.
                Err(_) => {
                    self.device = None;
                    return;
                }
            }
        }
    }

    fn serve(&mut self, submit: Vec<Request>) {
        let due = Instant::now() + self.delay;
        self.waiting.extend(submit.into_iter().map(|request| (due, request)));
        let now = Instant::now();
        while !self.suspended && self.waiting.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, request)) = self.waiting.pop_front() else { return };
            let completion = if self.fenced {
                Completion { io: request.io, result: Err(IoError::Fenced { sent: true }) }
            } else {
                self.ram.serve(&request)
            };
            let mut more = Vec::new();
            self.complete(completion, &mut more);
            self.waiting.extend(more.into_iter().map(|request| (now + self.delay, request)));
        }
    }

    fn complete(&mut self, completion: Completion, submit: &mut Vec<Request>) {
        let client = ClientId::of(completion.io);
        if client == DEVICE {
            if let Some(device) = &mut self.device
                && let Some(reply) = device.machine.complete(completion)
            {
                write_reply(device.fuse.as_fd(), &reply);
            }
        } else if let Some(client) = self.clients.get_mut(&client.0) {
            client.connection.complete(completion, submit);
        }
    }

    fn flush(&mut self) {
        let mut submit = Vec::new();
        for client in self.clients.values_mut() {
            client.sending.extend(client.connection.output());
            send(client, &mut submit);
        }
        self.clients.retain(|_, client| client.connection.is_over().is_none() || !client.sending.is_empty());
        if !submit.is_empty() {
            self.serve(submit);
            self.flush();
        }
    }
}

struct Ready {
    wake: bool,
    device: bool,
    listeners: Vec<usize>,
    clients: Vec<u32>,
}

fn send(client: &mut Client, submit: &mut Vec<Request>) {
    while !client.sending.is_empty() {
        let slices: Vec<IoSlice<'_>> = client.sending.iter().take(SEGMENTS).map(|s| IoSlice::new(s)).collect();
        match rustix::io::writev(&client.socket, &slices) {
            Ok(mut sent) => {
                client.connection.sent(sent as u64, submit);
                while sent > 0 {
                    let front = client.sending.front_mut().expect("what was sent must have been queued");
                    let part = front.len().min(sent);
                    front.advance(part);
                    sent -= part;
                    if front.is_empty() {
                        client.sending.pop_front();
                    }
                }
            }
            Err(Errno::AGAIN) => return,
            Err(error) => {
                client.connection.gone(error.to_string());
                client.sending.clear();
            }
        }
    }
}

fn write_reply(fuse: BorrowedFd<'_>, reply: &Reply) {
    // ENOENT: whoever asked does not wait any more.
    match rustix::io::writev(fuse, &[IoSlice::new(&reply.header), IoSlice::new(&reply.payload)]) {
        Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM | Errno::NOTCONN) => {}
        Err(error) => panic!("the kernel did not take a reply: {error}"),
    }
}

/// Asks for what a predecessor left unanswered.
pub fn resend(fuse: BorrowedFd<'_>) {
    rustix::io::write(fuse, &abi::resend()).expect("the kernel must know how to resend");
}
