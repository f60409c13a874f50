//! One connection against a scripted client: what comes out, what is copied, what stops it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use tether_nbd::wire::{self, Errno, RequestHeader, command, option};

use tether_replication::engine::{IoAnswer, IoError, IoOp, IoResult};
use tether_replication::ids::Epoch;
use tether_replication::wire::{Extent, Failure};

use super::connection::{Connection, Limits};
use super::export::{Lineage, Volume};
use super::flight::MAX_PIECE_BYTES;
use super::listen::Security;
use crate::frontend::block::{self, ClientId, Completion, Request};
use crate::frontend::failure;
use crate::host::Address;

const MIB: u32 = 1 << 20;

fn volume() -> Volume {
    let lineage = Some(Lineage("l1".to_owned()));
    Volume { name: "v1".to_owned(), size: 64 << 20, read_only: false, block: 512, lineage }
}

/// A connection in its session, and the bytes it has sent.
struct Scripted {
    connection: Connection,
    /// What the host received and the connection left.
    stream: BytesMut,
    replies: BytesMut,
    /// Requests that the engine has not answered.
    open: Vec<Request>,
}

fn options(export: &str) -> BytesMut {
    let mut bytes = BytesMut::new();
    bytes.put_u32(3);
    let mut put = |code: u32, data: &[u8]| {
        bytes.put_u64(wire::OPTION_MAGIC);
        bytes.put_u32(code);
        bytes.put_u32(data.len() as u32);
        bytes.put_slice(data);
    };
    let mut go = BytesMut::new();
    go.put_u32(export.len() as u32);
    go.put_slice(export.as_bytes());
    go.put_u16(0);
    put(option::STRUCTURED_REPLY, b"");
    put(option::GO, &go);
    bytes
}

fn zeroes(len: usize) -> IoAnswer {
    IoAnswer::Data(Bytes::from(vec![0; len]))
}

fn asked(code: u16, offset: u64, len: u32) -> BytesMut {
    let mut bytes = BytesMut::new();
    let header = RequestHeader { magic: wire::REQUEST_MAGIC, flags: 0, command: code, cookie: offset, offset, len };
    header.put(&mut bytes);
    bytes
}

fn write(offset: u64, len: u32, byte: u8) -> BytesMut {
    let mut bytes = asked(command::WRITE, offset, len);
    bytes.put_bytes(byte, len as usize);
    bytes
}

impl Scripted {
    fn agreed(limits: Limits) -> Self {
        let connection = Connection::new(ClientId(5), &volume(), Security::Clear, limits);
        let mut scripted = Self { connection, stream: BytesMut::new(), replies: BytesMut::new(), open: Vec::new() };
        scripted.client_sends(&options("v1@l1"));
        scripted.collect();
        scripted.replies.clear();
        scripted
    }

    /// Gives bytes to the connection as it asks for them; returns what it did not take.
    fn client_sends(&mut self, bytes: &[u8]) -> usize {
        let mut left = bytes;
        while !left.is_empty() && self.connection.wanted() > 0 {
            let part = left.len().min(self.connection.wanted());
            self.receive(&left[..part]);
            left.advance(part);
        }
        left.len()
    }

    /// Receives bytes in one piece; returns where the stream begins and ends.
    fn receive(&mut self, bytes: &[u8]) -> std::ops::Range<*const u8> {
        assert!(bytes.len() <= self.connection.wanted());
        self.stream.put_slice(bytes);
        let range = self.stream.as_ptr_range();
        self.connection.feed(&mut self.stream, &mut self.open);
        range
    }

    fn collect(&mut self) {
        for segment in self.connection.output() {
            self.replies.put_slice(&segment);
            self.connection.sent(segment.len() as u64, &mut self.open);
        }
    }

    fn engine_answers(&mut self, index: usize, result: IoResult) {
        let request = self.open.remove(index);
        self.connection.complete(Completion { io: request.io, result }, &mut self.open);
        self.collect();
    }

