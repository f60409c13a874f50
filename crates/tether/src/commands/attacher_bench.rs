//! `tether bench attacher`: an attacher under load, this one or another.

use std::path::PathBuf;

use anyhow::Result;
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
                  tether bench attacher --kubeconfig kubernetes.yaml --external --socket /tmp/bench.sock"
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
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(super) async fn run(args: &Args) -> Result<Exit> {
    let target = Target::open(&args.kubeconfig).await?;
    let stop = CancellationToken::new();
    bench::attacher::serve_driver(&args.socket, &stop)?;
    let mut attacher = if args.external { None } else { Some(start(args)?) };
    let progress = |step: &str| output::complain(&format!("{}: {step}", target.name));
    let figures = bench::attacher::run(&target, args.volumes, &progress).await?;
    let memory = attacher.as_ref().and_then(Child::id).and_then(peak_memory_kib);
    if let Some(attacher) = &mut attacher {
        attacher.kill().await?;
    }
    stop.cancel();
    let reports = vec![Report { target: target.name.clone(), figures }];
    output::print(args.output, &reports, |reports| table(reports))?;
    if let Some(kib) = memory {
        output::complain(&format!("peak memory of the attacher: {:.1} MiB", kib as f64 / 1024.0));
    }
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

fn peak_memory_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}
