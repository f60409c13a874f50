//! Where a pod may run: tolerations, affinity, spreading.

use serde_json::Value;

use super::super::checks::{self, NOT_POSITIVE, Problems};
use super::super::edit::{entries, integer, items, present, text};
use crate::field::Path;
use crate::names;

pub(super) fn tolerations(problems: &mut Problems, path: &Path, spec: &Value) {
    for (index, toleration) in items(spec, "/tolerations").iter().enumerate() {
        let path = path.index(index);
        let (key, operator) = (text(toleration, "/key"), text(toleration, "/operator"));
        let (value, effect) = (text(toleration, "/value"), text(toleration, "/effect"));
        if !key.is_empty() {
            problems.messages(&path.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            let detail = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            problems.invalid(&path.child("operator"), operator, detail);
        }
        if present(toleration, "/tolerationSeconds").is_some() && effect != "NoExecute" {
            let detail = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            problems.invalid(&path.child("effect"), effect, detail);
        }
        match operator {
            "Equal" | "" => {
                let messages = names::label_value(value);
                if !messages.is_empty() {
                    problems.invalid(&path.child("operator"), value, messages.join(";"));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let detail = "value must be empty when `operator` is 'Exists'";
                problems.invalid(&path.child("operator"), value, detail);
            }
            other => problems.not_supported(&path.child("operator"), other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            problems.choice(&path.child("effect"), effect, TAINT_EFFECTS);
        }
    }
}

/// What a taint does to pods that do not tolerate it.
pub(in super::super) const TAINT_EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

pub(super) fn affinity(problems: &mut Problems, path: &Path, spec: &Value) {
    if let Some(nodes) = present(spec, "/affinity/nodeAffinity") {
        let path = path.child("nodeAffinity");
        if let Some(required) = nodes.get(REQUIRED).filter(|r| !r.is_null()) {
            checks::node_selector(problems, &path.child(REQUIRED), required);
        }
        for (index, term) in items(nodes, &format!("/{PREFERRED}")).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(problems, &path, term);
            let preference = term.get("preference").unwrap_or(&Value::Null);
            checks::node_selector_term(problems, &path.child("preference"), preference, false);
        }
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = present(spec, &format!("/affinity/{kind}")) else { continue };
        let path = path.child(kind);
        for (index, term) in items(pods, &format!("/{REQUIRED}")).iter().enumerate() {
            pod_term(problems, &path.child(REQUIRED).index(index), term);
        }
        for (index, term) in items(pods, &format!("/{PREFERRED}")).iter().enumerate() {
            let path = path.child(PREFERRED).index(index);
            weight(problems, &path, term);
            let term = term.get("podAffinityTerm").unwrap_or(&Value::Null);
            pod_term(problems, &path.child("podAffinityTerm"), term);
        }
    }
}

fn weight(problems: &mut Problems, path: &Path, term: &Value) {
    let weight = integer(term, "/weight").unwrap_or_default();
    if !(1..=100).contains(&weight) {
        problems.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn pod_term(problems: &mut Problems, path: &Path, term: &Value) {
    for selector in ["labelSelector", "namespaceSelector"] {
        if let Some(found) = present(term, &format!("/{selector}")) {
            checks::label_selector(problems, &path.child(selector), found);
        }
    }
    for namespace in items(term, "/namespaces") {
        let name = namespace.as_str().unwrap_or_default();
        problems.messages(&path.child("namespace"), name, names::dns1123_label(name));
    }
    label_keys(problems, path, term);
    let key = text(term, "/topologyKey");
    if key.is_empty() {
        problems.required(&path.child("topologyKey"), "can not be empty");
    }
    problems.messages(&path.child("topologyKey"), key, names::qualified_name(key));
}

/// `matchLabelKeys` and `mismatchLabelKeys`: label names, only beside a selector, never in both lists.
fn label_keys(problems: &mut Problems, path: &Path, term: &Value) {
    for list in ["matchLabelKeys", "mismatchLabelKeys"] {
        let keys = items(term, &format!("/{list}"));
        if !keys.is_empty() && present(term, "/labelSelector").is_none() {
            problems.forbidden(&path.child(list), "must not be specified when labelSelector is not set");
        }
        for (index, key) in keys.iter().enumerate() {
            let key = key.as_str().unwrap_or_default();
            problems.messages(&path.child(list).index(index), key, names::qualified_name(key));
        }
    }
    own_labels_twice(problems, path, term);
    let against = items(term, "/mismatchLabelKeys");
    for (index, key) in items(term, "/matchLabelKeys").iter().enumerate() {
        if against.contains(key) {
            let path = path.child("matchLabelKeys").index(index);
            problems.invalid(&path, key.clone(), "exists in both matchLabelKeys and mismatchLabelKeys");
        }
    }
}

/// The keys have become requirements by now; one that the selector names besides is named twice.
fn own_labels_twice(problems: &mut Problems, path: &Path, term: &Value) {
    let mut named: Vec<&str> = entries(term, "/labelSelector/matchLabels").map(|(key, _)| key.as_str()).collect();
    let keys = items(term, "/matchLabelKeys");
    for expression in items(term, "/labelSelector/matchExpressions") {
        let key = text(expression, "/key");
        if let Some(index) = keys.iter().rposition(|k| k == key).filter(|_| named.contains(&key)) {
            problems.invalid(&path.index(index), key, "exists in both matchLabelKeys and labelSelector");
        }
        named.push(key);
    }
}

pub(super) fn spread(problems: &mut Problems, path: &Path, spec: &Value) {
    let constraints = items(spec, "/topologySpreadConstraints");
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.index(index);
        let skew = integer(constraint, "/maxSkew").unwrap_or_default();
        if skew <= 0 {
            problems.invalid(&path.child("maxSkew"), skew, NOT_POSITIVE);
        }
        let (key, action) = (text(constraint, "/topologyKey"), text(constraint, "/whenUnsatisfiable"));
        if key.is_empty() {
            problems.required(&path.child("topologyKey"), "can not be empty");
        }
        if !matches!(action, "DoNotSchedule" | "ScheduleAnyway") {
            let allowed = ["DoNotSchedule", "ScheduleAnyway"];
            problems.not_supported(&path.child("whenUnsatisfiable"), action, &allowed);
        }
        let same = |c: &Value| text(c, "/topologyKey") == key && text(c, "/whenUnsatisfiable") == action;
        if constraints[index + 1..].iter().any(same) {
            let path = path.child("{topologyKey, whenUnsatisfiable}");
            problems.duplicate(&path, format!("{{{key}, {action}}}"));
        }
        min_domains(problems, &path.child("minDomains"), constraint, action);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            problems.optional_choice(constraint, policy, &path, &["Honor", "Ignore"]);
        }
        label_keys(problems, &path, constraint);
        if let Some(selector) = present(constraint, "/labelSelector") {
            checks::label_selector(problems, &path.child("labelSelector"), selector);
        }
    }
}

fn min_domains(problems: &mut Problems, path: &Path, constraint: &Value, action: &str) {
    let Some(domains) = integer(constraint, "/minDomains") else { return };
    if domains <= 0 {
        problems.invalid(path, domains, NOT_POSITIVE);
    }
    if action != "DoNotSchedule" {
        let detail = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
        problems.invalid(path, domains, detail);
    }
}

/// Turns `matchLabelKeys` into requirements on the pod's own values, once, when the pod is made.
pub(super) fn apply_label_keys(pod: &mut Value) {
    let labels: Vec<(String, Value)> = entries(pod, "/metadata/labels").map(|(k, v)| (k.clone(), v.clone())).collect();
    let Some(spec) = pod.get_mut("spec") else { return };
    let mut apply = |pointer: &str, within: &str| {
        for term in super::super::edit::items_mut(spec, pointer) {
            if let Some(term) = term.pointer_mut(within) {
                apply_to_term(term, &labels);
            }
        }
    };
    for kind in ["podAffinity", "podAntiAffinity"] {
        apply(&format!("/affinity/{kind}/{REQUIRED}"), "");
        apply(&format!("/affinity/{kind}/{PREFERRED}"), "/podAffinityTerm");
    }
    apply("/topologySpreadConstraints", "");
}

fn apply_to_term(term: &mut Value, labels: &[(String, Value)]) {
    let mut requirements = Vec::new();
    for (list, operator) in [("/matchLabelKeys", "In"), ("/mismatchLabelKeys", "NotIn")] {
        for key in items(term, list).iter().filter_map(Value::as_str) {
            if let Some((_, value)) = labels.iter().find(|(k, _)| k == key) {
                requirements.push(serde_json::json!({"key": key, "operator": operator, "values": [value]}));
            }
        }
    }
    if let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut)
        && !requirements.is_empty()
    {
        let list = selector.entry("matchExpressions").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.append(&mut requirements);
        }
    }
}
