//! What pods ask for and nodes have: cpu in thousandths, everything else in units.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tether_model::reason::Reason;

use super::NodeView;
use super::filter::Rejection;
use crate::amount::{milli, units};

/// By the name of the resource.
pub type Amounts = BTreeMap<String, i64>;

/// What the pod asks for: its containers together, or one of its init containers if that asks for more, and overhead.
pub fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = pod.spec.as_ref() else {
        return Amounts::new();
    };
    let mut running = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = amounts(container.resources.as_ref().and_then(|r| r.requests.as_ref()));
        if is_sidecar(container) {
            add(&mut running, &own);
            raise(&mut starting, &running);
        } else {
            let mut beside = running.clone();
            add(&mut beside, &own);
            raise(&mut starting, &beside);
        }
    }
    for container in &spec.containers {
        add(&mut running, &amounts(container.resources.as_ref().and_then(|r| r.requests.as_ref())));
    }
    raise(&mut running, &starting);
    // What the pod says as a whole counts instead of what its containers say.
    running.extend(amounts(spec.resources.as_ref().and_then(|r| r.requests.as_ref())));
    add(&mut running, &amounts(spec.overhead.as_ref()));
    running.retain(|_, amount| *amount != 0);
    running
}

/// An init container that stays.
fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Amounts {
    quantities.into_iter().flatten().map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect()
}

fn amount(name: &str, quantity: &Quantity) -> i64 {
    if name == "cpu" { milli(Some(quantity)) } else { units(Some(quantity)) }
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let held = sum.entry(name.clone()).or_default();
        *held = held.saturating_add(*amount);
    }
}

fn raise(floor: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let held = floor.entry(name.clone()).or_default();
        *held = (*held).max(*amount);
    }
}

fn allocatable(view: &NodeView<'_>) -> Amounts {
    amounts(view.node.status.as_ref().and_then(|s| s.allocatable.as_ref()))
}

fn used(view: &NodeView<'_>) -> Amounts {
    let mut sum = Amounts::new();
    for pod in &view.pods {
        add(&mut sum, &requests(pod));
    }
    sum
}

/// What the node has too little of. A node that does not say what it has is not limited by it, but for resources that it
/// would have to name.
pub fn shortages(wanted: &Amounts, view: &NodeView<'_>) -> Vec<Rejection> {
    let (has, used) = (allocatable(view), used(view));
    let mut short = Vec::new();
    if has.get("pods").is_some_and(|most| view.pods.len() as i64 + 1 > *most) {
        short.push(Rejection::new("node-resources", Reason::InsufficientResources, "Too many pods"));
    }
    for (name, amount) in wanted {
        let free = has.get(name).map(|has| has - used.get(name).copied().unwrap_or_default());
        let unlimited =
            has.is_empty() || (free.is_none() && matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage"));
        if !unlimited && free.unwrap_or_default() < *amount {
            short.push(Rejection::new("node-resources", Reason::InsufficientResources, format!("Insufficient {name}")));
        }
    }
    short
}

/// The fullest of cpu and memory with the pod on the node, in percent.
pub fn fullness_percent(wanted: &Amounts, view: &NodeView<'_>) -> i64 {
    let (has, used) = (allocatable(view), used(view));
    let full = |name: &str| {
        let has = has.get(name).copied().filter(|has| *has > 0)?;
        let sum = used.get(name).copied().unwrap_or_default() + wanted.get(name).copied().unwrap_or_default();
        Some(i64::try_from(i128::from(sum) * 100 / i128::from(has)).unwrap_or(i64::MAX))
    };
    ["cpu", "memory"].into_iter().filter_map(full).max().unwrap_or_default()
}
