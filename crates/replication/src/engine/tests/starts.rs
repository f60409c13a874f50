//! Starts, stops, takeovers and migrations.

use super::lab::{Lab, name};
use crate::engine::{Event, IoAnswer, IoError, IoId, IoOp, Notice, Phase};
use crate::ids::{Epoch, Holder, Span};
use crate::record::Change;

#[test]
fn a_new_engine_makes_members_equal_and_waits_for_the_lease() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    // A write that reached one member only, when its engine died.
    lab.stores[1].silent = true;
    let lost = lab.write(64, 2);
    lab.stores[1].silent = false;
    assert_ne!(lab.stores[0].data, lab.stores[1].data);
    lab.replace_engine(2);
    lab.tell(Event::Start { older_stopped: false });
    assert_eq!(Phase::Waiting, lab.engine.phase());
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
    let read = lab.read(64);
    lab.pass(Span::millis(3200));
    assert!(!lab.is_ok(read), "an older engine may still serve reads");
    lab.pass(Span::millis(200));
    assert!(lab.is_ok(read) && !lab.done.contains_key(&lost));
    assert_eq!(Epoch(2), lab.engine.epoch());
}

#[test]
fn a_start_goes_on_without_members_that_do_not_answer() {
    let mut lab = Lab::new(3);
    lab.stores[0].down = true;
    lab.stores[1].silent = true;
    lab.tell(Event::Start { older_stopped: true });
    assert_eq!(Phase::Opening, lab.engine.phase());
    lab.pass(Span::millis(1100));
    assert_eq!(Phase::Serving, lab.engine.phase());
    assert_eq!(vec![name(2)], lab.in_sync().into_iter().collect::<Vec<_>>());
    lab.revive(0, false);
    lab.revive(1, false);
    lab.pass(Span::millis(10_000));
    assert_eq!(3, lab.in_sync().len());
}

#[test]
fn a_doubtful_member_alone_is_no_basis_until_somebody_accepts_the_loss() {
    for accepted in [false, true] {
        let mut lab = Lab::serving(2);
        lab.write(0, 1);
        lab.kill(0);
        lab.kill(1);
        lab.revive(0, true);
        lab.replace_engine(2);
        lab.tell(Event::Start { older_stopped: true });
        lab.pass(Span::millis(5000));
        let waiting = Notice::WaitingForMembers { doubtful: vec![name(0)], silent: vec![name(1)] };
        assert!(lab.notices.contains(&waiting), "{:?}", lab.notices);
        if accepted {
            lab.tell(Event::AcceptLoss { member: name(0) });
        } else {
            lab.revive(1, false);
        }
        lab.pass(Span::millis(1000));
        assert_eq!(Phase::Serving, lab.engine.phase());
        assert!(!lab.stores[0].durable.doubtful);
    }
}

#[test]
fn an_engine_that_stops_in_order_spares_its_successor_the_wait() {
    let mut lab = Lab::serving(2);
    let write = lab.write(0, 1);
    lab.tell(Event::Stop);
    assert!(lab.is_ok(write) && lab.record.released);
    assert_eq!(Phase::Stopped, lab.engine.phase());
    assert!(lab.stores.iter().all(|store| store.durable.log.is_empty()));
    let late = lab.write(0, 2);
    assert_eq!(Some(IoError::Stopped), lab.error(late));
    lab.replace_engine(2);
    lab.tell(Event::Start { older_stopped: false });
    assert_eq!(Phase::Serving, lab.engine.phase());
}

#[test]
fn a_fenced_engine_fails_what_it_sent_and_tells_it_from_what_it_did_not() {
    let mut lab = Lab::serving(2);
    lab.stores[1].silent = true;
    let (sent, behind) = (lab.write(0, 1), lab.write(0, 2));
    lab.record = lab.record.apply(&Change::Start { holder: Holder(9) }).unwrap();
    lab.pass(Span::millis(3000));
    assert_eq!(Phase::Fenced, lab.engine.phase());
    assert_eq!(Some(IoError::Fenced { sent: true }), lab.error(sent));
    assert_eq!(Some(IoError::Fenced { sent: false }), lab.error(behind));
    let late = lab.write(0, 3);
    assert_eq!(Some(IoError::Fenced { sent: false }), lab.error(late));
}

#[test]
fn a_record_that_was_set_back_stops_a_start() {
    let mut lab = Lab::serving(2);
    let backup = lab.record.clone();
    for holder in 2..5 {
        lab.replace_engine(holder);
        lab.tell(Event::Start { older_stopped: true });
    }
    lab.record = backup;
    lab.replace_engine(9);
    lab.tell(Event::Start { older_stopped: true });
    lab.pass(Span::millis(3000));
    assert!(lab.notices.iter().any(|notice| matches!(notice, Notice::RecordRewound(_))), "{:?}", lab.notices);
    assert_ne!(Phase::Serving, lab.engine.phase());
}

