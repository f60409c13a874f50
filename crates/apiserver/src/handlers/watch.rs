//! GET with `watch=true`: a stream of events, resumable at any retained revision.
//!
//! A watch is a cursor into the store's history, so that a thousand of them hold no copies. It starts
//! either at a revision that the client names, or with the present state as synthetic events
//! (`resourceVersion` empty or 0, or `sendInitialEvents=true`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream;
use http::Response;
use serde_json::json;
use tether_machinery::status::ApiError;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::filter::Filter;
use super::{Context, view};
use crate::options::check_watch;
use crate::random;
use crate::resource::Resource;
use crate::response::{self, Body, View};
use crate::store::{self, Entry, EventKind, ListQuery, WatchEnd, WatchError, WatchQuery};

/// Kubernetes' order of magnitude; a bookmark lets an idle client resume without a new list.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// Without `timeoutSeconds` a watch ends between one and two of these, so that clients do not all come back at once.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Events that are ready together are sent together, up to this size.
const BATCH_BYTES: usize = 32 * 1024;

/// Answers a watch.
pub fn watch(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    check_watch(cx.query)?;
    let filter = Filter::parse(&cx.resource, cx.query, &cx.info)?;
    let start = Start::parse(cx)?;
    let store = cx.server.store();
    let (initial, from) = match start {
        Start::At(revision) => (Vec::new(), revision),
        Start::State { .. } => {
            let query = ListQuery {
                resource: &cx.resource.storage,
                namespace: cx.namespace(),
                at: None,
                after: None,
                limit: 0,
            };
            let listing = store.list(query).map_err(ApiError::internal)?;
            (listing.entries, listing.revision)
        }
    };
    let query =
        WatchQuery { resource: cx.resource.storage.clone(), namespace: cx.namespace().map(str::to_owned), from };
    let events = store.watch(query).map_err(|e| watch_error(&e, from, store.revision()))?;
    let now = Instant::now();
    let bookmarks = cx.query.flag("allowWatchBookmarks").unwrap_or(false);
    let session = Session {
        resource: cx.resource.clone(),
        filter,
        view: cx.accepted.view,
        view_options: view::Options::parse(cx)?,
        initial: initial.into(),
        initial_revision: from,
        end_of_initial: matches!(start, Start::State { marked: true }),
        events,
        next_bookmark: bookmarks.then(|| now + BOOKMARK_EVERY),
        ends: now + timeout(cx)?,
        shutdown: cx.server.shutdown_token(),
        over: false,
        _open: cx.server.metrics().watch_opened(),
    };
    let chunks =
        stream::unfold(session, |mut session| async move { session.next_chunk().await.map(|chunk| (chunk, session)) });
    Ok(response::streaming("application/json", chunks))
}

fn timeout(cx: &Context<'_>) -> Result<Duration, ApiError> {
    let seconds = cx.query.number("timeoutSeconds")?.and_then(|n| u64::try_from(n).ok());
    Ok(match seconds {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds.min(24 * 3600)),
        _ => DEFAULT_TIMEOUT + DEFAULT_TIMEOUT.mul_f64(random::jitter()),
    })
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    At(u64),
    /// With the present state; `marked`: a bookmark says where the state ends.
    State {
        marked: bool,
    },
}

impl Start {
    fn parse(cx: &Context<'_>) -> Result<Self, ApiError> {
        let revision = cx.query.revision()?.filter(|rv| *rv != 0);
        let bookmarks = cx.query.flag("allowWatchBookmarks").unwrap_or(false);
        Ok(match (cx.query.flag("sendInitialEvents"), revision) {
            (Some(true), _) => Self::State { marked: bookmarks },
            (None, None) => Self::State { marked: false },
            (Some(false), None) => Self::At(cx.server.store().revision()),
            (None | Some(false), Some(revision)) => Self::At(revision),
        })
    }
}

fn watch_error(error: &WatchError, asked: u64, current: u64) -> ApiError {
    match error {
        WatchError::Compacted { oldest } => too_old(asked, *oldest),
        WatchError::Future { .. } => super::list::too_large(asked, current),
        WatchError::Closed => ApiError::unavailable("the server is shutting down"),
    }
}

fn too_old(asked: u64, oldest: u64) -> ApiError {
    ApiError::expired(format!("too old resource version: {asked} ({oldest})"))
}

struct Session {
    resource: Arc<Resource>,
    filter: Filter,
    view: View,
    view_options: view::Options,
    initial: VecDeque<Entry>,
    initial_revision: u64,
    end_of_initial: bool,
    events: store::Watch,
    next_bookmark: Option<Instant>,
    ends: Instant,
    shutdown: CancellationToken,
    over: bool,
    _open: crate::metrics::OpenWatch,
}

