//! Validating and mutating webhook configurations.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Strategy;
use super::checks::{self, Problems};
use super::edit::{bump_generation, fill, integer, items, items_mut, present, same_at, set_in, text};
use crate::field::{FieldError, Path};
use crate::names;
use crate::schema::cel::Expression;

pub(super) const VALIDATING: Strategy = Strategy {
    default: |configuration| default_webhooks(configuration, false),
    prepare_create,
    prepare_update,
    validate_create: validate,
    validate_update: |new, _old| validate(new),
    ..Strategy::PLAIN
};

pub(super) const MUTATING: Strategy =
    Strategy { default: |configuration| default_webhooks(configuration, true), ..VALIDATING };

/// Seconds that a webhook gets to answer.
const TIMEOUT_SECONDS: i64 = 10;
const HTTPS_PORT: i64 = 443;

fn default_webhooks(configuration: &mut Value, mutating: bool) {
    for webhook in items_mut(configuration, "/webhooks") {
        for rule in items_mut(webhook, "/rules").iter_mut().filter_map(Value::as_object_mut) {
            fill(rule, "scope", "*");
        }
        if let Some(service) = webhook.pointer_mut("/clientConfig/service").and_then(Value::as_object_mut) {
            fill(service, "port", HTTPS_PORT);
        }
        if let Some(webhook) = webhook.as_object_mut() {
            fill(webhook, "failurePolicy", "Fail");
            fill(webhook, "matchPolicy", "Equivalent");
            fill(webhook, "namespaceSelector", json!({}));
            fill(webhook, "objectSelector", json!({}));
            fill(webhook, "timeoutSeconds", TIMEOUT_SECONDS);
            if mutating {
                fill(webhook, "reinvocationPolicy", "Never");
            }
        }
    }
}

fn prepare_create(configuration: &mut Value, _now: Timestamp) {
    set_in(configuration, "metadata", "generation", 1.into());
}

fn prepare_update(new: &mut Value, old: &Value) {
    if !same_at(new, old, "/webhooks") {
        bump_generation(new, old);
    }
}

const MAX_CONDITIONS: usize = 64;
/// What the expression of a condition may speak of.
const CONDITION_VARIABLES: [&str; 4] = ["object", "oldObject", "request", "authorizer"];
/// Seconds that a webhook may ask for.
const TIMEOUTS: std::ops::RangeInclusive<i64> = 1..=30;
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

fn validate(configuration: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let hooks = items(configuration, "/webhooks");
    for (index, hook) in hooks.iter().enumerate() {
        let path = Path::new("webhooks").index(index);
        validate_hook(&mut problems, &path, hook);
        review_versions(&mut problems, &path.child("admissionReviewVersions"), hook);
        let name = text(hook, "/name");
        if !name.is_empty() && hooks[..index].iter().any(|h| text(h, "/name") == name) {
            problems.duplicate(&path.child("name"), name);
        }
    }
    problems.0
}

fn validate_hook(problems: &mut Problems, path: &Path, hook: &Value) {
    let name = text(hook, "/name");
    let messages = names::dns1123_subdomain(name);
    if name.is_empty() {
        problems.required(&path.child("name"), "");
    } else if !messages.is_empty() {
        problems.invalid(&path.child("name"), name, messages.join(","));
    } else if name.split('.').count() < 3 {
        let detail = "should be a domain with at least three segments separated by dots";
        problems.invalid(&path.child("name"), name, detail);
    }
    for (index, rule) in items(hook, "/rules").iter().enumerate() {
        validate_rule(problems, &path.child("rules").index(index), rule);
    }
    problems.optional_choice(hook, "failurePolicy", path, &["Fail", "Ignore"]);
    problems.optional_choice(hook, "matchPolicy", path, &["Equivalent", "Exact"]);
    if present(hook, "/sideEffects").is_none() {
        problems.required(&path.child("sideEffects"), "must specify one of None, NoneOnDryRun");
    }
    problems.optional_choice(hook, "sideEffects", path, &["None", "NoneOnDryRun"]);
    if let Some(seconds) = integer(hook, "/timeoutSeconds").filter(|s| !TIMEOUTS.contains(s)) {
        let detail = "the timeout value must be between 1 and 30 seconds";
        problems.invalid(&path.child("timeoutSeconds"), seconds, detail);
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        if let Some(found) = present(hook, &format!("/{selector}")) {
            checks::label_selector(problems, &path.child(selector), found);
        }
    }
    problems.optional_choice(hook, "reinvocationPolicy", path, &["IfNeeded", "Never"]);
    client(problems, &path.child("clientConfig"), hook.get("clientConfig").unwrap_or(&Value::Null));
    conditions(problems, &path.child("matchConditions"), hook);
}

