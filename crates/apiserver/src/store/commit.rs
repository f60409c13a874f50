//! The committer: one thread that turns whatever is queued into one durable transaction.
//!
//! ```text
//!            ┌── batch ok ──┐
//!            ▼              │          commit fails
//!          ready ───────────┴──────────────────────────► failed: writes refused, reads go on
//!            ▲                                              │ after RECOVERY_PAUSE …
//!            └──── reopened: the batch is there (publish it) ┘
//!                            or it is not (forget it)
//! ```

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::disk::Disk;
use super::pace::Pace;
use super::{Change, Entry, Event, EventKind, Expect, Key, Options, Shared, WriteError};

/// Changes in one transaction. More would not make fsync cheaper and would make the first writer wait longer.
const BATCH_CHANGES: usize = 512;
/// Value bytes after which a batch is closed: half of redb's default share for dirty pages.
const BATCH_BYTES: usize = 4 << 20;
/// Quiet time after which the last commit is sealed. Writers that wait for each other come back much sooner, so a busy
/// store never pays for it.
const SEAL_DELAY: Duration = Duration::from_millis(100);
/// Pause before the first attempt to reopen a file that failed. A full disk is freed by people, not in milliseconds.
const RECOVERY_PAUSE: Duration = Duration::from_secs(1);
/// Pauses double up to this: an attempt reads the whole file, and half a minute is soon enough for what took that long.
const RECOVERY_PAUSE_MAX: Duration = Duration::from_secs(30);

type Reply = oneshot::Sender<Result<Entry, WriteError>>;

pub(super) enum Message {
    Write(Request),
    Stop,
}

pub(super) struct Request {
    pub(super) key: Arc<Key>,
    pub(super) expect: Expect,
    pub(super) change: Change,
    pub(super) reply: Reply,
    /// Held while the request is queued: it bounds the queue.
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

/// A batch that may or may not have reached the disk.
struct InDoubt {
    events: Vec<Arc<Event>>,
    first: u64,
    since: Instant,
    /// When to try to recover next, and how long after that again.
    retry: Instant,
    pause: Duration,
    reason: Arc<str>,
}

pub(super) struct Committer {
    shared: Arc<Shared>,
    disk: Disk,
    options: Options,
    in_doubt: Option<InDoubt>,
    /// Something was committed since the last seal.
    unsealed: bool,
    pace: Pace,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, disk: Disk, options: Options) -> Self {
        let committer = Self { shared, disk, options, in_doubt: None, unsealed: false, pace: Pace::default() };
        committer.measure();
        committer
    }

