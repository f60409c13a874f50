//! `tether bench`: measures, and compares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Subcommand;

use super::role::{self, Threads};
use super::{attacher_bench, pod_bench};
use crate::bench::{self, Fanout, Figure, Plan, Report, Target, attach, fleet};
use crate::client;
use crate::output::{self, Exit, Format};

/// Measures a server, or compares two
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tether bench api --kubeconfig ~/.local/share/tether/kubeconfig")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Api(ApiArgs),
    Fleet(FleetArgs),
    Attach(AttachArgs),
    Attacher(attacher_bench::Args),
    Pod(pod_bench::Args),
}

/// Attaches and detaches a volume of its own, again and again
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Makes a volume in a running cluster, attaches it to its nodes in turn, and prints how long that takes from the ticket to its \
                  satisfaction, phase by phase: until the controllers decided (decide), until the replicas run and the engine is told to \
                  start (replicas), until it serves (engine), until the ticket says so (tell). The first attachment, which makes the \
                  volume's data, is counted apart.\n\n\
                  Example:\n  tether bench attach --kubeconfig ~/.local/share/tether/kubeconfig --rounds 50"
)]
struct AttachArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// How often the volume is attached
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rounds: u16,
    /// Replicas of the volume
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    replicas: u16,
    /// Without a block device
    #[arg(long)]
    no_frontend: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Thousands of volumes on hundreds of nodes whose instance managers only pretend
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Makes nodes and volumes of its own in a running cluster, attaches all volumes at once, then at a rate, and loses a \
                  node in between. API server, controllers and every write are real; engines and replicas are not started.\n\n\
                  Example:\n  tether up --nodes 1 --detach\n  tether bench fleet --kubeconfig ~/.local/share/tether/kubeconfig --nodes 50 --volumes 500"
)]
struct FleetArgs {
    /// The cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Nodes to pretend
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u16).range(2..=5000))]
    nodes: u16,
    /// Volumes to make
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    volumes: u32,
    /// Replicas of each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=20))]
    replicas: u16,
    /// Attachments per second that are offered in the second round
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    rate: u16,
    /// Volumes on the node that is lost; 0 leaves that part out
    #[arg(long, default_value_t = 200)]
    lose: usize,
    /// Process of the controllers (`tether status` shows it): its memory and processor time are reported
    #[arg(long, value_name = "PID")]
    controller_pid: Option<u32>,
    /// Process of the API server, likewise
    #[arg(long, value_name = "PID")]
    api_server_pid: Option<u32>,
    /// Do only these parts; each takes over what the ones before it left, also in an earlier run with --keep
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS")]
    only: Vec<FleetPart>,
    /// Leave nodes and volumes there
    #[arg(long)]
    keep: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A part of the bench of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FleetPart {
    /// Make the volumes
    Create,
    /// Attach all of them at once
    Attach,
    /// Do nothing, and count writes
    Rest,
    /// Lose a node
    Lose,
    /// Detach all of them at once
    Detach,
    /// Attach them at the offered rate
    Rate,
}

fn fleet_parts(only: &[FleetPart]) -> fleet::Parts {
    if only.is_empty() {
        return fleet::Parts::ALL;
    }
    let has = |part| only.contains(&part);
    fleet::Parts {
        create: has(FleetPart::Create),
        attach: has(FleetPart::Attach),
        rest: has(FleetPart::Rest),
        lose: has(FleetPart::Lose),
        detach: has(FleetPart::Detach),
        rate: has(FleetPart::Rate),
    }
}

/// Creates, updates, lists and watch fan-out against one API server or two
#[derive(Debug, clap::Args)]
#[command(
    after_help = "With two kubeconfigs the same load runs against both, one after the other, and the last column is the \
                  ratio of the first to the second (more is better for the first).\n\n\
                  Examples:\n  tether bench api --kubeconfig ~/.local/share/tether/kubeconfig\n  \
                  tether bench api --kubeconfig tether.yaml --kubeconfig kubernetes.yaml --clients 16 -o json"
)]
struct ApiArgs {
    /// The server to measure; a second one is compared with the first
    #[arg(long, value_name = "FILE", required = true, num_args = 1)]
    kubeconfig: Vec<PathBuf>,
    /// Clients at once, each with connections of its own
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=512))]
    clients: u16,
    /// ConfigMaps to create, update and list
    #[arg(long, default_value_t = 5000)]
    objects: usize,
    /// Bytes of data in each
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Lists of all objects
    #[arg(long, default_value_t = 10)]
    lists: usize,
    /// Namespaces of the watch test; 0 leaves it out
    #[arg(long, default_value_t = 100)]
    namespaces: usize,
    /// Watchers in each namespace
    #[arg(long, default_value_t = 10)]
    watchers: usize,
    /// Writes per second while they watch
    #[arg(long, default_value_t = 1000)]
    rate: usize,
    /// Seconds that the watch test takes
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// Leave the objects there and skip the watch test: for a look at memory and at the next start
    #[arg(long)]
    keep: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let runtime = role::runtime(Threads::Many)?;
    match &args.what {
        What::Api(args) => runtime.block_on(api(args)),
        What::Fleet(args) => runtime.block_on(fleet(args)),
        What::Attach(args) => runtime.block_on(attach(args)),
        What::Attacher(args) => runtime.block_on(attacher_bench::run(args)),
        What::Pod(args) => runtime.block_on(pod_bench::run(args)),
    }
}

