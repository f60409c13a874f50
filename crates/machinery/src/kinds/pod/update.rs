//! What may change about a pod once it exists.

use serde_json::Value;

use super::super::checks::{self, Problems};
use super::super::diff;
use super::super::edit::{entries, integer, items, items_mut, present, same, same_at, set, text};
use super::{scheduling, spec};
use crate::field::{FieldError, Path};
use crate::names;

const CHANGEABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// An update of the main resource: images, a shorter deadline, more tolerations, fewer gates.
pub(super) fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems(spec::validate(new));
    let path = Path::new("spec");
    for list in ["containers", "initContainers"] {
        let pointer = format!("/spec/{list}");
        if items(new, &pointer).len() != items(old, &pointer).len() {
            problems.forbidden(&path.child(list), "pod updates may not add or remove containers");
            return problems.0;
        }
    }
    if !deadline(&mut problems, &path.child("activeDeadlineSeconds"), new, old) {
        return problems.0;
    }
    only_added_tolerations(&mut problems, &path.child("tolerations"), new, old);
    only_deleted_gates(&mut problems, &path.child("schedulingGates"), new, old);
    let before = old.get("spec").cloned().unwrap_or_default();
    let munged = munge(&mut problems, &path, new, old);
    if !same(&munged, &before) {
        let diff = diff::unified(&before, &munged);
        problems.forbidden(&path, format!("pod updates may not change fields other than {CHANGEABLE}\n{diff}"));
    }
    problems.0
}

/// The new spec with everything put back that may have changed.
fn munge(problems: &mut Problems, path: &Path, new: &Value, old: &Value) -> Value {
    let mut spec = new.get("spec").cloned().unwrap_or_default();
    let before = |pointer: &str| old.pointer(pointer).cloned().unwrap_or_default();
    for list in ["containers", "initContainers"] {
        for (index, container) in items_mut(&mut spec, &format!("/{list}")).iter_mut().enumerate() {
            set(container, "image", before(&format!("/spec/{list}/{index}/image")));
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        set(&mut spec, field, before(&format!("/spec/{field}")));
    }
    let negative_before = integer(old, "/spec/terminationGracePeriodSeconds").is_some_and(|s| s < 0);
    if negative_before && integer(&spec, "/terminationGracePeriodSeconds") == Some(1) {
        set(&mut spec, "terminationGracePeriodSeconds", before("/spec/terminationGracePeriodSeconds"));
    }
    if !items(old, "/spec/schedulingGates").is_empty() {
        gated_changes(problems, path, &spec, old);
        set(&mut spec, "nodeSelector", before("/spec/nodeSelector"));
        if let Some(affinity) = spec.get_mut("affinity") {
            set(affinity, "nodeAffinity", before("/spec/affinity/nodeAffinity"));
        } else if let Some(nodes) = present(old, "/spec/affinity/nodeAffinity") {
            set(&mut spec, "affinity", serde_json::json!({"nodeAffinity": nodes}));
        }
    }
    spec
}

/// As long as a gate holds a pod back, the choice of nodes may become narrower, never wider.
fn gated_changes(problems: &mut Problems, path: &Path, spec: &Value, old: &Value) {
    const TERMS: &str = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let selector = spec.get("nodeSelector").unwrap_or(&Value::Null);
    if entries(old, "/spec/nodeSelector").any(|(key, value)| selector.get(key) != Some(value)) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        problems.invalid(&path.child("nodeSelector"), selector.clone(), detail);
    }
    let (now, before) = (items(spec, TERMS), items(old, &format!("/spec{TERMS}")));
    let path = path.child(&TERMS[1..].replace('/', "."));
    if !before.is_empty() && before.len() != now.len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        problems.invalid(&path, now.to_vec(), detail);
        return;
    }
    for (index, (now, before)) in now.iter().zip(before).enumerate() {
        let kept = |list: &str| items(now, list).starts_with(items(before, list));
        if !kept("/matchExpressions") || !kept("/matchFields") {
            let detail = "only additions are allowed (no mutations or deletions)";
            problems.invalid(&path.index(index), now.clone(), detail);
        }
    }
}

/// A deadline can be set once, and then only come closer. False: there is no point in looking further.
fn deadline(problems: &mut Problems, path: &Path, new: &Value, old: &Value) -> bool {
    let pointer = "/spec/activeDeadlineSeconds";
    match (integer(new, pointer), integer(old, pointer)) {
        (Some(new), _) if !(0..=i64::from(i32::MAX)).contains(&new) => {
            problems.invalid(path, new, checks::range(0, i32::MAX.into()));
            false
        }
        (Some(new), Some(old)) if old < new => {
            problems.invalid(path, new, "must be less than or equal to previous value");
            false
        }
        (None, Some(_)) => {
            problems.invalid(path, Value::Null, "must not update from a positive integer to nil value");
            true
        }
        _ => true,
    }
}