    /// Serves the queue until told to stop.
    pub(super) fn run(&mut self, queue: &Receiver<Message>) {
        loop {
            let received = match self.patience() {
                None => queue.recv().map_err(|mpsc::RecvError| RecvTimeoutError::Disconnected),
                Some(patience) => queue.recv_timeout(patience),
            };
            match received {
                Ok(message) => {
                    if !self.serve(message, queue) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.seal(),
            }
            if self.in_doubt.as_ref().is_some_and(|in_doubt| in_doubt.retry <= Instant::now()) {
                self.recover();
            }
        }
    }

    /// How long to wait for requests before doing something else; `None` if there is nothing else to do.
    fn patience(&self) -> Option<Duration> {
        match &self.in_doubt {
            Some(in_doubt) => Some(in_doubt.retry.saturating_duration_since(Instant::now())),
            None => self.unsealed.then_some(SEAL_DELAY),
        }
    }

    /// Seals the last commit, if that was not done.
    pub(super) fn seal(&mut self) {
        if self.in_doubt.is_some() || !self.unsealed {
            return;
        }
        self.unsealed = false;
        if let Err(error) = self.disk.seal() {
            let first = self.shared.state.read().history().first();
            self.fail(Vec::new(), first, Vec::new(), &error.0);
        }
    }

    /// Commits what is queued, as one batch; `false` once told to stop.
    pub(super) fn serve(&mut self, first: Message, queue: &Receiver<Message>) -> bool {
        let until = self.pace.next();
        let mut batch = Batch::new(self);
        let mut next = Ok(first);
        let go_on = loop {
            match next {
                Ok(Message::Write(request)) => batch.add(request),
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
            if batch.is_full() {
                break true;
            }
            // What is queued already is taken without waiting, also when there is no time left.
            let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            next = queue.recv_timeout(left);
        };
        let batch = batch.finish();
        let writes = batch.answers.len();
        self.commit(batch);
        self.pace.committed(writes, Instant::now());
        go_on
    }

    /// Makes a planned batch durable, publishes it and answers its writers.
    fn commit(&mut self, plan: Plan) {
        let Plan { events, answers } = plan;
        if !events.is_empty() {
            let first = self.shared.state.read().history().first_with(&events, &self.options);
            let started = Instant::now();
            match self.disk.commit(&events, first) {
                Ok(()) => {
                    self.shared.metrics.commits.inc();
                    self.shared.metrics.batch_size.observe(events.len() as f64);
                    self.shared.metrics.commit_seconds.observe(started.elapsed().as_secs_f64());
                    self.publish(&events, first);
                    self.unsealed = true;
                }
                Err(error) => return self.fail(events, first, answers, &error.0),
            }
        }
        for (reply, answer) in answers {
            let _ = reply.send(answer);
        }
    }

    fn publish(&self, events: &[Arc<Event>], first: u64) {
        let wake = self.shared.state.write().publish(events, first);
        for topic in wake {
            topic.notify_waiters();
        }
        self.measure();
    }

    fn fail(&mut self, events: Vec<Arc<Event>>, first: u64, answers: Vec<Answer>, reason: &str) {
        let reason: Arc<str> = reason.into();
        tracing::error!(%reason, writes = answers.len(), "commit failed: the object store is read-only");
        self.shared.metrics.commit_failures.inc();
        self.shared.read_only.send_replace(Some(reason.clone()));
        let since = Instant::now();
        let (retry, pause) = (since + RECOVERY_PAUSE, RECOVERY_PAUSE);
        self.in_doubt = Some(InDoubt { events, first, since, retry, pause, reason: reason.clone() });
        for (reply, _) in answers {
            // Even a conflict may have been one with a change of this batch.
            let _ = reply.send(Err(WriteError::Storage { reason: reason.clone() }));
        }
    }

    /// Tries to leave the failed state: what the file holds decides what became of the batch in doubt.
    pub(super) fn recover(&mut self) {
        let Some(in_doubt) = self.in_doubt.take() else { return };
        let visible = self.shared.state.read().revision();
        let last = in_doubt.events.last().map_or(visible, |event| event.revision());
        match self.disk.reopen() {
            Ok(revision) if revision == last => self.publish(&in_doubt.events, in_doubt.first),
            Ok(revision) if revision == visible => {}
            Ok(revision) => return self.stay(in_doubt, &format!("the file holds revision {revision}, not {visible}")),
            Err(error) => return self.stay(in_doubt, &error.to_string()),
        }
        self.shared.read_only.send_replace(None);
        let seconds = in_doubt.since.elapsed().as_secs_f64();
        tracing::warn!(seconds, "the object store recovered: writes are accepted again");
    }

    fn stay(&mut self, in_doubt: InDoubt, problem: &str) {
        let reason: Arc<str> = format!("{}; recovery failed: {problem}", in_doubt.reason).into();
        tracing::warn!(%reason, "the object store stays read-only");
        self.shared.read_only.send_replace(Some(reason));
        let pause = (in_doubt.pause * 2).min(RECOVERY_PAUSE_MAX);
        self.in_doubt = Some(InDoubt { retry: Instant::now() + pause, pause, ..in_doubt });
    }

    fn measure(&self) {
        let state = self.shared.state.read();
        let metrics = &self.shared.metrics;
        metrics.objects.set(self.disk.totals().objects as i64);
        metrics.history_events.set(state.history().len() as i64);
        metrics.history_bytes.set(state.history().bytes() as i64);
        metrics.revision.set(state.revision() as i64);
    }
}

type Answer = (Reply, Result<Entry, WriteError>);

/// What a batch will do once it is durable.
struct Plan {
    events: Vec<Arc<Event>>,
    answers: Vec<Answer>,
}

/// A batch being planned: requests are checked against the durable state and the changes before them.
struct Batch<'a> {
    committer: &'a Committer,
    revision: u64,
    bytes: usize,
    changed: HashMap<Arc<Key>, Option<Entry>>,
    plan: Plan,
}

impl<'a> Batch<'a> {
    fn new(committer: &'a Committer) -> Self {
        let revision = committer.shared.state.read().revision();
        let plan = Plan { events: Vec::new(), answers: Vec::new() };
        Self { committer, revision, bytes: 0, changed: HashMap::new(), plan }
    }

