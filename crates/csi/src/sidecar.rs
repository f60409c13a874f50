//! What the loops beside a driver have in common: their settings, getting to know the driver, calls to it, watches and workers.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jiff::SignedDuration;
use kube::api::Api;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tether_controllers::cache::Cache;
use tether_controllers::clock::{Clock, SystemClock};
use tether_controllers::publish::Publisher;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::call::call;
use crate::connect::Connection;
use crate::handshake::{About, HandshakeError, handshake};
use crate::lanes::{Backoff, Worker, serve};
use crate::metrics::{Calls, Metrics};
use crate::proto::controller_client::ControllerClient;

/// What may be set for each loop.
#[derive(Clone)]
pub struct Settings {
    /// For each call to the driver.
    pub timeout: Duration,
    /// Calls at a time, for each lane.
    pub workers: usize,
    pub backoff: Backoff,
    /// Who this process is, in events.
    pub identity: String,
    pub clock: Arc<dyn Clock>,
}

impl Settings {
    /// Delays between attempts are the same for all of Kubernetes' sidecars.
    pub fn new(identity: &str, timeout: Duration, workers: usize) -> Self {
        Self {
            timeout,
            workers,
            backoff: Backoff { first: SignedDuration::from_secs(1), longest: SignedDuration::from_mins(5) },
            identity: identity.to_owned(),
            clock: Arc::new(SystemClock::default()),
        }
    }

    /// Tells events in the name of the loop.
    pub(crate) fn publisher(&self, client: &Client, name: &'static str) -> Publisher {
        Publisher::new(client.clone(), self.clock.clone(), name, &self.identity, Arc::default())
    }
}

/// Why a loop ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error("Lost connection to CSI driver, exiting")]
    LostDriver,
    #[error("another attacher of the driver leads now")]
    LostLead,
    #[error("a worker ended: {0}")]
    Panicked(#[from] tokio::task::JoinError),
}

/// Gets to know the driver and works until `stop`, or until the driver is lost.
pub(crate) async fn run<F>(
    connection: &Connection,
    timeout: Duration,
    stop: &CancellationToken,
    work: impl FnOnce(About) -> F,
) -> Result<(), Ended>
where
    F: Future<Output = Result<(), Ended>>,
{
    let working = async { work(handshake(connection, timeout).await?).await };
    tokio::select! {
        ended = working => ended,
        () = stop.cancelled() => Ok(()),
        () = connection.lost.cancelled() => Err(Ended::LostDriver),
    }
}

/// For a loop that has nothing to do with a driver: it does nothing until it is told to end.
pub(crate) async fn idle(driver: &str, why: &str) -> Result<(), Ended> {
    tracing::info!(driver, "{why}");
    std::future::pending().await
}

/// The controller half of a driver, as loops call it: with a deadline, and measured.
#[derive(Clone)]
pub(crate) struct Controller {
    client: ControllerClient<Channel>,
    calls: Calls,
    timeout: Duration,
}

impl Controller {
    pub(crate) fn new(connection: &Connection, driver: &str, metrics: &Metrics, timeout: Duration) -> Self {
        let client = ControllerClient::new(connection.channel.clone());
        Self { client, calls: Calls::new(metrics, driver), timeout }
    }

    pub(crate) async fn call<Q, A, F>(
        &self,
        method: &'static str,
        message: Q,
        make: impl FnOnce(ControllerClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Status>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let client = self.client.clone();
        call(&self.calls, method, self.timeout, message, |request| make(client, request)).await
    }
}

/// Watches and workers of a loop; they end when this is dropped.
#[derive(Default)]
pub(crate) struct Tasks {
    running: JoinSet<()>,
    listing: Vec<BoxFuture<'static, ()>>,
}

impl Tasks {
    /// Watches what the API offers.
    pub(crate) fn watch<K>(&mut self, cache: &Arc<Cache<K>>, api: Api<K>)
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        self.running.spawn(cache.clone().run(api, watcher::Config::default()));
        let cache = cache.clone();
        self.listing.push(Box::pin(async move { cache.ready().await }));
    }

    /// Returns once everything that is watched was listed: nobody decides on half a picture.
    pub(crate) async fn listed(&mut self) {
        join_all(std::mem::take(&mut self.listing)).await;
    }

    /// Works on the keys of so many lanes.
    pub(crate) fn work<W: Worker>(&mut self, worker: &Arc<W>, lanes: usize) {
        for lane in 0..lanes {
            self.running.spawn(serve(worker.clone(), lane));
        }
    }

    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.running.spawn(task);
    }

    /// Returns when all ended, or one panicked.
    pub(crate) async fn join(mut self) -> Result<(), Ended> {
        while let Some(ended) = self.running.join_next().await {
            ended?;
        }
        Ok(())
    }
}
