//! The io_uring host, with real sockets and files: order, payloads, closing, timers, commands, calls.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use tether_engine::host::{
    Address, Alignment, Broken, CallId, CommandId, ConnId, Effects, Event, Finish, IoEvent, Machine, Time, TimerId,
};
use tether_engine::ring::{self, Host, Remote};

/// Echoes messages of a length byte (in units of 1000) and a payload, and does what commands say.
#[derive(Default)]
struct Echo {
    listen: Option<Address>,
    local: Option<Address>,
    pending: std::collections::HashMap<ConnId, usize>,
    waiting: Vec<(CommandId, Awaited)>,
    held: Vec<ConnId>,
    hold: bool,
    closed: Vec<Broken>,
}

enum Awaited {
    Timer(TimerId),
    Call(CallId),
    Dial(ConnId),
    Listening,
    Closed,
}

#[derive(Debug)]
enum Ask {
    Listening,
    Sleep(u64),
    Call(u32),
    Dial(Address),
    Hold(bool),
    Closed,
    Stop,
}

impl Machine for Echo {
    type Command = Ask;
    type Answer = String;
    type Call = u32;
    type Return = u32;

    fn handle(&mut self, event: Event<'_, Self>, now: Time, out: &mut Effects<Self>) {
        match event {
            Event::Started => {
                let address = self.listen.clone().expect("an address to listen on");
                out.io.listen(address);
            }
            Event::Command { id, command } => self.command(id, command, now, out),
            Event::Returned { id, value } => {
                self.settle(out, value.to_string(), |a| matches!(a, Awaited::Call(c) if *c == id));
            }
            Event::Io(event) => self.io(event, out),
        }
    }
}

impl Echo {
    fn settle(&mut self, out: &mut Effects<Self>, text: String, which: impl Fn(&Awaited) -> bool) {
        if let Some(at) = self.waiting.iter().position(|(_, awaited)| which(awaited)) {
            out.answer(self.waiting.remove(at).0, text);
        }
    }

    fn command(&mut self, id: CommandId, command: Ask, now: Time, out: &mut Effects<Self>) {
        let awaited = match command {
            Ask::Listening => match &self.local {
                Some(local) => return out.answer(id, local.to_string()),
                None => Awaited::Listening,
            },
            Ask::Sleep(millis) => {
                let timer = out.io.timer();
                out.io.set_timer(timer, now.plus_millis(millis));
                Awaited::Timer(timer)
            }
            Ask::Call(value) => Awaited::Call(out.call(value)),
            Ask::Dial(address) => Awaited::Dial(out.io.dial(address, now.plus_millis(2000))),
            Ask::Hold(hold) => {
                self.hold = hold;
                if !hold {
                    self.held.drain(..).for_each(|conn| out.io.resume(conn));
                }
                return out.answer(id, String::new());
            }
            Ask::Closed => match self.closed.pop() {
                Some(why) => return out.answer(id, why.to_string()),
                None => Awaited::Closed,
            },
            Ask::Stop => return out.finish(Finish::Done),
        };
        self.waiting.push((id, awaited));
    }

    fn io(&mut self, event: IoEvent<'_>, out: &mut Effects<Self>) {
        match event {
            IoEvent::Listening { local, .. } => {
                self.local = Some(local.clone());
                self.settle(out, local.to_string(), |a| matches!(a, Awaited::Listening));
            }
            IoEvent::Timer { timer } => {
                self.settle(out, "rang".into(), |a| matches!(a, Awaited::Timer(t) if *t == timer));
            }
            IoEvent::Accepted { conn, .. } => out.io.align(conn, Alignment::Block),
            IoEvent::Connected { conn } => {
                self.settle(out, "connected".into(), |a| matches!(a, Awaited::Dial(c) if *c == conn));
            }
            IoEvent::ConnectFailed { conn, why } => {
                self.settle(out, why.to_string(), |a| matches!(a, Awaited::Dial(c) if *c == conn));
            }
            IoEvent::Closed { why, .. } => {
                self.closed.push(why.clone());
                if self.waiting.iter().any(|(_, a)| matches!(a, Awaited::Closed)) {
                    self.closed.pop();
                    self.settle(out, why.to_string(), |a| matches!(a, Awaited::Closed));
                }
            }
            IoEvent::Received { conn, inbox } => loop {
                if self.hold {
                    self.held.push(conn);
                    return out.io.pause(conn);
                }
                let len = match self.pending.remove(&conn) {
                    Some(len) => len,
                    None if inbox.stream().is_empty() => return,
                    None => usize::from(bytes::Buf::get_u8(inbox.stream())) * 1000,
                };
                if len == 0 {
                    return out.io.close(conn);
                }
                let Some(payload) = inbox.payload(len) else {
                    self.pending.insert(conn, len);
                    return;
                };
                out.io.send(conn, Bytes::from(vec![(len / 1000) as u8]));
                out.io.send(conn, payload);
            },
            IoEvent::ListenFailed { .. }
            | IoEvent::FileDone { .. }
            | IoEvent::Sent { .. }
            | IoEvent::DeviceReadable { .. } => {}
        }
    }
}