    fn is_full(&self) -> bool {
        self.plan.answers.len() >= BATCH_CHANGES || self.bytes >= BATCH_BYTES
    }

    fn add(&mut self, request: Request) {
        let Request { key, expect, change, reply, _place } = request;
        let answer = self.plan_one(key, expect, change);
        self.plan.answers.push((reply, answer));
    }

    fn finish(self) -> Plan {
        self.plan
    }

    fn plan_one(&mut self, key: Arc<Key>, expect: Expect, change: Change) -> Result<Entry, WriteError> {
        if let Some(in_doubt) = &self.committer.in_doubt {
            return Err(WriteError::ReadOnly { reason: in_doubt.reason.clone() });
        }
        let current = match self.changed.get(&key) {
            Some(changed) => changed.clone(),
            None => self.committer.shared.state.read().get(&key),
        };
        if !holds(expect, current.as_ref()) {
            self.committer.shared.metrics.conflicts.inc();
            return Err(WriteError::Conflict { current });
        }
        if current.is_none() && matches!(change, Change::Delete(_)) {
            return Err(WriteError::Conflict { current });
        }
        let revision = self.revision + 1;
        let (deletes, value) = self.render(change, revision)?;
        // One key for all states of an object, however many writers name it.
        let key = current.as_ref().map_or(key, |current| current.key.clone());
        let entry = Entry { key: key.clone(), revision, value };
        let kind = match (&current, deletes) {
            (_, true) => EventKind::Deleted,
            (Some(_), false) => EventKind::Modified,
            (None, false) => EventKind::Added,
        };
        self.revision = revision;
        self.bytes += entry.value.len() + current.as_ref().map_or(0, |current| current.value.len());
        self.changed.insert(key, (!deletes).then(|| entry.clone()));
        self.plan.events.push(Arc::new(Event { kind, entry: entry.clone(), previous: current }));
        Ok(entry)
    }

    fn render(&self, change: Change, revision: u64) -> Result<(bool, Bytes), WriteError> {
        let (deletes, encode) = match change {
            Change::Put(encode) => (false, encode),
            Change::Delete(encode) => (true, encode),
        };
        let value = catch_unwind(AssertUnwindSafe(|| encode(revision))).map_err(|_| WriteError::Encoder)?;
        let limit = self.committer.options.value_bytes;
        if value.len() > limit {
            return Err(WriteError::TooLarge { bytes: value.len(), limit });
        }
        // Serializers leave up to as much room again behind what they wrote. Values live long: they get their size.
        Ok((deletes, Bytes::copy_from_slice(&value)))
    }
}

fn holds(expect: Expect, current: Option<&Entry>) -> bool {
    match expect {
        Expect::Absent => current.is_none(),
        Expect::Any => current.is_some(),
        Expect::Revision(revision) => current.is_some_and(|current| current.revision == revision),
    }
}
