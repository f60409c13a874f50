//! Members that fall silent, die, come back, or have no room.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::lab::{Lab, name};
use crate::engine::{Event, IoError, IoOp, Leaving, Notice, Phase, Suspended};
use crate::ids::{MemberId, Slot, Span};
use crate::wire::{ControlKind, ControlOp, Failure};

fn names(members: &[usize]) -> BTreeSet<MemberId> {
    members.iter().map(|at| name(*at)).collect()
}

#[test]
fn a_silent_member_is_out_of_the_record_before_a_write_is_acknowledged_without_it() {
    let mut lab = Lab::serving(3);
    lab.stores[2].silent = true;
    let write = lab.write(0, 1);
    lab.pass(Span::millis(900));
    assert_eq!((names(&[0, 1, 2]), false), (lab.in_sync(), lab.is_ok(write)));
    lab.pass(Span::millis(1000));
    assert_eq!((names(&[0, 1]), true), (lab.in_sync(), lab.is_ok(write)), "within two seconds");
    assert!(lab.notices.contains(&Notice::Leaving { member: name(2), why: Leaving::Silent }));
    assert!(lab.stores[..2].iter().all(|store| store.flushes > 0), "kept members flushed first");
}

#[test]
fn two_of_three_can_go_at_once_and_the_last_one_never() {
    let mut lab = Lab::serving(3);
    lab.stores[1].silent = true;
    lab.stores[2].silent = true;
    let write = lab.write(0, 1);
    lab.pass(Span::millis(2000));
    assert_eq!((names(&[0]), true), (lab.in_sync(), lab.is_ok(write)));
    lab.stores[0].silent = true;
    let write = lab.write(0, 2);
    lab.pass(Span::millis(20_000));
    assert_eq!((names(&[0]), false), (lab.in_sync(), lab.is_ok(write)));
    lab.revive(0, false);
    lab.pass(Span::millis(5000));
    assert!(lab.is_ok(write), "it goes on when the last one is back");
}

