//! Whether a pod's spec is right.

use serde_json::Value;

use super::super::checks::{self, NameCheck, Problems};
use super::super::edit::{entries, flag, integer, items, present, text};
use super::{containers, scheduling, volumes};
use crate::field::{FieldError, Path};
use crate::names;

/// Checks of metadata and spec that creation and update share.
pub(super) fn validate(pod: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    annotations(&mut problems, pod);
    let path = Path::new("spec");
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let usable = volumes::validate(&mut problems, &path.child("volumes"), pod);
    containers::validate(&mut problems, &path, spec, &usable);
    host_network(&mut problems, &path, spec);
    problems.choice(&path.child("restartPolicy"), text(spec, "/restartPolicy"), &["Always", "OnFailure", "Never"]);
    let policies = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    problems.choice(&path.child("dnsPolicy"), text(spec, "/dnsPolicy"), &policies);
    checks::labels(&mut problems, &path.child("nodeSelector"), spec.get("nodeSelector"));
    security_context(&mut problems, &path.child("securityContext"), spec);
    scheduling::affinity(&mut problems, &path.child("affinity"), spec);
    dns_config(&mut problems, &path.child("dnsConfig"), spec);
    gates(&mut problems, &path, spec);
    scheduling::spread(&mut problems, &path.child("topologySpreadConstraints"), spec);
    host_users(&mut problems, &path, spec);
    plain_fields(&mut problems, &path, spec);
    scheduling::tolerations(&mut problems, &path.child("tolerations"), spec);
    host_aliases(&mut problems, &path.child("hostAliases"), spec);
    problems.optional_choice(spec, "preemptionPolicy", &path, &["PreemptLowerPriority", "Never"]);
    for (resource, amount) in entries(spec, "/overhead") {
        let path = path.child("overhead").child("limits").key(resource);
        checks::container_resource(&mut problems, &path, resource);
        checks::resource_amount(&mut problems, &path, resource, amount);
    }
    tokens_need_an_account(&mut problems, &path, spec);
    images(&mut problems, &path, spec);
    problems.0
}

fn annotations(problems: &mut Problems, pod: &Value) {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    const COST: &str = "controller.kubernetes.io/pod-deletion-cost";
    let path = Path::new("metadata.annotations");
    for (key, value) in entries(pod, "/metadata/annotations") {
        let value = value.as_str().unwrap_or_default();
        if key == MIRROR && text(pod, "/spec/nodeName").is_empty() {
            problems.invalid(&path.key(MIRROR), value, "must set spec.nodeName if mirror pod annotation is set");
        }
        if key == COST && value.parse::<i32>().is_err() {
            problems.invalid(&path.key(COST), value, "must be a 32bit integer");
        }
    }
}

/// Names, ids and numbers that stand for themselves.
fn plain_fields(problems: &mut Problems, path: &Path, spec: &Value) {
    let checks: [(&str, NameCheck); 6] = [
        ("serviceAccountName", names::dns1123_subdomain),
        ("nodeName", names::dns1123_subdomain),
        ("hostname", names::dns1123_label),
        ("subdomain", names::dns1123_label),
        ("priorityClassName", names::dns1123_subdomain),
        ("runtimeClassName", names::dns1123_subdomain),
    ];
    for (field, check) in checks {
        if let Some(value) = spec.get(field).and_then(Value::as_str).filter(|v| !v.is_empty()) {
            problems.messages(&path.child(field), value, check(value));
        }
    }
    if let Some(seconds) = integer(spec, "/activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let range = checks::range(1, i32::MAX.into());
        problems.invalid(&path.child("activeDeadlineSeconds"), seconds, range);
    }
}

/// On the host's network, ports of container and host are the same.
fn host_network(problems: &mut Problems, path: &Path, spec: &Value) {
    if !flag(spec, "/hostNetwork") {
        return;
    }
    for (index, container) in items(spec, "/containers").iter().enumerate() {
        for (at, port) in items(container, "/ports").iter().enumerate() {
            let host = integer(port, "/hostPort").unwrap_or_default();
            if host != integer(port, "/containerPort").unwrap_or_default() {
                let path = path.child("containers").index(index).child("ports").index(at).child("hostPort");
                problems.invalid(&path, host, "must match `containerPort` when `hostNetwork` is true");
            }
        }
    }
}

fn security_context(problems: &mut Problems, path: &Path, spec: &Value) {
    let Some(context) = present(spec, "/securityContext") else { return };
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        checks::id(problems, path, context, field);
    }
    for (index, group) in items(context, "/supplementalGroups").iter().enumerate() {
        if !group.as_i64().is_some_and(|g| (0..=i64::from(i32::MAX)).contains(&g)) {
            let path = path.child("supplementalGroups").index(index);
            problems.invalid(&path, group.clone(), checks::range(0, i32::MAX.into()));
        }
    }
    if flag(spec, "/shareProcessNamespace") && flag(spec, "/hostPID") {
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        problems.invalid(&path.child("shareProcessNamespace"), true, detail);
    }
    problems.optional_choice(context, "fsGroupChangePolicy", path, &["Always", "OnRootMismatch"]);
    containers::seccomp(problems, &path.child("seccompProfile"), context);
}

