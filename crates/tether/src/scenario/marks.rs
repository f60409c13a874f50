//! What is written beside the guest, at the end of the volume, to be found again: by the target before a decision, and
//! before and after a snapshot.

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use tether_crd::Engine;

use super::catalog::Host;
use super::guest::Whereabouts as _;
use super::lab::LIMIT;
use super::nbd::{self, Client};
use super::perform::Stage;

/// A block of a volume, as it is written and read.
type Mark = [u8; 4096];
/// What the target writes, in the last block.
const TARGET: Mark = [0xa5; 4096];
/// What was there before a snapshot, in the last block but one, and what came after it.
const BEFORE: Mark = [0x5a; 4096];
const AFTER: Mark = [0x3c; 4096];
/// Where they are, in blocks from the end.
const TARGET_AT: u64 = 1;
const SNAPSHOT_AT: u64 = 2;

fn connect(endpoint: &str) -> Result<Client> {
    let (address, name) = nbd::parse(endpoint).with_context(|| format!("{endpoint}: not an NBD endpoint"))?;
    Client::connect(address, &name).with_context(|| format!("{endpoint} cannot be reached"))
}

async fn write(endpoint: String, from_end: u64, mark: &'static Mark) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    let write = move || -> Result<()> {
        let mut client = connect(&endpoint)?;
        let offset = client.size - from_end * mark.len() as u64;
        Ok(client.write(offset, mark, &|| Instant::now() > deadline)?)
    };
    tokio::task::spawn_blocking(write).await?
}

async fn read(endpoint: String, from_end: u64) -> Result<Vec<u8>> {
    let deadline = Instant::now() + LIMIT;
    let read = move || -> Result<Vec<u8>> {
        let mut client = connect(&endpoint)?;
        let length = size_of::<Mark>();
        let offset = client.size - from_end * length as u64;
        Ok(client.read(offset, length, &|| Instant::now() > deadline)?)
    };
    tokio::task::spawn_blocking(read).await?
}

impl Stage<'_> {
    fn endpoint(&self) -> Result<String> {
        self.watch.endpoint().context("the volume is served nowhere")
    }

    /// The target writes, and is acknowledged; from then on the source is fenced.
    pub(super) async fn write_on_target(&mut self) -> Result<()> {
        let stands_by = |engine: &&Engine| engine.is_available_on(self.lab.node(Host::N));
        let endpoint = self.watch.look(|seen| seen.engines.values().find(stands_by).map(|e| e.status.endpoint.clone()));
        let endpoint = endpoint.context("no engine stands by")?;
        write(endpoint, TARGET_AT, &TARGET).await.context("the target's write was not acknowledged")?;
        self.marked = true;
        Ok(())
    }

    /// What the target wrote before the decision is there, whatever was decided.
    pub(super) async fn check_mark(&self) -> Result<()> {
        if self.marked && read(self.endpoint()?, TARGET_AT).await? != TARGET {
            bail!("what the target wrote is lost");
        }
        Ok(())
    }

    fn snapshot_name(&self) -> String {
        format!("{}-before", self.claim)
    }

    /// A snapshot of something that is overwritten right after it.
    pub(super) async fn take_snapshot(&mut self) -> Result<()> {
        write(self.endpoint()?, SNAPSHOT_AT, &BEFORE).await?;
        self.lab.snapshot(&self.snapshot_name(), &self.volume).await?;
        self.snapshot_taken = true;
        write(self.endpoint()?, SNAPSHOT_AT, &AFTER).await
    }

    /// A snapshot that was taken before is one of the engine that counts now, can be used, and shows what was there then:
    /// a volume made from it does.
    pub(super) async fn check_snapshot(&self) -> Result<()> {
        if !self.snapshot_taken {
            return Ok(());
        }
        let name = self.snapshot_name();
        let what = format!("the engine of the volume has snapshot {name}");
        self.until(&what, |seen| {
            let mut engines = seen.engines.values().filter(|engine| engine.spec.active);
            engines.any(|engine| engine.status.snapshots.contains_key(&name)).then_some(())
        })
        .await?;
        self.lab.snapshot(&name, &self.volume).await?;
        if read(self.endpoint()?, SNAPSHOT_AT).await? != AFTER {
            bail!("what was written after the snapshot is lost");
        }
        let copy = format!("{}-copy", self.claim);
        let endpoint = self.lab.copy(&copy, &self.volume, &name, Host::T).await?;
        let found = read(endpoint, SNAPSHOT_AT).await?;
        if found != BEFORE {
            let what = if found == AFTER { "what was written after it" } else { "something else" };
            bail!("snapshot {name} does not show what was there when it was taken, but {what}");
        }
        self.lab.remove(&copy).await
    }
}
