//! Conversations with a client, byte by byte, and clients that do not keep to the protocol.

use bytes::{Buf, BufMut, BytesMut};
use proptest::prelude::*;
use tether_nbd::handshake::{Agreed, BlockSize, Export, Handshake, Progress, Tls};
use tether_nbd::session::{Command, Event, Extent, Session};
use tether_nbd::wire::{self, Errno, RequestHeader, command, flag, option, reply};

const MIB: u64 = 1 << 20;

fn export(name: &str) -> Export {
    Export {
        name: name.to_owned(),
        description: format!("volume {name}"),
        size: 4 * MIB,
        read_only: false,
        multi_conn: true,
        block: BlockSize { minimum: 512, preferred: 4096, maximum: 32 << 20 },
    }
}

fn put_option(out: &mut BytesMut, code: u32, data: &[u8]) {
    out.put_u64(wire::OPTION_MAGIC);
    out.put_u32(code);
    out.put_u32(data.len() as u32);
    out.put_slice(data);
}

fn go(name: &str) -> Vec<u8> {
    let mut data = BytesMut::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u16(0);
    data.to_vec()
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = BytesMut::new();
    data.put_u32(name.len() as u32);
    data.put_slice(name.as_bytes());
    data.put_u32(queries.len() as u32);
    for query in queries {
        data.put_u32(query.len() as u32);
        data.put_slice(query.as_bytes());
    }
    data.to_vec()
}

/// Kind and data of each option reply.
fn replies(mut out: BytesMut) -> Vec<(u32, Vec<u8>)> {
    let mut all = Vec::new();
    while out.has_remaining() {
        assert_eq!(out.get_u64(), wire::OPTION_REPLY_MAGIC);
        let _option = out.get_u32();
        let kind = out.get_u32();
        let len = out.get_u32() as usize;
        all.push((kind, out.split_to(len).to_vec()));
    }
    all
}

/// Sends flags and options in one piece.
fn talk(mut handshake: Handshake, options: &[(u32, Vec<u8>)]) -> (Progress, BytesMut) {
    let mut input = BytesMut::new();
    input.put_u32(3);
    for (code, data) in options {
        put_option(&mut input, *code, data);
    }
    let mut out = BytesMut::new();
    (handshake.advance(&mut input, &mut out), out)
}

fn agreed(structured: bool) -> Agreed {
    Agreed { export: export("v1"), structured, allocation: structured }
}

fn request(code: u16, flags: u16, offset: u64, len: u32) -> BytesMut {
    let mut bytes = BytesMut::new();
    let header = RequestHeader { magic: wire::REQUEST_MAGIC, flags, command: code, cookie: 7, offset, len };
    header.put(&mut bytes);
    bytes
}

#[test]
fn a_modern_client_agrees_on_everything() {
    let options = [
        (option::STRUCTURED_REPLY, vec![]),
        (option::SET_META_CONTEXT, contexts("v1", &["base:allocation"])),
        (option::GO, go("v1")),
    ];
    let (progress, out) = talk(Handshake::new(vec![export("v1")], Tls::None), &options);
    let Progress::Agreed(agreed) = progress else { panic!("{progress:?}") };
    assert!(agreed.structured && agreed.allocation);
    let kinds: Vec<u32> = replies(out).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [reply::ACK, reply::META_CONTEXT, reply::ACK, reply::INFO, reply::INFO, reply::ACK]);
}

#[test]
fn bytes_may_come_one_at_a_time() {
    let mut whole = BytesMut::new();
    whole.put_u32(3);
    put_option(&mut whole, option::GO, &go(""));
    let mut handshake = Handshake::new(vec![export("v1")], Tls::None);
    let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
    let last = whole.len() - 1;
    for (i, byte) in whole.iter().enumerate() {
        input.put_u8(*byte);
        let progress = handshake.advance(&mut input, &mut out);
        assert_eq!(progress == Progress::Going, i < last, "byte {i}: {progress:?}");
    }
}

#[test]
fn the_old_way_to_choose_gets_its_padding() {
    let mut input = BytesMut::new();
    input.put_u32(1);
    put_option(&mut input, option::EXPORT_NAME, b"v1");
    let mut out = BytesMut::new();
    let mut handshake = Handshake::new(vec![export("v1")], Tls::None);
    assert!(matches!(handshake.advance(&mut input, &mut out), Progress::Agreed(_)));
    assert_eq!(out.len(), 8 + 2 + 124);
}