const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;

fn dns_config(problems: &mut Problems, path: &Path, spec: &Value) {
    let config = present(spec, "/dnsConfig");
    if text(spec, "/dnsPolicy") == "None" {
        let Some(config) = config else {
            problems.required(path, "must provide `dnsConfig` when `dnsPolicy` is None");
            return;
        };
        if items(config, "/nameservers").is_empty() {
            let detail = "must provide at least one DNS nameserver when `dnsPolicy` is None";
            problems.required(&path.child("nameservers"), detail);
            return;
        }
    }
    let Some(config) = config else { return };
    let (servers, searches) = (items(config, "/nameservers"), items(config, "/searches"));
    if servers.len() > MAX_NAMESERVERS {
        let detail = format!("must not have more than {MAX_NAMESERVERS} nameservers");
        problems.invalid(&path.child("nameservers"), servers.to_vec(), detail);
    }
    for (index, server) in servers.iter().enumerate() {
        checks::ip(problems, &path.child("nameservers").index(index), server.as_str().unwrap_or_default());
    }
    let texts: Vec<&str> = searches.iter().filter_map(Value::as_str).collect();
    if texts.len() > MAX_SEARCHES {
        let detail = format!("must not have more than {MAX_SEARCHES} search paths");
        problems.invalid(&path.child("searches"), searches.to_vec(), detail);
    }
    if texts.join(" ").len() > MAX_SEARCH_BYTES {
        let detail =
            format!("must not have more than {MAX_SEARCH_BYTES} characters (including spaces) in the search list");
        problems.invalid(&path.child("searches"), searches.to_vec(), detail);
    }
    for (index, search) in texts.iter().enumerate().filter(|(_, s)| **s != ".") {
        let name = search.strip_suffix('.').unwrap_or(search).replace('_', "-");
        problems.messages(&path.child("searches").index(index), search, names::dns1123_subdomain(&name));
    }
    for (index, option) in items(config, "/options").iter().enumerate() {
        if text(option, "/name").is_empty() {
            problems.required(&path.child("options").index(index), "must not be empty");
        }
    }
}

fn gates(problems: &mut Problems, path: &Path, spec: &Value) {
    for (index, gate) in items(spec, "/readinessGates").iter().enumerate() {
        let name = text(gate, "/conditionType");
        let path = path.child("readinessGates").index(index).child("conditionType");
        problems.messages(&path, name, names::qualified_name(name));
    }
    let gates = items(spec, "/schedulingGates");
    for (index, gate) in gates.iter().enumerate() {
        let name = text(gate, "/name");
        let path = path.child("schedulingGates").index(index);
        problems.messages(&path, name, names::qualified_name(name));
        if gates[..index].iter().any(|g| text(g, "/name") == name) {
            problems.duplicate(&path, name);
        }
    }
}

/// Without the host's users there are no other namespaces of the host either.
fn host_users(problems: &mut Problems, path: &Path, spec: &Value) {
    if spec.get("hostUsers") != Some(&Value::Bool(false)) {
        return;
    }
    for (pointer, field) in [("/hostNetwork", "hostNetwork"), ("/hostPID", "HostPID"), ("/hostIPC", "HostIPC")] {
        if flag(spec, pointer) {
            problems.forbidden(&path.child(field), "when `hostUsers` is false");
        }
    }
}

fn host_aliases(problems: &mut Problems, path: &Path, spec: &Value) {
    for (index, alias) in items(spec, "/hostAliases").iter().enumerate() {
        let path = path.index(index);
        checks::ip(problems, &path.child("ip"), text(alias, "/ip"));
        for (at, name) in items(alias, "/hostnames").iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            problems.messages(&path.child("hostnames").index(at), name, names::dns1123_subdomain(name));
        }
    }
}

fn tokens_need_an_account(problems: &mut Problems, path: &Path, spec: &Value) {
    if !text(spec, "/serviceAccountName").is_empty() {
        return;
    }
    for (index, volume) in items(spec, "/volumes").iter().enumerate() {
        for (at, source) in items(volume, "/projected/sources").iter().enumerate() {
            if present(source, "/serviceAccountToken").is_some() {
                let path = path.child("volumes").index(index).child("projected").child("sources").index(at);
                let detail = "must not be specified when serviceAccountName is not set";
                problems.forbidden(&path.child("serviceAccountToken"), detail);
            }
        }
    }
}

fn images(problems: &mut Problems, path: &Path, spec: &Value) {
    for list in ["containers", "initContainers"] {
        for (index, container) in items(spec, &format!("/{list}")).iter().enumerate() {
            let image = text(container, "/image");
            if image.trim() != image {
                let path = path.child(list).index(index).child("image");
                problems.invalid(&path, image, "must not have leading or trailing whitespace");
            }
        }
    }
}
