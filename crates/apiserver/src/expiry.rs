//! Events go after an hour. Upstream the database forgets them; here one task does, and sleeps until the next is due.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::object::meta_str;
use crate::server::Server;
use crate::store::{Change, Expect, Key, ListQuery, WatchQuery};

const EVENTS: &str = "events";
/// Kubernetes' default for `--event-ttl`.
const EVENT_TTL: SignedDuration = SignedDuration::from_secs(3600);
/// Events that are due within this time of each other go in one sweep.
const SWEEP_SLACK: Duration = Duration::from_secs(60);

/// Deletes events that are older than an hour, until cancelled.
pub async fn run(server: Server, cancel: CancellationToken) {
    loop {
        let due = sweep(&server).await;
        let wait = async {
            match due {
                Some(wait) => tokio::time::sleep(wait + SWEEP_SLACK).await,
                None => first_event(&server).await,
            }
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = wait => {}
        }
    }
}

/// With no event there is nothing to wait for but the first.
async fn first_event(server: &Server) {
    let query = WatchQuery { resource: EVENTS.to_owned(), namespace: None, from: server.store().revision() };
    let Ok(mut watch) = server.store().watch(query) else { return };
    let _ = watch.next().await;
}

/// Deletes what is due; returns how long until the next one is.
async fn sweep(server: &Server) -> Option<Duration> {
    let query = ListQuery { resource: EVENTS, ..ListQuery::default() };
    let listing = server.store().list(query).expect("the latest state must always be listable");
    let now = server.now();
    let mut next: Option<Duration> = None;
    for entry in listing.entries {
        let Some(left) = left(&entry.value, now) else { continue };
        if !left.is_zero() {
            next = Some(next.map_or(left, |n| n.min(left)));
            continue;
        }
        let last = entry.value.clone();
        let change = Change::Delete(Box::new(move |_| last));
        let key: Key = (*entry.key).clone();
        if let Err(error) = server.store().write(key, Expect::Revision(entry.revision), change).await {
            tracing::debug!(%error, "an event was not expired; the next sweep tries again");
        }
    }
    next
}

/// How long an event may stay, counted from its last write as far as the object tells.
fn left(bytes: &[u8], now: Timestamp) -> Option<Duration> {
    let event: Value = serde_json::from_slice(bytes).ok()?;
    let time = |text: &str| text.parse::<Timestamp>().ok();
    let fields = [event["lastTimestamp"].as_str(), event["series"]["lastObservedTime"].as_str()];
    let last =
        fields.into_iter().flatten().filter_map(time).chain(time(meta_str(&event, "creationTimestamp"))).max()?;
    let left = (last + EVENT_TTL).duration_since(now);
    Some(Duration::try_from(left).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_lives_an_hour_from_when_it_was_last_seen() {
        let now: Timestamp = "2026-01-01T02:00:00Z".parse().expect("time");
        let event = |last: &str| {
            serde_json::json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "lastTimestamp": last})
                .to_string()
        };
        assert_eq!(left(event("2026-01-01T00:30:00Z").as_bytes(), now), Some(Duration::ZERO));
        assert_eq!(left(event("2026-01-01T01:30:00Z").as_bytes(), now), Some(Duration::from_secs(1800)));
        assert_eq!(left(b"not json", now), None);
    }
}
