//! What validation of several kinds has in common: collecting errors, and checks of the values that many
//! kinds carry — selectors, quantities, paths, ports.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::edit::{integer, items, present, same_at, text};
use crate::field::{ErrorKind, FieldError, Path};
use crate::meta;
use crate::names;
use crate::quantity::Quantity;

pub(super) const NOT_POSITIVE: &str = "must be greater than zero";
pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";
pub(super) const MANY_VOLUME_TYPES: &str = "may not specify more than 1 volume type";
const FILE_MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// What is wrong with a name, in sentences.
pub(super) type NameCheck = fn(&str) -> Vec<String>;

/// The largest user and group id.
const MAX_ID: i64 = i32::MAX as i64;

/// The errors found so far, in the order in which Kubernetes reports them.
#[derive(Default)]
pub(super) struct Problems(pub(super) Vec<FieldError>);

impl Problems {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn required(&mut self, path: &Path, detail: &str) {
        self.0.push(FieldError::required(path.clone(), detail));
    }

    pub(super) fn invalid(&mut self, path: &Path, value: impl Into<Value>, detail: impl Into<String>) {
        self.0.push(FieldError::invalid(path.clone(), value, detail));
    }

    pub(super) fn forbidden(&mut self, path: &Path, detail: impl Into<String>) {
        self.0.push(FieldError::forbidden(path.clone(), detail));
    }

    pub(super) fn duplicate(&mut self, path: &Path, value: impl Into<Value>) {
        self.0.push(FieldError::duplicate(path.clone(), value));
    }

    pub(super) fn not_found(&mut self, path: &Path, value: &str) {
        let value = Some(value.into());
        self.0.push(FieldError { kind: ErrorKind::NotFound, path: path.clone(), value, detail: String::new() });
    }

    pub(super) fn too_long(&mut self, path: &Path, max_bytes: usize) {
        self.0.push(FieldError::too_long(path.clone(), max_bytes));
    }

    pub(super) fn not_supported(&mut self, path: &Path, value: impl Into<Value>, allowed: &[&str]) {
        self.0.push(FieldError::not_supported(path.clone(), value, allowed));
    }

    /// One error for each message about `value`.
    pub(super) fn messages(&mut self, path: &Path, value: &str, messages: Vec<String>) {
        self.0.extend(messages.into_iter().map(|m| FieldError::invalid(path.clone(), value, m)));
    }

    /// `value` must be one of `allowed`; empty is missing.
    pub(super) fn choice(&mut self, path: &Path, value: &str, allowed: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else if !allowed.contains(&value) {
            self.not_supported(path, value, allowed);
        }
    }

    /// If the field is set, it must be one of `allowed`.
    pub(super) fn optional_choice(&mut self, owner: &Value, field: &str, path: &Path, allowed: &[&str]) {
        if let Some(value) = owner.get(field).and_then(Value::as_str)
            && !allowed.contains(&value)
        {
            self.not_supported(&path.child(field), value, allowed);
        }
    }

    /// A string that must not be empty.
    pub(super) fn present(&mut self, owner: &Value, field: &str, path: &Path) {
        if owner.get(field).and_then(Value::as_str).unwrap_or_default().is_empty() {
            self.required(&path.child(field), "");
        }
    }

    /// The value at `pointer` may not change.
    pub(super) fn immutable(&mut self, new: &Value, old: &Value, pointer: &str, path: &Path) {
        if !same_at(new, old, pointer) {
            self.invalid(path, new.pointer(pointer).cloned().unwrap_or_default(), IMMUTABLE);
        }
    }
}

/// `must be between 1 and 65535, inclusive`.
pub(super) fn range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

pub(super) fn port_number(problems: &mut Problems, path: &Path, port: i64) {
    if !(1..=65535).contains(&port) {
        problems.invalid(path, port, range(1, 65535));
    }
}

