//! `tether bench attacher`: this attacher under load, and another beside it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::bench::attacher::{self, Phase};
use crate::bench::process::{Memory, Watched, processor_seconds};
use crate::bench::{Figure, Target};
use crate::output::{self, Exit, Format};

/// Attaches and detaches many volumes of a driver that answers at once
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Serves a CSI driver on --socket and runs `tether attacher` on it. Another attacher, given with its flags after --, then \
                  gets the same load on the same server; its --csi-address and --kubeconfig are added. Processor time is that of \
                  attaching alone.\n\n\
                  Examples:\n  tether bench attacher --kubeconfig ~/.local/share/tether/kubeconfig\n  \
                  tether bench attacher --kubeconfig kubernetes.yaml --workers 100 --rounds 3 --server 4711 --server 4712 \\\n    \
                  -- csi-attacher --worker-threads 100 --kube-api-qps 2000 --kube-api-burst 2000"
)]
pub(crate) struct Args {
    /// The API server
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Volumes to attach and detach
    #[arg(long, default_value_t = 2000)]
    volumes: usize,
    /// Calls at a time, for each of attach and detach
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    workers: u16,
    /// How often each attacher is measured, in turns
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Where the driver listens
    #[arg(long, default_value = "/tmp/tether-bench-csi.sock")]
    socket: PathBuf,
    /// A process of the API server, whose processor time is told as well; may be given several times
    #[arg(long, value_name = "PID")]
    server: Vec<u32>,
    /// Program that is measured as Tether's, such as tether-attacher [default: this one's `tether attacher`]
    #[arg(long, value_name = "PROGRAM", conflicts_with = "only_other")]
    attacher: Option<PathBuf>,
    /// Leave Tether's attacher out
    #[arg(long, requires = "beside")]
    only_other: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Another attacher and its flags
    #[arg(last = true, value_name = "COMMAND")]
    beside: Vec<OsString>,
}

/// One attacher under the load.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    round: u16,
    attacher: String,
    attach: Figure,
    detach: Figure,
    memory: Memory,
    processor: Processor,
}

/// Seconds of processor time, by process, while volumes were attached.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Processor {
    attacher: f64,
    server: f64,
    /// Whoever creates and watches attachments, and the driver.
    load: f64,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let target = Target::open(&args.kubeconfig).await?;
    let ours = || {
        let workers = args.workers.to_string();
        let mut command = match &args.attacher {
            Some(program) => vec![program.clone().into_os_string()],
            None => ["/proc/self/exe", "attacher"].map(OsString::from).to_vec(),
        };
        command.extend(["--worker-threads", &workers].map(OsString::from));
        command
    };
    let mut all = Vec::new();
    for round in 1..=args.rounds {
        if !args.only_other {
            all.push(measure(args, &target, round, "tether", ours()).await?);
        }
        if let Some(program) = args.beside.first() {
            let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
            all.push(measure(args, &target, round, &name, args.beside.clone()).await?);
        }
    }
    output::print(args.output, &all, |all| table(all))?;
    Ok(Exit::Success)
}

/// The attacher is a process of its own, so that its memory can be told.
async fn measure(args: &Args, target: &Target, round: u16, name: &str, words: Vec<OsString>) -> Result<Measured> {
    let stop = CancellationToken::new();
    attacher::serve_driver(&args.socket, &stop)?;
    let mut child = start(args, &words)?;
    let watched = Watched::start(child.id().context("the attacher ended at once")?);
    let before = Mutex::new(Processor::default());
    let during = Mutex::new(Processor::default());
    let progress = |phase: Phase| {
        output::complain(&format!("{} with {name}: {}", target.name, phase.words()));
        match (phase, taken(args, &watched)) {
            (Phase::Attaching, Ok(taken)) => *before.lock() = taken,
            (Phase::Detaching, Ok(taken)) => *during.lock() = taken.since(&before.lock()),
            _ => {}
        }
    };
    let figures = attacher::run(&target.client, args.volumes, &progress).await.with_context(|| name.to_owned())?;
    let memory = watched.memory()?;
    child.kill().await?;
    stop.cancel();
    let processor = *during.lock();
    let attacher::Figures { attach, detach } = figures;
    Ok(Measured { round, attacher: name.to_owned(), attach, detach, memory, processor })
}

fn start(args: &Args, words: &[OsString]) -> Result<Child> {
    let (program, flags) = words.split_first().context("no attacher is named")?;
    let child = Command::new(program)
        .args(flags)
        .arg("--csi-address")
        .arg(&args.socket)
        .arg("--kubeconfig")
        .arg(&args.kubeconfig)
        .env("TETHER_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    child.with_context(|| program.to_string_lossy().into_owned())
}

fn taken(args: &Args, attacher: &Watched) -> Result<Processor> {
    let server = args.server.iter().map(|pid| processor_seconds(*pid)).sum::<Result<f64>>()?;
    Ok(Processor { attacher: attacher.processor_seconds()?, server, load: processor_seconds(std::process::id())? })
}

impl Processor {
    fn since(self, before: &Self) -> Self {
        Self {
            attacher: self.attacher - before.attacher,
            server: self.server - before.server,
            load: self.load - before.load,
        }
    }
}

fn table(all: &[Measured]) -> String {
    let heads = [
        "ROUND", "ATTACHER", "ATTACH/S", "P50 MS", "P99 MS", "DETACH/S", "PEAK MIB", "OWN", "PROGRAM", "CPU S",
        "SERVER", "LOAD",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for one in all {
        let Measured { attach, detach, memory, processor, .. } = one;
        let figures = [
            attach.per_second,
            attach.p50_ms,
            attach.p99_ms,
            detach.per_second,
            memory.peak,
            memory.own,
            memory.program,
        ];
        let seconds = [processor.attacher, processor.server, processor.load];
        let mut row = vec![one.round.to_string(), one.attacher.clone()];
        row.extend(figures.map(|figure| format!("{figure:.1}")));
        row.extend(seconds.map(|figure| format!("{figure:.2}")));
        rows.push(row);
    }
    output::columns(&rows)
}
