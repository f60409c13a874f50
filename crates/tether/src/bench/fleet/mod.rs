//! A fleet: thousands of volumes on hundreds of nodes whose instance managers only pretend.
//!
//! Everything else is real: the API server, the controllers, every object and every write. What a node agent would do for
//! an Engine or a Replica ([`agents`]) happens at once and takes the same writes. So the figures are those of the control
//! plane: how many attachments it decides and carries out per second, how long a ticket waits, and what that costs in
//! writes and memory.

mod agents;
mod load;
mod make;
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
    /// Process of the controllers, whose memory is of interest.
    pub controller: Option<u32>,
    /// Leave everything there.
    pub keep: bool,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub figures: Vec<Figure>,
    /// Writes for each attachment of a volume that was attached before, by what is written.
    pub writes_per_attachment: BTreeMap<String, f64>,
    /// The same for a volume's first attachment.
    pub writes_per_first_attachment: BTreeMap<String, f64>,
    /// Writes per second while nothing happens; heartbeats of nodes are not counted.
    pub writes_per_second_at_rest: f64,
    /// Resident memory of the controllers at the end, in MiB.
    pub controller_mib: Option<f64>,
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
    let mut figures = Vec::new();
    progress(&format!("making {} volumes", plan.volumes));
    figures.push(load::create(client, tickets, plan).await?);

    progress("attaching all of them at once");
    let before = Writes::read(client).await?;
    let everywhere = load::placed(plan);
    figures.push(tickets.attach(client, "attach, all at once", &everywhere, None).await?);
    let writes_per_first_attachment = Writes::read(client).await?.since(&before).each(plan.volumes);

    progress("doing nothing");
    let writes_per_second_at_rest = at_rest(client).await?;

    if plan.lost > 0 {
        progress(&format!("losing a node with {} volumes", plan.lost));
        agents.lose(make::LOST);
        make::lose(client, make::LOST).await?;
        agents.miss(make::LOST).await?;
        figures.push(tickets.attach(client, "attach elsewhere after a node is lost", &load::moved(plan), None).await?);
        make::bring_back(client, make::LOST).await?;
        agents.bring_back(make::LOST).await?;
    }

    progress("detaching all of them");
    figures.push(tickets.detach(client, "detach, all at once", plan).await?);

    progress(&format!("attaching {} per second", plan.rate));
    let name = format!("attach, {} per second offered", plan.rate);
    let before = Writes::read(client).await?;
    figures.push(tickets.attach(client, &name, &everywhere, Some(plan.rate)).await?);
    let writes_per_attachment = Writes::read(client).await?.since(&before).each(plan.volumes);
    let controller_mib = plan.controller.map(resident_mib).transpose()?;
    Ok(Report {
        figures,
        writes_per_attachment,
        writes_per_first_attachment,
        writes_per_second_at_rest,
        controller_mib,
    })
}

async fn at_rest(client: &Client) -> Result<f64> {
    let before = Writes::read(client).await?;
    tokio::time::sleep(AT_REST).await;
    Ok(Writes::read(client).await?.since(&before).total() as f64 / AT_REST.as_secs_f64())
}

fn resident_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("--controller-pid {pid}: {path}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let kib: f64 = kib.with_context(|| format!("{path} does not say how much memory is resident"))?;
    Ok(kib / 1024.0)
}

/// Objects of volumes, which all live in one namespace.
fn objects<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), tether_crd::NAMESPACE)
}
