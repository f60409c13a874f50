//! Many watchers, a steady rate of writes: how long a change takes to everybody who watches.
//!
//! Writers put the time at which they sent a change into the object. A watcher reads it off the raw event, so that
//! both ends use one clock and nothing is parsed that need not be.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::AsyncReadExt as _;
use futures::future::try_join_all;
use http::{Method, Request};
use kube::Client;
use tokio::sync::mpsc;

use super::target::{self, Namespaces, Target, call, expect};
use super::{Figure, Plan, Samples};

/// Watchers and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fanout {
    pub namespaces: usize,
    pub watchers_each: usize,
    pub writes_per_second: usize,
    pub seconds: usize,
}

impl Fanout {
    pub(crate) fn spaces(&self) -> Namespaces {
        Namespaces { family: "watch", count: self.namespaces }
    }
}

/// How long after the last write events may still come.
const GRACE: Duration = Duration::from_secs(5);

pub(super) async fn run(target: &Target, fanout: &Fanout, plan: &Plan) -> Result<Vec<Figure>> {
    let epoch = Instant::now();
    prepare(target, fanout, plan).await?;
    let (samples, mut events) = mpsc::unbounded_channel();
    let open = Arc::new(AtomicUsize::new(0));
    let watchers = watch_all(target, fanout, epoch, &samples, &open).await?;
    drop(samples);
    let started = Instant::now();
    let acknowledged = write_all(target, fanout, plan, epoch).await?;
    let took = started.elapsed();
    let writes = acknowledged.len();
    let expected = writes * fanout.watchers_each;
    let mut delivery = Samples::default();
    let mut count = 0;
    while count < expected {
        match tokio::time::timeout(GRACE, events.recv()).await {
            Ok(Some(sample)) => {
                delivery.add(sample);
                count += 1;
            }
            _ => bail!("{count} of {expected} events came; the server lost or delayed the rest by more than 5 s"),
        }
    }
    for watcher in watchers {
        watcher.abort();
    }
    let mut writes = Samples::default();
    for sample in acknowledged {
        writes.add(sample);
    }
    let total = fanout.namespaces * fanout.watchers_each;
    Ok(vec![
        writes.figure(&format!("write under {total} watchers"), took),
        delivery.figure(&format!("write to event, {total} watchers"), took),
    ])
}

/// One object in each namespace, which is then written again and again.
async fn prepare(target: &Target, fanout: &Fanout, plan: &Plan) -> Result<()> {
    for index in 0..fanout.namespaces {
        let object = target::configmap("hot", plan.size, 0);
        let (code, answer) =
            call(&target.client, Method::POST, &fanout.spaces().configmaps(index), Some(&object)).await?;
        expect(code, &answer)?;
    }
    Ok(())
}

/// Opens every watch and waits until each has shown the object that is there.
async fn watch_all(
    target: &Target,
    fanout: &Fanout,
    epoch: Instant,
    samples: &mpsc::UnboundedSender<Duration>,
    open: &Arc<AtomicUsize>,
) -> Result<Vec<tokio::task::JoinHandle<Result<()>>>> {
    let client = target.another().await?;
    let mut tasks = Vec::new();
    for index in 0..fanout.namespaces {
        for _ in 0..fanout.watchers_each {
            let path = format!("{}?watch=true&fieldSelector=metadata.name%3Dhot", fanout.spaces().configmaps(index));
            tasks.push(tokio::spawn(watch(client.clone(), path, epoch, samples.clone(), open.clone())));
        }
    }
    let all = fanout.namespaces * fanout.watchers_each;
    let deadline = Instant::now() + Duration::from_secs(60);
    while open.load(Ordering::Acquire) < all {
        if Instant::now() > deadline {
            bail!("only {} of {all} watches opened within a minute", open.load(Ordering::Acquire));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(tasks)
}

async fn watch(
    client: Client,
    path: String,
    epoch: Instant,
    samples: mpsc::UnboundedSender<Duration>,
    open: Arc<AtomicUsize>,
) -> Result<()> {
    let request = Request::get(path).body(Vec::new())?;
    let mut stream = Box::pin(client.request_stream(request).await?);
    let mut buffer = vec![0_u8; 16 * 1024];
    let mut line = Vec::new();
    let mut first = true;
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            bail!("a watch ended early");
        }
        let now = epoch.elapsed();
        line.extend_from_slice(&buffer[..read]);
        while let Some(end) = line.iter().position(|b| *b == b'\n') {
            if std::mem::take(&mut first) {
                open.fetch_add(1, Ordering::Release);
            } else if let Some(mark) = mark_of(&line[..end]) {
                let _ = samples.send(now.saturating_sub(mark));
            }
            line.drain(..=end);
        }
    }
}

/// The nanoseconds between the `@`s of an event.
fn mark_of(event: &[u8]) -> Option<Duration> {
    let start = event.iter().position(|b| *b == b'@')? + 1;
    let length = event[start..].iter().position(|b| *b == b'@')?;
    let text = std::str::from_utf8(&event[start..start + length]).ok()?;
    text.parse().ok().map(Duration::from_nanos)
}

/// Writes at a steady rate, whatever the answers take; returns how long each took.
async fn write_all(target: &Target, fanout: &Fanout, plan: &Plan, epoch: Instant) -> Result<Vec<Duration>> {
    let writers = plan.clients.max(1);
    let started = Instant::now();
    let tasks = (0..writers).map(|writer| {
        let (fanout, plan) = (*fanout, *plan);
        let client = target.another();
        async move {
            let client = client.await?;
            tokio::spawn(async move { write_share(&client, &fanout, &plan, writer, started, epoch).await }).await?
        }
    });
    Ok(try_join_all(tasks).await?.into_iter().flatten().collect())
}

async fn write_share(
    client: &Client,
    fanout: &Fanout,
    plan: &Plan,
    writer: usize,
    started: Instant,
    epoch: Instant,
) -> Result<Vec<Duration>> {
    let total = fanout.writes_per_second * fanout.seconds;
    let mut took = Vec::new();
    for number in (writer..total).step_by(plan.clients.max(1)) {
        let due = started + Duration::from_secs_f64(number as f64 / fanout.writes_per_second as f64);
        tokio::time::sleep_until(due.into()).await;
        let sent = epoch.elapsed();
        let object = target::configmap("hot", plan.size, sent.as_nanos());
        let path = format!("{}/hot", fanout.spaces().configmaps(number % fanout.namespaces));
        let (code, answer) = call(client, Method::PUT, &path, Some(&object)).await?;
        expect(code, &answer)?;
        took.push(epoch.elapsed().saturating_sub(sent));
    }
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_raw_events() {
        assert_eq!(mark_of(b"{\"data\":{\"mark\":\"@1500@\"}}"), Some(Duration::from_nanos(1500)));
        assert_eq!(mark_of(b"{\"data\":{}}"), None);
    }
}
