//! `tether up`: a cluster in one command.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use jiff::SignedDuration;
use tether_agent::namespace;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::DataDir;
use super::role::{self, Threads};
use crate::cluster::{self, Cleaned, Held, Layout, Lock, Marker, metrics_address, node_address, node_name, node_zone};
use crate::logging::{self, LogArgs};
use crate::output::{self, Exit};
use crate::supervisor::{APISERVER, Program, Supervisor};

const DEFAULT_NODES: u16 = 3;
/// Each node is a process; with more of them than this on one host nothing is learnt that fewer do not show.
const MAX_NODES: i64 = 64;
/// Kubernetes' own.
const DEFAULT_PORT: u16 = 6443;
/// As a kubelet's; a node is given up a little later.
const NODE_LEASE: SignedDuration = SignedDuration::from_secs(40);
/// A busy laptop lets a process wait for most of a second.
const SHORTEST_GRACE: SignedDuration = SignedDuration::from_secs(2);
/// Where dashboards of Longhorn expect metrics.
const METRICS_PORT: u16 = 9500;

/// Starts a cluster: API server, controllers and nodes, each a process on the loopback
///
/// The first start creates the cluster; later ones with the same directory resume it, with the number of nodes and the
/// port that it had. Runs until Ctrl-C, or in the background with --detach.
#[derive(Debug, clap::Args)]
#[command(after_help = "Prints a table, then a line that begins with `ready`.\n\n\
                  Example:\n  tether up --nodes 3\n  tether up --detach && kubectl --kubeconfig ~/.local/share/tether/kubeconfig get nodes")]
pub(crate) struct Args {
    /// Number of nodes (1 to 64); nodes can be added to a cluster that exists [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=MAX_NODES))]
    nodes: Option<u16>,
    /// Port of the API server on 127.0.0.1; 0 takes a free one [default: 6443]
    #[arg(long)]
    api_port: Option<u16>,
    /// Show volumes by NBD only, as without root: no kernel devices, no mounts
    #[arg(long)]
    no_devices: bool,
    /// How long a node may be silent before it counts as down; what it renews lasts at most as long
    #[arg(long, default_value = "50s", value_name = "TIME")]
    node_grace: SignedDuration,
    /// Return when the cluster is ready, and leave it running
    #[arg(long)]
    detach: bool,
    /// Set for the process that --detach leaves running
    #[arg(long, hide = true)]
    background: bool,
    #[command(flatten)]
    data: DataDir,
    #[command(flatten)]
    logs: LogArgs,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    if args.detach {
        return detach(args);
    }
    let started = Instant::now();
    if args.background {
        // The terminal's signals are not for a cluster in the background.
        rustix::process::setsid().context("cannot leave the terminal's session")?;
    }
    let (layout, marker, _lock) = claim(args)?;
    fs::create_dir_all(layout.logs()).with_context(|| format!("cannot create {}", layout.logs().display()))?;
    logging::to_file(args.logs, &layout.log("up"), !args.background)?;
    report(&cluster::clean(&layout, &marker)?);
    check_port(marker.api_port)?;
    cluster::write_credentials(&layout, &marker)?;
    check_grace(args.node_grace)?;
    let mounts_unavailable = match args.no_devices {
        true => {
            fs::create_dir_all(layout.run()).with_context(|| format!("cannot create {}", layout.run().display()))?;
            Some("--no-devices".to_owned())
        }
        false => hold_namespaces(&layout, &marker)?,
    };
    let programs = programs(&layout, &marker, args, mounts_unavailable.is_none());

    let supervisor = Supervisor::new(layout.clone(), &marker, programs);
    let ready = || {
        output::say(&table(&layout, &marker, mounts_unavailable.as_deref()));
        let hint = if args.background { "`tether down` stops it" } else { "Ctrl-C stops it" };
        output::say(&format!("ready in {:.1} s; {hint}\n", started.elapsed().as_secs_f64()));
        if args.background { leave_terminal(&layout) } else { Ok(()) }
    };
    let mark = layout.process_mark(&marker);
    let rest = move || drop(cluster::end_containers(&mark));
    let ended = role::runtime(Threads::One)?.block_on(supervise(supervisor, ready, rest));
    cluster::clean(&layout, &marker)?;
    ended
}

/// Starts, runs and stops the cluster.
async fn supervise(
    mut supervisor: Supervisor,
    ready: impl FnOnce() -> Result<()>,
    rest: impl FnOnce() + Send + 'static,
) -> Result<Exit> {
    let (stop, force) = until_signals()?;
    let started = tokio::select! {
        started = supervisor.start() => started,
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped before the cluster was ready")),
    };
    let started = started.and_then(|()| ready());
    if started.is_ok() {
        supervisor.run(&stop).await;
        tracing::info!("stopping");
    }
    supervisor.stop(&force, rest).await;
    started.map(|()| Exit::Success)
}