fn only_added_tolerations(problems: &mut Problems, path: &Path, new: &Value, old: &Value) {
    let without_seconds = |toleration: &Value| {
        let mut rest = toleration.clone();
        set(&mut rest, "tolerationSeconds", Value::Null);
        rest
    };
    let now: Vec<Value> = items(new, "/spec/tolerations").iter().map(without_seconds).collect();
    let kept = |toleration: &Value| now.iter().any(|n| same(n, &without_seconds(toleration)));
    if !items(old, "/spec/tolerations").iter().all(kept) {
        problems.forbidden(path, "existing toleration can not be modified except its tolerationSeconds");
        return;
    }
    let spec = new.get("spec").unwrap_or(&Value::Null);
    scheduling::tolerations(problems, path, spec);
}

fn only_deleted_gates(problems: &mut Problems, path: &Path, new: &Value, old: &Value) {
    let before = items(old, "/spec/schedulingGates");
    for (index, gate) in items(new, "/spec/schedulingGates").iter().enumerate() {
        let name = text(gate, "/name");
        if !before.iter().any(|g| text(g, "/name") == name) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            problems.forbidden(&path.index(index).child("name"), detail);
        }
    }
}

/// An update of the status.
pub(super) fn validate_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("status");
    for (index, condition) in items(new, "/status/conditions").iter().enumerate() {
        let ty = text(condition, "/type");
        if !matches!(ty, "PodScheduled" | "Ready" | "Initialized") {
            let path = path.child("conditions").index(index).child("Type");
            problems.messages(&path, ty, names::qualified_name(ty));
        }
    }
    if !same_at(new, old, "/spec/nodeName") {
        problems.forbidden(&path.child("nodeName"), "may not be changed directly");
    }
    let nominated = text(new, "/status/nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "/status/nominatedNodeName") {
        let path = path.child("nominatedNodeName");
        problems.messages(&path, nominated, names::dns1123_subdomain(nominated));
        if !text(old, "/spec/nodeName").is_empty() {
            problems.forbidden(&path, "may not be set on pods that are already bound to a node");
        }
    }
    problems.immutable(new, old, "/status/qosClass", &path.child("qosClass"));
    container_states(&mut problems, &path.child("containerStatuses"), new, old);
    addresses(&mut problems, &path.child("podIPs"), new, "/status/podIPs");
    addresses(&mut problems, &path.child("hostIPs"), new, "/status/hostIPs");
    problems.0
}

/// A container that ended for good does not start again.
fn container_states(problems: &mut Problems, path: &Path, new: &Value, old: &Value) {
    let policy = text(old, "/spec/restartPolicy");
    let now = items(new, "/status/containerStatuses");
    for (index, status) in items(old, "/status/containerStatuses").iter().enumerate() {
        let Some(end) = present(status, "/state/terminated") else { continue };
        let name = text(status, "/name");
        let own = items(old, "/spec/containers").iter().find(|c| text(c, "/name") == name);
        let policy = own.map(|c| text(c, "/restartPolicy")).filter(|p| !p.is_empty()).unwrap_or(policy);
        let failed = integer(end, "/exitCode").unwrap_or_default() != 0;
        let restarts = policy == "Always" || (policy == "OnFailure" && failed);
        let revived = |s: &&Value| text(s, "/name") == name && present(s, "/state/terminated").is_none();
        if !restarts && now.iter().any(|s| revived(&s)) {
            problems.forbidden(&path.index(index).child("state"), "may not be transitioned to non-terminated state");
        }
    }
}

/// At most one address of each family.
fn addresses(problems: &mut Problems, path: &Path, pod: &Value, pointer: &str) {
    let list = items(pod, pointer);
    let texts: Vec<&str> = list.iter().map(|a| text(a, "/ip")).collect();
    for (index, address) in texts.iter().enumerate() {
        checks::ip(problems, &path.index(index), address);
    }
    let sixes = texts.iter().filter(|a| a.contains(':')).count();
    if texts.len() > 2 || (texts.len() == 2 && sixes != 1) {
        problems.invalid(path, list.to_vec(), "may specify no more than one IP for each IP family");
    }
}
