//! `tether status`: what runs, since when, and what is wrong.

use std::time::Duration;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde::Serialize;
use tether_plan::node;

use super::DataDir;
use super::role::{self, Threads};
use crate::client;
use crate::cluster::{Component, ComponentState, Held, Layout, Lock, Marker, Phase, Status};
use crate::output::{self, Exit, Format};

/// A server that answers at all answers this fast.
const API_LIMIT: Duration = Duration::from_secs(3);

/// Shows whether the cluster runs, its processes and its nodes
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes: 0 all is ready, 3 the cluster does not run, 4 it runs but not all of it is ready.\n\n\
                  Example:\n  tether status\n  tether status -o json"
)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataDir,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    running: bool,
    /// Everything runs and every node is Ready.
    ready: bool,
    data_dir: String,
    api_server: String,
    kubeconfig: String,
    cluster_id: String,
    pid: Option<u32>,
    phase: Option<Phase>,
    started_at: Option<Timestamp>,
    components: Vec<Component>,
    nodes: Vec<NodeReport>,
    /// Why nodes could not be asked for.
    api_error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeReport {
    name: String,
    ready: String,
    reason: String,
    schedulable: bool,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let (layout, marker) = Marker::open(&args.data.resolve()?)?;
    let held = Lock::take(&layout).with_context(|| format!("--data-dir {}: cannot be locked", layout.dir.display()))?;
    let report = match held {
        Held::ByUs(_) => report(&layout, &marker, false),
        Held::ByOther(_) => report(&layout, &marker, true),
    };
    output::print(args.output, &report, table)?;
    Ok(match (report.running, report.ready) {
        (false, _) => Exit::NotRunning,
        (true, false) => Exit::NotReady,
        (true, true) => Exit::Success,
    })
}

fn report(layout: &Layout, marker: &Marker, running: bool) -> Report {
    // Not known yet while it starts, and what a killed one has left says nothing.
    let status = Status::read(layout).filter(|_| running);
    let nodes = if running { nodes(layout) } else { Ok(Vec::new()) };
    let components = status.as_ref().map(|status| status.components.clone()).unwrap_or_default();
    let all_run = !components.is_empty() && components.iter().all(|component| component.state == ComponentState::Ready);
    let api_error = nodes.as_ref().err().map(|error| format!("{error:#}"));
    let nodes = nodes.unwrap_or_default();
    Report {
        running,
        ready: all_run && api_error.is_none() && nodes.iter().all(|node| node.ready == "True"),
        data_dir: layout.dir.display().to_string(),
        api_server: format!("https://127.0.0.1:{}", marker.api_port),
        kubeconfig: layout.kubeconfig().display().to_string(),
        cluster_id: marker.id.clone(),
        pid: status.as_ref().map(|status| status.pid),
        phase: status.as_ref().map(|status| status.phase),
        started_at: status.as_ref().map(|status| status.started_at),
        components,
        nodes,
        api_error,
    }
}

fn nodes(layout: &Layout) -> Result<Vec<NodeReport>> {
    role::runtime(Threads::One)?.block_on(async {
        let nodes: Api<Node> = Api::all(client::from_file(&layout.kubeconfig(), "tether-status").await?);
        let params = ListParams::default();
        let list =
            tokio::time::timeout(API_LIMIT, nodes.list(&params)).await.context("the API server does not answer")?;
        Ok(list.context("the API server does not answer")?.items.iter().map(node_report).collect())
    })
}

fn node_report(found: &Node) -> NodeReport {
    let reason = node::condition(found, "Ready").and_then(|ready| ready.reason.clone());
    NodeReport {
        name: found.name_any(),
        ready: node::readiness(found).to_owned(),
        reason: reason.unwrap_or_default(),
        schedulable: !node::is_unschedulable(found),
    }
}

fn table(report: &Report) -> String {
    let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
    let state = match (report.running, report.ready) {
        (false, _) => "not running",
        (true, false) => "running, not ready",
        (true, true) => "ready",
    };
    let mut text = output::columns(&[
        row(&["cluster", state]),
        row(&["data", &report.data_dir]),
        row(&["API server", &report.api_server]),
        row(&["kubeconfig", &report.kubeconfig]),
    ]);
    if !report.components.is_empty() {
        let mut rows = vec![row(&["PROCESS", "STATE", "PID", "RESTARTS", "SINCE", "LAST EXIT"])];
        rows.extend(report.components.iter().map(|component| {
            let pid = component.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let since = format!("{:.0}", component.since);
            let exit = component.last_exit.as_deref().unwrap_or("-");
            row(&[&component.name, component.state.word(), &pid, &component.restarts.to_string(), &since, exit])
        }));
        text = text + "\n" + &output::columns(&rows);
    }
    if let Some(error) = &report.api_error {
        text = text + "\n" + error + "\n";
    } else if !report.nodes.is_empty() {
        let mut rows = vec![row(&["NODE", "READY", "REASON", "SCHEDULABLE"])];
        rows.extend(
            report
                .nodes
                .iter()
                .map(|node| row(&[&node.name, &node.ready, &node.reason, if node.schedulable { "yes" } else { "no" }])),
        );
        text = text + "\n" + &output::columns(&rows);
    }
    text
}
