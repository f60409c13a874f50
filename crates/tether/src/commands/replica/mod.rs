//! `tether replica`: one replica directory, served on the network, or looked after while nobody serves it.

mod compare;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use tether_engine::control::{self, Entry, Registry, Running, Service};
use tether_engine::host::Address;
use tether_engine::instance::{Ended, ReplicaInstance, ReplicaOptions, boot_id};
use tether_engine::replica_server::{Answer, Command};
use tether_store::Volume;
use tether_store::files::real::{Caching, StdFiles};
use tether_store::volume::{Open, Released};
use uuid::Uuid;

use super::data_plane::{ControlArgs, KeyArgs, Size};
use super::role::{self, Threads};
use crate::logging::LogArgs;
use crate::output::{self, Exit, Format};

/// Serves one replica of a volume, or looks after its directory
///
/// The directory has Longhorn's V1 layout. An empty one is made with --size; one that Longhorn wrote is adopted as it
/// is. Engines that hold the volume's key connect to --listen.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Prints a line `ready ADDR` on standard output once engines can connect.\n\n\
                  Example:\n  tether replica --dir /data/v1-r1 --size 4GiB --listen 127.0.0.1:9601\n  \
                  tether replica diff /data/v1-r1 /data/v1-r2\n  tether replica release /data/v1-r1"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Action {
    Info(Info),
    Hash(Hash),
    Release(Release),
    Diff(compare::Args),
    Scrub(compare::Args),
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Directory of the replica
    #[arg(long, required = true)]
    dir: Option<PathBuf>,
    /// Size of a new replica, such as 4GiB
    #[arg(long)]
    size: Option<Size>,
    /// Where engines connect: IP:PORT or unix:/path
    #[arg(long, required = true, value_name = "ADDR")]
    listen: Vec<Address>,
    /// Name in the volume's record; what an existing replica is called stays [default: name of the directory]
    #[arg(long)]
    name: Option<String>,
    /// Go through the page cache instead of direct I/O
    #[arg(long)]
    buffered: bool,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    logs: LogArgs,
}

