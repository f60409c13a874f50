//! A fleet: thousands of volumes on hundreds of nodes whose instance managers only pretend.
//!
//! Everything else is real: the API server, the controllers, every object and every write. What a node agent would do for
//! an Engine or a Replica ([`agents`]) happens at once and takes the same writes. So the figures are those of the control
//! plane: how many attachments it decides and carries out per second, how long a ticket waits, and what that costs in
//! writes and memory.

mod agents;
mod load;
mod make;
mod usage;
mod writes;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::Client;
use kube::api::Api;
use serde::Serialize;

use super::Figure;
use agents::Agents;
use load::Tickets;
use writes::Writes;

/// A quiet fleet is watched this long.
const AT_REST: Duration = Duration::from_secs(10);

/// How large, and how much load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub nodes: usize,
    pub volumes: usize,
    pub replicas: usize,
    /// Attachments per second that are asked for in the second round.
    pub rate: usize,
    /// Volumes on the node that is lost; 0 leaves it out.
    pub lost: usize,
    /// Processes whose use of memory and processor is of interest.
    pub controller: Option<u32>,
    pub api_server: Option<u32>,
    /// What is done, in this order; each part takes over what the ones before it left, also in an earlier run.
    pub parts: Parts,
    /// Leave everything there.
    pub keep: bool,
}

/// The parts of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "parts that are chosen one by one")]
pub(crate) struct Parts {
    pub create: bool,
    pub attach: bool,
    pub rest: bool,
    pub lose: bool,
    pub detach: bool,
    pub rate: bool,
}

impl Parts {
    pub(crate) const ALL: Self = Self { create: true, attach: true, rest: true, lose: true, detach: true, rate: true };
}

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub figures: Vec<Figure>,
    /// Writes for each attachment of a volume that was attached before, by what is written.
    pub writes_per_attachment: BTreeMap<String, f64>,
    /// The same for a volume's first attachment.
    pub writes_per_first_attachment: BTreeMap<String, f64>,
    /// Writes per second while nothing happens; heartbeats of nodes are not counted.
    pub writes_per_second_at_rest: Option<f64>,
    /// Resident memory at the end, in MiB, by process.
    pub resident_mib: BTreeMap<String, f64>,
    /// Processor time for each attachment, in milliseconds, by process.
    pub processor_ms_per_attachment: BTreeMap<String, f64>,
    /// The same for a volume's first attachment.
    pub processor_ms_per_first_attachment: BTreeMap<String, f64>,
}

/// Builds the fleet, attaches everything, loses a node, and takes it down again.
pub(crate) async fn run(client: &Client, plan: &Plan, progress: &dyn Fn(&str)) -> Result<Report> {
    check(plan)?;
    progress(&format!("making {} nodes", plan.nodes));
    make::nodes(client, plan.nodes).await?;
    let agents = Agents::start(client, plan.nodes);
    make::ready(client, plan.nodes).await?;
    let tickets = Tickets::watch(client);
    let outcome = measure(client, plan, &agents, &tickets, progress).await;
    if !plan.keep {
        progress("taking it down");
        make::unmake(client, plan).await.context("the fleet could not be taken down")?;
    }
    outcome
}

fn check(plan: &Plan) -> Result<()> {
    if plan.nodes < plan.replicas.max(2) {
        bail!("--nodes {} is too few: {} replicas each need a node", plan.nodes, plan.replicas);
    }
    if plan.lost > plan.volumes {
        bail!("--lose {} is more than there are volumes ({})", plan.lost, plan.volumes);
    }
    Ok(())
}

async fn measure(
    client: &Client,
    plan: &Plan,
    agents: &Agents,
    tickets: &Tickets,
    progress: &dyn Fn(&str),
) -> Result<Report> {
    let (parts, processes, mut report) = (plan.parts, processes(plan), Report::default());
    if parts.create {
        progress(&format!("making {} volumes", plan.volumes));
        report.figures.push(load::create(client, tickets, plan).await?);
    }
    let everywhere = load::placed(plan);
    if parts.attach {
        progress("attaching all of them at once");
        let (writes, used) = (Writes::read(client).await?, usage::processor_ms(&processes)?);
        report.figures.push(tickets.attach(client, "attach, all at once", &everywhere, None).await?);
        report.processor_ms_per_first_attachment = usage::each(&processes, &used, plan.volumes)?;
        report.writes_per_first_attachment = Writes::read(client).await?.since(&writes).each(plan.volumes);
    }
    if parts.rest {
        progress("doing nothing");
        report.writes_per_second_at_rest = Some(at_rest(client).await?);
    }
    if parts.lose && plan.lost > 0 {
        progress(&format!("losing a node with {} volumes", plan.lost));
        agents.lose(make::LOST);
        make::lose(client, make::LOST).await?;
        agents.miss(make::LOST).await?;
        let name = "attach elsewhere after a node is lost";
        report.figures.push(tickets.attach(client, name, &load::moved(plan), None).await?);
        make::bring_back(client, make::LOST).await?;
        agents.bring_back(make::LOST).await?;
    }
    if parts.detach {
        progress("detaching all of them");
        report.figures.push(tickets.detach(client, "detach, all at once", plan).await?);
    }
    if parts.rate {
        progress(&format!("attaching {} per second", plan.rate));
        let name = format!("attach, {} per second offered", plan.rate);
        let (writes, used) = (Writes::read(client).await?, usage::processor_ms(&processes)?);
        report.figures.push(tickets.attach(client, &name, &everywhere, Some(plan.rate)).await?);
        report.processor_ms_per_attachment = usage::each(&processes, &used, plan.volumes)?;
        report.writes_per_attachment = Writes::read(client).await?.since(&writes).each(plan.volumes);
    }
    report.resident_mib = usage::resident_mib(&processes)?;
    Ok(report)
}

/// What is looked at beside the bench itself, whose pretending nodes take processor time that a real cluster's would take
/// elsewhere.
fn processes(plan: &Plan) -> usage::Processes {
    let given =
        [("controllers", plan.controller), ("API server", plan.api_server), ("bench", Some(std::process::id()))];
    given.into_iter().filter_map(|(name, pid)| Some((name, pid?))).collect()
}

async fn at_rest(client: &Client) -> Result<f64> {
    let before = Writes::read(client).await?;
    tokio::time::sleep(AT_REST).await;
    Ok(Writes::read(client).await?.since(&before).total() as f64 / AT_REST.as_secs_f64())
}

/// Objects of volumes, which all live in one namespace.
fn objects<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), tether_crd::NAMESPACE)
}
