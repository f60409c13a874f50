//! Requests of frontends: order, control operations, what an idle engine costs.

use bytes::Bytes;

use super::lab::{GEOMETRY, Lab, name};
use crate::engine::{Effect, Event, IoAnswer, IoError, IoId, IoOp};
use crate::ids::{Session, Slot, Span, Time};
use crate::wire::{ControlKind, ControlOp, Failure, Reply, ReplyBody, RequestId};

fn control(kind: ControlKind, size: u64) -> IoOp {
    IoOp::Control(ControlOp { kind, size, body: Bytes::new() })
}

#[test]
fn what_was_written_is_read_from_every_member() {
    let mut lab = Lab::serving(3);
    lab.write(100, 7);
    for _ in 0..6 {
        let read = lab.read(100);
        assert_eq!(Some(&Ok(IoAnswer::Data(Bytes::from(vec![7; 16])))), lab.done.get(&read));
    }
}

#[test]
fn requests_outside_the_volume_are_refused() {
    let mut lab = Lab::serving(1);
    let size = GEOMETRY.size;
    let table = [
        IoOp::Read { offset: size, len: 1 },
        IoOp::Read { offset: 0, len: 0 },
        IoOp::Write { offset: size - 1, data: Bytes::from_static(b"ab"), fua: false },
        IoOp::Trim { offset: u64::MAX, len: 1 },
        IoOp::Zero { offset: 1, len: u32::MAX, fua: false, unmap: true },
    ];
    for op in table {
        let io = lab.submit(op);
        assert_eq!(Some(IoError::Invalid), lab.error(io));
    }
}

#[test]
fn a_control_operation_waits_for_what_is_before_it_and_holds_what_is_after() {
    let mut lab = Lab::serving(2);
    lab.stores[1].silent = true;
    let before = lab.write(0, 1);
    let snapshot = lab.submit(control(ControlKind::SnapshotCreate, 0));
    let after = lab.write(0, 2);
    assert!([before, snapshot, after].iter().all(|io| !lab.done.contains_key(io)));
    lab.stores[1].silent = false;
    lab.revive(1, false);
    lab.pass(Span::millis(1500));
    assert!([before, snapshot, after].iter().all(|io| lab.is_ok(*io)));
    assert_eq!(2, lab.stores[0].chain);
}

#[test]
fn a_member_that_cannot_do_what_others_did_leaves() {
    let mut lab = Lab::serving(2);
    lab.stores[1].broken = true;
    let snapshot = lab.submit(control(ControlKind::SnapshotCreate, 0));
    assert!(lab.is_ok(snapshot));
    assert_eq!(vec![name(0)], lab.in_sync().into_iter().collect::<Vec<_>>());
    lab.stores[1].broken = false;
    lab.write(0, 3);
    lab.pass(Span::millis(3000));
    assert_eq!(2, lab.in_sync().len(), "it is rebuilt with the chain of the others");
    assert_eq!((2, false), (lab.stores[1].chain, lab.stores[1].durable.rebuilding));
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn if_no_member_can_do_it_all_stay_and_the_request_fails() {
    let mut lab = Lab::serving(2);
    lab.stores.iter_mut().for_each(|store| store.broken = true);
    let snapshot = lab.submit(control(ControlKind::SnapshotCreate, 0));
    assert_eq!(Some(IoError::Failed(Failure::Io)), lab.error(snapshot));
    assert_eq!(2, lab.in_sync().len());
}

#[test]
fn an_expansion_makes_room() {
    let mut lab = Lab::serving(2);
    let expand = lab.submit(control(ControlKind::Expand, 8192));
    assert!(lab.is_ok(expand));
    let write = lab.write(8000, 1);
    assert!(lab.is_ok(write));
    assert_eq!(8192, lab.engine.size());
}

#[test]
fn an_idle_engine_empties_the_log_and_then_sleeps() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    assert!(!lab.stores[0].durable.log.is_empty());
    lab.pass(Span::millis(60_000));
    assert!(lab.stores.iter().all(|store| store.durable.log.is_empty()), "a reboot now leaves no doubt");
    assert_eq!(None, lab.engine.armed());
    let timers = lab.timers;
    lab.pass(Span::millis(600_000));
    assert_eq!(timers, lab.timers);
    let read = lab.read(0);
    assert!(lab.is_ok(read), "the lease lapsed and is renewed with the read");
}

#[test]
fn a_lease_that_lapsed_holds_a_read_back() {
    let mut lab = Lab::serving(2);
    lab.pass(Span::millis(60_000));
    lab.stores[1].silent = true;
    let reads = [lab.read(0), lab.read(0)];
    assert!(reads.iter().all(|io| !lab.is_ok(*io)), "the silent member may have promised another epoch");
    lab.pass(Span::millis(2000));
    assert!(reads.iter().all(|io| lab.is_ok(*io)), "now it is out of the set");
}

#[test]
fn timers_are_rare_under_load() {
    let mut lab = Lab::serving(2);
    for step in 0..10_000 {
        lab.write(step % 64 * 64, step as u8);
        lab.pass(Span(50));
    }
    assert!(lab.timers < 10, "{} timers in half a second", lab.timers);
}

/// `cargo test --release -p tether-replication hot_path -- --ignored --nocapture`
#[test]
#[ignore = "prints a figure, asserts none"]
fn hot_path() {
    let mut lab = Lab::serving(3);
    let data = Bytes::from(vec![0u8; 4096]);
    let writes = 300_000u64;
    let mut effects = Vec::new();
    let begin = std::time::Instant::now();
    // 32 requests are under way all the time.
    let mut waiting = std::collections::VecDeque::new();
    for io in 0..writes {
        let offset = io * 7919 % (GEOMETRY.size - 16);
        let op = IoOp::Write { offset, data: data.slice(..16), fua: false };
        lab.engine.apply(Event::Io { id: IoId(io), op }, Time(io), &mut effects);
        collect(&mut effects, &mut waiting);
        while waiting.len() > 96 {
            let (slot, session, id) = waiting.pop_front().unwrap();
            let reply = Reply { id, session, body: ReplyBody::Done };
            lab.engine.apply(Event::Reply { slot, reply }, Time(io), &mut effects);
            collect(&mut effects, &mut waiting);
        }
    }
    let spent = begin.elapsed();
    println!("{writes} writes to 3 members: {:.2} µs each", spent.as_secs_f64() * 1e6 / writes as f64);
}

fn collect(effects: &mut Vec<Effect>, waiting: &mut std::collections::VecDeque<(Slot, Session, RequestId)>) {
    for effect in effects.drain(..) {
        if let Effect::Send { slot, session, request } = effect {
            waiting.push_back((slot, session, request.id));
        }
    }
}
