//! The source of a standby: the engine that it reads through, until it takes over.
//!
//! ```text
//!   record names the holder ─► dial it ─► prove ─► open: reads go through
//!            ▲                                       │ gone
//!            └────────── after a pause ◄─────────────┘
//! ```
//!
//! Whoever answers must be the engine that the record names as holder. After the promotion the source is told to stop;
//! its answer spares the wait for its lease, and nothing else depends on it.

use std::collections::HashMap;

use bytes::BytesMut;
use tether_replication::engine::{CasId, CasOutcome, Event as EngineEvent, IoAnswer, IoError, IoId, IoOp, Phase};
use tether_replication::ids::{Holder, Session};
use tether_replication::record::Record;
use tether_replication::wire::{Failure, Message, Reply, ReplyBody, Request, RequestBody, RequestId};

use super::EngineServer;
use super::peers::name_of;
use crate::auth::{Dialer, HANDSHAKE_MS};
use crate::framing::{self, Framing, Headers};
use crate::host::{Address, CallId, ConnId, Effects, Inbox, Io, Time, TimerId};
use crate::record::RecordCall;

/// Pause between attempts to reach the source.
const RETRY_MS: u64 = 100;
/// The numbers of the requests that are no client's.
const STAND_DOWN: RequestId = RequestId(u64::MAX);
const TIDY: RequestId = RequestId(u64::MAX - 1);
/// How long a source may take to clear the logs: a flush and a small write, on disks that have better days.
const TIDY_MS: u64 = 100;

#[derive(Default)]
enum Stage {
    #[default]
    Away,
    Dialing,
    Proving(Box<Dialer>),
    Open(Framing),
}

/// The source clears the logs before it is replaced.
struct Tidying {
    timer: TimerId,
    /// The record names this engine already.
    held: Option<(CasId, CasOutcome)>,
}

/// The connection to the source, and what was asked on it.
#[derive(Default)]
pub(super) struct Source {
    pub address: Option<Address>,
    /// Who must answer there: the holder in the record.
    wanted: Holder,
    conn: Option<ConnId>,
    stage: Stage,
    asked: HashMap<RequestId, IoId>,
    next: u64,
    retry: Option<TimerId>,
    loading: Option<CallId>,
    tidying: Option<Tidying>,
    headers: Headers,
}

impl Source {
    pub fn new(address: Option<Address>) -> Self {
        Self { address, ..Self::default() }
    }

    pub fn is_source(&self, conn: ConnId) -> bool {
        self.conn == Some(conn)
    }

    /// Whether it is still open who is at the other end.
    pub fn is_proving(&self, conn: ConnId) -> bool {
        self.is_source(conn) && matches!(self.stage, Stage::Proving(_))
    }

    pub fn is_connected(&self) -> bool {
        self.conn.is_some()
    }

    fn send(&mut self, request: &Request, io: &mut Io) -> bool {
        let (Some(conn), Stage::Open(_)) = (self.conn, &self.stage) else { return false };
        framing::send(conn, request.encode(), &mut self.headers, io);
        true
    }

    fn hang_up(&mut self, io: &mut Io) {
        (self.stage, self.loading) = (Stage::Away, None);
        self.asked.clear();
        if let Some(conn) = self.conn.take() {
            io.close(conn);
        }
    }
}

