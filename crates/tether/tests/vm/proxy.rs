//! Stands between a virtual machine and an NBD server, passes everything on, and times the first write.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const READ: u16 = 0;
const WRITE: u16 = 1;
const SIMPLE_REPLY: u32 = 0x6744_6698;
/// The last chunk of a structured reply.
const DONE: u16 = 1;

#[derive(Debug, Default)]
struct Timing {
    /// Bytes that the answer to a read brings, by cookie.
    reads: HashMap<u64, usize>,
    first: Option<(u64, Instant)>,
    took: Option<Duration>,
}

/// A proxy for one virtual machine.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    timing: Arc<Mutex<Timing>>,
}

impl Proxy {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port must be had");
        let address = listener.local_addr().expect("a listener has an address");
        let timing = Arc::<Mutex<Timing>>::default();
        let shared = timing.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                serve(client, server, &shared);
            }
        });
        Self { address, timing }
    }

    /// From the arrival of the first write to its acknowledgement.
    pub fn first_write(&self) -> Option<Duration> {
        self.timing.lock().unwrap().took
    }
}

fn serve(client: TcpStream, server: SocketAddr, timing: &Arc<Mutex<Timing>>) {
    let Ok(server) = TcpStream::connect(server) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { return };
    let (asked, answered) = (timing.clone(), timing.clone());
    let mut requests = Requests { stage: Stage::Greeting, parser: Parser::default() };
    let mut replies = Replies { stage: Stage::Greeting, parser: Parser::default() };
    thread::spawn(move || pump(client, server_too, |data| requests.feed(data, &asked)));
    thread::spawn(move || pump(server, client_too, |data| replies.feed(data, &answered)));
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut look: impl FnMut(&[u8])) {
    let mut buffer = vec![0; 256 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(count) => {
                look(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Bytes that have come, cut into headers and what follows them.
#[derive(Debug, Default)]
struct Parser {
    bytes: Vec<u8>,
    skip: usize,
}

impl Parser {
    fn push(&mut self, data: &[u8]) {
        let skipped = self.skip.min(data.len());
        self.skip -= skipped;
        self.bytes.extend_from_slice(&data[skipped..]);
    }

    /// The next `len` bytes, if they are there.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let skipped = self.skip.min(self.bytes.len());
        self.bytes.drain(..skipped);
        self.skip -= skipped;
        (self.skip == 0 && self.bytes.len() >= len).then(|| self.bytes.drain(..len).collect())
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a header is as long as it is")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Options,
    Work,
}

struct Requests {
    stage: Stage,
    parser: Parser,
}

impl Requests {
    fn feed(&mut self, data: &[u8], timing: &Mutex<Timing>) {
        let now = Instant::now();
        self.parser.push(data);
        loop {
            match self.stage {
                Stage::Greeting => {
                    let Some(_) = self.parser.take(4) else { return };
                    self.stage = Stage::Options;
                }
                Stage::Options => {
                    let Some(header) = self.parser.take(16) else { return };
                    self.parser.skip = u32::from_be_bytes(number(&header, 12)) as usize;
                    if u32::from_be_bytes(number(&header, 8)) == OPTION_GO {
                        self.stage = Stage::Work;
                    }
                }
                Stage::Work => {
                    let Some(header) = self.parser.take(28) else { return };
                    let command = u16::from_be_bytes(number(&header, 6));
                    let cookie = u64::from_be_bytes(number(&header, 8));
                    let len = u32::from_be_bytes(number(&header, 24)) as usize;
                    let mut timing = timing.lock().unwrap();
                    match command {
                        READ => drop(timing.reads.insert(cookie, len)),
                        WRITE => {
                            self.parser.skip = len;
                            timing.first.get_or_insert((cookie, now));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

struct Replies {
    stage: Stage,
    parser: Parser,
}

impl Replies {
    fn feed(&mut self, data: &[u8], timing: &Mutex<Timing>) {
        let now = Instant::now();
        self.parser.push(data);
        loop {
            match self.stage {
                Stage::Greeting => {
                    let Some(_) = self.parser.take(18) else { return };
                    self.stage = Stage::Options;
                }
                Stage::Options => {
                    let Some(header) = self.parser.take(20) else { return };
                    self.parser.skip = u32::from_be_bytes(number(&header, 16)) as usize;
                    let option = u32::from_be_bytes(number(&header, 8));
                    if (option, u32::from_be_bytes(number(&header, 12))) == (OPTION_GO, REPLY_ACK) {
                        self.stage = Stage::Work;
                    }
                }
                Stage::Work => {
                    // Both kinds have the cookie at the same place, and a simple one is the shorter.
                    let Some(header) = self.parser.take(16) else { return };
                    let cookie = u64::from_be_bytes(number(&header, 8));
                    let mut timing = timing.lock().unwrap();
                    let is_last = if u32::from_be_bytes(number(&header, 0)) == SIMPLE_REPLY {
                        let failed = u32::from_be_bytes(number(&header, 4)) != 0;
                        let len = timing.reads.remove(&cookie).unwrap_or(0);
                        self.parser.skip = if failed { 0 } else { len };
                        true
                    } else {
                        let Some(rest) = self.parser.take(4) else {
                            self.parser.bytes.splice(..0, header);
                            return;
                        };
                        self.parser.skip = u32::from_be_bytes(number(&rest, 0)) as usize;
                        u16::from_be_bytes(number(&header, 4)) & DONE != 0
                    };
                    if let Some((first, asked)) = timing.first
                        && first == cookie
                        && is_last
                        && timing.took.is_none()
                    {
                        timing.took = Some(now - asked);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_write_is_timed_whatever_lies_between() {
        let timing = Mutex::new(Timing::default());
        let mut requests = Requests { stage: Stage::Work, parser: Parser::default() };
        let mut replies = Replies { stage: Stage::Work, parser: Parser::default() };
        let request = |command: u16, cookie: u64, len: u32| {
            let mut bytes = vec![0x25, 0x60, 0x95, 0x13, 0, 0];
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend([0; 8]);
            bytes.extend(len.to_be_bytes());
            bytes
        };
        let reply = |cookie: u64| {
            let mut bytes = SIMPLE_REPLY.to_be_bytes().to_vec();
            bytes.extend([0; 4]);
            bytes.extend(cookie.to_be_bytes());
            bytes
        };
        let mut asked = request(READ, 1, 5);
        asked.extend(request(WRITE, 2, 3));
        asked.extend([9; 3]);
        for byte in asked {
            requests.feed(&[byte], &timing);
        }
        let mut answered = reply(1);
        answered.extend([7; 5]);
        for byte in answered {
            replies.feed(&[byte], &timing);
        }
        assert_eq!(timing.lock().unwrap().took, None);
        replies.feed(&reply(2), &timing);
        assert!(timing.lock().unwrap().took.is_some());
    }
}
