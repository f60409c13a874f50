//! Asking a running engine: `tether engine info|snapshot|expand|…`.

use anyhow::{Context as _, Result, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};
use tether_engine::control::proto::engine_client::EngineClient;
use tether_engine::control::proto::{self, InstanceRequest};
use tether_engine::control::{connect, volume_id};
use tether_engine::host::Address;
use tonic::transport::Channel;

use crate::commands::data_plane::{ControlArgs, Size, human};
use crate::commands::role::{self, Threads};
use crate::output::{self, Exit, Format};

/// Which engine, and how to print.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Name of the volume
    volume: String,
    /// Which engine of an instance manager
    #[arg(long, default_value = "")]
    instance: String,
    #[command(flatten)]
    control: ControlArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Target {
    async fn client(&self) -> Result<EngineClient<Channel>> {
        let address = self.control.resolve(&format!("engine-{}", self.volume))?;
        Ok(EngineClient::new(connect(&address, &self.control.tls.protection()).await?))
    }

    fn request(&self) -> InstanceRequest {
        InstanceRequest { instance: self.instance.clone() }
    }

    /// Says what was done.
    fn done(&self, what: &str, value: Value) -> Result<()> {
        output::print(self.output, &value, |_| format!("{what}\n"))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Shows phase, record, replicas, clients and what happened lately
    #[command(after_help = "Example:\n  tether engine info v1\n  tether engine info v1 -o json")]
    Info(Target),
    /// Creates, lists, reverts to, deletes or purges snapshots
    #[command(
        subcommand,
        after_help = "Example:\n  tether engine snapshot create v1 before-upgrade\n  tether engine snapshot list v1"
    )]
    Snapshot(SnapshotAction),
    /// Makes the volume larger, while it is used
    #[command(after_help = "Example:\n  tether engine expand v1 8GiB")]
    Expand {
        #[command(flatten)]
        target: Target,
        /// New size
        size: Size,
    },
    /// Adds a replica and brings it up to date
    #[command(after_help = "Example:\n  tether engine add-replica v1 127.0.0.1:9604")]
    AddReplica {
        #[command(flatten)]
        target: Target,
        /// Where it is: IP:PORT or unix:/path, or NAME=ADDR
        replica: String,
        /// Bytes per second for bringing replicas up to date, such as 50MiB
        #[arg(long, value_name = "SIZE")]
        limit: Option<Size>,
    },
    /// Removes a replica from the volume for good; its directory stays
    #[command(after_help = "Example:\n  tether engine remove-replica v1 v1-r3")]
    RemoveReplica {
        #[command(flatten)]
        target: Target,
        /// Its name
        name: String,
    },
    /// Limits how fast replicas are brought up to date
    #[command(after_help = "Example:\n  tether engine resync-limit v1 50MiB\n  tether engine resync-limit v1 0")]
    ResyncLimit {
        #[command(flatten)]
        target: Target,
        /// Bytes per second; 0 is no limit
        limit: Size,
    },
    /// Compares what the replicas hold, while the volume is used, at a limited rate
    #[command(after_help = "Example:\n  tether engine scrub v1 --rate 50MiB\n  tether engine info v1")]
    Scrub {
        #[command(flatten)]
        target: Target,
        /// Bytes per second and replica; 0 stops a comparison
        #[arg(long, value_name = "SIZE", default_value = "100MiB")]
        rate: Size,
    },
    /// Makes everything acknowledged durable on every in-sync replica
    #[command(after_help = "Example:\n  tether engine flush v1")]
    Flush(Target),
    /// Makes a standby take the volume over
    #[command(after_help = "Example:\n  tether engine promote v1 --control unix:/run/target.sock")]
    Promote(Target),
    /// Ends a migration before its promotion: asked of the standby, or of the engine that holds the volume
    #[command(after_help = "Example:\n  tether engine rollback v1 --control unix:/run/target.sock")]
    Rollback(Target),
    /// Serves from a replica whose host lost power, though acknowledged writes may be missing there
    #[command(after_help = "Example:\n  tether engine accept-loss v1 v1-r2")]
    AcceptLoss {
        #[command(flatten)]
        target: Target,
        /// Its name
        name: String,
    },
    /// Finishes what it has, flushes, releases the volume and ends
    #[command(after_help = "Example:\n  tether engine close v1")]
    Close(Target),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotAction {
    /// Freezes the present contents under a name
    Create {
        #[command(flatten)]
        target: Target,
        /// Its name [default: a random one]
        name: Option<String>,
        /// A label, KEY=VALUE
        #[arg(long = "label", value_name = "KEY=VALUE")]
        labels: Vec<String>,
    },
    /// Lists snapshots
    List(Target),
    /// Goes back to a snapshot; what was written since is gone
    Revert {
        #[command(flatten)]
        target: Target,
        name: String,
    },
    /// Marks a snapshot as not needed; its space is given back in the background
    Delete {
        #[command(flatten)]
        target: Target,
        name: String,
    },
    /// Deletes snapshots that no user made
    Purge(Target),
}