impl EngineServer {
    fn reads_through(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.phase() == Phase::Standby) && self.source.address.is_some()
    }

    /// A standby begins to look for its source, or looks again: who that is, the record says.
    pub(super) fn find_source(&mut self, out: &mut Effects<Self>) {
        if self.reads_through() && self.source.conn.is_none() && self.source.loading.is_none() {
            self.source.loading = Some(out.call(RecordCall::Load));
        }
    }

    /// True if the record was loaded for this.
    pub(super) fn source_loaded(
        &mut self,
        id: CallId,
        result: &Result<Option<Record>, String>,
        now: Time,
        out: &mut Effects<Self>,
    ) -> bool {
        if self.source.loading.take_if(|loading| *loading == id).is_none() {
            return false;
        }
        let (Some(address), true) = (self.source.address.clone(), self.reads_through()) else { return true };
        match result {
            Ok(Some(record)) => {
                let conn = out.io.dial(address, now.plus_millis(HANDSHAKE_MS));
                self.source.wanted = record.holder;
                (self.source.conn, self.source.stage) = (Some(conn), Stage::Dialing);
            }
            Ok(None) | Err(_) => self.retry_source(now, &mut out.io),
        }
        true
    }

    fn retry_source(&mut self, now: Time, io: &mut Io) {
        let timer = *self.source.retry.get_or_insert_with(|| io.timer());
        io.set_timer(timer, now.plus_millis(RETRY_MS));
    }

    /// True if the timer was this one.
    pub(super) fn source_timer(&mut self, timer: TimerId, now: Time, out: &mut Effects<Self>) -> bool {
        if self.source.tidying.as_ref().is_some_and(|tidying| tidying.timer == timer) {
            tracing::info!("the source takes long to clear the logs; what they name is compared");
            self.tidied(now);
            return true;
        }
        let ours = self.source.retry == Some(timer);
        if ours {
            self.find_source(out);
        }
        ours
    }

    /// Somebody says where the source is now.
    pub(super) fn move_source(&mut self, address: Address, now: Time, out: &mut Effects<Self>) {
        self.source.address = Some(address);
        self.source.hang_up(&mut out.io);
        self.apply(EngineEvent::SourceGone, now);
        self.find_source(out);
    }

    pub(super) fn source_connected(&mut self, conn: ConnId, io: &mut Io) {
        let mut hello = BytesMut::new();
        let (key, wanted) = (self.settings.key.clone(), Some(name_of(self.source.wanted)));
        let dialer = Dialer::new(key, self.settings.volume_id, wanted, io.random(), &mut hello);
        self.source.stage = Stage::Proving(Box::new(dialer));
        io.send(conn, hello.freeze());
    }

    /// The connection failed or ended.
    pub(super) fn source_lost(&mut self, why: &str, now: Time, io: &mut Io) {
        tracing::debug!(why, "the source cannot be asked");
        self.source.conn = None;
        self.source.hang_up(io);
        self.tidied(now);
        self.apply(EngineEvent::SourceGone, now);
        if self.reads_through() {
            self.retry_source(now, io);
        }
    }

    pub(super) fn source_received(&mut self, conn: ConnId, inbox: &mut Inbox, now: Time, out: &mut Effects<Self>) {
        if let Stage::Proving(dialer) = &mut self.source.stage {
            let mut said = BytesMut::new();
            let result = dialer.advance(inbox.stream(), &mut said);
            out.io.send(conn, said.freeze());
            match result {
                Ok(None) => return,
                Ok(Some(welcome)) => {
                    self.source.stage = Stage::Open(Framing::default());
                    self.resized(welcome.size, out);
                    self.watchers.change();
                    self.apply(EngineEvent::SourceThere, now);
                    self.members.dial_ahead(now, &mut out.io);
                }
                Err(error) => return self.distrust_source(conn, &error.to_string(), now, out),
            }
        }
        while let Stage::Open(framing) = &mut self.source.stage {
            match framing.next(inbox) {
                Ok(Some(Message::Reply(reply))) => self.source_replied(reply, now),
                Ok(None) => return,
                Ok(Some(Message::Request(_))) => {
                    return self.distrust_source(conn, "the source sent a request", now, out);
                }
                Err(error) => return self.distrust_source(conn, &error.to_string(), now, out),
            }
        }
    }

    pub(super) fn distrust_source(&mut self, conn: ConnId, why: &str, now: Time, out: &mut Effects<Self>) {
        tracing::warn!(why, "the source's connection is of no use");
        out.io.abort(conn);
        self.source_lost(why, now, &mut out.io);
    }

    fn source_replied(&mut self, Reply { id, body, .. }: Reply, now: Time) {
        if id == STAND_DOWN {
            if body == ReplyBody::Done {
                let source = self.source.wanted;
                self.apply(EngineEvent::SourceStopped { source }, now);
            }
            return;
        }
        if id == TIDY {
            return self.tidied(now);
        }
        let Some(io) = self.source.asked.remove(&id) else { return };
        let result = match body {
            ReplyBody::Data(data) => Ok(IoAnswer::Data(data)),
            ReplyBody::Extents(extents) => Ok(IoAnswer::Extents(extents)),
            ReplyBody::Done => Ok(IoAnswer::Done),
            ReplyBody::Failed(Failure::Fenced { .. }) => Err(IoError::Fenced { sent: true }),
            ReplyBody::Failed(failure) => Err(IoError::Failed(failure)),
            _ => Err(IoError::Failed(Failure::Invalid)),
        };
        self.apply(EngineEvent::SourceAnswered { io, result }, now);
    }

    /// Passes a client's request on; one that cannot be is asked again when the source is there.
    pub(super) fn ask_source(&mut self, io: IoId, op: &IoOp, now: Time, out: &mut Effects<Self>) {
        let body = match *op {
            IoOp::Read { offset, len } => RequestBody::Read { offset, len },
            IoOp::Status { offset, len } => RequestBody::Status { offset, len },
            _ => RequestBody::Flush,
        };
        self.source.next += 1;
        let id = RequestId(self.source.next);
        let epoch = self.engine.as_ref().map(tether_replication::engine::Engine::epoch).unwrap_or_default();
        if self.source.send(&Request { id, epoch, session: Session(0), body }, &mut out.io) {
            self.source.asked.insert(id, io);
        } else {
            self.apply(EngineEvent::SourceGone, now);
            self.find_source(out);
        }
    }

    /// This engine is taking over: while the record is asked, the source clears what it can from the activity logs. What is
    /// left there has to be compared before anybody is served, which takes far longer.
    pub(super) fn tidy_source(&mut self, now: Time, io: &mut Io) {
        let epoch = self.engine.as_ref().map(tether_replication::engine::Engine::epoch).unwrap_or_default();
        let request = Request { id: TIDY, epoch, session: Session(0), body: RequestBody::Flush };
        if self.source.send(&request, io) {
            let timer = io.timer();
            io.set_timer(timer, now.plus_millis(TIDY_MS));
            self.source.tidying = Some(Tidying { timer, held: None });
        }
    }

    /// What came of a change of the record. That this engine has taken over is told when the source is done, or too slow.
    pub(super) fn record_changed(&mut self, id: CasId, outcome: CasOutcome, now: Time) {
        match &mut self.source.tidying {
            Some(tidying) if matches!(outcome, CasOutcome::Applied(_)) => tidying.held = Some((id, outcome)),
            _ => self.apply(EngineEvent::Cas { id, outcome }, now),
        }
    }

    /// Nobody waits for the source any more.
    fn tidied(&mut self, now: Time) {
        if let Some((id, outcome)) = self.source.tidying.take().and_then(|tidying| tidying.held) {
            self.apply(EngineEvent::Cas { id, outcome }, now);
        }
    }

    /// This engine has taken over.
    pub(super) fn stop_source(&mut self, io: &mut Io) {
        let epoch = self.engine.as_ref().map(tether_replication::engine::Engine::epoch).unwrap_or_default();
        let request = Request { id: STAND_DOWN, epoch, session: Session(0), body: RequestBody::StandDown };
        if !self.source.send(&request, io) {
            tracing::info!("the source cannot be told to stop; its lease is waited for");
        }
    }

    /// Nobody reads through it any more.
    pub(super) fn leave_source(&mut self, phase: Phase, io: &mut Io) {
        if matches!(phase, Phase::Serving | Phase::Fenced | Phase::Failed | Phase::Stopped) {
            self.source.hang_up(io);
        }
    }
}