/// User and group ids.
pub(super) fn id(problems: &mut Problems, path: &Path, owner: &Value, field: &str) {
    if let Some(id) = owner.get(field).and_then(Value::as_i64)
        && !(0..=MAX_ID).contains(&id)
    {
        problems.invalid(&path.child(field), id, range(0, MAX_ID));
    }
}

pub(super) fn file_mode(problems: &mut Problems, path: &Path, owner: &Value, field: &str) {
    if let Some(mode) = owner.get(field).and_then(Value::as_i64)
        && !(0..=0o777).contains(&mode)
    {
        problems.invalid(&path.child(field), mode, FILE_MODE);
    }
}

pub(super) fn no_backsteps(problems: &mut Problems, path: &Path, target: &str) {
    if target.split('/').any(|part| part == "..") {
        problems.invalid(path, target, "must not contain '..'");
    }
}

/// A relative path that stays below where it starts.
pub(super) fn descending_path(problems: &mut Problems, path: &Path, target: &str) {
    if target.starts_with('/') {
        problems.invalid(path, target, "must be a relative path");
    }
    no_backsteps(problems, path, target);
}

/// A descending path that cannot be taken for one of kubelet's own files.
pub(super) fn unreserved_path(problems: &mut Problems, path: &Path, target: &str) {
    descending_path(problems, path, target);
    if target.starts_with("..") && !target.starts_with("../") {
        problems.invalid(path, target, "must not start with '..'");
    }
}

pub(super) fn ip(problems: &mut Problems, path: &Path, value: &str) {
    if value.parse::<IpAddr>().is_err() {
        problems.invalid(path, value, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)");
    }
}

/// The address of a network, if `value` is one.
pub(super) fn cidr(value: &str) -> Option<IpAddr> {
    let (address, bits) = value.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let limit = if address.is_ipv4() { 32 } else { 128 };
    bits.parse::<u8>().ok().filter(|bits| *bits <= limit)?;
    Some(address)
}

/// The name of a CSI driver.
pub(super) fn driver_name(problems: &mut Problems, path: &Path, name: &str) {
    const MAX_BYTES: usize = 63;
    if name.is_empty() {
        problems.required(path, "");
        return;
    }
    if name.len() > MAX_BYTES {
        problems.too_long(path, MAX_BYTES);
    }
    problems.messages(path, name, names::dns1123_subdomain(&name.to_lowercase()));
}

/// An iSCSI qualified name, or one of the two older forms.
pub(super) fn is_iscsi_name(name: &str) -> bool {
    static FORMS: LazyLock<[Regex; 3]> = LazyLock::new(|| {
        [r"iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$", "^eui.[[:alnum:]]{16}$", "^naa.[[:alnum:]]{32}$"]
            .map(|form| Regex::new(form).expect("the forms of iSCSI names must be expressions"))
    });
    let form = ["iqn", "eui", "naa"].iter().position(|prefix| name.starts_with(prefix));
    form.is_some_and(|form| FORMS[form].is_match(name))
}

/// The number of a SCSI unit.
pub(super) fn lun(problems: &mut Problems, path: &Path, source: &Value) {
    let lun = integer(source, "/lun").unwrap_or_default();
    if !(0..=255).contains(&lun) {
        problems.invalid(&path.child("lun"), lun, range(0, 255));
    }
}

/// The reference of a persistent volume to a secret, namespace included.
pub(super) fn secret_reference(problems: &mut Problems, path: &Path, reference: &Value) {
    let checks: [(&str, NameCheck); 2] = [("name", names::dns1123_subdomain), ("namespace", names::dns1123_label)];
    for (field, check) in checks {
        let value = reference.get(field).and_then(Value::as_str).unwrap_or_default();
        if value.is_empty() {
            problems.required(&path.child(field), "");
        } else {
            problems.messages(&path.child(field), value, check(value));
        }
    }
}

/// A quantity; what does not parse was refused before.
pub(super) fn quantity(value: &Value) -> Quantity {
    Quantity::from_json(value).unwrap_or_else(|_| Quantity::new(0, crate::quantity::Format::DecimalSi))
}

