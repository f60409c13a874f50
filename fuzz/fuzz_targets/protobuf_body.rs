//! A protobuf body, with and without its envelope.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tether_machinery::proto;

fuzz_target!(|data: &[u8]| {
    let _ = proto::decode(data);
    let mut enveloped = b"k8s\0".to_vec();
    enveloped.extend_from_slice(data);
    let _ = proto::decode(&enveloped);
});