/// What a refusal of the control API says to people.
pub(crate) fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow!("{}", status.message())
}

pub(crate) fn run(action: Action) -> Result<Exit> {
    role::runtime(Threads::One)?.block_on(async {
        match action {
            Action::Info(target) => info(&target).await,
            Action::Snapshot(action) => snapshot(action).await,
            other => order(other).await,
        }
    })?;
    Ok(Exit::Success)
}

async fn order(action: Action) -> Result<()> {
    match action {
        Action::Info(_) | Action::Snapshot(_) => Ok(()),
        Action::Expand { target, size } => {
            let instance = target.instance.clone();
            target.client().await?.expand(proto::ExpandRequest { instance, size: size.0 }).await.map_err(refused)?;
            target.done(&format!("volume {} has {} now", target.volume, human(size.0)), json!({"size": size.0}))
        }
        Action::AddReplica { target, replica, limit } => add_replica(&target, &replica, limit).await,
        Action::RemoveReplica { target, name } => {
            let request = proto::ReplicaRequest { instance: target.instance.clone(), name: name.clone() };
            target.client().await?.remove_replica(request).await.map_err(refused)?;
            target.done(&format!("replica {name} leaves the volume"), json!({"removed": name}))
        }
        Action::ResyncLimit { target, limit } => {
            let instance = target.instance.clone();
            let request = proto::ResyncLimitRequest { instance, bytes_per_second: limit.0 };
            target.client().await?.set_resync_limit(request).await.map_err(refused)?;
            target.done("done", json!({"bytesPerSecond": limit.0}))
        }
        Action::Scrub { target, rate } => {
            let request = proto::ScrubRequest { instance: target.instance.clone(), bytes_per_second: rate.0 };
            target.client().await?.scrub(request).await.map_err(refused)?;
            let what = if rate.0 == 0 { "stopped" } else { "begun; `tether engine info` shows what comes of it" };
            target.done(what, json!({"bytesPerSecond": rate.0}))
        }
        Action::Flush(target) => {
            target.client().await?.flush(target.request()).await.map_err(refused)?;
            target.done("flushed", json!({"flushed": true}))
        }
        Action::Promote(target) => {
            target.client().await?.promote(target.request()).await.map_err(refused)?;
            target.done("promoted", json!({"promoted": true}))
        }
        Action::Rollback(target) => {
            let request = proto::RollbackRequest { instance: target.instance.clone(), standby: String::new() };
            target.client().await?.rollback(request).await.map_err(refused)?;
            target.done("rolled back", json!({"rolledBack": true}))
        }
        Action::AcceptLoss { target, name } => {
            let request = proto::ReplicaRequest { instance: target.instance.clone(), name: name.clone() };
            target.client().await?.accept_loss(request).await.map_err(refused)?;
            target.done(&format!("replica {name} is accepted as it is"), json!({"accepted": name}))
        }
        Action::Close(target) => {
            target.client().await?.close(target.request()).await.map_err(refused)?;
            target.done("closed", json!({"closed": true}))
        }
    }
}

async fn add_replica(target: &Target, replica: &str, limit: Option<Size>) -> Result<()> {
    let (name, address) = replica.split_once('=').unwrap_or(("", replica));
    address.parse::<Address>().context("the replica's address")?;
    let mut client = target.client().await?;
    if let Some(limit) = limit {
        let instance = target.instance.clone();
        let request = proto::ResyncLimitRequest { instance, bytes_per_second: limit.0 };
        client.set_resync_limit(request).await.map_err(refused)?;
    }
    let replica = proto::ReplicaAddress { name: name.to_owned(), address: address.to_owned() };
    let request = proto::AddReplicaRequest { instance: target.instance.clone(), replica: Some(replica) };
    client.add_replica(request).await.map_err(refused)?;
    target.done(
        "the replica is being brought up to date; `tether engine info` shows how far it is",
        json!({"added": address}),
    )
}

async fn snapshot(action: SnapshotAction) -> Result<()> {
    match action {
        SnapshotAction::Create { target, name, labels } => {
            let labels = labels.iter().map(|label| {
                let (key, value) = label.split_once('=').with_context(|| format!("--label {label}: not KEY=VALUE"))?;
                Ok((key.to_owned(), value.to_owned()))
            });
            let request = proto::SnapshotCreateRequest {
                instance: target.instance.clone(),
                name: name.unwrap_or_default(),
                labels: labels.collect::<Result<_>>()?,
            };
            let made = target.client().await?.snapshot_create(request).await.map_err(refused)?.into_inner();
            target.done(&made.name, json!({"name": made.name}))
        }
        SnapshotAction::List(target) => list(&target).await,
        SnapshotAction::Revert { target, name } => {
            let request = proto::SnapshotRequest { instance: target.instance.clone(), name: name.clone() };
            target.client().await?.snapshot_revert(request).await.map_err(refused)?;
            target.done(&format!("the volume is as it was at {name}"), json!({"revertedTo": name}))
        }
        SnapshotAction::Delete { target, name } => {
            let request = proto::SnapshotRequest { instance: target.instance.clone(), name: name.clone() };
            target.client().await?.snapshot_delete(request).await.map_err(refused)?;
            target.done(&format!("snapshot {name} is deleted"), json!({"deleted": name}))
        }
        SnapshotAction::Purge(target) => {
            target.client().await?.snapshot_purge(target.request()).await.map_err(refused)?;
            target.done("purged", json!({"purged": true}))
        }
    }
}