async fn attach(args: &AttachArgs) -> Result<Exit> {
    let client = client::from_file(&args.kubeconfig, "tether-bench").await?;
    let plan = attach::Plan { rounds: args.rounds.into(), replicas: args.replicas.into(), frontend: !args.no_frontend };
    let figures = attach::run(&client, &plan).await.context("bench of attachments")?;
    output::print(args.output, &figures, |figures| {
        let mut rows = vec![["PHASE", "P50 MS", "P99 MS", "COUNT"].map(str::to_owned).to_vec()];
        for figure in figures {
            let (p50, p99) = (format!("{:.1}", figure.p50_ms), format!("{:.1}", figure.p99_ms));
            rows.push(vec![figure.name.clone(), p50, p99, figure.count.to_string()]);
        }
        output::columns(&rows)
    })?;
    Ok(Exit::Success)
}

async fn fleet(args: &FleetArgs) -> Result<Exit> {
    let client = client::from_file(&args.kubeconfig, "tether-bench").await?;
    let plan = fleet::Plan {
        nodes: args.nodes.into(),
        volumes: args.volumes as usize,
        replicas: args.replicas.into(),
        rate: args.rate.into(),
        lost: args.lose,
        controller: args.controller_pid,
        api_server: args.api_server_pid,
        parts: fleet_parts(&args.only),
        keep: args.keep,
    };
    let report = fleet::run(&client, &plan, &|step| output::complain(step)).await.context("bench of a fleet")?;
    output::print(args.output, &report, fleet_table)?;
    Ok(Exit::Success)
}

fn fleet_table(report: &fleet::Report) -> String {
    let mut rows = vec![["LOAD", "PER SECOND", "P50 MS", "P99 MS", "COUNT"].map(str::to_owned).to_vec()];
    for figure in &report.figures {
        rows.push(vec![
            figure.name.clone(),
            format!("{:.1}", figure.per_second),
            format!("{:.2}", figure.p50_ms),
            format!("{:.2}", figure.p99_ms),
            figure.count.to_string(),
        ]);
    }
    let by_round = |title: &str, first: &BTreeMap<String, f64>, later: &BTreeMap<String, f64>| {
        let mut rows = vec![[title, "FIRST ATTACHMENT", "LATER ONES"].map(str::to_owned).to_vec()];
        let names: BTreeSet<&String> = first.keys().chain(later.keys()).collect();
        for name in names {
            let shown =
                |values: &BTreeMap<String, f64>| format!("{:.2}", values.get(name).copied().unwrap_or_default());
            rows.push(vec![name.clone(), shown(first), shown(later)]);
        }
        output::columns(&rows)
    };
    let writes = by_round("WRITES", &report.writes_per_first_attachment, &report.writes_per_attachment);
    let used = by_round("PROCESSOR MS", &report.processor_ms_per_first_attachment, &report.processor_ms_per_attachment);
    let rest = report
        .writes_per_second_at_rest
        .map_or_else(String::new, |rest| format!("writes at rest  {rest:.1} per second\n"));
    let resident = report.resident_mib.iter().map(|(name, mib)| vec![name.clone(), format!("{mib:.0} MiB")]);
    let memory = output::columns(&resident.collect::<Vec<_>>());
    let loads = output::columns(&rows);
    format!("{loads}\n{writes}\n{used}\n{rest}{memory}")
}

async fn api(args: &ApiArgs) -> Result<Exit> {
    let fanout = (args.namespaces > 0 && args.watchers > 0).then_some(Fanout {
        namespaces: args.namespaces,
        watchers_each: args.watchers,
        writes_per_second: args.rate.max(1),
        seconds: args.seconds.max(1),
    });
    let plan = Plan {
        clients: args.clients.into(),
        objects: args.objects,
        size: args.size,
        lists: args.lists,
        fanout,
        keep: args.keep,
    };
    let mut reports = Vec::new();
    for path in &args.kubeconfig {
        let target = Target::open(path).await?;
        let name = target.name.clone();
        let progress = |step: &str| output::complain(&format!("{name}: {step}"));
        let report = bench::run(&target, &plan, &progress).await;
        reports.push(report.with_context(|| format!("bench of {}", path.display()))?);
    }
    output::print(args.output, &reports, |reports| table(reports))?;
    Ok(Exit::Success)
}

fn table(reports: &[Report]) -> String {
    let mut rows =
        vec![["SERVER", "LOAD", "PER SECOND", "P50 MS", "P99 MS", "COUNT", "RATIO"].map(str::to_owned).to_vec()];
    for (index, report) in reports.iter().enumerate() {
        for figure in &report.figures {
            let ratio = match reports.get(1) {
                Some(second) if index == 0 => ratio(figure, second),
                _ => String::new(),
            };
            rows.push(vec![
                report.target.clone(),
                figure.name.clone(),
                format!("{:.1}", figure.per_second),
                format!("{:.2}", figure.p50_ms),
                format!("{:.2}", figure.p99_ms),
                figure.count.to_string(),
                ratio,
            ]);
        }
    }
    output::columns(&rows)
}

/// How many times as fast as the other server this was: by rate, and for deliveries by the 99th percentile.
fn ratio(figure: &Figure, second: &Report) -> String {
    let Some(other) = second.figures.iter().find(|f| f.name == figure.name) else { return String::new() };
    let times = match figure.name.starts_with("write to event") {
        true => other.p99_ms / figure.p99_ms,
        false => figure.per_second / other.per_second,
    };
    format!("{times:.1}x")
}
