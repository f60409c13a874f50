//! Nodes.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::checks::{self, Problems};
use super::edit::{child, entries, fill, fill_zero, items, keep, present, set_in, text};
use super::pod::TAINT_EFFECTS;
use crate::field::{ErrorKind, FieldError, Path};
use crate::names;

/// Keeps pods away until the node has been seen ready.
pub const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";

pub(super) const STRATEGY: Strategy = Strategy {
    default,
    admit_create,
    prepare_create,
    prepare_update,
    prepare_status: Some(prepare_status),
    validate_create,
    validate_update,
    validate_status,
    warnings: super::warnings::node,
    ..Strategy::PLAIN
};

/// The single network and the list of networks are kept in step; the single one wins.
fn default(node: &mut Value) {
    let network = text(node, "/spec/podCIDR").to_owned();
    let first = text(node, "/spec/podCIDRs/0").to_owned();
    if !network.is_empty() && network != first {
        set_in(node, "spec", "podCIDRs", json!([network]));
    } else if network.is_empty() && !first.is_empty() {
        set_in(node, "spec", "podCIDR", first.into());
    }
    if let Some(capacity) = present(node, "/status/capacity").cloned()
        && let Some(status) = child(node, "status")
    {
        fill(status, "allocatable", capacity);
    }
}

/// A node joins with the not-ready taint: otherwise pods could land on it before it is judged.
fn admit_create(node: &mut Value) {
    let tainted = items(node, "/spec/taints")
        .iter()
        .any(|t| text(t, "/key") == NOT_READY_TAINT && text(t, "/effect") == "NoSchedule");
    if !tainted && let Some(spec) = child(node, "spec") {
        fill_zero(spec, "taints", json!([]));
        if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut) {
            taints.push(json!({"key": NOT_READY_TAINT, "effect": "NoSchedule"}));
        }
    }
}

/// The status stays: kubelets register with it.
fn prepare_create(node: &mut Value, _now: Timestamp) {
    set_in(node, "spec", "configSource", Value::Null);
    set_in(node, "status", "config", Value::Null);
}

fn prepare_update(new: &mut Value, old: &Value) {
    keep(new, old, "status");
    if present(old, "/spec/configSource").is_none() {
        set_in(new, "spec", "configSource", Value::Null);
    }
}

fn prepare_status(new: &mut Value, old: &Value, _now: Timestamp) {
    keep(new, old, "spec");
    if present(old, "/status/config").is_none() {
        set_in(new, "status", "config", Value::Null);
    }
}

fn validate_create(node: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    taints(&mut problems, node);
    resources(&mut problems, node);
    networks(&mut problems, node);
    problems.0
}

/// Kubernetes names this field under `metadata`, and clients have come to expect it.
fn taints(problems: &mut Problems, node: &Value) {
    let list = items(node, "/spec/taints");
    for (index, taint) in list.iter().enumerate() {
        let path = Path::new("metadata.taints").index(index);
        let (key, value, effect) = (text(taint, "/key"), text(taint, "/value"), text(taint, "/effect"));
        problems.messages(&path.child("key"), key, names::qualified_name(key));
        let messages = names::label_value(value);
        if !messages.is_empty() {
            problems.invalid(&path.child("value"), value, messages.join(";"));
        }
        problems.choice(&path.child("effect"), effect, TAINT_EFFECTS);
        if list[..index].iter().any(|t| text(t, "/key") == key && text(t, "/effect") == effect) {
            problems.0.push(duplicate_taint(path, taint));
        }
    }
}

/// Shown as Kubernetes' internal type: its fields have other names there, and an order.
fn duplicate_taint(path: Path, taint: &Value) -> FieldError {
    let field = |name: &str| Value::from(text(taint, name));
    let added = taint.get("timeAdded").unwrap_or(&Value::Null);
    let detail = format!(
        "{{\"Key\":{},\"Value\":{},\"Effect\":{},\"TimeAdded\":{added}}}: taints must be unique by key and effect pair",
        field("/key"),
        field("/value"),
        field("/effect"),
    );
    FieldError { kind: ErrorKind::Duplicate, path, value: None, detail }
}

