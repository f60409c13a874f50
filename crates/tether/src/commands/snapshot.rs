//! `tether snapshot`: make, list and delete snapshots of volumes, and revert a volume to one.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tether_crd::{Engine, Snapshot, labels};
use tether_plan::object::is_deleting;
use tether_plan::snapshot::{REVERT_REQUESTED, revert_request};

use super::Access;
use super::role::{self, Threads};
use crate::output::{self, Exit, Format};
use crate::picture::api;

/// Makes, lists and deletes snapshots of volumes, and reverts volumes to them
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A snapshot is a Snapshot object: kubectl -n longhorn-system get lhsnap. One of a detached volume attaches it for \
                  a moment.\nA volume is reverted while it is attached without being shown to anybody.\n\n\
                  Example:\n  tether snapshot create s1 --volume v1\n  tether snapshot list --volume v1\n  \
                  tether volume attach v1 --node node-1 --disable-frontend\n  tether snapshot revert s1\n  tether snapshot delete s1"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Create(CreateArgs),
    List(ListArgs),
    Delete(NameArgs),
    Revert(NameArgs),
}

/// Makes a snapshot of a volume
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Name of the snapshot
    name: String,
    /// The volume
    #[arg(long)]
    volume: String,
    #[command(flatten)]
    common: Common,
}

/// Lists snapshots
#[derive(Debug, clap::Args)]
struct ListArgs {
    /// Only those of this volume
    #[arg(long)]
    volume: Option<String>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, clap::Args)]
struct NameArgs {
    /// Name of the snapshot
    name: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// How long to wait, in seconds; 0: not at all
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    timeout: u64,
    #[command(flatten)]
    access: Access,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    role::runtime(Threads::One)?.block_on(async {
        match &args.verb {
            Verb::Create(args) => create(args).await,
            Verb::List(args) => list(args).await,
            Verb::Delete(args) => delete(args).await,
            Verb::Revert(args) => revert(args).await,
        }
    })
}

async fn create(args: &CreateArgs) -> Result<Exit> {
    let client = args.common.access.client("tether-snapshot").await?;
    let mut snapshot = Snapshot::default();
    snapshot.metadata.name = Some(args.name.clone());
    snapshot.spec.volume.clone_from(&args.volume);
    snapshot.spec.create_snapshot = true;
    let made = api::<Snapshot>(&client).create(&PostParams::default(), &snapshot).await;
    made.with_context(|| format!("snapshot {:?} of volume {:?} cannot be made", args.name, args.volume))?;
    let ready = |held: Option<&Snapshot>| held.is_some_and(|held| held.status.ready_to_use);
    args.common.until(&client, &args.name, "made", ready).await?;
    output::say(&format!("snapshot {} of volume {} is made\n", args.name, args.volume));
    Ok(Exit::Success)
}

async fn list(args: &ListArgs) -> Result<Exit> {
    let client = args.access.client("tether-snapshot").await?;
    let params = match &args.volume {
        Some(volume) => ListParams::default().labels(&format!("{}={volume}", labels::VOLUME)),
        None => ListParams::default(),
    };
    let found = api::<Snapshot>(&client).list(&params).await.context("the snapshots could not be listed")?;
    output::print(args.output, &found.items, |snapshots| table(snapshots, args.output == Format::Wide))?;
    Ok(Exit::Success)
}

fn table(snapshots: &[Snapshot], wide: bool) -> String {
    if snapshots.is_empty() {
        return "No snapshots.\n".to_owned();
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut rows = vec![words(&["NAME", "VOLUME", "READY", "CREATED", "SIZE", "STATE"])];
    if wide {
        rows[0].extend(words(&["PARENT", "RESTORE SIZE", "USER CREATED"]));
    }
    rows.extend(snapshots.iter().map(|snapshot| {
        let status = &snapshot.status;
        let state = match (is_deleting(snapshot), status.error.as_str()) {
            (true, _) => "deleting".to_owned(),
            (false, error) => error.to_owned(),
        };
        let mut row = vec![
            snapshot.name_any(),
            snapshot.spec.volume.clone(),
            status.ready_to_use.to_string(),
            status.creation_time.clone(),
            status.size.to_string(),
            state,
        ];
        if wide {
            row.extend([status.parent.clone(), status.restore_size.to_string(), status.user_created.to_string()]);
        }
        row
    }));
    output::columns(&rows)
}

async fn delete(args: &NameArgs) -> Result<Exit> {
    let client = args.common.access.client("tether-snapshot").await?;
    let deleted = api::<Snapshot>(&client).delete(&args.name, &DeleteParams::default()).await;
    deleted.with_context(|| format!("snapshot {:?} cannot be deleted: see `tether snapshot list`", args.name))?;
    let gone = |held: Option<&Snapshot>| held.is_none_or(|held| held.status.mark_removed);
    args.common.until(&client, &args.name, "removed", gone).await?;
    let kept = api::<Snapshot>(&client).get_opt(&args.name).await?.is_some();
    let when = if kept { "; its space is given back when the next snapshot is made" } else { "" };
    output::say(&format!("snapshot {} is removed{when}\n", args.name));
    Ok(Exit::Success)
}

async fn revert(args: &NameArgs) -> Result<Exit> {
    let client = args.common.access.client("tether-snapshot").await?;
    let name = &args.name;
    let snapshot = api::<Snapshot>(&client).get(name).await;
    let snapshot = snapshot.with_context(|| format!("snapshot {name:?}: see `tether snapshot list`"))?;
    if !snapshot.status.ready_to_use {
        bail!("snapshot {name} cannot be used: {}", snapshot.status.error);
    }
    let volume = &snapshot.spec.volume;
    let own = ListParams::default().labels(&format!("{}={volume}", labels::VOLUME));
    let engines = api::<Engine>(&client).list(&own).await.context("the engines could not be listed")?;
    let Some(run) = engines.items.iter().find_map(revert_request) else {
        bail!(
            "volume {volume} has to be attached, and not shown to anybody, while it is reverted: \
             `tether volume attach {volume} --node NODE --disable-frontend`"
        );
    };
    let patch = Patch::Merge(json!({ "metadata": { "annotations": { REVERT_REQUESTED: run } } }));
    api::<Snapshot>(&client).patch(name, &PatchParams::default(), &patch).await.context("the wish was refused")?;
    let done = |held: Option<&Snapshot>| held.is_some_and(|held| !held.annotations().contains_key(REVERT_REQUESTED));
    args.common.until(&client, name, "reverted to", done).await?;
    output::say(&format!("volume {volume} is what it was at snapshot {name}\n"));
    Ok(Exit::Success)
}

impl Common {
    /// Waits until `done` says so of the snapshot; `None` is one that does not exist.
    async fn until(
        &self,
        client: &Client,
        name: &str,
        what: &str,
        done: impl Fn(Option<&Snapshot>) -> bool,
    ) -> Result<()> {
        if self.timeout == 0 {
            return Ok(());
        }
        let named = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut changes = watcher(api::<Snapshot>(client), named).default_backoff().boxed();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(self.timeout);
        loop {
            let held = api::<Snapshot>(client).get_opt(name).await.context("the API server does not answer")?;
            if done(held.as_ref()) {
                return Ok(());
            }
            tokio::select! {
                _ = changes.next() => {}
                () = tokio::time::sleep_until(deadline) => {
                    let why = held.map(|held| held.status.error).unwrap_or_default();
                    bail!("snapshot {name} is not {what} after {} s: {why}", self.timeout);
                }
            }
        }
    }
}