/// The first signal stops the cluster; the second stops it at once.
fn until_signals() -> Result<(CancellationToken, CancellationToken)> {
    let (stop, force) = (CancellationToken::new(), CancellationToken::new());
    let tokens = [stop.clone(), force.clone()];
    let listen = |kind| signal(kind).context("cannot listen to signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::spawn(async move {
        for token in tokens {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            token.cancel();
        }
    });
    Ok((stop, force))
}

/// Makes the directory ours: checks it, locks it, and settles what kind of cluster it is.
fn claim(args: &Args) -> Result<(Layout, Marker, Lock)> {
    let dir = args.data.resolve()?;
    let (layout, _) = Marker::prepare(&dir)?;
    let held =
        Lock::take(&layout).with_context(|| format!("--data-dir {}: cannot be written", layout.dir.display()))?;
    let lock = match held {
        Held::ByUs(lock) => lock,
        Held::ByOther(pid) => {
            let who = pid.map_or_else(|| "another tether".to_owned(), |pid| format!("another tether (pid {pid})"));
            bail!(
                "--data-dir {}: {who} runs this cluster; see `tether status`, stop it with `tether down`, or choose another directory",
                layout.dir.display()
            );
        }
    };
    // Again, now that nobody else can write it.
    let (layout, marker) = Marker::prepare(&layout.dir)?;
    let marker = settle(marker, args.nodes, args.api_port)?;
    marker.write(&layout)?;
    Ok((layout, marker, lock))
}

/// What the cluster is from now on: what it was, with what was asked for.
fn settle(found: Option<Marker>, nodes: Option<u16>, port: Option<u16>) -> Result<Marker> {
    let mut marker = match found {
        None => Marker::new(nodes.unwrap_or(DEFAULT_NODES), port.unwrap_or(DEFAULT_PORT)),
        Some(mut marker) => {
            let nodes = nodes.unwrap_or(marker.nodes);
            if nodes < marker.nodes {
                bail!(
                    "--nodes {nodes}: this cluster has {} nodes, and nodes can be added but not taken away; say --nodes {} or nothing",
                    marker.nodes,
                    marker.nodes
                );
            }
            marker.nodes = nodes;
            marker.api_port = port.unwrap_or(marker.api_port);
            marker.renewed()
        }
    };
    if marker.api_port == 0 {
        marker.api_port = cluster::free_port().context("--api-port 0: no free port")?;
    }
    Ok(marker)
}

fn check_port(port: u16) -> Result<()> {
    cluster::check_port(port)?.with_context(|| format!("--api-port {port}: cannot listen on 127.0.0.1:{port}"))
}

/// Gives every node a mount namespace; the reason if that is not possible.
fn hold_namespaces(layout: &Layout, marker: &Marker) -> Result<Option<String>> {
    let run = layout.run();
    fs::create_dir_all(&run).with_context(|| format!("cannot create {}", run.display()))?;
    if let Some(why) = namespace::unavailable() {
        return Ok(Some(why));
    }
    namespace::make_private(&run)?;
    for number in 1..=marker.nodes {
        let holder = layout.namespace(&node_name(number));
        let folder = holder.parent().expect("a holder must lie in a folder");
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        namespace::create(&holder)?;
    }
    Ok(None)
}

fn check_grace(grace: SignedDuration) -> Result<()> {
    if grace < SHORTEST_GRACE {
        bail!("--node-grace {grace:#}: a node that is only busy would count as down; say at least {SHORTEST_GRACE:#}");
    }
    Ok(())
}

fn programs(layout: &Layout, marker: &Marker, up: &Args, namespaces: bool) -> Vec<Program> {
    let program = |name: &str, node: Option<String>, args: Vec<OsString>| {
        let args = args.into_iter().chain(up.logs.to_args().map(OsString::from)).collect();
        let off = node.as_deref().map(|node| layout.switched_off(node));
        Program { name: name.to_owned(), args, log: layout.log(name), node, off }
    };
    let grace = format!("{}ms", up.node_grace.as_millis());
    let lease = format!("{}ms", up.node_grace.min(NODE_LEASE).as_millis());
    let listen = format!("127.0.0.1:{}", marker.api_port);
    let server: Vec<OsString> =
        vec!["apiserver".into(), "--data-dir".into(), layout.apiserver().into(), "--listen".into(), listen.into()];
    let mut controller: Vec<OsString> = vec!["controller".into(), "--kubeconfig".into()];
    // There is one, and the one before it has ended: an election would only delay it.
    controller.extend([
        layout.controller_kubeconfig().into(),
        "--leader-elect".into(),
        "false".into(),
        "--attach-detach".into(),
        "--node-monitor-grace".into(),
        grace.into(),
        "--metrics-listen".into(),
        metrics(marker).to_string().into(),
        "--metrics-certificate".into(),
        layout.metrics_certificate().into(),
        "--metrics-key".into(),
        layout.metrics_certificate().into(),
    ]);
    let mut csi: Vec<OsString> = vec!["csi".into(), "--controller".into(), "--endpoint".into()];
    csi.extend([layout.run().join("csi.sock").into(), "--kubeconfig".into(), layout.controller_kubeconfig().into()]);
    let mut programs =
        vec![program(APISERVER, None, server), program("controller", None, controller), program("csi", None, csi)];
    for number in 1..=marker.nodes {
        let name = node_name(number);
        let mut args: Vec<OsString> = vec!["node".into(), "--name".into(), name.clone().into()];
        args.extend(["--kubeconfig".into(), layout.node_kubeconfig(&name).into()]);
        args.extend(["--data-dir".into(), layout.node(&name).into()]);
        args.extend(["--address".into(), node_address(marker, number).to_string().into()]);
        args.extend(["--zone".into(), node_zone(number).into()]);
        args.extend(["--serving-certificate".into(), layout.node_certificate(&name).into()]);
        args.extend(["--lease-duration".into(), lease.clone().into()]);
        if up.no_devices {
            args.push("--no-devices".into());
        }
        if namespaces {
            args.extend(["--namespace".into(), layout.namespace(&name).into()]);
            args.extend(["--device-run".into(), layout.devices(&name).into()]);
        }
        programs.push(program(&name, Some(name.clone()), args));
    }
    programs
}