fn resources(problems: &mut Problems, node: &Value) {
    for section in ["capacity", "allocatable"] {
        for (resource, amount) in entries(node, &format!("/status/{section}")) {
            let path = Path::new("status").child(section).child(resource);
            checks::resource_amount(problems, &path, resource, amount);
        }
    }
}

/// At most one network for pods in each family.
fn networks(problems: &mut Problems, node: &Value) {
    let path = Path::new("spec.podCIDRs");
    let list = items(node, "/spec/podCIDRs");
    let mut families = Vec::new();
    for (index, network) in list.iter().enumerate() {
        let text = network.as_str().unwrap_or_default();
        if let Some(address) = checks::cidr(text) {
            families.push(address.is_ipv6());
        } else {
            let detail = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
            problems.invalid(&path.index(index), text, detail);
        }
    }
    if list.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        problems.invalid(&path, list.to_vec(), "may specify no more than one CIDR for each IP family");
    }
}

fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(validate_create(new));
    problems.0.extend(validate_status(new, old));
    problems.0
}

/// What neither endpoint may change: networks and provider, once they are set.
fn validate_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    resources(&mut problems, new);
    let addresses = items(new, "/status/addresses");
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            problems.duplicate(&Path::new("status.addresses").index(index), address.clone());
        }
    }
    if !items(old, "/spec/podCIDRs").is_empty() && items(new, "/spec/podCIDRs") != items(old, "/spec/podCIDRs") {
        let detail = "node updates may not change podCIDR except from \"\" to valid";
        problems.forbidden(&Path::new("spec.podCIDRs"), detail);
    }
    let provider = text(old, "/spec/providerID");
    if !provider.is_empty() && provider != text(new, "/spec/providerID") {
        let detail = "node updates may not change providerID except from \"\" to valid";
        problems.forbidden(&Path::new("spec.providerID"), detail);
    }
    if text(new, "/spec/externalID") != text(old, "/spec/externalID") {
        problems.forbidden(&Path::new("spec.externalID"), "may not be updated");
    }
    problems.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::checks::texts;

    #[test]
    fn a_new_node_is_tainted_once() {
        let mut node = json!({"metadata": {"name": "node-a"}});
        admit_create(&mut node);
        admit_create(&mut node);
        assert_eq!(node["spec"]["taints"], json!([{"key": NOT_READY_TAINT, "effect": "NoSchedule"}]));
    }

    #[test]
    fn capacity_is_allocatable_unless_told_otherwise() {
        let mut node = json!({"status": {"capacity": {"cpu": "2"}}});
        default(&mut node);
        assert_eq!(node["status"]["allocatable"], json!({"cpu": "2"}));
    }

    #[test]
    fn taints_are_unique_and_well_formed() {
        let node = json!({"spec": {"taints": [
            {"key": "a", "effect": "NoSchedule"}, {"key": "a", "value": "2", "effect": "NoSchedule"}, {"key": "b", "effect": "Never"}, {"key": "c"},
        ]}});
        let errors = texts(validate_create(&node));
        assert_eq!(errors.len(), 3);
        assert_eq!(
            errors[0],
            "metadata.taints[1]: Duplicate value: {\"Key\":\"a\",\"Value\":\"2\",\"Effect\":\"NoSchedule\",\"TimeAdded\":null}: taints must be unique by key and effect pair"
        );
        assert_eq!(
            errors[1],
            "metadata.taints[2].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\""
        );
        assert_eq!(errors[2], "metadata.taints[3].effect: Required value");
    }

    #[test]
    fn networks_and_provider_stay() {
        let old = json!({"spec": {"podCIDRs": ["10.0.0.0/24"], "providerID": "x"}});
        let new = json!({"spec": {"podCIDRs": ["10.1.0.0/24"], "providerID": "y"}});
        assert_eq!(
            texts(validate_update(&new, &old)),
            [
                "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid",
            ]
        );
        assert_eq!(validate_update(&new, &json!({})), []);
        let bad = json!({"spec": {"podCIDRs": ["10.1.0.0/24", "10.2.0.0/24", "x"]}});
        assert_eq!(validate_create(&bad).len(), 2);
    }
}
