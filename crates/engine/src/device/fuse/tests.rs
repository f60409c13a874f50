//! The machine against requests as the kernel writes them.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use tether_replication::engine::{IoAnswer, IoError, IoOp};

use super::abi::{self, errno, fallocate, init, op};
use super::machine::{Fuse, Geometry, MAX_WRITE_BYTES, Outcome, Reply};
use crate::frontend::block::{ClientId, Completion};

const SIZE: u64 = 1 << 20;

fn machine() -> Fuse {
    Fuse::new(ClientId(9), Geometry { size: SIZE, block: 512, read_only: false }, MAX_WRITE_BYTES)
}

fn request(opcode: u32, unique: u64, arguments: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    bytes.put_u32_ne((abi::IN_HEADER_BYTES + arguments.len()) as u32);
    bytes.put_u32_ne(opcode);
    bytes.put_u64_ne(unique);
    bytes.put_u64_ne(abi::ROOT);
    bytes.put_bytes(0, 16);
    bytes.put_slice(arguments);
    bytes
}

fn io(offset: u64, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_u64_ne(0);
    bytes.put_u64_ne(offset);
    bytes.put_u32_ne(len);
    bytes.put_bytes(0, 20);
    bytes.put_slice(data);
    bytes.to_vec()
}

fn punch(offset: u64, len: u64, mode: u32) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_u64_ne(0);
    bytes.put_u64_ne(offset);
    bytes.put_u64_ne(len);
    bytes.put_u32_ne(mode);
    bytes.put_u32_ne(0);
    bytes.to_vec()
}

fn ask(machine: &mut Fuse, bytes: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let mut buffer = machine.receive();
    assert!(buffer.is_empty() && buffer.capacity() > MAX_WRITE_BYTES as usize);
    buffer.put_slice(bytes);
    machine.received(buffer, &mut outcome);
    outcome
}

/// Error number (positive), number of the request, payload.
fn parsed(reply: &Reply) -> (i32, u64, Bytes) {
    let mut header = reply.header.clone();
    assert_eq!(header.get_u32_ne() as usize, reply.header.len() + reply.payload.len());
    (-header.get_i32_ne(), header.get_u64_ne(), reply.payload.clone())
}

#[test]
fn the_beginning_agrees_on_direct_io_in_parallel() {
    let mut machine = machine();
    let mut arguments = BytesMut::new();
    arguments.put_u32_ne(abi::MAJOR);
    arguments.put_u32_ne(45);
    arguments.put_u32_ne(128 << 10);
    arguments.put_u32_ne(u32::MAX);
    arguments.put_u32_ne(u32::MAX);
    arguments.put_bytes(0, 44);
    let outcome = ask(&mut machine, &request(op::INIT, 2, &arguments));
    let (error, unique, mut payload) = parsed(&outcome.replies[0]);
    assert_eq!((error, unique, payload.len()), (0, 2, 64));
    payload.advance(12);
    let low = u64::from(payload.get_u32_ne());
    assert_eq!(low & (init::ASYNC_DIO | init::MAX_PAGES), init::ASYNC_DIO | init::MAX_PAGES);
    payload.advance(4);
    assert_eq!(payload.get_u32_ne(), MAX_WRITE_BYTES);
}

#[test]
fn attributes_follow_the_volumes_size() {
    let mut machine = machine();
    machine.resize(2 * SIZE);
    let outcome = ask(&mut machine, &request(op::GETATTR, 4, &[0; 16]));
    let (error, _, payload) = parsed(&outcome.replies[0]);
    assert_eq!((error, payload.len()), (0, 104));
    assert_eq!((&payload[24..]).get_u64_ne(), 2 * SIZE);
    let outcome = ask(&mut machine, &request(op::STATFS, 6, &[]));
    assert_eq!(parsed(&outcome.replies[0]).2.len(), 80);
    let outcome = ask(&mut machine, &request(op::READ, 8, &io(SIZE, 512, &[])));
    assert_eq!(outcome.requests[0].op, IoOp::Read { offset: SIZE, len: 512 });
}

#[test]
fn blocks_go_through_and_answers_come_back() {
    let mut machine = machine();
    let data = vec![7; 4096];
    let outcome = ask(&mut machine, &request(op::WRITE, 10, &io(512, 4096, &data)));
    let write = &outcome.requests[0];
    assert_eq!(write.op, IoOp::Write { offset: 512, data: Bytes::from(data), fua: false });
    let reply = machine.complete(Completion { io: write.io, result: Ok(IoAnswer::Done) }).expect("known");
    let (error, unique, mut payload) = parsed(&reply);
    assert_eq!((error, unique, payload.get_u32_ne()), (0, 10, 4096));
    assert_eq!(machine.complete(Completion { io: write.io, result: Ok(IoAnswer::Done) }), None, "answered once");

    let again = 0xc | abi::UNIQUE_RESEND;
    let outcome = ask(&mut machine, &request(op::READ, again, &io(0, 512, &[])));
    let read = outcome.requests[0].io;
    let reply = machine.complete(Completion { io: read, result: Ok(IoAnswer::Data(Bytes::from(vec![1; 512]))) });
    assert_eq!(parsed(&reply.expect("known")), (0, again, Bytes::from(vec![1; 512])), "the mark is given back");

    let outcome = ask(&mut machine, &request(op::FSYNC, 14, &[0; 16]));
    assert_eq!(outcome.requests[0].op, IoOp::Flush);
    let reply =
        machine.complete(Completion { io: outcome.requests[0].io, result: Err(IoError::Fenced { sent: true }) });
    assert_eq!(parsed(&reply.expect("known")), (errno::EIO, 14, Bytes::new()));
    assert_eq!(machine.in_flight(), 0);
}

