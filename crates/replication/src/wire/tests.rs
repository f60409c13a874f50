//! Every message survives its bytes, in pieces of any size; bytes of any kind never panic.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::region::RegionSet;

fn member() -> impl Strategy<Value = MemberId> {
    "[a-z][a-z0-9.-]{0,40}".prop_map(|name| MemberId::new(&name).unwrap())
}

fn bytes() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn regions() -> impl Strategy<Value = RegionSet> {
    proptest::collection::vec(0u32..100_000, 0..40).prop_map(|regions| regions.into_iter().collect())
}

fn request_body() -> impl Strategy<Value = RequestBody> {
    let range = (any::<u64>(), any::<u32>());
    let layer = any::<u16>().prop_map(Layer);
    prop_oneof![
        (any::<u128>(), any::<u128>(), any::<u64>(), any::<bool>()).prop_map(|(holder, volume, generation, joiner)| {
            RequestBody::Open(Open {
                holder: Holder(holder),
                volume: VolumeId(volume),
                generation: Generation(generation),
                role: if joiner { Role::Joiner } else { Role::Member },
            })
        }),
        range.prop_map(|(offset, len)| RequestBody::Read { offset, len }),
        (any::<u64>(), bytes(), any::<bool>()).prop_map(|(offset, data, fua)| RequestBody::Write { offset, data, fua }),
        (range, any::<bool>(), any::<bool>()).prop_map(|((offset, len), fua, unmap)| RequestBody::Zero {
            offset,
            len,
            fua,
            unmap
        }),
        range.prop_map(|(offset, len)| RequestBody::Discard { offset, len }),
        range.prop_map(|(offset, len)| RequestBody::Status { offset, len }),
        Just(RequestBody::Flush),
        Just(RequestBody::Ping),
        Just(RequestBody::ChainRead),
        Just(RequestBody::Settled),
        Just(RequestBody::Close),
        Just(RequestBody::StandDown),
        (any::<u64>(), regions()).prop_map(|(log, regions)| RequestBody::LogClear { log, regions }),
        member().prop_map(|member| RequestBody::MapStart { member }),
        member().prop_map(|member| RequestBody::MapDrop { member }),
        member().prop_map(|member| RequestBody::Missed { member }),
        (layer.clone(), range).prop_map(|(layer, (offset, len))| RequestBody::Checksum { layer, offset, len }),
        (layer.clone(), range).prop_map(|(layer, (offset, len))| RequestBody::CopyRead { layer, offset, len }),
        (layer, any::<u64>(), bytes()).prop_map(|(layer, offset, data)| RequestBody::CopyWrite { layer, offset, data }),
        bytes().prop_map(|chain| RequestBody::ChainSet { chain }),
        (0usize..6, any::<u64>(), bytes()).prop_map(|(kind, size, body)| RequestBody::Control(ControlOp {
            kind: ControlKind::ALL[kind],
            size,
            body
        })),
    ]
}

fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        any::<u64>().prop_map(|epoch| Failure::Fenced { promised: Epoch(epoch) }),
        Just(Failure::Session),
        Just(Failure::NotOpen),
        Just(Failure::Volume),
        Just(Failure::NoSpace),
        Just(Failure::Io),
        Just(Failure::Invalid),
        Just(Failure::Conflict),
        Just(Failure::Unsupported),
    ]
}

