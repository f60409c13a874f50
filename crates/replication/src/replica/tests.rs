//! What a replica does, told as short conversations with an engine and a store.

use bytes::Bytes;

use super::*;
use crate::ids::{BootId, Generation, Holder, MemberId, VolumeId};
use crate::region::Geometry;
use crate::rules::Rules;

const ENGINE: Holder = Holder(1);
const SUCCESSOR: Holder = Holder(2);
const OLD: Conn = Conn(1);
const NEW: Conn = Conn(2);

struct Lab {
    replica: Replica,
    /// In the hands of the store.
    ops: Vec<(OpId, StoreOp)>,
    sent: Vec<(Conn, ReplyBody)>,
}

fn config(boot: u128) -> Config {
    let geometry = Geometry { size: 1024, shift: 6 };
    Config { volume: VolumeId(7), geometry, boot: BootId(boot), rules: Rules::default() }
}

impl Lab {
    fn new(durable: Durable, boot: u128) -> Self {
        let mut effects = Vec::new();
        let replica = Replica::new(config(boot), durable, 5, &mut effects);
        let mut lab = Self { replica, ops: Vec::new(), sent: Vec::new() };
        lab.take(effects);
        lab
    }

    /// Opened by the first engine, nothing under way.
    fn opened() -> Self {
        let mut lab = Self::new(Durable { boot: BootId(1), ..Durable::default() }, 1);
        lab.open(OLD, 1, ENGINE, 1, Role::Member);
        lab.finish();
        assert!(matches!(lab.sent.pop(), Some((OLD, ReplyBody::Opened(_)))));
        lab
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Store { op, request } => self.ops.push((op, request)),
                Effect::Send { conn, reply } => self.sent.push((conn, reply.body)),
                Effect::Close { .. } => {}
            }
        }
    }

    fn tell(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.replica.apply(event, &mut effects);
        self.take(effects);
    }

    fn ask(&mut self, conn: Conn, epoch: u64, session: u64, body: RequestBody) {
        let request = Request { id: RequestId(0), epoch: Epoch(epoch), session: Session(session), body };
        self.tell(Event::Request { conn, request });
    }

    fn open(&mut self, conn: Conn, epoch: u64, holder: Holder, session: u64, role: Role) {
        let open = Open { holder, volume: VolumeId(7), generation: Generation(epoch), role };
        self.ask(conn, epoch, session, RequestBody::Open(open));
    }

    fn write(&mut self, conn: Conn, epoch: u64, offset: u64) {
        let body = RequestBody::Write { offset, data: Bytes::from_static(b"data"), fua: false };
        self.ask(conn, epoch, epoch, body);
    }

    /// The store finishes what it was given first.
    fn store(&mut self, result: Result<StoreAnswer, Failure>) -> StoreOp {
        let (op, request) = self.ops.remove(0);
        self.tell(Event::Stored { op, result });
        request
    }

    fn finish(&mut self) {
        while !self.ops.is_empty() {
            self.store(Ok(StoreAnswer::Done));
        }
    }
}

fn member(name: &str) -> MemberId {
    MemberId::new(name).unwrap()
}

#[test]
fn a_promise_is_durable_before_it_is_answered() {
    let mut lab = Lab::new(Durable { boot: BootId(1), ..Durable::default() }, 1);
    lab.open(OLD, 1, ENGINE, 1, Role::Member);
    assert!(lab.sent.is_empty());
    let persisted = lab.store(Ok(StoreAnswer::Done));
    assert!(matches!(persisted, StoreOp::Persist(changes) if matches!(changes[..], [StateChange::Promise(..)])));
    assert!(matches!(lab.sent[..], [(OLD, ReplyBody::Opened(_))]));
}

#[test]
fn a_promise_that_cannot_be_kept_is_not_given() {
    let mut lab = Lab::new(Durable { boot: BootId(1), ..Durable::default() }, 1);
    lab.open(OLD, 1, ENGINE, 1, Role::Member);
    lab.store(Err(Failure::Io));
    assert_eq!(vec![(OLD, ReplyBody::Failed(Failure::Io))], lab.sent);
    assert_eq!(None, lab.replica.durable().promise);
}

