//! What a container asks for, what it is told about itself, and the service class that follows from it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::checks::{self, Problems};
use super::super::edit::{entries, items, present, text};
use crate::field::Path;
use crate::names;
use crate::quantity::Quantity;

/// Fields of a pod that an environment variable can show.
pub(super) const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields of a pod that a file can show.
pub(super) const VOLUME_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Fields that have a label and still cannot be shown.
const OTHER_FIELDS: &[&str] = &["spec.restartPolicy", "spec.schedulerName", "status.phase"];

const CONTAINER_RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Requests and limits of a container.
pub(super) fn validate(problems: &mut Problems, path: &Path, resources: &Value) {
    let huge = |resource: &str| resource.starts_with("hugepages-");
    let (limits, requests) = (path.child("limits"), path.child("requests"));
    for (resource, amount) in entries(resources, "/limits") {
        checks::container_resource(problems, &limits.key(resource), resource);
        checks::resource_amount(problems, &limits.key(resource), resource, amount);
    }
    for (resource, amount) in entries(resources, "/requests") {
        checks::container_resource(problems, &requests.key(resource), resource);
        checks::resource_amount(problems, &requests.key(resource), resource, amount);
        let overcommit = checks::is_native(resource) && !huge(resource);
        let asked = checks::quantity(amount);
        match resources.pointer("/limits").and_then(|l| l.get(resource)).map(checks::quantity) {
            Some(limit) if !overcommit && asked != limit => {
                problems.invalid(&requests, asked.to_string(), format!("must be equal to {resource} limit of {limit}"));
            }
            Some(limit) if asked > limit => {
                let detail = format!("must be less than or equal to {resource} limit of {limit}");
                problems.invalid(&requests, asked.to_string(), detail);
            }
            None if !overcommit => {
                problems.required(&limits, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
    }
    let all = || entries(resources, "/limits").chain(entries(resources, "/requests"));
    if all().any(|(r, _)| huge(r)) && !all().any(|(r, _)| r == "cpu" || r == "memory") {
        problems.forbidden(path, "HugePages require cpu or memory");
    }
}

/// A reference to a field of the pod, possibly to one label or annotation.
pub(super) fn field_selector(problems: &mut Problems, path: &Path, selector: &Value, fields: &[&str]) {
    let (version, field) = (text(selector, "/apiVersion"), text(selector, "/fieldPath"));
    if version.is_empty() || field.is_empty() {
        let missing = if version.is_empty() { "apiVersion" } else { "fieldPath" };
        problems.required(&path.child(missing), "");
        return;
    }
    if version != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {version}");
        problems.invalid(&path.child("fieldPath"), field, detail);
        return;
    }
    let subscript = field.strip_suffix("']").and_then(|f| f.split_once("['"));
    match subscript {
        Some(("metadata.annotations", key)) => {
            problems.messages(path, key, names::qualified_name(&key.to_lowercase()));
        }
        Some(("metadata.labels", key)) => problems.messages(path, key, names::qualified_name(key)),
        Some(_) => {
            let detail = format!("error converting fieldPath: field label does not support subscript: {field}");
            problems.invalid(&path.child("fieldPath"), field, detail);
        }
        None if fields.contains(&field) => {}
        None if ENV_FIELDS.contains(&field) || VOLUME_FIELDS.contains(&field) || OTHER_FIELDS.contains(&field) => {
            problems.not_supported(&path.child("fieldPath"), field, fields);
        }
        None => {
            let detail = format!("error converting fieldPath: field label not supported: {field}");
            problems.invalid(&path.child("fieldPath"), field, detail);
        }
    }
}

/// A reference to an amount that a container asks for.
pub(super) fn resource_selector(problems: &mut Problems, path: &Path, selector: &Value, in_volume: bool) {
    let resource = text(selector, "/resource");
    let huge = ["limits.hugepages-", "requests.hugepages-"].iter().any(|p| resource.starts_with(p));
    if in_volume && text(selector, "/containerName").is_empty() {
        problems.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        problems.required(&path.child("resource"), "");
    } else if !CONTAINER_RESOURCES.contains(&resource) && !huge {
        problems.not_supported(&path.child("resource"), resource, CONTAINER_RESOURCES);
    }
    let divisor = present(selector, "/divisor").map(checks::quantity).filter(|d| !d.is_zero());
    let Some(divisor) = divisor.map(|d| d.to_string()) else { return };
    let what = match resource {
        "limits.cpu" | "requests.cpu" if matches!(divisor.as_str(), "1" | "1m") => return,
        "limits.cpu" | "requests.cpu" => {
            let detail = "only divisor's values 1m and 1 are supported with the cpu resource";
            problems.invalid(&path.child("divisor"), resource, detail);
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if huge => "hugepages",
        _ => return,
    };
    if !UNITS.contains(&divisor.as_str()) {
        let detail = format!("only divisor's values {} are supported with the {what} resource", UNITS.join(", "));
        problems.invalid(&path.child("divisor"), resource, detail);
    }
}

const UNITS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// The service class: guaranteed if every container's limits equal its requests, best effort if there are
/// neither, burstable otherwise.
pub(super) fn qos_class<'a>(pod: &'a Value) -> &'static str {
    let whole = present(pod, "/spec/resources");
    let parts: Vec<&'a Value> = match whole {
        Some(resources) => vec![resources],
        None => ["/spec/containers", "/spec/initContainers"]
            .iter()
            .flat_map(|list| items(pod, list))
            .map(|c| c.get("resources").unwrap_or(&Value::Null))
            .collect(),
    };
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    for resources in parts {
        let add = |sums: &mut BTreeMap<_, Quantity>, (name, amount): (&'a str, Quantity)| {
            let sum = sums.get(name).map_or_else(|| amount.clone(), |before| before + &amount);
            sums.insert(name, sum);
        };
        counted(resources, "/requests").for_each(|request| add(&mut requests, request));
        let limited: Vec<_> = counted(resources, "/limits").collect();
        guaranteed &= limited.len() == 2;
        for limit in limited {
            add(&mut limits, limit);
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    if guaranteed && requests == limits { "Guaranteed" } else { "Burstable" }
}

fn counted<'a>(resources: &'a Value, pointer: &str) -> impl Iterator<Item = (&'a str, Quantity)> {
    entries(resources, pointer)
        .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"))
        .map(|(name, amount)| (name.as_str(), checks::quantity(amount)))
        .filter(|(_, amount)| amount.signum() > 0)
}
