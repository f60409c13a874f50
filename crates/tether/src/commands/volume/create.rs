//! `tether volume create`.

use anyhow::{Context as _, Result};
use kube::api::PostParams;
use tether_crd::volume::{AccessMode, DataLocality, Frontend, State, conditions};
use tether_crd::{IntString, Volume};

use super::super::Access;
use super::wait::Patience;
use super::{parse_size, show_size};
use crate::output::{self, Exit};
use crate::picture::api;

/// Makes a volume; it is attached later
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether volume create v1 --size 1Gi --replicas 3\n  \
                        tether volume create v2 --size 20Gi --data-locality best-effort --disk-selector ssd")]
pub(super) struct Args {
    /// Name of the volume
    name: String,
    /// How large it is: 1Gi, 500M, or bytes
    #[arg(long, value_parser = parse_size)]
    size: i64,
    /// How many copies of the data are kept
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(i64).range(1..=20))]
    replicas: i64,
    /// Whether a replica is to be where the volume is attached: disabled, best-effort, strict-local
    #[arg(long, default_value_t)]
    data_locality: DataLocality,
    /// Who may use it at once: rwo, rwop, rwx
    #[arg(long, default_value_t)]
    access_mode: AccessMode,
    /// It may move to another node while it is used (with --access-mode rwx)
    #[arg(long)]
    migratable: bool,
    /// Tags that a replica's node must have
    #[arg(long, value_delimiter = ',', value_name = "TAG")]
    node_selector: Vec<String>,
    /// Tags that a replica's disk must have
    #[arg(long, value_delimiter = ',', value_name = "TAG")]
    disk_selector: Vec<String>,
    /// Minutes after which a replica that failed is given up; 0: never
    #[arg(long, default_value_t = 2880, value_name = "MINUTES")]
    stale_replica_timeout: i64,
    #[command(flatten)]
    patience: Patience,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let client = args.access.client("tether-volume").await?;
    let mut volume = Volume::default();
    volume.metadata.name = Some(args.name.clone());
    let spec = &mut volume.spec;
    spec.size = IntString(args.size);
    spec.number_of_replicas = args.replicas;
    spec.frontend = Frontend::BlockDev;
    spec.data_locality = args.data_locality;
    spec.access_mode = args.access_mode;
    spec.migratable = args.migratable;
    spec.node_selector.clone_from(&args.node_selector);
    spec.disk_selector.clone_from(&args.disk_selector);
    spec.stale_replica_timeout = args.stale_replica_timeout;
    let made = api::<Volume>(&client).create(&PostParams::default(), &volume).await;
    let made = made.with_context(|| format!("volume {:?} cannot be made", args.name))?;
    let size = show_size(made.spec.size.0);
    if args.patience.is_none() {
        output::say(&format!("volume {} of {size} is being made\n", args.name));
        return Ok(Exit::Success);
    }
    let placed = args.patience.until(&client, &args.name, "ready to be attached", |picture| {
        let picture = picture?;
        let scheduled = picture.volume.condition(conditions::SCHEDULED) == tether_crd::condition::TRUE;
        (picture.volume.status.state == State::Detached && scheduled).then_some(picture.replicas.len())
    });
    let placed = placed.await?;
    let wanted = usize::try_from(made.spec.number_of_replicas).unwrap_or_default();
    let replicas = match (placed, wanted) {
        (1, 1) => "1 replica".to_owned(),
        _ if placed < wanted => format!("{placed} of {wanted} replicas so far"),
        _ => format!("{placed} replicas"),
    };
    output::say(&format!("volume {} of {size} is ready to be attached, with {replicas}\n", args.name));
    Ok(Exit::Success)
}
