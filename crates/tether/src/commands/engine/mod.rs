//! `tether engine`: one engine of one volume, with no cluster, and the client of its control API.

mod control;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use tether_engine::control::{Entry, Registry, Running, Service, bind, serve, volume_id};
use tether_engine::device::place::Name;
use tether_engine::engine_server::{Answer, Command, Nbd, ReplicaAddress, Settings};
use tether_engine::frontend::nbd::listen::{Security, uri};
use tether_engine::host::Address;
use tether_engine::instance::{Ended, EngineInstance, EngineOptions, default_place};
use tether_engine::record::RecordFile;
use tether_replication::engine::Limits;
use tether_replication::ids::{Holder, MemberId};
use tether_replication::rules::Rules;
use uuid::Uuid;

use super::data_plane::{ControlArgs, KeyArgs, NbdTlsArgs, Size};
use super::role::{self, Threads};
use crate::logging::LogArgs;
use crate::output::{self, Exit};

pub(super) use control::refused;

/// Attaches a volume: serves it over NBD from its replicas, or asks an engine that does
///
/// The engine takes the volume at a new epoch in the record; whoever held it before is fenced. A write is acknowledged
/// when every in-sync replica stored it.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Prints `serving URI` on standard output once reads and writes are served, and `standby URI` before if it is one.\n\n\
                  Example:\n  tether engine --volume v1 --size 4GiB --replica 127.0.0.1:9601 --replica 127.0.0.1:9602 \\\n    \
                  --record v1.record --nbd unix:/run/v1.sock\n  tether engine info v1\n  tether engine snapshot create v1 before-upgrade"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<control::Action>,
    #[command(flatten)]
    serve: Serve,
}

/// A replica on the command line: `ADDR` or `NAME=ADDR`.
#[derive(Clone, Debug)]
struct ReplicaArg(ReplicaAddress);

impl FromStr for ReplicaArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, address) = match text.split_once('=') {
            Some((name, address)) => {
                let name = MemberId::new(name).ok_or_else(|| format!("{name:?} is no name of a replica"))?;
                (Some(name), address)
            }
            None => (None, text),
        };
        let address = address.parse::<Address>().map_err(|error| error.to_string())?;
        Ok(Self(ReplicaAddress { name, address }))
    }
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Name of the volume
    #[arg(long, required = true)]
    volume: Option<String>,
    /// Size of the volume, such as 4GiB
    #[arg(long, required = true)]
    size: Option<Size>,
    /// A replica: IP:PORT or unix:/path, or NAME=ADDR to insist on who answers there
    #[arg(long = "replica", required = true, value_name = "[NAME=]ADDR")]
    replicas: Vec<ReplicaArg>,
    /// File that holds the volume's record; engines that race for a volume must use the same one
    #[arg(long, value_name = "FILE", required = true)]
    record: Option<PathBuf>,
    /// Where to serve NBD: unix:/path, or tcp:IP:PORT (with --nbd-tls-cert beyond loopback)
    #[arg(long, value_name = "ADDR")]
    nbd: Vec<Address>,
    /// Attach a kernel block device, /dev/longhorn/VOLUME; needs root. It outlives this process: an engine that is
    /// started again goes on with it, `tether engine close` removes it
    #[arg(long)]
    device: bool,
    #[command(flatten)]
    nbd_tls: NbdTlsArgs,
    /// Bytes per second of resync, such as 50MiB; without it there is no limit
    #[arg(long, value_name = "SIZE")]
    resync_limit: Option<Size>,
    /// Let standbys of other nodes read through this engine: IP:PORT or unix:/path
    #[arg(long, value_name = "ADDR")]
    peer_listen: Option<Address>,
    /// Do not take the volume: be named in the record as standby, read through the engine that holds it, and take over
    /// with the first write or with `tether engine promote`
    #[arg(long, requires = "source")]
    standby: bool,
    /// Where the engine that holds the volume lets standbys read (its --peer-listen)
    #[arg(long, value_name = "ADDR", requires = "standby")]
    source: Option<Address>,
    /// Do not wait for leases of older engines: every engine that ever held this volume is known to be stopped
    #[arg(long)]
    older_stopped: bool,
    #[command(flatten)]
    key: KeyArgs,
    #[command(flatten)]
    control: ControlArgs,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: Args) -> Result<Exit> {
    match args.action {
        Some(action) => control::run(action),
        None => run_serve(args.serve),
    }
}

