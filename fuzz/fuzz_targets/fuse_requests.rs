//! Requests of the kernel as any bytes: nothing panics, and what comes out is within the volume.

#![no_main]

use bytes::BufMut;
use libfuzzer_sys::fuzz_target;
use tether_engine::device::fuse::machine::{Fuse, Geometry, MAX_WRITE_BYTES, Outcome};
use tether_engine::frontend::block::ClientId;
use tether_replication::engine::IoOp;

const SIZE: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let geometry = Geometry { size: SIZE, block: 512, read_only: false };
    let mut machine = Fuse::new(ClientId(0), geometry, MAX_WRITE_BYTES);
    let mut outcome = Outcome::default();
    let mut buffer = machine.receive();
    buffer.put_slice(&data[..data.len().min(buffer.capacity())]);
    machine.received(buffer, &mut outcome);
    for request in &outcome.requests {
        let end = match &request.op {
            IoOp::Read { offset, len } | IoOp::Zero { offset, len, .. } => offset + u64::from(*len),
            IoOp::Write { offset, data, .. } => offset + data.len() as u64,
            _ => 0,
        };
        assert!(end <= SIZE, "{request:?}");
    }
});
