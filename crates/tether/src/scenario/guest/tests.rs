//! A guest before servers that lie: whatever they do to a block, it must be noticed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::BytesMut;
use tether_nbd::handshake::{BlockSize, Export, Handshake, Progress, Tls};
use tether_nbd::session::{Command, Event, Session};

use super::*;

const SIZE: u64 = 64 * BLOCK_BYTES as u64;
/// Until a lie must have been noticed. Every eighth request of the guest is a read.
const LIMIT: Duration = Duration::from_secs(60);

/// What a server does to a request; it may change the disk behind its answers.
type Lie = fn(&mut Disk, &Command) -> Answer;

enum Answer {
    Honest,
    /// It is acknowledged, and not done.
    OnlySaid,
}

struct Disk {
    data: Vec<u8>,
    /// As it was some time ago.
    old: Vec<u8>,
    writes: u64,
}

/// A server in this process, and where the guest is told that it is.
#[derive(Clone)]
struct Liar(SocketAddr);

impl Whereabouts for Liar {
    fn endpoint(&self) -> Option<String> {
        Some(format!("nbd://{}/v1", self.0))
    }

    fn attached_between(&self, from: Instant, to: Instant) -> Duration {
        to - from
    }
}

fn serve(lie: Lie) -> Liar {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let data = vec![0; SIZE as usize];
    let disk = Arc::new(Mutex::new(Disk { old: data.clone(), data, writes: 0 }));
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let disk = disk.clone();
            thread::spawn(move || converse(client, &disk, lie));
        }
    });
    Liar(address)
}

fn converse(mut client: TcpStream, disk: &Mutex<Disk>, lie: Lie) -> Option<()> {
    let block = BlockSize { minimum: 512, preferred: 4096, maximum: 1 << 20 };
    let export = Export {
        name: "v1".to_owned(),
        description: String::new(),
        size: SIZE,
        read_only: false,
        multi_conn: true,
        block,
    };
    let mut handshake = Handshake::new(vec![export], Tls::None);
    let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
    Handshake::greet(&mut out);
    let mut session = loop {
        receive(&mut client, &mut input, &mut out)?;
        match handshake.advance(&mut input, &mut out) {
            Progress::Going => {}
            Progress::Agreed(agreed) => break Session::new(agreed),
            Progress::StartTls | Progress::Closed(_) => return None,
        }
    };
    loop {
        while let Some(event) = session.next(&mut input, &mut out) {
            let Event::Request(request) = event else { return None };
            let mut disk = disk.lock();
            let answer = lie(&mut disk, &request.command);
            match (request.command, answer) {
                (Command::Read { offset, len }, _) => {
                    let data = &disk.data[offset as usize..][..len as usize];
                    session.reply_data(request.cookie, offset, data, &mut out);
                }
                (Command::Write { offset, data, .. }, Answer::Honest) => {
                    disk.data[offset as usize..][..data.len()].copy_from_slice(&data);
                    disk.writes += 1;
                    session.reply_ok(request.cookie, &mut out);
                }
                _ => session.reply_ok(request.cookie, &mut out),
            }
        }
        receive(&mut client, &mut input, &mut out)?;
    }
}

fn receive(client: &mut TcpStream, input: &mut BytesMut, out: &mut BytesMut) -> Option<()> {
    client.write_all(&out.split()).ok()?;
    let mut buffer = [0; 16 << 10];
    let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
    input.extend_from_slice(&buffer[..count]);
    Some(())
}

/// What a guest says of a server within a second, or as soon as it has to complain.
fn told(lie: Lie) -> Told {
    let guest = Guest::start(serve(lie));
    let began = Instant::now();
    while guest.violations().is_empty() && guest.acknowledged() < 2000 {
        assert!(began.elapsed() < LIMIT, "the guest stands still");
        thread::sleep(Duration::from_millis(5));
    }
    guest.finish(false)
}

#[test]
fn an_honest_server_is_believed() {
    let told = told(|_, _| Answer::Honest);
    assert_eq!(told.violations, Vec::<String>::new());
    assert!(told.acknowledged >= 2000);
}

#[test]
fn a_wrong_byte_is_noticed() {
    let told = told(|disk, command| {
        if let Command::Read { offset, .. } = command {
            disk.data[*offset as usize + 1234] ^= 1;
        }
        Answer::Honest
    });
    assert!(told.violations[0].contains("torn or foreign content"), "{:?}", told.violations);
}

#[test]
fn a_write_that_was_acknowledged_and_not_done_is_noticed() {
    let told = told(|disk, command| match command {
        Command::Write { .. } if disk.writes == 500 => Answer::OnlySaid,
        _ => Answer::Honest,
    });
    assert!(told.violations[0].contains("was acknowledged"), "{:?}", told.violations);
}

#[test]
fn a_disk_that_goes_back_in_time_is_noticed() {
    let told = told(|disk, _| {
        match disk.writes {
            300 => disk.old = disk.data.clone(),
            600 => disk.data = disk.old.clone(),
            _ => {}
        }
        Answer::Honest
    });
    assert!(told.violations[0].contains("was acknowledged"), "{:?}", told.violations);
}

#[test]
fn a_block_in_the_place_of_another_is_noticed() {
    let told = told(|disk, command| {
        if let Command::Flush = command {
            disk.data.copy_within(..2 * BLOCK_BYTES, 2 * BLOCK_BYTES);
        }
        Answer::Honest
    });
    assert!(told.violations[0].contains("foreign content") || told.violations[0].contains("acknowledged"));
}

#[test]
fn versions_are_told_apart() {
    assert_eq!(version(3, &content(3, 7)), Some(7));
    assert_eq!(version(3, &[0; BLOCK_BYTES]), Some(0));
    assert_eq!(version(4, &content(3, 7)), None);
    let mut torn = content(3, 7);
    torn[2048..].copy_from_slice(&content(3, 8)[2048..]);
    assert_eq!(version(3, &torn), None);
}