struct Running {
    remote: Remote<Echo>,
    thread: JoinHandle<Finish>,
}

impl Running {
    fn start(listen: &str) -> Self {
        let (remote, door) = ring::door().unwrap();
        let machine = Echo { listen: Some(listen.parse().unwrap()), ..Echo::default() };
        let back = remote.clone();
        let thread = thread::spawn(move || {
            let calls = Box::new(move |id, value: u32| {
                let back = back.clone();
                thread::spawn(move || back.returned(id, value + 1));
            });
            Host::new(machine, door, calls).unwrap().run().unwrap()
        });
        Self { remote, thread }
    }

    fn ask(&self, command: Ask) -> mpsc::Receiver<String> {
        let (sender, receiver) = mpsc::channel();
        self.remote.ask(command, Box::new(move |text| drop(sender.send(text)))).unwrap();
        receiver
    }

    fn get(&self, command: Ask) -> String {
        self.ask(command).recv().unwrap()
    }

    fn stop(self) {
        drop(self.ask(Ask::Stop));
        assert_eq!(self.thread.join().unwrap(), Finish::Done);
    }
}

fn message(units: u8, seed: usize) -> Vec<u8> {
    let mut bytes = vec![units];
    bytes.extend((0..usize::from(units) * 1000).map(|i| (i * 31 + seed) as u8));
    bytes
}

#[test]
fn a_deep_queue_of_messages_comes_back_in_order() {
    let running = Running::start("127.0.0.1:0");
    let address = running.get(Ask::Listening);
    let mut stream = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
    let messages: Vec<_> = (0..400usize).map(|n| message((n * 37 % 250 + 1) as u8, n)).collect();
    let all = messages.concat();
    let mut writer = stream.try_clone().unwrap();
    let sent = all.clone();
    let write = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = vec![0; all.len()];
    stream.read_exact(&mut back).unwrap();
    write.join().unwrap();
    assert!(back == all, "the echo differs");
    running.stop();
}

#[test]
fn a_connection_that_the_machine_closes_gets_everything_first() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("echo.sock");
    // A socket file that a killed process left behind is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let running = Running::start(&format!("unix:{}", path.display()));
    running.get(Ask::Listening);
    let mut stream = UnixStream::connect(&path).unwrap();
    let mut bytes = message(200, 1);
    bytes.push(0);
    let mut writer = stream.try_clone().unwrap();
    let sent = bytes.clone();
    let write = thread::spawn(move || writer.write_all(&sent).unwrap());
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    write.join().unwrap();
    assert!(back == bytes[..bytes.len() - 1], "the echo differs");
    running.stop();
}

#[test]
fn a_connection_that_is_held_waits_and_goes_on() {
    let running = Running::start("127.0.0.1:0");
    let address = running.get(Ask::Listening);
    running.get(Ask::Hold(true));
    let mut stream = TcpStream::connect(address.strip_prefix("tcp:").unwrap()).unwrap();
    stream.write_all(&message(3, 9)).unwrap();
    running.get(Ask::Sleep(20));
    running.get(Ask::Hold(false));
    let mut back = vec![0; 3001];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, message(3, 9));
    running.stop();
}

#[test]
fn commands_calls_dials_and_ends_are_reported() {
    let running = Running::start("127.0.0.1:0");
    let address: Address = running.get(Ask::Listening).parse().unwrap();
    assert_eq!(running.get(Ask::Sleep(5)), "rang");
    assert_eq!(running.get(Ask::Call(41)), "42");
    assert_eq!(running.get(Ask::Dial(address.clone())), "connected");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(running.get(Ask::Dial(Address::Tcp(nobody))), "connection refused");
    assert_eq!(running.get(Ask::Dial("unix:/nonexistent/socket".parse().unwrap())), "entity not found");
    let Address::Tcp(tcp) = address else { panic!("a TCP address") };
    drop(TcpStream::connect(tcp).unwrap());
    assert_eq!(running.get(Ask::Closed), Broken::Ended.to_string());
    running.stop();
}