#[test]
fn older_engines_and_sessions_are_refused() {
    let table = [
        // promised (epoch, holder, session), asked, refusal
        ((2, SUCCESSOR, 1), (1, ENGINE, 9), Some(Failure::Fenced { promised: Epoch(2) })),
        ((1, SUCCESSOR, 1), (1, ENGINE, 9), Some(Failure::Fenced { promised: Epoch(1) })),
        ((1, ENGINE, 5), (1, ENGINE, 4), Some(Failure::Session)),
        ((1, ENGINE, 5), (1, ENGINE, 6), None),
        ((1, ENGINE, 5), (2, SUCCESSOR, 1), None),
    ];
    for ((epoch, holder, session), asked, refusal) in table {
        let promise = Some(Promise { epoch: Epoch(epoch), holder, session: Session(session) });
        let mut lab = Lab::new(Durable { boot: BootId(1), promise, ..Durable::default() }, 1);
        lab.open(NEW, asked.0, asked.1, asked.2, Role::Member);
        lab.finish();
        match refusal {
            Some(failure) => assert_eq!(vec![(NEW, ReplyBody::Failed(failure))], lab.sent),
            None => assert!(matches!(lab.sent[..], [(NEW, ReplyBody::Opened(_))])),
        }
    }
}

#[test]
fn a_promise_waits_for_what_older_engines_left_with_the_store_and_drops_the_rest() {
    let mut lab = Lab::opened();
    lab.write(OLD, 1, 0);
    lab.store(Ok(StoreAnswer::Done));
    lab.write(OLD, 1, 64);
    assert!(matches!(lab.ops[..], [(_, StoreOp::Write { offset: 0, .. }), (_, StoreOp::Persist(_))]));
    lab.open(NEW, 2, SUCCESSOR, 1, Role::Member);
    lab.store(Ok(StoreAnswer::Done));
    lab.store(Ok(StoreAnswer::Done));
    // The write to the second region was not with the store yet: it is gone.
    assert!(
        matches!(&lab.ops[..], [(_, StoreOp::Persist(changes))] if matches!(changes[..], [StateChange::Promise(..)]))
    );
    lab.finish();
    let Some((NEW, ReplyBody::Opened(opened))) = lab.sent.last() else { panic!("{:?}", lab.sent) };
    assert_eq!(vec![0, 1], opened.regions.iter().collect::<Vec<_>>());
    lab.write(OLD, 1, 0);
    assert_eq!(Some(&(OLD, ReplyBody::Failed(Failure::Fenced { promised: Epoch(2) }))), lab.sent.last());
}

#[test]
fn a_region_is_logged_once_and_before_it_is_written() {
    let mut lab = Lab::opened();
    lab.write(OLD, 1, 0);
    lab.write(OLD, 1, 8);
    assert!(
        matches!(&lab.ops[..], [(_, StoreOp::Persist(changes))] if matches!(changes[..], [StateChange::LogAdd(_)]))
    );
    lab.store(Ok(StoreAnswer::Done));
    assert!(matches!(lab.ops[..], [(_, StoreOp::Write { .. }), (_, StoreOp::Write { .. })]));
    lab.finish();
    lab.write(OLD, 1, 16);
    assert!(matches!(lab.ops[..], [(_, StoreOp::Write { .. })]), "it is in the log already");
}

#[test]
fn a_write_that_cannot_be_logged_fails_and_is_not_applied() {
    let mut lab = Lab::opened();
    lab.write(OLD, 1, 0);
    lab.store(Err(Failure::NoSpace));
    assert_eq!(Some(&(OLD, ReplyBody::Failed(Failure::NoSpace))), lab.sent.last());
    assert!(lab.ops.is_empty());
}