async fn list(target: &Target) -> Result<()> {
    let response = target.client().await?.snapshot_list(target.request()).await.map_err(refused)?;
    let snapshots = response.into_inner().snapshots;
    let value: Vec<_> = snapshots
        .iter()
        .map(|one| {
            json!({"name": one.name, "parent": one.parent, "children": one.children, "removed": one.removed,
                   "userCreated": one.user_created, "created": one.created, "size": one.size, "labels": one.labels,
                   "live": one.live})
        })
        .collect();
    output::print(target.output, &value, |_| {
        let mut rows = vec![["NAME", "PARENT", "CREATED", "SIZE", "STATE"].map(str::to_owned).to_vec()];
        for one in &snapshots {
            let state = match (one.removed, one.live) {
                (true, _) => "removed",
                (false, true) => "live",
                (false, false) => "branch",
            };
            rows.push(vec![
                one.name.clone(),
                one.parent.clone(),
                one.created.clone(),
                human(one.size),
                state.to_owned(),
            ]);
        }
        output::columns(&rows)
    })
}

async fn info(target: &Target) -> Result<()> {
    let info = target.client().await?.info(target.request()).await.map_err(refused)?.into_inner();
    let replicas: Vec<_> = info
        .replicas
        .iter()
        .map(|one| {
            let resync = one.resync.as_ref().map(|r| json!({"done": r.done, "total": r.total, "copied": r.copied}));
            json!({"name": one.name, "address": one.address, "inSync": one.in_sync, "connected": one.connected,
                   "resync": resync, "lastError": one.last_error})
        })
        .collect();
    let scrub = info.scrub.map(|s| json!({"done": s.done, "total": s.total, "different": s.different}));
    let value = json!({
        "scrub": scrub,
        "volume": info.volume, "size": info.size, "phase": info.phase, "holder": info.holder, "epoch": info.epoch,
        "generation": info.generation, "inSync": info.in_sync, "standby": info.standby, "suspended": info.suspended,
        "replicas": replicas, "nbd": info.nbd, "line": info.line, "peer": info.peer, "clients": info.clients, "requestsInFlight": info.requests_in_flight,
        "events": info.events, "device": info.device, "deviceError": info.device_error, "volumeUid": volume_id(&info.volume).to_string(),
    });
    output::print(target.output, &value, |_| table(&info))
}

fn table(info: &proto::EngineInfo) -> String {
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut rows = vec![
        row("Volume", format!("{} ({})", info.volume, human(info.size))),
        row("Phase", info.phase.clone()),
        row("Epoch", format!("{} (record generation {}, engine {})", info.epoch, info.generation, info.holder)),
        row("Clients", format!("{}, {} requests in flight", info.clients, info.requests_in_flight)),
    ];
    rows.extend(info.nbd.iter().map(|uri| row("NBD", uri.clone())));
    if let Some(scrub) = &info.scrub {
        let different = human(scrub.different);
        rows.push(row("Compared", format!("{} of {}, {different} differ", human(scrub.done), human(scrub.total))));
    }
    if !info.device.is_empty() {
        rows.push(row("Device", info.device.clone()));
    }
    if !info.device_error.is_empty() {
        rows.push(row("No device", info.device_error.clone()));
    }
    if !info.suspended.is_empty() {
        rows.push(row("Suspended", info.suspended.clone()));
    }
    let mut members =
        vec![["REPLICA", "ADDRESS", "IN SYNC", "CONNECTED", "RESYNC", "LAST ERROR"].map(str::to_owned).to_vec()];
    for one in &info.replicas {
        let resync = one.resync.as_ref().map_or_else(String::new, |r| {
            format!("{} of {}, {} copied", human(r.done), human(r.total), human(r.copied))
        });
        members.push(vec![
            one.name.clone(),
            one.address.clone(),
            one.in_sync.to_string(),
            one.connected.to_string(),
            resync,
            one.last_error.clone(),
        ]);
    }
    let events = info.events.iter().map(|event| format!("  {event}")).collect::<Vec<_>>().join("\n");
    format!(
        "{}\n{}\nEvents (seconds since the host started):\n{events}\n",
        output::columns(&rows),
        output::columns(&members)
    )
}