fn validate_rule(problems: &mut Problems, path: &Path, rule: &Value) {
    let operations = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    for (field, what) in [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")] {
        let values = items(rule, &format!("/{field}"));
        let at = path.child(field);
        if values.is_empty() {
            problems.required(&at, "");
        }
        if values.len() > 1 && values.iter().any(|v| v == "*") {
            problems.invalid(&at, values.to_vec(), format!("if '*' is present, must not specify other {what}"));
        }
        for (index, value) in values.iter().enumerate() {
            let value = value.as_str().unwrap_or_default();
            match field {
                "operations" if !operations.contains(&value) => {
                    problems.not_supported(&at.index(index), value, &operations);
                }
                "apiVersions" if value.is_empty() => problems.required(&at.index(index), ""),
                _ => {}
            }
        }
    }
    resources(problems, &path.child("resources"), rule);
    problems.optional_choice(rule, "scope", path, &["*", "Cluster", "Namespaced"]);
}

/// `pods`, `pods/status`, `*`, `*/scale`, `pods/*`, `*/*`: no entry may be covered by another one.
fn resources(problems: &mut Problems, path: &Path, rule: &Value) {
    let values = items(rule, "/resources");
    if values.is_empty() {
        problems.required(path, "");
    }
    let (mut whole, mut everywhere) = (Vec::new(), Vec::new());
    for (index, value) in values.iter().enumerate() {
        let text = value.as_str().unwrap_or_default();
        if text.is_empty() {
            problems.required(&path.index(index), "");
        }
        let Some((resource, sub)) = text.split_once('/') else { continue };
        if whole.contains(&resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {text}");
            problems.invalid(&path.index(index), text, detail);
        }
        if everywhere.contains(&sub) {
            let detail = format!("if '*/{sub}' is present, must not specify {text}");
            problems.invalid(&path.index(index), text, detail);
        }
        if sub == "*" {
            whole.push(resource);
        }
        if resource == "*" {
            everywhere.push(sub);
        }
    }
    if values.len() > 1 && values.iter().any(|v| v == "*/*") {
        problems.invalid(path, values.to_vec(), "if '*/*' is present, must not specify other resources");
    }
    let plain = |v: &Value| v.as_str().is_some_and(|v| !v.is_empty() && v != "*" && !v.contains('/'));
    if values.iter().any(|v| v == "*") && values.iter().any(plain) {
        let detail = "if '*' is present, must not specify other resources without subresources";
        problems.invalid(path, values.to_vec(), detail);
    }
}

fn review_versions(problems: &mut Problems, path: &Path, hook: &Value) {
    let versions = items(hook, "/admissionReviewVersions");
    let accepted = REVIEW_VERSIONS.join(", ");
    if versions.is_empty() {
        problems.required(path, &format!("must specify one of {accepted}"));
        return;
    }
    for (index, version) in versions.iter().enumerate() {
        let text = version.as_str().unwrap_or_default();
        if versions[..index].contains(version) {
            problems.invalid(&path.index(index), text, "duplicate version");
        } else {
            problems.messages(&path.index(index), text, names::dns1035_label(text));
        }
    }
    if !versions.iter().any(|v| REVIEW_VERSIONS.iter().any(|a| v == a)) {
        problems.invalid(path, versions.to_vec(), format!("must include at least one of {accepted}"));
    }
}

fn client(problems: &mut Problems, path: &Path, config: &Value) {
    match (present(config, "/url").and_then(Value::as_str), present(config, "/service")) {
        (Some(url), None) => client_url(problems, &path.child("url"), url),
        (None, Some(service)) => client_service(problems, &path.child("service"), service),
        _ => problems.required(path, "exactly one of url or service is required"),
    }
}

/// `https://host[:port][/path]`, and nothing more.
fn client_url(problems: &mut Problems, path: &Path, url: &str) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        problems.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        problems.invalid(path, "", format!("host must be specified{FORM}"));
    }
    if !user.is_empty() {
        problems.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        problems.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        problems.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

fn client_service(problems: &mut Problems, path: &Path, service: &Value) {
    // Kubernetes mixes the two up here: a missing name is reported as a missing namespace, and the other way round.
    for (field, reported) in [("namespace", "name"), ("name", "namespace")] {
        if text(service, &format!("/{field}")).is_empty() {
            problems.required(&path.child(reported), "");
        }
    }
    let port = integer(service, "/port").unwrap_or_default();
    if !(1..=65535).contains(&port) {
        problems.invalid(&path.child("port"), port, format!("port is not valid: {}", checks::range(1, 65535)));
    }
    let target = text(service, "/path");
    let at = path.child("path");
    match target {
        "" | "/" => return,
        "//" => {
            problems.invalid(&at, target, "segment[0] may not be empty");
            return;
        }
        _ => {}
    }
    if !target.starts_with('/') {
        problems.invalid(&at, target, "must start with a '/'");
    }
    let inner = target.char_indices().nth(1).map_or("", |(second, _)| &target[second..]);
    for (index, segment) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if segment.is_empty() {
            problems.invalid(&at, target, format!("segment[{index}] may not be empty"));
            continue;
        }
        for message in names::dns1123_subdomain(segment) {
            problems.invalid(&at, target, format!("segment[{index}]: {message}"));
        }
    }
}