fn metrics(marker: &Marker) -> SocketAddr {
    SocketAddr::new(metrics_address(marker), METRICS_PORT)
}

/// Tells what the last `tether up` left behind.
fn report(cleaned: &Cleaned) {
    if !cleaned.is_empty() {
        let Cleaned { processes, mounts, loops } = cleaned;
        let counts = [(processes.len(), "processes"), (mounts.len(), "mounts"), (loops.len(), "loop devices")];
        let counts: Vec<_> =
            counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        tracing::warn!("removed what an earlier run left behind: {}", counts.join(", "));
        tracing::info!(?processes, ?mounts, ?loops, "removed");
    }
}

fn table(layout: &Layout, marker: &Marker, mounts_unavailable: Option<&str>) -> String {
    let kubeconfig = layout.kubeconfig();
    let nodes: Vec<_> = (1..=marker.nodes).map(node_name).collect();
    let nodes = if nodes.len() > 4 { format!("{} … {}", nodes[0], nodes[nodes.len() - 1]) } else { nodes.join(", ") };
    let mounts = match mounts_unavailable {
        None => "each node has its own mount namespace".to_owned(),
        Some(why) => format!("unavailable ({why}): kernel devices and mounts need root, everything else works"),
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    output::columns(&[
        row("API server", format!("https://127.0.0.1:{}", marker.api_port)),
        row("metrics", format!("https://{}/metrics", metrics(marker))),
        row("kubeconfig", kubeconfig.display().to_string()),
        row("nodes", nodes),
        row("mounts", mounts),
        row("logs", layout.logs().display().to_string()),
        row("try", format!("kubectl --kubeconfig {} get nodes", quoted(&kubeconfig))),
    ])
}

/// The path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+@%:,".contains(c));
    if plain { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Starts the cluster in the background and shows what it says until it is ready.
fn detach(args: &Args) -> Result<Exit> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this binary")?);
    command.args(["up", "--background"]).arg("--data-dir").arg(args.data.resolve()?).args(args.logs.to_args());
    if let Some(nodes) = args.nodes {
        command.arg("--nodes").arg(nodes.to_string());
    }
    if let Some(port) = args.api_port {
        command.arg("--api-port").arg(port.to_string());
    }
    if args.no_devices {
        command.arg("--no-devices");
    }
    command.arg("--node-grace").arg(format!("{}ms", args.node_grace.as_millis()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("cannot start the cluster in the background")?;
    let out = child.stdout.take().expect("standard output must be a pipe");
    for line in BufReader::new(out).lines() {
        let line = line.context("cannot read from the cluster")?;
        output::say(&format!("{line}\n"));
        if line.starts_with("ready") {
            return Ok(Exit::Success);
        }
    }
    // It ended: what it had to say is the reason.
    let mut words = String::new();
    child.stderr.take().expect("standard error must be a pipe").read_to_string(&mut words)?;
    output::complain(words.trim_end());
    child.wait()?;
    Ok(Exit::Failure)
}

/// What is written to standard error from now on, such as the words of a panic, goes to the log.
fn leave_terminal(layout: &Layout) -> Result<()> {
    let path: PathBuf = layout.log("up");
    let log =
        fs::File::options().append(true).open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    rustix::stdio::dup2_stderr(&log)?;
    rustix::stdio::dup2_stdout(&log)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_keeps_what_it_has_and_grows() {
        let marker = settle(None, None, None).unwrap();
        assert_eq!((marker.nodes, marker.api_port), (3, 6443));
        let marker = settle(Some(marker), Some(5), Some(7443)).unwrap();
        assert_eq!((marker.nodes, marker.api_port), (5, 7443));
        let again = settle(Some(marker.clone()), None, None).unwrap();
        assert_eq!(again, marker);
        let error = settle(Some(marker), Some(2), None).unwrap_err().to_string();
        assert!(error.contains("--nodes 2: this cluster has 5 nodes"), "{error}");
        assert_ne!(settle(None, None, Some(0)).unwrap().api_port, 0);
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-c")), "/a/b-c");
        assert_eq!(quoted(Path::new("/it's here")), r"'/it'\''s here'");
    }
}
