//! Bytes on the replicas' data port, in pieces: never a panic, and what is understood means the same when sent again.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use tether_replication::wire::{HEADER_BYTES, HELLO_BYTES, Header, Hello, decode, decode_parts};

fuzz_target!(|data: &[u8]| {
    if let Some(bytes) = data.first_chunk::<HELLO_BYTES>()
        && let Ok(hello) = Hello::decode(bytes)
    {
        assert_eq!(Ok(hello), Hello::decode(&hello.encode()));
    }
    let Some((cut, stream)) = data.split_first() else { return };
    let mut input = BytesMut::new();
    for piece in stream.chunks(usize::from(*cut).max(1)) {
        input.extend_from_slice(piece);
        loop {
            match decode(&mut input) {
                Ok(Some(message)) => {
                    let (header, payload) = message.encode();
                    let header: [u8; HEADER_BYTES] = header;
                    let header = Header::decode(&header).expect("what was encoded must be a header");
                    assert_eq!(Ok(message), decode_parts(&header, payload));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