#[test]
fn a_member_whose_process_restarts_in_time_stays() {
    let mut lab = Lab::serving(2);
    lab.kill(1);
    let write = lab.write(0, 1);
    lab.pass(Span::millis(300));
    lab.revive(1, false);
    lab.pass(Span::millis(300));
    assert_eq!((names(&[0, 1]), true), (lab.in_sync(), lab.is_ok(write)));
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn a_member_whose_host_rebooted_is_away_and_comes_back_by_resync() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    lab.kill(1);
    lab.revive(1, true);
    lab.stores[1].data.fill(0);
    lab.pass(Span::millis(200));
    assert!(lab.notices.contains(&Notice::Leaving { member: name(1), why: Leaving::Rebooted }));
    lab.pass(Span::millis(3000));
    assert_eq!((names(&[0, 1]), Some(64)), (lab.in_sync(), lab.copied()), "only the region that was written");
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn what_a_member_missed_and_nothing_else_is_copied() {
    let mut lab = Lab::serving(3);
    for offset in [0, 64, 640] {
        lab.write(offset, 1);
    }
    lab.kill(2);
    lab.pass(Span::millis(2000));
    assert_eq!(names(&[0, 1]), lab.in_sync());
    lab.write(64, 2);
    lab.write(4032, 3);
    // Longer than the log lives: what was missed is in the map by now.
    lab.pass(Span::millis(20_000));
    assert!(lab.stores[0].durable.log.is_empty());
    lab.revive(2, false);
    lab.pass(Span::millis(3000));
    assert_eq!(names(&[0, 1, 2]), lab.in_sync());
    // Its own log names the three regions from before, the map two, one of them twice.
    assert_eq!(Some(4 * 64), lab.copied());
    assert_eq!(lab.stores[0].data, lab.stores[2].data);
    assert!(lab.stores[0].durable.maps.is_empty(), "nothing is missed any more");
}

#[test]
fn a_replica_of_which_nothing_is_known_is_compared_as_a_whole() {
    let mut lab = Lab::serving(2);
    lab.write(0, 1);
    lab.kill(1);
    lab.pass(Span::millis(3000));
    lab.stores[0].durable.maps.clear();
    lab.kill(0);
    lab.revive(0, false);
    lab.pass(Span::millis(500));
    lab.stores[1].data[2000] = 9;
    lab.revive(1, false);
    lab.pass(Span::millis(3000));
    assert_eq!((names(&[0, 1]), Some(32)), (lab.in_sync(), lab.copied()), "one piece differs");
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn a_resync_keeps_to_its_bandwidth() {
    let mut lab = Lab::serving(2);
    lab.kill(1);
    lab.pass(Span::millis(3000));
    for region in 0..32 {
        lab.write(region * 64, 5);
    }
    lab.tell(Event::ResyncLimit { bytes_per_second: 1024 });
    lab.revive(1, false);
    lab.pass(Span::millis(1500));
    assert_eq!(names(&[0]), lab.in_sync(), "2 KiB take two seconds");
    let progress = lab.notices.iter().filter(|notice| matches!(notice, Notice::Progress { .. })).count();
    assert!(progress > 0);
    let write = lab.write(16, 6);
    assert!(lab.is_ok(write), "writes go on meanwhile");
    lab.pass(Span::millis(2000));
    assert_eq!(names(&[0, 1]), lab.in_sync());
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn without_the_record_a_lost_member_suspends_writes_until_either_is_back() {
    for member_returns in [true, false] {
        let mut lab = Lab::serving(2);
        lab.record_down = true;
        let write = lab.write(0, 1);
        assert!(lab.is_ok(write), "the record is not needed while all members are well");
        lab.stores[1].silent = true;
        let write = lab.write(0, 2);
        lab.pass(Span::millis(5000));
        assert_eq!(None, lab.done.get(&write), "suspended, not failed");
        assert!(lab.notices.contains(&Notice::Suspended(Suspended::RecordUnreachable)));
        if member_returns {
            lab.revive(1, false);
        } else {
            lab.record_down = false;
        }
        lab.pass(Span::millis(4000));
        assert!(lab.is_ok(write), "{member_returns}");
        assert!(lab.notices.contains(&Notice::Resumed));
    }
}

#[test]
fn a_replica_that_cannot_be_recorded_yet_is_recorded_when_the_record_is_back() {
    let mut lab = Lab::serving(2);
    lab.kill(1);
    lab.pass(Span::millis(3000));
    lab.record_down = true;
    lab.revive(1, false);
    lab.pass(Span::millis(3000));
    let write = lab.write(0, 1);
    assert_eq!((names(&[0]), true), (lab.in_sync(), lab.is_ok(write)), "it is required, not recorded");
    lab.record_down = false;
    lab.pass(Span::millis(1000));
    assert_eq!(names(&[0, 1]), lab.in_sync());
    assert_eq!(lab.stores[0].data, lab.stores[1].data);
}

#[test]
fn a_full_member_leaves_and_if_all_are_full_writes_wait_for_room() {
    // Whoever is full may answer first or last.
    for (full, other) in [(0, 1), (1, 0)] {
        let mut lab = Lab::serving(2);
        lab.stores[full].full = true;
        let write = lab.write(0, 1);
        assert_eq!((names(&[other]), true), (lab.in_sync(), lab.is_ok(write)));
        lab.stores[other].full = true;
        let write = lab.write(0, 2);
        lab.pass(Span::millis(3000));
        assert_eq!(None, lab.done.get(&write));
        assert!(lab.notices.contains(&Notice::Suspended(Suspended::NoSpace)));
        lab.stores[other].full = false;
        lab.pass(Span::millis(2000));
        assert!(lab.is_ok(write));
    }
}

#[test]
fn a_full_member_that_is_left_alone_waits_for_room() {
    let mut lab = Lab::serving(2);
    lab.stores[0].full = true;
    lab.stores[1].silent = true;
    let write = lab.write(0, 1);
    lab.pass(Span::millis(5000));
    assert_eq!((names(&[0, 1]), None), (lab.in_sync(), lab.done.get(&write)));
    assert!(lab.notices.contains(&Notice::Suspended(Suspended::NoSpace)));
    lab.stores[0].full = false;
    lab.pass(Span::millis(2000));
    assert_eq!((names(&[0]), true), (lab.in_sync(), lab.is_ok(write)));
}

/// A volume of two of which one is on its way out for good, and the other one is gone before the record says so.
fn leaving_while_the_other_one_goes(trouble: impl FnOnce(&mut Lab), goes: impl FnOnce(&mut Lab)) -> (Lab, u64) {
    let mut lab = Lab::serving(2);
    let acknowledged = lab.write(0, 1);
    assert!(lab.is_ok(acknowledged));
    lab.record_down = true;
    trouble(&mut lab);
    let write = lab.write(64, 2);
    assert!(lab.notices.iter().any(|notice| matches!(notice, Notice::Leaving { member, .. } if *member == name(0))));
    goes(&mut lab);
    lab.pass(Span::millis(3000));
    lab.record_down = false;
    (lab, write)
}

#[test]
fn a_full_member_stays_if_the_other_ones_host_rebooted() {
    let reboots = |lab: &mut Lab| {
        lab.kill(1);
        lab.stores[1].data.fill(0);
        lab.revive(1, true);
    };
    let (mut lab, write) = leaving_while_the_other_one_goes(|lab| lab.stores[0].full = true, reboots);
    lab.pass(Span::millis(3000));
    assert!(lab.notices.contains(&Notice::Staying { member: name(0) }));
    assert_eq!((names(&[0, 1]), None), (lab.in_sync(), lab.done.get(&write)), "it has no room");
    assert!(lab.notices.contains(&Notice::Suspended(Suspended::NoSpace)));
    lab.stores[0].full = false;
    lab.pass(Span::millis(10_000));
    assert_eq!((names(&[0, 1]), true), (lab.in_sync(), lab.is_ok(write)));
    assert_eq!((1, 2), (lab.stores[0].data[0], lab.stores[0].data[64]));
    assert_eq!(lab.stores[0].data, lab.stores[1].data, "the other one came back by resync");
}

#[test]
fn a_failing_member_stays_if_the_other_one_does_not_come_back() {
    for recovers in [true, false] {
        let goes = |lab: &mut Lab| {
            lab.stores[0].broken = !recovers;
            lab.kill(1);
        };
        let (mut lab, write) = leaving_while_the_other_one_goes(|lab| lab.stores[0].broken = true, goes);
        lab.pass(Span::millis(3000));
        let in_sync = if recovers { names(&[0]) } else { names(&[0, 1]) };
        assert_eq!((in_sync, recovers), (lab.in_sync(), lab.is_ok(write)), "it is asked to flush first");
        lab.stores[0].broken = false;
        lab.pass(Span::millis(3000));
        let failed = (!recovers).then_some(IoError::Failed(Failure::Io));
        assert_eq!((names(&[0]), failed), (lab.in_sync(), lab.error(write)), "it failed twice");
    }
}

#[test]
fn a_member_that_somebody_took_out_stays_if_it_is_the_only_one() {
    let remove = |lab: &mut Lab| lab.tell(Event::RemoveMember { slot: Slot(0) });
    let (mut lab, write) = leaving_while_the_other_one_goes(remove, |lab| lab.kill(1));
    lab.pass(Span::millis(3000));
    assert_eq!((names(&[0]), true), (lab.in_sync(), lab.is_ok(write)));
    lab.revive(1, false);
    lab.pass(Span::millis(3000));
    assert_eq!(names(&[0, 1]), lab.in_sync());
}

#[test]
fn if_all_hosts_rebooted_nobody_stays() {
    let reboot = |lab: &mut Lab| {
        for at in [0, 1] {
            lab.kill(at);
            lab.revive(at, true);
        }
    };
    let (lab, write) = leaving_while_the_other_one_goes(|lab| lab.stores[0].full = true, reboot);
    assert_eq!((Phase::Failed, Some(IoError::LastMemberLost)), (lab.engine.phase(), lab.error(write)));
}

#[test]
fn what_only_a_member_did_that_is_gone_was_not_done() {
    let mut lab = Lab::serving(2);
    lab.record_down = true;
    lab.stores[0].broken = true;
    let op = ControlOp { kind: ControlKind::SnapshotCreate, size: 0, body: Bytes::new() };
    let snapshot = lab.submit(IoOp::Control(op));
    lab.kill(1);
    lab.revive(1, true);
    lab.stores[0].broken = false;
    lab.pass(Span::millis(3000));
    lab.record_down = false;
    lab.pass(Span::millis(3000));
    assert_eq!(Some(IoError::Failed(Failure::Io)), lab.error(snapshot));
    assert_eq!(names(&[0, 1]), lab.in_sync());
    assert_eq!(lab.stores[0].chain, lab.stores[1].chain);
}

#[test]
fn a_broken_disk_leaves_and_the_last_one_reports_its_error() {
    let mut lab = Lab::serving(2);
    lab.stores[0].broken = true;
    let write = lab.write(0, 1);
    assert_eq!((names(&[1]), true), (lab.in_sync(), lab.is_ok(write)));
    lab.stores[1].broken = true;
    let write = lab.write(0, 2);
    assert_eq!((names(&[1]), Some(IoError::Failed(Failure::Io))), (lab.in_sync(), lab.error(write)));
}

#[test]
fn a_read_is_tried_at_another_member() {
    let mut lab = Lab::serving(2);
    lab.write(0, 4);
    for blind in [0, 1] {
        lab.stores[blind].blind = true;
        for _ in 0..4 {
            let read = lab.read(0);
            assert!(lab.is_ok(read));
        }
        lab.stores[blind].blind = false;
    }
    lab.stores.iter_mut().for_each(|store| store.blind = true);
    let read = lab.read(0);
    assert_eq!(Some(IoError::Failed(Failure::Io)), lab.error(read));
}

#[test]
fn if_the_last_member_loses_power_requests_fail() {
    let mut lab = Lab::serving(1);
    lab.write(0, 1);
    lab.kill(0);
    let write = lab.write(0, 2);
    lab.revive(0, true);
    lab.pass(Span::millis(500));
    assert_eq!((Phase::Failed, Some(IoError::LastMemberLost)), (lab.engine.phase(), lab.error(write)));
}

#[test]
fn a_replica_is_taken_out_and_put_in_on_request() {
    let mut lab = Lab::serving(3);
    lab.tell(Event::RemoveMember { slot: Slot(1) });
    lab.pass(Span::millis(5000));
    assert_eq!(names(&[0, 2]), lab.in_sync());
    lab.tell(Event::AddMember { member: name(1) });
    lab.pass(Span::millis(5000));
    assert_eq!(names(&[0, 1, 2]), lab.in_sync());
}

/// Compares everything; what was told.
fn scrub(lab: &mut Lab, during: impl FnOnce(&mut Lab)) -> Vec<Notice> {
    lab.notices.clear();
    lab.tell(Event::Scrub { bytes_per_second: 128 });
    during(lab);
    lab.pass(Span::millis(60_000));
    let told = |notice: &&Notice| matches!(notice, Notice::Different { .. } | Notice::Scrubbed { .. });
    lab.notices.iter().filter(told).cloned().collect()
}

#[test]
fn a_comparison_finds_what_differs_and_who_is_alone_with_it() {
    let mut lab = Lab::serving(3);
    let bytes = lab.engine.size();
    assert_eq!(vec![Notice::Scrubbed { bytes, different: 0 }], scrub(&mut lab, |_| {}));
    lab.stores[1].data[40] ^= 1;
    let different = Notice::Different { offset: 32, len: 32, members: vec![name(1)] };
    assert_eq!(vec![different, Notice::Scrubbed { bytes, different: 32 }], scrub(&mut lab, |_| {}));
    assert_eq!(3, lab.in_sync().len(), "nobody is removed for it");
}

#[test]
fn a_comparison_is_not_confused_by_what_happens_meanwhile() {
    let mut lab = Lab::serving(3);
    let bytes = lab.engine.size();
    let told = scrub(&mut lab, |lab| {
        for round in 0..20 {
            let write = lab.write(u64::from(round % 4) * 16, round);
            lab.pass(Span::millis(1500));
            assert!(lab.is_ok(write), "writes go on");
            match round {
                3 => lab.kill(2),
                9 => lab.revive(2, false),
                _ => {}
            }
        }
    });
    assert_eq!(vec![Notice::Scrubbed { bytes, different: 0 }], told);
    assert_eq!(3, lab.in_sync().len());
}

#[test]
fn a_comparison_that_is_stopped_leaves_nothing_behind() {
    let mut lab = Lab::serving(2);
    lab.stores[1].silent = true;
    lab.tell(Event::Scrub { bytes_per_second: 128 });
    lab.tell(Event::Scrub { bytes_per_second: 0 });
    lab.stores[1].silent = false;
    let write = lab.write(0, 1);
    assert!(lab.is_ok(write), "the piece is free again");
    lab.pass(Span::millis(60_000));
    assert!(!lab.notices.iter().any(|notice| matches!(notice, Notice::Scrubbed { .. })));
}