/// Shows a running replica
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether replica info v1-r1\n  tether replica info v1-r1 -o json")]
struct Info {
    /// Name of the replica
    name: String,
    #[command(flatten)]
    control: ControlArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Computes the sum of a snapshot's image on a running replica
///
/// The sum (CRC-64 over the whole image file) is kept beside the image as Longhorn does it, and computed again only if
/// the image changed. Equal snapshots of two replicas need not have equal sums: a block that one replica stores and the
/// other leaves out is the same data.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  tether replica hash v1-r1 before-upgrade\n  tether replica hash v1-r1 before-upgrade --rehash -o json"
)]
struct Hash {
    /// Name of the replica
    name: String,
    /// Name of the snapshot
    snapshot: String,
    /// Read the image even if its sum is known, to find out whether it changed by itself
    #[arg(long)]
    rehash: bool,
    #[command(flatten)]
    control: ControlArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Hands a directory back to Longhorn
///
/// Afterwards Longhorn may write to it. To be used by Tether again it is adopted, and counts as out of sync if a
/// record knows it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether replica release /data/v1-r1\n  tether replica release --stale /data/v1-r2")]
struct Release {
    /// Directory of the replica; it must not be served
    dir: PathBuf,
    /// Mark it as incomplete, so that Longhorn rebuilds it from another one
    #[arg(long)]
    stale: bool,
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    match args.action {
        Some(Action::Info(info)) => show(&info),
        Some(Action::Hash(hash)) => show_hash(&hash),
        Some(Action::Release(release)) => hand_back(&release),
        Some(Action::Diff(args)) => compare::run(&args, false),
        Some(Action::Scrub(args)) => compare::run(&args, true),
        None => run_serve(args.serve),
    }
}

fn run_serve(args: Serve) -> Result<Exit> {
    // Required by the command line unless there is a subcommand.
    let dir = args.dir.context("--dir: missing")?;
    let base = dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.name.or(base).context("--name: needed, since the directory has none")?;
    role::begin(&format!("replica {name}"), args.logs)?;
    let key = args.key.read(&args.listen)?;
    let control_address = args.control.resolve(&format!("replica-{name}"))?;
    let options = ReplicaOptions {
        dir,
        size: args.size.map(|size| size.0),
        name: name.clone(),
        insist: false,
        created: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        listen: args.listen,
        key,
        buffered: args.buffered,
    };
    let replica = Arc::new(ReplicaInstance::open(options)?);
    let addresses = match replica.get(Command::Listening)? {
        Answer::Listening(listening) => listening.map_err(anyhow::Error::msg)?,
        other => bail!("unexpected answer {other:?}"),
    };
    for address in &addresses {
        output::say(&format!("ready {address}\n"));
    }
    let registry = Arc::new(Registry::new());
    registry.insert(&name, Entry { running: Running::Replica(replica.clone()), addresses, uid: Uuid::new_v4() });
    role::runtime(Threads::One)?.block_on(async {
        let cancel = role::until_signal()?;
        let bound = control::bind(&control_address, &args.control.tls.protection())?;
        let stop = async {
            tokio::select! {
                () = cancel.cancelled() => drop(replica.get_async(Command::Stop).await),
                _ = replica.wait_ended() => {}
            }
        };
        control::serve(bound, Service::new(registry.clone()), stop).await?;
        match replica.wait_ended().await {
            Ended::Stopped => Ok(Exit::Success),
            ended => bail!("the replica {ended}"),
        }
    })
}

fn show(args: &Info) -> Result<Exit> {
    role::runtime(Threads::One)?.block_on(async {
        let address = args.control.resolve(&format!("replica-{}", args.name))?;
        let channel = control::connect(&address, &args.control.tls.protection()).await?;
        let mut client = control::proto::replica_client::ReplicaClient::new(channel);
        let request = control::proto::InstanceRequest { instance: String::new() };
        let info = client.info(request).await.map_err(super::engine::refused)?.into_inner();
        let value = serde_json::json!({
            "name": info.name, "volume": info.volume, "size": info.size, "epoch": info.epoch,
            "activeRegions": info.active_regions, "doubtful": info.doubtful, "outOfSync": info.out_of_sync,
            "connections": info.connections, "indexBytes": info.index_bytes,
        });
        output::print(args.output, &value, fields)?;
        Ok(Exit::Success)
    })
}

/// One field a line.
fn fields(value: &serde_json::Value) -> String {
    let object = value.as_object().into_iter().flatten();
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    output::columns(&object.map(|(key, value)| vec![key.clone(), text(value)]).collect::<Vec<_>>())
}

fn show_hash(args: &Hash) -> Result<Exit> {
    role::runtime(Threads::One)?.block_on(async {
        let address = args.control.resolve(&format!("replica-{}", args.name))?;
        let channel = control::connect(&address, &args.control.tls.protection()).await?;
        let mut client = control::proto::replica_client::ReplicaClient::new(channel);
        let request = control::proto::HashSnapshotRequest {
            instance: String::new(),
            snapshot: args.snapshot.clone(),
            rehash: args.rehash,
        };
        let hash = client.hash_snapshot(request).await.map_err(super::engine::refused)?.into_inner();
        let value = serde_json::json!({
            "method": hash.method, "checksum": hash.checksum, "changeTime": hash.change_time,
            "lastHashedAt": hash.last_hashed_at, "silentlyCorrupted": hash.silently_corrupted,
        });
        output::print(args.output, &value, fields)?;
        Ok(if hash.silently_corrupted { Exit::Failure } else { Exit::Success })
    })
}

fn hand_back(args: &Release) -> Result<Exit> {
    let files = StdFiles::open(&args.dir, Caching::Direct, false)?;
    let open = Open { volume: None, boot_id: boot_id()? };
    let shown = args.dir.display();
    let (volume, _) = Volume::open(files, &open).with_context(|| shown.to_string())?;
    let how = if args.stale { Released::Stale } else { Released::Current };
    volume.release(&how).with_context(|| shown.to_string())?;
    output::say(&format!("{shown} belongs to Longhorn now\n"));
    Ok(Exit::Success)
}