enum Wake {
    Event(Result<Arc<store::Event>, WatchEnd>),
    Bookmark,
    End,
}

impl Session {
    /// The next bytes to send, or None when the watch is over.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        let mut chunk = BytesMut::new();
        while chunk.is_empty() && !self.over {
            if !self.initial.is_empty() || self.end_of_initial {
                self.send_initial(&mut chunk);
                continue;
            }
            match self.wait().await {
                Wake::End => self.over = true,
                Wake::Bookmark => {
                    self.next_bookmark = Some(Instant::now() + BOOKMARK_EVERY);
                    self.bookmark(&mut chunk, self.events.progress(), false);
                }
                Wake::Event(event) => {
                    self.take(event, &mut chunk);
                    self.take_ready(&mut chunk);
                }
            }
        }
        (!chunk.is_empty()).then(|| chunk.freeze())
    }

    fn send_initial(&mut self, chunk: &mut BytesMut) {
        while chunk.len() < BATCH_BYTES {
            let Some(entry) = self.initial.pop_front() else {
                if std::mem::take(&mut self.end_of_initial) {
                    self.bookmark(chunk, self.initial_revision, true);
                }
                return;
            };
            if self.filter.matches_entry(&self.resource, &entry) {
                self.send(chunk, "ADDED", &entry);
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        let bookmark = self.next_bookmark.unwrap_or(self.ends);
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Wake::End,
            event = self.events.next() => Wake::Event(event),
            () = sleep_until(bookmark.min(self.ends)) => {
                if Instant::now() >= self.ends { Wake::End } else { Wake::Bookmark }
            }
        }
    }

    /// What is there already goes along, so that a burst costs few frames.
    fn take_ready(&mut self, chunk: &mut BytesMut) {
        while chunk.len() < BATCH_BYTES && !self.over {
            match self.events.try_next() {
                Ok(None) => return,
                Ok(Some(event)) => self.take(Ok(event), chunk),
                Err(end) => self.take(Err(end), chunk),
            }
        }
    }

    fn take(&mut self, event: Result<Arc<store::Event>, WatchEnd>, chunk: &mut BytesMut) {
        let event = match event {
            Ok(event) => event,
            Err(end) => {
                self.over = true;
                if let WatchEnd::Compacted { oldest } = end {
                    let status = too_old(self.events.progress(), oldest);
                    frame(chunk, "ERROR", status.to_json().to_string().as_bytes());
                }
                return;
            }
        };
        if let Some(word) = self.word(&event) {
            self.send(chunk, word, &event.entry);
        }
    }

    /// With selectors an object may enter or leave the view: that is its ADDED and its DELETED.
    fn word(&self, event: &store::Event) -> Option<&'static str> {
        if self.filter.is_empty() {
            return Some(match event.kind {
                EventKind::Added => "ADDED",
                EventKind::Modified => "MODIFIED",
                EventKind::Deleted => "DELETED",
            });
        }
        let matches = |entry: &Entry| self.filter.matches_entry(&self.resource, entry);
        let was = event.previous.as_ref().is_some_and(matches);
        let is = event.kind != EventKind::Deleted && matches(&event.entry);
        match (was, is) {
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
            (false, false) => None,
        }
    }

    fn send(&mut self, chunk: &mut BytesMut, word: &str, entry: &Entry) {
        if self.view == View::Object {
            frame(chunk, word, &self.resource.present(entry));
            return;
        }
        let object = self.resource.read(entry);
        let shown = view::one(&self.resource.printer, self.view, &self.view_options, &object);
        self.view_options.table.headers = false;
        frame(chunk, word, shown.to_string().as_bytes());
    }

    fn bookmark(&self, chunk: &mut BytesMut, revision: u64, end_of_initial: bool) {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if end_of_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = match self.view {
            View::Object => {
                json!({"kind": self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata})
            }
            View::Metadata => {
                json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            }
            View::Table => view::bookmark_table(&self.resource, &metadata),
        };
        frame(chunk, "BOOKMARK", object.to_string().as_bytes());
    }
}

fn frame(chunk: &mut BytesMut, word: &str, object: &[u8]) {
    chunk.extend_from_slice(b"{\"type\":\"");
    chunk.extend_from_slice(word.as_bytes());
    chunk.extend_from_slice(b"\",\"object\":");
    chunk.extend_from_slice(object);
    chunk.extend_from_slice(b"}\n");
}