#[test]
fn a_standby_reads_through_the_source_and_its_first_write_takes_over() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    lab.replace_engine(2);
    let at = lab.record.generation;
    lab.tell(Event::StandBy { at });
    assert_eq!((Some(Holder(2)), Phase::Standby), (lab.record.standby, lab.engine.phase()));
    let read = lab.read(0);
    let (io, op) = lab.to_source.pop().unwrap();
    assert_eq!((IoId(read), IoOp::Read { offset: 0, len: 16 }), (io, op));
    lab.tell(Event::SourceAnswered { io, result: Ok(IoAnswer::Data(bytes::Bytes::from(vec![1; 16]))) });
    assert!(lab.is_ok(read));
    let (left, write) = (lab.read(0), lab.write(0, 2));
    assert!(lab.stop_source);
    assert_eq!((Phase::Waiting, Holder(2)), (lab.engine.phase(), lab.record.holder));
    lab.tell(Event::SourceStopped { source: Holder(9) });
    assert_eq!(Phase::Waiting, lab.engine.phase(), "somebody else than the predecessor stopped");
    let source = lab.record.previous;
    lab.tell(Event::SourceStopped { source });
    assert!(lab.is_ok(left) && lab.is_ok(write), "the wait falls away");
}

/// What the logs name has to be compared by the successor, while a client waits.
#[test]
fn a_source_that_tidies_up_leaves_its_successor_nothing_to_compare() {
    for tidy in [false, true] {
        let mut lab = Lab::serving(2);
        lab.write(0, 1);
        lab.write(1024, 1);
        if tidy {
            lab.tell(Event::Tidy);
        }
        let logged = |lab: &Lab| lab.stores.iter().map(|store| store.durable.log.len()).max();
        assert_eq!(Some(if tidy { 0 } else { 2 }), logged(&lab));
        lab.replace_engine(2);
        lab.tell(Event::Start { older_stopped: true });
        assert_eq!(Phase::Serving, lab.engine.phase());
        let compared = lab.notices.iter().any(|notice| matches!(notice, Notice::Equalised { .. }));
        assert_eq!(compared, !tidy, "{:?}", lab.notices);
    }
}

#[test]
fn a_standby_that_was_rolled_back_is_not_promoted() {
    let mut lab = Lab::serving(2);
    lab.replace_engine(2);
    let at = lab.record.generation;
    lab.tell(Event::StandBy { at });
    lab.record = lab.record.apply(&Change::ClearStandby { standby: Holder(2) }).unwrap();
    let write = lab.write(0, 2);
    assert_eq!((Phase::Stopped, Some(IoError::Stopped)), (lab.engine.phase(), lab.error(write)));
    assert_eq!(Holder(1), lab.record.holder);
}

#[test]
fn a_standby_asks_again_when_the_source_is_back() {
    let mut lab = Lab::serving(2);
    lab.replace_engine(2);
    let at = lab.record.generation;
    lab.tell(Event::StandBy { at });
    let read = lab.read(0);
    lab.to_source.clear();
    lab.tell(Event::SourceGone);
    let late = Event::SourceAnswered { io: IoId(read), result: Ok(IoAnswer::Data(bytes::Bytes::from(vec![9; 16]))) };
    lab.tell(late);
    assert!(!lab.is_ok(read), "an answer from before is not used");
    lab.tell(Event::SourceThere);
    let (io, _) = lab.to_source.pop().unwrap();
    assert_eq!(IoId(read), io);
    lab.tell(Event::SourceAnswered { io, result: Err(IoError::Fenced { sent: true }) });
    assert_eq!(None, lab.error(read), "it waits for promotion");
    lab.tell(Event::SourceThere);
    let io = lab.to_source.pop().unwrap().0;
    lab.tell(Event::SourceAnswered { io, result: Err(IoError::Failed(crate::wire::Failure::Io)) });
    assert_eq!(Some(IoError::Failed(crate::wire::Failure::Io)), lab.error(read), "nobody else could do better");
}

#[test]
fn a_source_believes_its_successor_and_nobody_older() {
    let mut lab = Lab::serving(2);
    let epoch = lab.record.epoch;
    lab.tell(Event::Superseded { by: Holder(2), epoch });
    assert_eq!(Phase::Serving, lab.engine.phase(), "its own epoch is no successor's");
    lab.tell(Event::Superseded { by: Holder(2), epoch: epoch.next() });
    assert_eq!((Phase::Fenced, true), (lab.engine.phase(), lab.engine.has_served()));
    let write = lab.write(0, 1);
    assert_eq!(Some(IoError::Fenced { sent: false }), lab.error(write));
}

#[test]
fn a_member_that_failed_once_is_asked_again_if_the_others_are_all_doubtful() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    lab.replace_engine(2);
    lab.revive(1, true);
    lab.stores[0].broken = true;
    lab.tell(Event::Start { older_stopped: true });
    lab.pass(Span::millis(2000));
    assert_ne!(Phase::Serving, lab.engine.phase(), "one cannot be written, the other one is doubtful");
    lab.stores[0].broken = false;
    lab.pass(Span::millis(5000));
    assert_eq!(Phase::Serving, lab.engine.phase());
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
    assert_eq!(2, lab.in_sync().len());
}