    /// Error number and cookie of a reply without data.
    fn plain_reply(&mut self) -> (u32, u64) {
        assert_eq!(self.replies.get_u32(), wire::SIMPLE_REPLY_MAGIC);
        (self.replies.get_u32(), self.replies.get_u64())
    }
}

#[test]
fn small_writes_are_slices_of_what_was_received() {
    let mut scripted = Scripted::agreed(Limits::default());
    let mut bytes = write(0, 4096, 1);
    bytes.unsplit(write(4096, 4096, 2));
    let range = scripted.receive(&bytes);
    let mut payloads = Vec::new();
    for request in &scripted.open {
        assert_eq!(ClientId::of(request.io), ClientId(5));
        let IoOp::Write { data, .. } = &request.op else { panic!("{request:?}") };
        assert!(range.contains(&data.as_ptr()), "the payload was moved");
        payloads.push(data.clone());
    }
    assert_eq!(payloads, [vec![1; 4096], vec![2; 4096]]);
    scripted.engine_answers(1, Ok(IoAnswer::Done));
    scripted.engine_answers(0, Ok(IoAnswer::Done));
    assert_eq!((scripted.plain_reply(), scripted.plain_reply()), ((0, 4096), (0, 0)), "answered as completed");
}

#[test]
fn large_payloads_are_received_where_they_stay() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&write(0, 128 * 1024, 1));
    assert_eq!(scripted.open.len(), 1);
    // From the second one on header and payload are asked for exactly; nothing is received that must move.
    let next = write(128 * 1024, 128 * 1024, 2);
    assert_eq!(scripted.connection.wanted(), wire::REQUEST_BYTES);
    scripted.receive(&next[..wire::REQUEST_BYTES]);
    let wanted = scripted.connection.wanted();
    assert_eq!(wanted, 128 * 1024 + wire::REQUEST_BYTES, "with the header of the next command behind it");
    assert!(scripted.stream.capacity() - scripted.stream.len() >= wanted, "room was promised");
    let mut rest = BytesMut::from(&next[wire::REQUEST_BYTES..]);
    rest.unsplit(asked(command::FLUSH, 0, 0));
    let range = scripted.receive(&rest);
    let IoOp::Write { data, .. } = &scripted.open[1].op else { panic!("{:?}", scripted.open[1]) };
    assert!(range.contains(&data.as_ptr()) && data.iter().all(|&b| b == 2));
    assert_eq!(scripted.open[2].op, IoOp::Flush);
}

#[test]
fn a_client_that_asks_for_too_much_is_not_read_from() {
    let mut scripted = Scripted::agreed(Limits { requests: 2, bytes: 1 << 30 });
    let mut bytes = BytesMut::new();
    for i in 0..4 {
        bytes.unsplit(asked(command::READ, i * 512, 512));
    }
    scripted.client_sends(&bytes);
    assert_eq!(scripted.open.len(), 2, "only two may be in flight");
    assert_eq!(scripted.connection.wanted(), 0);
    scripted.engine_answers(0, Ok(zeroes(512)));
    assert_eq!(scripted.open.len(), 2, "the third came out of what was received before");
    let mut scripted = Scripted::agreed(Limits { requests: 100, bytes: 4096 });
    scripted.client_sends(&asked(command::READ, 0, 4096));
    assert_eq!(scripted.connection.wanted(), 0);
    let request = scripted.open.remove(0);
    let result = Ok(IoAnswer::Data(Bytes::from(vec![7; 4096])));
    scripted.connection.complete(Completion { io: request.io, result }, &mut scripted.open);
    assert_eq!(scripted.connection.wanted(), 0, "the client has not taken the answer yet");
    scripted.collect();
    assert!(scripted.connection.wanted() > 0);
}