/// An amount of a resource: not negative, and whole where parts make no sense.
pub(super) fn resource_amount(problems: &mut Problems, path: &Path, resource: &str, value: &Value) {
    let amount = quantity(value);
    if amount.signum() < 0 {
        problems.invalid(path, amount.to_string(), NEGATIVE);
    }
    if is_whole(resource) && amount.milli_value() % 1000 != 0 {
        problems.invalid(path, amount.to_string(), "must be an integer");
    }
}

/// `cpu`, `memory`, and everything under `kubernetes.io/`.
pub(super) fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

/// A resource that somebody outside Kubernetes counts.
pub(super) fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && names::qualified_name(&format!("requests.{resource}")).is_empty()
}

fn is_whole(resource: &str) -> bool {
    const WHOLE: [&str; 9] = [
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    WHOLE.contains(&resource) || is_extended(resource)
}

/// Names that are resources without a domain in front.
fn is_standard(resource: &str) -> bool {
    const STANDARD: [&str; 11] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "requests.storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    STANDARD.contains(&resource)
        || (is_whole(resource) && !resource.contains('/'))
        || resource.starts_with("hugepages-")
        || resource.starts_with("requests.hugepages-")
}

/// The name of a resource that a container can ask for.
pub(super) fn container_resource(problems: &mut Problems, path: &Path, resource: &str) {
    let messages = names::qualified_name(resource);
    if !messages.is_empty() {
        problems.messages(path, resource, messages);
        return;
    }
    let for_containers =
        matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with("hugepages-");
    if !resource.contains('/') {
        if !is_standard(resource) {
            problems.invalid(path, resource, "must be a standard resource type or fully qualified");
        }
        if !for_containers {
            problems.invalid(path, resource, "must be a standard resource for containers");
        }
    } else if !is_native(resource) && !is_extended(resource) {
        problems.invalid(path, resource, "doesn't follow extended resource name standard");
    }
}

/// A finalizer must have a domain, unless it is one of those from before there were domains.
pub(super) fn finalizer_domain(problems: &mut Problems, path: &Path, name: &str) {
    if !name.contains('/') && !matches!(name, "kubernetes" | "orphan" | "foregroundDeletion") {
        problems.invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified");
    }
}

/// The access modes of a volume or claim.
pub(super) fn access_modes(problems: &mut Problems, path: &Path, spec: &Value) {
    const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let modes: Vec<&str> = items(spec, "/accessModes").iter().filter_map(Value::as_str).collect();
    for mode in modes.iter().filter(|m| !MODES.contains(m)) {
        problems.not_supported(path, *mode, &MODES);
    }
    let alone = |mode: &&str| *mode == "ReadWriteOncePod";
    if modes.iter().any(alone) && modes.iter().any(|m| MODES.contains(m) && !alone(m)) {
        problems.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

/// A label selector, in its structured form.
pub(super) fn label_selector(problems: &mut Problems, path: &Path, selector: &Value) {
    labels(problems, &path.child("matchLabels"), selector.get("matchLabels"));
    for (index, expression) in items(selector, "/matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = items(expression, "/values");
        match text(expression, "/operator") {
            "In" | "NotIn" => in_values(problems, &path, values),
            "Exists" | "DoesNotExist" => no_values(problems, &path, values),
            other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        let key = text(expression, "/key");
        problems.messages(&path.child("key"), key, names::qualified_name(key));
        label_values(problems, &path, values);
    }
}

/// Keys and values of labels.
pub(super) fn labels(problems: &mut Problems, path: &Path, labels: Option<&Value>) {
    if let Some(labels) = labels {
        problems.0.extend(meta::labels(labels, path));
    }
}

fn in_values(problems: &mut Problems, path: &Path, values: &[Value]) {
    if values.is_empty() {
        problems.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
    }
}

fn no_values(problems: &mut Problems, path: &Path, values: &[Value]) {
    if !values.is_empty() {
        let detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
        problems.forbidden(&path.child("values"), detail);
    }
}

fn label_values(problems: &mut Problems, path: &Path, values: &[Value]) {
    for (index, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        problems.messages(&path.child("values").index(index), value, names::label_value(value));
    }
}

/// A node selector: terms, one of which must match.
pub(super) fn node_selector(problems: &mut Problems, path: &Path, selector: &Value) {
    let path = path.child("nodeSelectorTerms");
    let terms = items(selector, "/nodeSelectorTerms");
    if terms.is_empty() {
        problems.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        node_selector_term(problems, &path.index(index), term, true);
    }
}

/// One term of a node selector. In preferences, values were never checked.
pub(super) fn node_selector_term(problems: &mut Problems, path: &Path, term: &Value, check_values: bool) {
    for (index, requirement) in items(term, "/matchExpressions").iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = items(requirement, "/values");
        match text(requirement, "/operator") {
            "In" | "NotIn" => in_values(problems, &path, values),
            "Exists" | "DoesNotExist" => no_values(problems, &path, values),
            "Gt" | "Lt" if values.len() == 1 => {}
            "Gt" | "Lt" => {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                problems.required(&path.child("values"), detail);
            }
            other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        let key = text(requirement, "/key");
        problems.messages(&path.child("key"), key, names::qualified_name(key));
        if check_values {
            label_values(problems, &path, values);
        }
    }
    for (index, requirement) in items(term, "/matchFields").iter().enumerate() {
        node_field(problems, &path.child("matchFields").index(index), requirement);
    }
}

/// Nodes can be selected by one field, their name.
fn node_field(problems: &mut Problems, path: &Path, requirement: &Value) {
    let values = items(requirement, "/values");
    match text(requirement, "/operator") {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => problems.required(
            &path.child("values"),
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        other => problems.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    let key = text(requirement, "/key");
    if key == "metadata.name" {
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            problems.messages(&path.child("values").index(index), value, names::dns1123_subdomain(value));
        }
    } else {
        problems.invalid(&path.child("key"), key, "not a valid field selector key");
    }
}

/// The terms of `allowedTopologies`.
pub(super) fn topology_term(problems: &mut Problems, path: &Path, term: &Value) {
    let mut keys = BTreeSet::new();
    for (index, requirement) in items(term, "/matchLabelExpressions").iter().enumerate() {
        let path = path.child("matchLabelExpressions").index(index);
        let values = items(requirement, "/values");
        if values.is_empty() {
            problems.required(&path.child("values"), "");
        }
        for (at, value) in values.iter().enumerate() {
            if values[..at].contains(value) {
                problems.duplicate(&path.child("values").index(at), value.clone());
            }
        }
        let key = text(requirement, "/key");
        problems.messages(&path.child("key"), key, names::qualified_name(key));
        if !keys.insert(key) {
            problems.duplicate(&path.child("key"), key);
        }
    }
}

/// An integer that must not be negative, if it is there.
pub(super) fn non_negative(problems: &mut Problems, path: &Path, owner: &Value, field: &str) {
    if let Some(value) = integer(owner, &format!("/{field}")).filter(|v| *v < 0) {
        problems.invalid(&path.child(field), value, NEGATIVE);
    }
}

/// The one source that a volume has is checked by `check`; any other is refused after it, and having none as well.
pub(super) fn single_source(
    problems: &mut Problems,
    path: &Path,
    owner: &Value,
    sources: &[&'static str],
    check: impl FnOnce(&mut Problems, &'static str, &Value),
) {
    let mut found = sources.iter().filter_map(|s| present(owner, &format!("/{s}")).map(|v| (*s, v)));
    match found.next() {
        Some((kind, source)) => check(problems, kind, source),
        None => problems.required(path, "must specify a volume type"),
    }
    for (name, _) in found {
        problems.forbidden(&path.child(name), MANY_VOLUME_TYPES);
    }
}

/// Errors as clients read them.
#[cfg(test)]
pub(super) fn texts(errors: Vec<FieldError>) -> Vec<String> {
    errors.into_iter().map(|e| e.to_string()).collect()
}
