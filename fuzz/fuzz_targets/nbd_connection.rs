//! Bytes of an NBD client, cut anywhere, with an engine that answers now or later, rightly or wrongly.
//!
//! Each input begins with the cuts and answers, then come the client's bytes. Whatever they are, nothing panics, each
//! request is within the volume, and what is in flight stays within the limits.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use tether_engine::frontend::block::{ClientId, Completion, Request};
use tether_engine::frontend::nbd::connection::{Connection, Limits};
use tether_engine::frontend::nbd::export::Volume;
use tether_engine::frontend::nbd::listen::Security;
use tether_replication::engine::{IoAnswer, IoError, IoOp, IoResult};

const SIZE: u64 = 1 << 20;
const LIMITS: Limits = Limits { requests: 16, bytes: 256 << 10 };
/// How many bytes of each input say what happens; the rest is what the client sends.
const PLAN_BYTES: usize = 16;

fn answer(op: &IoOp, plan: u8) -> IoResult {
    match (plan % 4, op) {
        (0, _) => Err(IoError::Fenced { sent: true }),
        (1, IoOp::Read { .. }) => Ok(IoAnswer::Data(Bytes::from_static(b"short"))),
        (_, IoOp::Read { len, .. }) => Ok(IoAnswer::Data(Bytes::from(vec![0; *len as usize]))),
        _ => Ok(IoAnswer::Done),
    }
}

fn within(op: &IoOp) -> bool {
    match op {
        IoOp::Read { offset, len }
        | IoOp::Trim { offset, len }
        | IoOp::Status { offset, len }
        | IoOp::Zero { offset, len, .. } => offset + u64::from(*len) <= SIZE,
        IoOp::Write { offset, data, .. } => offset + data.len() as u64 <= SIZE,
        IoOp::Flush | IoOp::Control(_) => true,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, mut bytes)) = data.split_at_checked(PLAN_BYTES) else { return };
    let volume = Volume { name: "v1".into(), size: SIZE, read_only: plan[0] & 1 == 1, block: 512, lineage: None };
    let mut connection = Connection::new(ClientId(1), &volume, Security::Clear, LIMITS);
    let (mut stream, mut open) = (BytesMut::new(), Vec::<Request>::new());
    for turn in 0.. {
        let step = plan[turn % PLAN_BYTES];
        let cut = bytes.len().min(connection.wanted()).min(usize::from(step) * 5 + 1);
        if cut == 0 && open.is_empty() {
            break;
        }
        let (now, later) = bytes.split_at(cut);
        bytes = later;
        stream.extend_from_slice(now);
        let mut submit = Vec::new();
        connection.feed(&mut stream, &mut submit);
        assert!(submit.iter().all(|request| within(&request.op)), "{submit:?}");
        open.append(&mut submit);
        assert!(connection.in_flight() <= LIMITS.requests, "too much is in flight");
        if step & 3 != 0 && !open.is_empty() {
            let request = open.swap_remove(usize::from(step) % open.len());
            let result = answer(&request.op, step >> 2);
            connection.complete(Completion { io: request.io, result }, &mut open);
        }
        let sent: u64 = connection.output().iter().map(|segment| segment.len() as u64).sum();
        connection.sent(sent, &mut open);
        if connection.is_over().is_some() || (cut == 0 && step.is_multiple_of(4) && turn > 4096) {
            break;
        }
    }
});