impl Serve {
    fn nbd(&self) -> Result<Vec<Nbd>> {
        let config = self.nbd_tls.configure()?;
        let nbd = |address: &Address| {
            let security = Security::of(address, config.clone()).context("--nbd")?;
            Ok(Nbd { address: address.clone(), security })
        };
        self.nbd.iter().map(nbd).collect()
    }

    /// The line of engines is kept beside the socket at which its clients connect again.
    fn line(&self) -> Option<PathBuf> {
        self.nbd.iter().find_map(|address| match address {
            Address::Unix(path) => {
                let mut name = path.clone().into_os_string();
                name.push(".line");
                Some(name.into())
            }
            Address::Tcp(_) => None,
        })
    }

    fn settings(&self, volume: &str) -> Result<Settings> {
        let replicas: Vec<_> = self.replicas.iter().map(|replica| replica.0.clone()).collect();
        let peers = self.peer_listen.iter().chain(&self.source);
        let key = self.key.read(replicas.iter().map(|replica| &replica.address).chain(peers))?;
        let resync_bytes_per_second = self.resync_limit.map_or(0, |limit| limit.0);
        Ok(Settings {
            volume: volume.to_owned(),
            volume_id: volume_id(volume),
            holder: Holder(Uuid::new_v4().as_u128()),
            size: self.size.context("--size: missing")?.0,
            replicas,
            key,
            nbd: self.nbd()?,
            limits: Limits { resync_bytes_per_second, ..Limits::default() },
            older_stopped: self.older_stopped,
            peer_listen: self.peer_listen.clone(),
            standby: self.standby,
            source: self.source.clone(),
            line: false,
            rules: Rules::default(),
        })
    }
}

fn run_serve(args: Serve) -> Result<Exit> {
    // Required by the command line unless there is a subcommand.
    let volume = args.volume.clone().context("--volume: missing")?;
    let record = args.record.clone().context("--record: missing")?;
    role::begin(&format!("engine {volume}"), args.logs)?;
    let settings = args.settings(&volume)?;
    let (nbd, uid) = (settings.nbd.clone(), Uuid::from_u128(settings.holder.0));
    let control_address = args.control.resolve(&format!("engine-{volume}"))?;
    let record = Box::new(RecordFile::new(std::path::absolute(&record).context("--record")?, volume.clone()));
    let device = match args.device {
        true => {
            tether_engine::device::available().context("--device")?;
            Some((default_place(), Name::new(&volume).context("--device")?))
        }
        false => None,
    };
    let line = args.line();
    let engine = Arc::new(EngineInstance::open(EngineOptions { settings, record, device, line })?);
    let addresses = match engine.get(Command::Listening)? {
        Answer::Listening(listening) => listening.map_err(anyhow::Error::msg)?,
        other => bail!("unexpected answer {other:?}"),
    };
    let uris: Vec<_> = addresses.iter().zip(&nbd).map(|(local, nbd)| uri(local, &volume, &nbd.security)).collect();
    let registry = Arc::new(Registry::new());
    registry.insert(&volume, Entry { running: Running::Engine(engine.clone()), addresses, uid });
    role::runtime(Threads::One)?.block_on(async {
        let cancel = role::until_signal()?;
        let bound = bind(&control_address, &args.control.tls.protection())?;
        let announced = engine.clone();
        if args.standby {
            output::say(&format!("standby {}\n", uris.join(" ")));
        }
        tokio::spawn(async move {
            if announced.get_async(Command::Serving).await == Ok(Answer::Done) {
                output::say(&format!("serving {}\n", uris.join(" ")));
            }
        });
        let stop = async {
            tokio::select! {
                () = cancel.cancelled() => drop(engine.get_async(Command::Stop).await),
                _ = engine.wait_ended() => {}
            }
        };
        serve(bound, Service::new(registry.clone()), stop).await?;
        match engine.wait_ended().await {
            Ended::Stopped => Ok(Exit::Success),
            ended => bail!("the engine {ended}"),
        }
    })
}