#[test]
fn what_is_cleared_goes_to_the_maps_and_a_busy_region_is_not_cleared() {
    let mut lab = Lab::opened();
    lab.ask(OLD, 1, 1, RequestBody::MapStart { member: member("away") });
    lab.write(OLD, 1, 0);
    lab.write(OLD, 1, 64);
    lab.finish();
    lab.write(OLD, 1, 64);
    let log = lab.replica.log_number;
    lab.ask(OLD, 1, 1, RequestBody::LogClear { log, regions: [0, 1].into_iter().collect() });
    lab.finish();
    let durable = lab.replica.durable();
    assert_eq!(vec![1], durable.log.iter().collect::<Vec<_>>());
    assert_eq!(vec![0], durable.maps[&member("away")].iter().collect::<Vec<_>>());
    lab.ask(OLD, 1, 1, RequestBody::Missed { member: member("away") });
    let missed = Some([0, 1].into_iter().collect());
    assert_eq!(Some(&(OLD, ReplyBody::Regions { missed, chain: 5 })), lab.sent.last(), "map and log");
    lab.ask(OLD, 1, 1, RequestBody::Missed { member: member("stranger") });
    assert_eq!(Some(&(OLD, ReplyBody::Regions { missed: None, chain: 5 })), lab.sent.last());
    lab.ask(OLD, 1, 1, RequestBody::LogClear { log: log + 1, regions: [1].into_iter().collect() });
    assert_eq!(Some(&(OLD, ReplyBody::Failed(Failure::Session))), lab.sent.last(), "a log of another session");
}

#[test]
fn a_reboot_leaves_doubt_only_if_the_log_names_something() {
    for (log, doubtful) in [(vec![], false), (vec![3], true)] {
        let durable = Durable { boot: BootId(1), log: log.into_iter().collect(), ..Durable::default() };
        let mut lab = Lab::new(durable, 2);
        lab.open(OLD, 1, ENGINE, 1, Role::Member);
        lab.finish();
        assert_eq!(doubtful, lab.replica.durable().doubtful);
        lab.ask(OLD, 1, 1, RequestBody::Settled);
        lab.finish();
        assert!(!lab.replica.durable().doubtful);
    }
}

#[test]
fn a_joiner_forgets_what_others_missed() {
    let maps = [(member("x"), RegionSet::new())].into_iter().collect();
    let mut lab = Lab::new(Durable { boot: BootId(1), maps, ..Durable::default() }, 1);
    lab.open(OLD, 1, ENGINE, 1, Role::Joiner);
    lab.finish();
    assert!(lab.replica.durable().maps.is_empty());
}

#[test]
fn a_chain_is_built_only_when_it_is_known_to_be_incomplete() {
    let mut lab = Lab::opened();
    lab.ask(OLD, 1, 1, RequestBody::ChainSet { chain: Bytes::from_static(b"chain") });
    assert!(matches!(&lab.ops[..], [(_, StoreOp::Persist(changes))] if changes[..] == [StateChange::Rebuilding]));
    lab.store(Ok(StoreAnswer::Done));
    assert!(matches!(lab.ops[..], [(_, StoreOp::ChainSet { .. })]));
    lab.store(Ok(StoreAnswer::Controlled { chain: 9, size: 1024, body: Bytes::new() }));
    assert_eq!(0, lab.replica.chain_identity());
    lab.ask(OLD, 1, 1, RequestBody::Settled);
    lab.finish();
    assert_eq!(9, lab.replica.chain_identity());
}

#[test]
fn nothing_is_served_before_an_open_and_another_volume_never() {
    let mut lab = Lab::new(Durable { boot: BootId(1), ..Durable::default() }, 1);
    lab.write(OLD, 1, 0);
    assert_eq!(vec![(OLD, ReplyBody::Failed(Failure::NotOpen))], lab.sent);
    let open = Open { holder: ENGINE, volume: VolumeId(8), generation: Generation(1), role: Role::Member };
    lab.ask(OLD, 1, 1, RequestBody::Open(open));
    assert_eq!(Some(&(OLD, ReplyBody::Failed(Failure::Volume))), lab.sent.last());
}