/// Conditions have names, and expressions over the request.
fn conditions(problems: &mut Problems, path: &Path, hook: &Value) {
    let conditions = items(hook, "/matchConditions");
    if conditions.len() > MAX_CONDITIONS {
        problems.0.push(FieldError::too_many(path.clone(), conditions.len(), MAX_CONDITIONS));
    }
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        let expression = text(condition, "/expression").trim();
        if expression.is_empty() {
            problems.required(&path.child("expression"), "");
        } else if let Err(why) = Expression::compile(expression, &CONDITION_VARIABLES) {
            problems.invalid(&path.child("expression"), expression, format!("compilation failed: {why}"));
        }
        let name = text(condition, "/name");
        match name {
            "" => problems.required(&path.child("name"), ""),
            _ => problems.messages(&path.child("name"), name, names::qualified_name(name)),
        }
        if !name.is_empty() && conditions[..index].iter().any(|c| text(c, "/name") == name) {
            problems.duplicate(&path.child("name"), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(change: impl FnOnce(&mut Value)) -> Value {
        let mut configuration = json!({"webhooks": [{
            "name": "volumes.tether.io.example", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "admission", "namespace": "tether", "path": "/validate/volumes"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": ["longhorn.io"], "apiVersions": ["*"], "resources": ["volumes", "volumes/*"]}],
        }]});
        default_webhooks(&mut configuration, true);
        change(&mut configuration["webhooks"][0]);
        configuration
    }

    fn texts(configuration: &Value) -> Vec<String> {
        validate(configuration).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_make_a_whole_configuration() {
        let configuration = configuration(|_| {});
        let hook = &configuration["webhooks"][0];
        assert_eq!(hook["timeoutSeconds"], 10);
        assert_eq!(hook["reinvocationPolicy"], "Never");
        assert_eq!(hook["clientConfig"]["service"]["port"], 443);
        assert_eq!(hook["rules"][0]["scope"], "*");
        assert_eq!(texts(&configuration), [""; 0]);
    }

    #[test]
    fn what_is_refused() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str); 9] = [
            (
                |h| h["name"] = "short".into(),
                "webhooks[0].name: Invalid value: \"short\": should be a domain with at least three segments separated by dots",
            ),
            (
                |h| h["sideEffects"] = "Some".into(),
                "webhooks[0].sideEffects: Unsupported value: \"Some\": supported values: \"None\", \"NoneOnDryRun\"",
            ),
            (
                |h| h["timeoutSeconds"] = 31.into(),
                "webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds",
            ),
            (
                |h| h["clientConfig"] = json!({}),
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ),
            (
                |h| h["clientConfig"] = json!({"url": "http://a/b"}),
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ),
            (
                |h| h["admissionReviewVersions"] = json!(["v2"]),
                "webhooks[0].admissionReviewVersions: Invalid value: [\"v2\"]: must include at least one of v1, v1beta1",
            ),
            (
                |h| h["rules"][0]["operations"] = json!(["*", "CREATE"]),
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
            ),
            (
                |h| h["rules"][0]["resources"] = json!(["pods/*", "pods/status"]),
                "webhooks[0].rules[0].resources[1]: Invalid value: \"pods/status\": if 'pods/*' is present, must not specify pods/status",
            ),
            (
                |h| h["clientConfig"]["service"]["path"] = "/a//b".into(),
                "webhooks[0].clientConfig.service.path: Invalid value: \"/a//b\": segment[1] may not be empty",
            ),
        ];
        for (change, error) in cases {
            assert_eq!(texts(&configuration(change)), [error]);
        }
    }

    #[test]
    fn the_generation_follows_the_webhooks() {
        let old = json!({"metadata": {"generation": 4}, "webhooks": [{"name": "a"}]});
        let mut new = old.clone();
        prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 4);
        new["webhooks"] = json!([]);
        prepare_update(&mut new, &old);
        assert_eq!(new["metadata"]["generation"], 5);
    }
}