fn reply_body() -> impl Strategy<Value = ReplyBody> {
    let opened = (any::<u128>(), any::<bool>(), any::<[u64; 4]>(), regions()).prop_map(
        |(boot, doubtful, [log, chain, size, generation], regions)| {
            let (boot, generation) = (BootId(boot), Generation(generation));
            ReplyBody::Opened(Opened { boot, doubtful, log, regions, chain, size, generation })
        },
    );
    let extent =
        (any::<u32>(), any::<bool>(), any::<bool>()).prop_map(|(len, allocated, zero)| Extent { len, allocated, zero });
    prop_oneof![
        Just(ReplyBody::Done),
        failure().prop_map(ReplyBody::Failed),
        opened,
        bytes().prop_map(ReplyBody::Data),
        proptest::collection::vec(extent, 0..20).prop_map(ReplyBody::Extents),
        (proptest::option::of(regions()), any::<u64>())
            .prop_map(|(missed, chain)| ReplyBody::Regions { missed, chain }),
        any::<u128>().prop_map(ReplyBody::Sum),
        (any::<u16>(), bytes()).prop_map(|(layers, chain)| ReplyBody::Chain { layers, chain }),
        bytes().prop_map(ReplyBody::Controlled),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let request = (any::<[u64; 3]>(), request_body()).prop_map(|([id, epoch, session], body)| {
        Message::Request(Request { id: RequestId(id), epoch: Epoch(epoch), session: Session(session), body })
    });
    let reply = (any::<[u64; 2]>(), reply_body())
        .prop_map(|([id, session], body)| Message::Reply(Reply { id: RequestId(id), session: Session(session), body }));
    prop_oneof![request, reply]
}

proptest! {
    #[test]
    fn messages_survive_their_bytes_in_pieces_of_any_size(
        messages in proptest::collection::vec(message(), 1..6),
        cut in 1usize..300,
    ) {
        let mut stream = Vec::new();
        for message in &messages {
            let (header, payload) = message.encode();
            stream.extend_from_slice(&header);
            stream.extend_from_slice(&payload);
        }
        let (mut input, mut got) = (BytesMut::new(), Vec::new());
        for piece in stream.chunks(cut) {
            input.extend_from_slice(piece);
            while let Some(message) = decode(&mut input).unwrap() {
                got.push(message);
            }
        }
        prop_assert_eq!(messages, got);
        prop_assert!(input.is_empty());
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(
        kind in any::<u8>(), flags in any::<u8>(), aux in 0u16..12, rest in any::<[u64; 4]>(), len in 0u32..80,
        payload in proptest::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut input = BytesMut::from(&b"Tdp\x01"[..]);
        input.extend_from_slice(&[kind, flags]);
        input.extend_from_slice(&aux.to_le_bytes());
        for number in rest {
            input.extend_from_slice(&number.to_le_bytes());
        }
        input.extend_from_slice(&len.to_le_bytes());
        input.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        input.extend_from_slice(&payload);
        if let Ok(Some(message)) = decode(&mut input) {
            let (header, payload) = message.encode();
            let again = decode_parts(&Header::decode(&header).unwrap(), payload).unwrap();
            prop_assert_eq!(message, again);
        }
    }

    #[test]
    fn a_hello_survives_its_bytes(volume in any::<u128>(), nonce in any::<[u8; 32]>()) {
        let hello = Hello::new(VolumeId(volume), nonce);
        prop_assert_eq!(Ok(hello), Hello::decode(&hello.encode()));
    }
}

#[test]
fn data_is_not_copied() {
    let message = Request {
        id: RequestId(1),
        epoch: Epoch(1),
        session: Session(1),
        body: RequestBody::Write { offset: 0, data: Bytes::from_static(b"data"), fua: false },
    };
    let (header, payload) = message.encode();
    let mut input = BytesMut::from(&header[..]);
    input.extend_from_slice(&payload);
    let start = input[HEADER_BYTES..].as_ptr();
    let Ok(Some(Message::Request(Request { body: RequestBody::Write { data, .. }, .. }))) = decode(&mut input) else {
        panic!("a write must come out");
    };
    assert_eq!(start, data.as_ptr());
}

#[test]
fn what_is_not_ours_is_refused_with_a_reason() {
    let ping = Request { id: RequestId(1), epoch: Epoch(1), session: Session(1), body: RequestBody::Ping };
    let (good, _) = ping.encode();
    let broken = |at: usize, byte: u8| {
        let mut header = good;
        header[at] = byte;
        Header::decode(&header)
    };
    assert_eq!(Err(WireError::NotTether), broken(0, b'G'));
    assert_eq!(Err(WireError::Version { ours: 1, theirs: (2, 2) }), broken(3, 2));
    assert_eq!(Err(WireError::Kind(0)), broken(4, 0));
    assert_eq!(Err(WireError::Kind(0x88)), broken(4, 0x88));
    assert_eq!(Err(WireError::TooLong { kind: Kind::Ping, len: 1, max: 0 }), broken(44, 1));
}

#[test]
fn hellos_agree_on_a_version_and_a_volume() {
    let ours = Hello::new(VolumeId(7), [0; 32]);
    assert_eq!(Ok(1), ours.agree(&Hello { newest: 9, ..ours }));
    assert!(matches!(ours.agree(&Hello { oldest: 2, newest: 9, ..ours }), Err(WireError::Version { .. })));
    assert!(matches!(ours.agree(&Hello { volume: VolumeId(8), ..ours }), Err(WireError::Volume { .. })));
}
