//! `tether bench attacher`: an attacher under load, this one or another.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::bench::table;
use crate::bench::{self, Report, Target};
use crate::output::{self, Exit, Format};

/// Attaches and detaches many volumes of a driver that answers at once
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Serves a CSI driver on --socket and, unless --external is given, runs `tether attacher` on it. With \
                  --external start the attacher that is to be measured on that socket yourself.\n\n\
                  Examples:\n  tether bench attacher --kubeconfig ~/.local/share/tether/kubeconfig\n  \
                  tether bench attacher --kubeconfig kubernetes.yaml --external --pid 4711 --socket /tmp/bench.sock -o json"
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
    /// Where the driver listens
    #[arg(long, default_value = "/tmp/tether-bench-csi.sock")]
    socket: PathBuf,
    /// Another attacher is measured, which is started by hand
    #[arg(long)]
    external: bool,
    /// Its process, for its memory and processor time
    #[arg(long, value_name = "PID", requires = "external")]
    pid: Option<u32>,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// What a run came to, and what the attacher took for it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    #[serde(flatten)]
    load: Report,
    /// Where its process is known.
    attacher: Option<Taken>,
}

/// What a process has taken so far.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Taken {
    peak_memory_mib: f64,
    /// Of it, what is the process's own; the rest is the program, as far as it is in memory.
    own_memory_mib: f64,
    processor_seconds: f64,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let target = Target::open(&args.kubeconfig).await?;
    let stop = CancellationToken::new();
    bench::attacher::serve_driver(&args.socket, &stop)?;
    let mut attacher = if args.external { None } else { Some(start(args)?) };
    let progress = |step: &str| output::complain(&format!("{}: {step}", target.name));
    let figures = bench::attacher::run(&target, args.volumes, &progress).await?;
    let pid = attacher.as_ref().and_then(Child::id).or(args.pid);
    let taken = pid.map(taken).transpose()?;
    if let Some(attacher) = &mut attacher {
        attacher.kill().await?;
    }
    stop.cancel();
    let measured = Measured { load: Report { target: target.name.clone(), figures }, attacher: taken };
    output::print(args.output, &measured, |measured| {
        let table = table(std::slice::from_ref(&measured.load));
        let Some(Taken { peak_memory_mib, own_memory_mib, processor_seconds }) = &measured.attacher else {
            return table;
        };
        format!(
            "{table}\nattacher  {peak_memory_mib:.1} MiB at its peak ({own_memory_mib:.1} MiB of its own at the end), \
             {processor_seconds:.1} s of processor time\n"
        )
    })?;
    Ok(Exit::Success)
}

/// The attacher is a process of its own, so that its memory can be told.
fn start(args: &Args) -> Result<Child> {
    let child = Command::new("/proc/self/exe")
        .args(["attacher", "--worker-threads", &args.workers.to_string(), "--csi-address"])
        .arg(&args.socket)
        .arg("--kubeconfig")
        .arg(&args.kubeconfig)
        .env("TETHER_LOG", "error")
        .stdout(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok(child)
}

fn taken(pid: u32) -> Result<Taken> {
    /// The kernel counts processor time in these, whatever it ticks in itself.
    const TICKS_PER_SECOND: f64 = 100.0;
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        std::fs::read_to_string(&path).with_context(|| format!("{path}: has the attacher ended?"))
    };
    let status = read("status")?;
    let mib = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0.0) / 1024.0
    };
    let stat = read("stat")?;
    // After the name, which may contain anything: the state is the third field, times in user and system the 14th and 15th.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(Taken {
        peak_memory_mib: mib("VmHWM:"),
        own_memory_mib: mib("RssAnon:"),
        processor_seconds: ticks / TICKS_PER_SECOND,
    })
}