#[test]
fn a_new_device_has_nothing_to_flush_until_it_is_written_to() {
    let mut machine = Fuse::fresh(ClientId(9), Geometry { size: SIZE, block: 512, read_only: false }, MAX_WRITE_BYTES);
    let mut is_answered = |opcode: u32, arguments: &[u8]| {
        let outcome = ask(&mut machine, &request(opcode, 2, arguments));
        assert_eq!(outcome.replies.len() + outcome.requests.len(), 1);
        outcome.replies.first().map(|reply| parsed(reply).0)
    };
    assert_eq!(is_answered(op::FSYNC, &[0; 16]), Some(0), "without the engine");
    assert_eq!(is_answered(op::READ, &io(0, 512, &[])), None);
    assert_eq!(is_answered(op::FSYNC, &[0; 16]), Some(0), "reading changes nothing");
    assert_eq!(is_answered(op::WRITE, &io(0, 512, &[1; 512])), None);
    assert_eq!(is_answered(op::FSYNC, &[0; 16]), None, "the engine has to");
    let outcome = ask(&mut self::machine(), &request(op::FSYNC, 2, &[0; 16]));
    assert_eq!(outcome.requests.len(), 1, "what a predecessor wrote is not known");
}

#[test]
fn what_is_punched_must_read_as_zeroes() {
    let discard = fallocate::PUNCH_HOLE | fallocate::KEEP_SIZE;
    let zero = fallocate::ZERO_RANGE | fallocate::KEEP_SIZE;
    for (mode, unmap) in [(discard, true), (zero, false)] {
        let outcome = ask(&mut machine(), &request(op::FALLOCATE, 2, &punch(4096, 8192, mode)));
        assert_eq!(outcome.requests[0].op, IoOp::Zero { offset: 4096, len: 8192, fua: false, unmap });
    }
    let outcome = ask(&mut machine(), &request(op::FALLOCATE, 2, &punch(0, 512, 0)));
    assert_eq!(parsed(&outcome.replies[0]).0, errno::EOPNOTSUPP, "nothing is allocated ahead");
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let table = [
        (request(op::READ, 2, &io(SIZE, 512, &[])), errno::EINVAL),
        (request(op::READ, 2, &io(1, 512, &[])), errno::EINVAL),
        (request(op::READ, 2, &io(0, 0, &[])), errno::EINVAL),
        (request(op::WRITE, 2, &io(SIZE, 512, &[0; 512])), errno::ENOSPC),
        (request(op::WRITE, 2, &io(0, 1024, &[0; 512])), errno::EPROTO),
        (request(op::WRITE, 2, &io(u64::MAX, 512, &[0; 512])), errno::ENOSPC),
        (request(op::READ, 2, &[0; 10]), errno::EPROTO),
        (request(op::SETATTR, 2, &abi::SETATTR_SIZE.to_ne_bytes()), errno::EINVAL),
        (request(39, 2, &[0; 32]), errno::ENOSYS),
    ];
    for (bytes, expected) in table {
        let outcome = ask(&mut machine(), &bytes);
        assert!(outcome.requests.is_empty());
        assert_eq!(parsed(&outcome.replies[0]).0, expected, "{bytes:?}");
    }
    let mut read_only = Fuse::new(ClientId(1), Geometry { size: SIZE, block: 512, read_only: true }, MAX_WRITE_BYTES);
    let outcome = ask(&mut read_only, &request(op::WRITE, 2, &io(0, 512, &[0; 512])));
    assert_eq!(parsed(&outcome.replies[0]).0, crate::frontend::failure::linux::EROFS);
    assert!(ask(&mut machine(), &request(op::FORGET, 2, &[0; 8])).replies.is_empty(), "never answered");
}

#[test]
fn a_buffer_serves_many_small_requests_and_is_used_again() {
    let mut machine = machine();
    for unique in 0..2000 {
        let outcome = ask(&mut machine, &request(op::WRITE, unique, &io(0, 4096, &[unique as u8; 4096])));
        let request = &outcome.requests[0];
        machine.complete(Completion { io: request.io, result: Ok(IoAnswer::Done) });
    }
    assert_eq!(machine.in_flight(), 0);
}

proptest! {
    #[test]
    fn no_request_breaks_the_machine(
        opcode in 0u32..60, unique: u64, arguments in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..60,
    ) {
        let mut machine = machine();
        let bytes = request(opcode, unique, &arguments);
        let outcome = ask(&mut machine, &bytes[..bytes.len().saturating_sub(cut)]);
        prop_assert!(outcome.requests.len() + outcome.replies.len() <= 1);
    }
}