#[test]
fn long_commands_are_cut_and_answered_whole() {
    let mut scripted = Scripted::agreed(Limits::default());
    let len = 2 * MIB + 512;
    scripted.client_sends(&asked(command::READ, 512, len));
    let lens: Vec<u64> = scripted.open.iter().map(|r| block::payload(&r.op)).collect();
    assert_eq!(lens, [u64::from(MAX_PIECE_BYTES), u64::from(MAX_PIECE_BYTES), 512]);
    scripted.engine_answers(2, Ok(IoAnswer::Data(Bytes::from(vec![3; 512]))));
    scripted.engine_answers(0, Ok(IoAnswer::Data(Bytes::from(vec![1; MIB as usize]))));
    assert!(scripted.replies.is_empty());
    scripted.engine_answers(0, Ok(zeroes(MIB as usize)));
    let data = &scripted.replies[20 + 8..];
    assert_eq!(data.len(), len as usize);
    assert!(data[..MIB as usize].iter().all(|&b| b == 1) && data[2 * MIB as usize..].iter().all(|&b| b == 3));
    scripted.replies.clear();
    scripted.client_sends(&write(0, 2 * MIB, 9));
    scripted.engine_answers(0, Err(IoError::Failed(Failure::NoSpace)));
    scripted.engine_answers(0, Ok(IoAnswer::Done));
    assert_eq!(scripted.replies.get_u32(), wire::STRUCTURED_REPLY_MAGIC);
    scripted.replies.advance(2 + 2 + 8 + 4);
    assert_eq!(scripted.replies.get_u32(), Errno::NoSpace as u32, "one piece failed");
}

#[test]
fn failures_reach_the_client_with_number_and_reason() {
    let table = [
        (IoError::Fenced { sent: true }, Errno::Shutdown, failure::linux::EIO),
        (IoError::Stopped, Errno::Shutdown, failure::linux::EIO),
        (IoError::Failed(Failure::Fenced { promised: Epoch(2) }), Errno::Shutdown, failure::linux::EIO),
        (IoError::LastMemberLost, Errno::Io, failure::linux::EIO),
        (IoError::Failed(Failure::Io), Errno::Io, failure::linux::EIO),
        (IoError::Failed(Failure::NoSpace), Errno::NoSpace, failure::linux::ENOSPC),
        (IoError::Failed(Failure::Unsupported), Errno::NotSup, failure::linux::EOPNOTSUPP),
        (IoError::Invalid, Errno::Inval, failure::linux::EINVAL),
    ];
    for (error, nbd, linux) in table {
        let mut scripted = Scripted::agreed(Limits::default());
        scripted.client_sends(&asked(command::READ, 0, 512));
        scripted.engine_answers(0, Err(error));
        scripted.replies.advance(20);
        assert_eq!(scripted.replies.get_u32(), nbd as u32, "{error:?}");
        assert_eq!(&scripted.replies[2..], error.to_string().as_bytes());
        assert_eq!(failure::linux(error), linux, "{error:?}");
    }
}

#[test]
fn a_goodbye_waits_for_what_is_in_flight() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&write(0, 512, 1));
    scripted.client_sends(&asked(command::DISCONNECT, 0, 0));
    assert_eq!(scripted.connection.wanted(), 0);
    assert_eq!(scripted.connection.is_over(), None);
    scripted.engine_answers(0, Ok(IoAnswer::Done));
    assert_eq!(scripted.plain_reply(), (0, 0));
    assert!(scripted.connection.is_over().is_some());
}

#[test]
fn a_client_that_is_gone_gets_nothing_and_breaks_nothing() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&asked(command::READ, 0, 512));
    scripted.connection.gone("connection reset");
    scripted.engine_answers(0, Ok(zeroes(512)));
    assert!(scripted.replies.is_empty());
    assert_eq!((scripted.connection.is_over(), scripted.connection.in_flight()), (Some("connection reset"), 0));
}