#[test]
fn what_does_not_exist_is_said_so() {
    let options = [
        (option::GO, go("other")),
        (99, vec![1, 2, 3]),
        (option::LIST, vec![]),
        (option::SET_META_CONTEXT, contexts("v1", &["base:allocation"])),
        (option::STARTTLS, vec![]),
        (option::INFO, vec![0]),
        (option::LIST, vec![0; 20_000]),
        (option::ABORT, vec![]),
    ];
    let (progress, out) = talk(Handshake::new(vec![export("v1")], Tls::None), &options);
    assert!(matches!(progress, Progress::Closed(_)));
    let kinds: Vec<u32> = replies(out).into_iter().map(|(kind, _)| kind).collect();
    let expected = [
        reply::ERR_UNKNOWN,
        reply::ERR_UNSUP,
        reply::SERVER,
        reply::ACK,
        reply::ERR_INVALID,
        reply::ERR_POLICY,
        reply::ERR_INVALID,
        reply::ERR_TOO_BIG,
        reply::ACK,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn nothing_is_told_in_clear_where_tls_is_required() {
    let options = [(option::LIST, vec![]), (option::GO, go("v1")), (option::STARTTLS, vec![])];
    let (progress, out) = talk(Handshake::new(vec![export("v1")], Tls::Required), &options);
    assert_eq!(progress, Progress::StartTls);
    let kinds: Vec<u32> = replies(out).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [reply::ERR_TLS_REQD, reply::ERR_TLS_REQD, reply::ACK]);
    let (progress, _) =
        talk(Handshake::new(vec![export("v1")], Tls::Required), &[(option::EXPORT_NAME, b"v1".to_vec())]);
    assert!(matches!(progress, Progress::Closed(_)));
}

#[test]
fn commands_come_out_as_they_went_in() {
    let mut session = Session::new(agreed(true));
    let mut input = request(command::WRITE, flag::FUA, 512, 1024);
    input.put_bytes(9, 1024);
    input.unsplit(request(command::READ, 0, 0, 512));
    input.unsplit(request(command::FLUSH, 0, 0, 0));
    input.unsplit(request(command::WRITE_ZEROES, flag::NO_HOLE, 0, 4096));
    input.unsplit(request(command::BLOCK_STATUS, flag::REQ_ONE, 0, 4096));
    input.unsplit(request(command::DISCONNECT, 0, 0, 0));
    let mut out = BytesMut::new();
    let mut commands = Vec::new();
    loop {
        match session.next(&mut input, &mut out) {
            Some(Event::Request(request)) => commands.push(request.command),
            Some(Event::Disconnect) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(&commands[0], Command::Write { offset: 512, data, fua: true } if data.len() == 1024));
    assert_eq!(commands[1], Command::Read { offset: 0, len: 512 });
    assert_eq!(commands[2], Command::Flush);
    assert_eq!(commands[3], Command::WriteZeroes { offset: 0, len: 4096, fua: false, may_punch: false });
    assert_eq!(commands[4], Command::BlockStatus { offset: 0, len: 4096, one: true });
    assert!(out.is_empty());
}

#[test]
fn wrong_commands_are_answered_and_the_session_goes_on() {
    let mut session = Session::new(agreed(false));
    let wrong = [
        (command::READ, 0, 4 * MIB, 512, Errno::Inval),
        (command::READ, 0, u64::MAX - 100, 512, Errno::Inval),
        (command::READ, 0, 1, 512, Errno::Inval),
        (command::READ, flag::FUA, 0, 512, Errno::Inval),
        (command::TRIM, 0, 4 * MIB - 512, 1024, Errno::Inval),
        (command::FLUSH, 0, 512, 0, Errno::Inval),
        (command::BLOCK_STATUS, 0, 0, 512, Errno::Inval),
        (command::WRITE_ZEROES, flag::FAST_ZERO, 0, 512, Errno::Inval),
        (command::CACHE, 0, 0, 512, Errno::Inval),
        (77, 0, 0, 0, Errno::Inval),
    ];
    for (code, flags, offset, len, errno) in wrong {
        let mut input = request(code, flags, offset, len);
        let mut out = BytesMut::new();
        assert_eq!(session.next(&mut input, &mut out), None, "{code} {offset} {len}");
        assert_eq!(out.get_u32(), wire::SIMPLE_REPLY_MAGIC);
        assert_eq!(out.get_u32(), errno as u32, "{code} {offset} {len}");
        assert_eq!(out.get_u64(), 7);
    }
    let mut input = request(command::WRITE, 0, 4 * MIB, 512);
    input.put_bytes(1, 512);
    input.unsplit(request(command::FLUSH, 0, 0, 0));
    let mut out = BytesMut::new();
    let next = session.next(&mut input, &mut out);
    assert!(matches!(next, Some(Event::Request(r)) if r.command == Command::Flush), "the payload is thrown away");
    out.advance(4);
    assert_eq!(out.get_u32(), Errno::NoSpace as u32);
}

#[test]
fn the_caller_knows_how_much_to_receive() {
    let mut session = Session::new(agreed(true));
    let mut out = BytesMut::new();
    let mut input = BytesMut::new();
    assert_eq!(session.missing(&input), wire::REQUEST_BYTES);
    input.unsplit(request(command::WRITE, 0, 0, 1024));
    assert_eq!(session.next(&mut input, &mut out), None);
    assert_eq!(session.missing(&input), 1024);
    input.put_bytes(1, 1000);
    assert_eq!(session.missing(&input), 24);
    let mut refused = request(command::WRITE, 0, 1, 512);
    let mut session = Session::new(agreed(true));
    assert_eq!(session.next(&mut refused, &mut out), None);
    assert_eq!((session.skipping(), session.missing(&refused)), (true, 512));
}

#[test]
fn a_grown_volume_takes_commands_up_to_its_new_end() {
    let mut session = Session::new(agreed(true));
    let mut out = BytesMut::new();
    assert_eq!(session.next(&mut request(command::READ, 0, 4 * MIB, 512), &mut out), None);
    session.resize(8 * MIB);
    assert!(matches!(session.next(&mut request(command::READ, 0, 4 * MIB, 512), &mut out), Some(Event::Request(_))));
}

#[test]
fn replies_are_structured_only_if_agreed() {
    let mut out = BytesMut::new();
    Session::new(agreed(false)).reply_data(7, 0, &[1; 512], &mut out);
    assert_eq!((out.len(), out.get_u32()), (16 + 512, wire::SIMPLE_REPLY_MAGIC));
    let mut out = BytesMut::new();
    Session::new(agreed(true)).reply_data(7, 0, &[1; 512], &mut out);
    assert_eq!((out.len(), out.get_u32()), (20 + 8 + 512, wire::STRUCTURED_REPLY_MAGIC));
    let mut out = BytesMut::new();
    let extents = [Extent { len: 4096, hole: true, zero: true }, Extent { len: 512, hole: false, zero: false }];
    Session::new(agreed(true)).reply_status(7, &extents, true, &mut out);
    assert_eq!(out.len(), 20 + 4 + 8, "one extent was asked for");
    let mut out = BytesMut::new();
    Session::new(agreed(true)).reply_failed(7, Errno::Io, "no replica", &mut out);
    assert_eq!(out.len(), 20 + 6 + "no replica".len());
}

proptest! {
    #[test]
    fn no_input_breaks_the_handshake(bytes in proptest::collection::vec(any::<u8>(), 0..600), flags in 0u32..4) {
        let mut input = BytesMut::new();
        input.put_u32(flags);
        input.put_slice(&bytes);
        let mut out = BytesMut::new();
        Handshake::new(vec![export("v1")], Tls::None).advance(&mut input, &mut out);
    }

    #[test]
    fn no_option_data_breaks_the_handshake(code in 0u32..12, data in proptest::collection::vec(any::<u8>(), 0..200)) {
        let options = [(option::STRUCTURED_REPLY, vec![]), (code, data)];
        talk(Handshake::new(vec![export("v1")], Tls::None), &options);
    }

    #[test]
    fn no_input_breaks_the_session(
        headers in proptest::collection::vec((0u16..10, 0u16..32, any::<u64>(), 0u32..100_000), 0..20),
        noise in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut session = Session::new(agreed(true));
        let mut input = BytesMut::new();
        for (code, flags, offset, len) in headers {
            input.unsplit(request(code, flags, offset % (8 * MIB), len));
        }
        input.put_slice(&noise);
        let mut out = BytesMut::new();
        while session.next(&mut input, &mut out).is_some() {}
    }
}
