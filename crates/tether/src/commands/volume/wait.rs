//! Waiting for a volume, with a line of progress for each thing that it waits for in turn.

use std::time::Duration;

use anyhow::{Result, bail};
use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::{WatchStreamExt as _, watcher};
use tether_crd::{Volume, VolumeAttachment};

use crate::output;
use crate::picture::{Picture, api};

/// How long commands wait.
#[derive(Debug, clap::Args)]
pub(super) struct Patience {
    /// How long to wait, in seconds; 0: not at all
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
}

impl Patience {
    pub(super) fn is_none(&self) -> bool {
        self.timeout == 0
    }

    /// Waits until `done` finds what it wants in the volume; `None` is a volume that does not exist. Looks whenever the
    /// volume or its tickets change.
    pub(super) async fn until<T>(
        &self,
        client: &Client,
        name: &str,
        what: &str,
        mut done: impl FnMut(Option<&Picture>) -> Option<T>,
    ) -> Result<T> {
        let named = || watcher::Config::default().fields(&format!("metadata.name={name}"));
        let volumes = watcher(api::<Volume>(client), named()).default_backoff().map(drop);
        let attachments = watcher(api::<VolumeAttachment>(client), named()).default_backoff().map(drop);
        let mut changes = futures::stream::select(volumes.boxed(), attachments.boxed());
        let deadline = tokio::time::Instant::now() + Duration::from_secs(self.timeout);
        let mut said = String::new();
        loop {
            let picture = Picture::load(client, name).await?;
            if let Some(found) = done(picture.as_ref()) {
                return Ok(found);
            }
            let explanation = picture.as_ref().map(|picture| picture.explain(Timestamp::now()));
            let unmet = explanation.as_ref().and_then(|e| e.chain.last().filter(|link| !link.is_met));
            let words = unmet.map(|link| link.words.clone()).unwrap_or_default();
            if words != said && !words.is_empty() {
                output::complain(&format!("waiting: {words}"));
                said = words;
            }
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let why = explanation.map(|e| format!("\n{e}")).unwrap_or_default();
                    bail!("volume {name} is not {what} after {} s{why}", self.timeout);
                }
            }
        }
    }
}