#[test]
fn a_completion_counts_once() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&asked(command::READ, 0, MIB + 512));
    let again = scripted.open[0].clone();
    scripted.engine_answers(0, Ok(zeroes(512)));
    scripted.connection.complete(Completion { io: again.io, result: Ok(zeroes(512)) }, &mut scripted.open);
    scripted.collect();
    assert!(scripted.replies.is_empty(), "the second piece is still missing");
}

#[test]
fn a_short_answer_is_not_passed_on() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&asked(command::READ, 0, 1024));
    scripted.engine_answers(0, Ok(IoAnswer::Data(Bytes::from(vec![1; 512]))));
    scripted.replies.advance(20);
    assert_eq!(scripted.replies.get_u32(), Errno::Io as u32);
}

#[test]
fn exports_end_with_their_lineage() {
    let mut connection = Connection::new(ClientId(1), &volume(), Security::Clear, Limits::default());
    let mut requests = Vec::new();
    connection.feed(&mut options("v1@l0"), &mut requests);
    let sent: Vec<u8> = connection.output().concat();
    let refused = wire::reply::ERR_UNKNOWN.to_be_bytes();
    assert!(sent.windows(4).any(|window| window == refused), "another engine held the volume in between");
}

#[test]
fn an_answer_that_does_not_fit_fails_the_command() {
    let mut scripted = Scripted::agreed(Limits::default());
    scripted.client_sends(&asked(command::READ, 0, 512));
    let extents = vec![Extent { len: 512, allocated: false, zero: true }];
    scripted.engine_answers(0, Ok(IoAnswer::Extents(extents)));
    scripted.replies.advance(20);
    assert_eq!(scripted.replies.get_u32(), Errno::Io as u32);
}

#[test]
fn nothing_in_clear_leaves_the_machine() {
    let local = ["unix:/run/v1.sock", "tcp:127.0.0.1:10809", "tcp:[::1]:10809"];
    let remote = ["tcp:0.0.0.0:10809", "tcp:10.0.0.5:10809", "tcp:[::]:10809", "tcp:[fe80::1]:10809"];
    for text in local {
        let address: Address = text.parse().expect("the address must parse");
        assert!(matches!(Security::of(&address, None), Ok(Security::Clear)), "{text}");
    }
    for text in remote {
        let address: Address = text.parse().expect("the address must parse");
        let refused = Security::of(&address, None).expect_err("clear NBD must be refused");
        assert!(refused.to_string().contains("certificate"), "{refused}");
    }
}

proptest! {
    /// However the bytes of a conversation are cut, the same requests come out.
    #[test]
    fn cuts_do_not_matter(
        commands in proptest::collection::vec((0u16..5, 0u64..100, 1u32..100), 1..20),
        cuts in proptest::collection::vec(1usize..70_000, 1..50),
        large in any::<bool>(),
    ) {
        let mut bytes = BytesMut::new();
        for (code, block, blocks) in commands {
            let len = if large { blocks * 1024 } else { blocks * 512 };
            let offset = block * 512;
            bytes.unsplit(match code {
                command::WRITE => write(offset, len, block as u8),
                command::FLUSH => asked(command::FLUSH, 0, 0),
                command::DISCONNECT => asked(77, offset, len),
                other => asked(other, offset, len),
            });
        }
        let limits = Limits { requests: 1000, bytes: 1 << 30 };
        let mut whole = Scripted::agreed(limits);
        prop_assert_eq!(whole.client_sends(&bytes), 0);
        let mut cut = Scripted::agreed(limits);
        let mut left: &[u8] = &bytes;
        for size in cuts.iter().cycle() {
            let part = left.len().min(*size);
            cut.client_sends(&left[..part]);
            left = &left[part..];
            if left.is_empty() {
                break;
            }
        }
        prop_assert_eq!(&whole.open, &cut.open);
        whole.collect();
        cut.collect();
        prop_assert_eq!(whole.replies, cut.replies);
    }
}
