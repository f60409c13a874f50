//! A replica: opens, makes or adopts a directory, and serves it.

use std::path::{Path, PathBuf};

use tether_replication::ids::BootId;
use tether_replication::rules::Rules;
use tether_store::Volume;
use tether_store::files::real::{Caching, DirectoryError, StdFiles};
use tether_store::volume::{Adopt, Create, Open, OpenError, Opened};
use uuid::Uuid;

use super::thread::{Ended, Instance, StartError};
use crate::auth::Key;
use crate::host::Address;
use crate::replica_server::{ReplicaServer, Settings};

/// Where Linux says which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What a replica is told.
#[derive(Clone, Debug)]
pub struct ReplicaOptions {
    pub dir: PathBuf,
    /// Needed for a new one; for one that exists it must be the same.
    pub size: Option<u64>,
    /// Name in the record; what an existing one is called stays.
    pub name: String,
    /// Refuse a directory with another name.
    pub insist: bool,
    /// Time of creation for a new one, RFC 3339.
    pub created: String,
    pub listen: Vec<Address>,
    pub key: Key,
    pub buffered: bool,
}

/// Why a directory is of no use.
#[derive(Debug, thiserror::Error)]
pub enum OpenReplicaError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{path}: {source}", path = path.display())]
    Open { path: PathBuf, source: OpenError },
    #[error("{path} is empty: say how large the volume is (--size 4GiB)", path = path.display())]
    SizeNeeded { path: PathBuf },
    #[error("{path} is a replica of {found} bytes, not of {wanted}: leave --size out, or expand the volume", path = path.display())]
    Size { path: PathBuf, found: u64, wanted: u64 },
    #[error("{path} is replica {found:?}, not {wanted:?}", path = path.display())]
    Name { path: PathBuf, found: String, wanted: String },
    #[error("cannot read {BOOT_ID}: {0}")]
    Boot(std::io::Error),
}

/// The running boot, as the store writes it.
pub fn boot_id() -> Result<String, OpenReplicaError> {
    let text = std::fs::read_to_string(BOOT_ID).map_err(OpenReplicaError::Boot)?;
    Ok(text.trim().to_owned())
}

/// Opens the directory; makes it if it is empty, adopts it if Longhorn wrote it.
pub fn open_replica(options: &ReplicaOptions) -> Result<(Volume<StdFiles>, Opened), OpenReplicaError> {
    let caching = if options.buffered { Caching::Buffered } else { Caching::Direct };
    let boot_id = boot_id()?;
    let open = |create: bool| StdFiles::open(&options.dir, caching, create);
    let failed = |source| OpenReplicaError::Open { path: options.dir.clone(), source };
    let as_it_is = Volume::open(open(options.size.is_some())?, &Open { volume: None, boot_id: boot_id.clone() });
    let (volume, opened) = match as_it_is {
        Err(OpenError::NotAReplica) => {
            let size = options.size.ok_or_else(|| OpenReplicaError::SizeNeeded { path: options.dir.clone() })?;
            let create = Create {
                volume: String::new(),
                replica: options.name.clone(),
                size,
                boot_id,
                created: options.created.clone(),
            };
            Volume::create(open(true)?, &create).map_err(failed)?
        }
        Err(OpenError::NotAdopted | OpenError::WasReleased) => {
            let adopt = Adopt { replica: options.name.clone(), boot_id, ..Adopt::default() };
            Volume::adopt(open(false)?, &adopt).map_err(failed)?
        }
        other => other.map_err(failed)?,
    };
    let found = &volume.state().header.replica;
    if options.insist && *found != options.name {
        let (found, wanted) = (found.clone(), options.name.clone());
        return Err(OpenReplicaError::Name { path: options.dir.clone(), found, wanted });
    }
    match options.size.filter(|wanted| *wanted > volume.size()) {
        Some(wanted) => Err(OpenReplicaError::Size { path: options.dir.clone(), found: volume.size(), wanted }),
        None => Ok((volume, opened)),
    }
}

/// A replica that runs.
pub type ReplicaInstance = Instance<ReplicaServer<StdFiles>>;

impl ReplicaInstance {
    pub fn open(options: ReplicaOptions) -> Result<Self, StartError<OpenReplicaError>> {
        let thread_name = format!("replica {}", options.name);
        let make = move || {
            let (volume, opened) = open_replica(&options)?;
            report(&options.dir, &opened);
            let boot = boot_id()?;
            let boot = BootId(Uuid::parse_str(&boot).map_or(0, |uid| uid.as_u128()));
            let settings = Settings { listen: options.listen, key: options.key, boot, rules: Rules::default() };
            Ok(ReplicaServer::new(settings, volume))
        };
        let calls = |_| Ok(Box::new(|_, _| {}) as _);
        Self::start(&thread_name, make, calls, close)
    }
}

fn report(dir: &Path, opened: &Opened) {
    tracing::info!(dir = %dir.display(), previous = ?opened.previous, "replica opened");
    for repair in &opened.repairs {
        tracing::warn!(dir = %dir.display(), "{repair}");
    }
    if let Some(foreign) = &opened.foreign {
        tracing::warn!(dir = %dir.display(), "counts as out of sync: {foreign}");
    }
}

fn close(server: ReplicaServer<StdFiles>, how: &Ended) {
    if *how == Ended::Stopped
        && let Err(error) = server.into_volume().close()
    {
        tracing::warn!(%error, "the directory was not closed properly; it is opened as after a crash");
    }
}
