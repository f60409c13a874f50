//! Webhooks as they are configured: which requests they are for, whom to ask, what to do if nobody answers.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use tether_machinery::selector::LabelSelector;

use super::super::{GroupVersionKind, GroupVersionResource, Request};
use super::conditions::Condition;
use super::timeout;
use crate::auth::{Objects, text};

pub(super) const MUTATING: &str = "mutatingwebhookconfigurations.admissionregistration.k8s.io";
pub(super) const VALIDATING: &str = "validatingwebhookconfigurations.admissionregistration.k8s.io";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const ALL: &str = "*";

/// What to do if a webhook cannot be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailurePolicy {
    Ignore,
    Fail,
}

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClientConfig {
    pub(super) url: Result<String, String>,
    /// PEM; empty: whom this machine trusts.
    pub(super) ca_bundle: Vec<u8>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    api_groups: Vec<String>,
    api_versions: Vec<String>,
    operations: Vec<String>,
    resources: Vec<String>,
    scope: String,
}

fn any(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == ALL || item == wanted)
}

impl Rule {
    fn matches(&self, request: &Request, version: &str) -> bool {
        self.scope_matches(request)
            && any(&self.operations, request.operation.as_str())
            && any(&self.api_groups, &request.resource.group)
            && any(&self.api_versions, version)
            && self.resources.iter().any(|rule| {
                let (resource, subresource) = rule.split_once('/').unwrap_or((rule, ""));
                (resource == ALL || resource == request.resource.resource)
                    && (subresource == ALL || subresource == request.subresource)
            })
    }

    /// A Namespace object is cluster-scoped, though its requests name a namespace.
    fn scope_matches(&self, request: &Request) -> bool {
        let is_namespace = request.resource.group.is_empty() && request.resource.resource == "namespaces";
        let namespaced = !request.namespace.is_empty() && !is_namespace;
        match self.scope.as_str() {
            "" | ALL => true,
            "Namespaced" => namespaced,
            "Cluster" => !namespaced,
            _ => false,
        }
    }
}

/// One webhook of a configuration.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) name: String,
    pub(super) client: ClientConfig,
    pub(super) failure_policy: FailurePolicy,
    pub(super) timeout: Duration,
    /// Asking it changes nothing elsewhere, so it may be asked for a dry run.
    pub(super) dry_run_safe: bool,
    /// Wants to be asked again if the object changes after it was asked.
    pub(super) reinvoke: bool,
    pub(super) namespace_selector: Result<LabelSelector, String>,
    pub(super) object_selector: Result<LabelSelector, String>,
    pub(super) conditions: Vec<Condition>,
    equivalent: bool,
    rules: Vec<Rule>,
    review_versions: Vec<String>,
}

/// A webhook together with the version of the object that it is shown.
pub(super) struct Invocation<'a> {
    pub(super) hook: &'a Hook,
    pub(super) kind: GroupVersionKind,
    pub(super) resource: GroupVersionResource,
}

impl Invocation<'_> {
    /// An object as this webhook is shown it. Versions of one resource differ in nothing but their name.
    pub(super) fn convert(&self, object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(version) = object.get_mut("apiVersion") {
            let GroupVersionKind { group, version: wanted, .. } = &self.kind;
            *version = if group.is_empty() { wanted.as_str().into() } else { format!("{group}/{wanted}").into() };
        }
        object
    }
}

impl Hook {
    fn read(hook: &Value) -> Self {
        let selector = |field: &str| match hook.get(field) {
            None | Some(Value::Null) => Ok(LabelSelector::everything()),
            Some(selector) => LabelSelector::from_object(selector).map_err(|error| error.to_string()),
        };
        let list = |field: &str| hook.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        Self {
            name: text(hook, "/name").to_owned(),
            client: client_config(hook.get("clientConfig").unwrap_or(&Value::Null)),
            failure_policy: match text(hook, "/failurePolicy") {
                "Ignore" => FailurePolicy::Ignore,
                _ => FailurePolicy::Fail,
            },
            timeout: timeout(hook.get("timeoutSeconds").and_then(Value::as_i64)),
            dry_run_safe: matches!(text(hook, "/sideEffects"), "None" | "NoneOnDryRun"),
            reinvoke: text(hook, "/reinvocationPolicy") == "IfNeeded",
            namespace_selector: selector("namespaceSelector"),
            object_selector: selector("objectSelector"),
            conditions: list("matchConditions").iter().map(Condition::read).collect(),
            equivalent: text(hook, "/matchPolicy") != "Exact",
            rules: list("rules").iter().filter_map(|rule| Rule::deserialize(rule).ok()).collect(),
            review_versions: list("admissionReviewVersions")
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        }
    }

    /// The first form of AdmissionReview in the webhook's list that is known here.
    pub(super) fn review_version(&self) -> Option<&str> {
        self.review_versions.iter().map(String::as_str).find(|version| matches!(*version, "v1" | "v1beta1"))
    }

    /// The call that a request leads to: in its own version if a rule names that, otherwise in one that a rule names.
    pub(super) fn invocation(&self, request: &Request, objects: &dyn Objects) -> Option<Invocation<'_>> {
        let (kind, resource) = (request.kind.clone(), request.resource.clone());
        if self.rules.iter().any(|rule| rule.matches(request, &resource.version)) {
            return Some(Invocation { hook: self, kind, resource });
        }
        if !self.equivalent || kind.group != resource.group {
            return None;
        }
        let versions = other_versions(request, objects);
        let version =
            self.rules.iter().find_map(|rule| versions.iter().find(|version| rule.matches(request, version)))?;
        Some(Invocation {
            hook: self,
            kind: GroupVersionKind { version: version.clone(), ..kind },
            resource: GroupVersionResource { version: version.clone(), ..resource },
        })
    }
}

/// Other versions that the requested custom resource is served in.
fn other_versions(request: &Request, objects: &dyn Objects) -> Vec<String> {
    let GroupVersionResource { group, version: own, resource } = &request.resource;
    let Some(definition) = objects.get(DEFINITIONS, "", &format!("{resource}.{group}")) else { return Vec::new() };
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    let served = versions.into_iter().flatten().filter(|version| version["served"] == true);
    served.map(|version| text(version, "/name").to_owned()).filter(|name| name != own).collect()
}

fn client_config(config: &Value) -> ClientConfig {
    let url = match (config.get("url").and_then(Value::as_str), config.get("service")) {
        (Some(url), _) => Ok(url.to_owned()),
        (None, Some(service)) if !service.is_null() => Err(format!(
            "service {}/{} cannot be reached: this cluster has no service network, use clientConfig.url",
            text(service, "/namespace"),
            text(service, "/name")
        )),
        _ => Err("webhook configuration must have either service or URL".to_owned()),
    };
    let ca_bundle = STANDARD.decode(text(config, "/caBundle")).unwrap_or_default();
    ClientConfig { url, ca_bundle }
}

/// All webhooks of one kind, in the order of their configurations' names; read again when those change.
pub(super) struct Hooks {
    resource: &'static str,
    objects: Arc<dyn Objects>,
    current: RwLock<(u64, Arc<[Hook]>)>,
}

impl Hooks {
    pub(super) fn new(resource: &'static str, objects: Arc<dyn Objects>) -> Self {
        // A counter that no store starts at: the first question reads.
        Self { resource, objects, current: RwLock::new((u64::MAX, Arc::from([]))) }
    }

    pub(super) fn current(&self) -> Arc<[Hook]> {
        // The counter first, objects after: what is kept may be newer than its counter, never older.
        let changes = self.objects.changes(self.resource);
        {
            let current = self.current.read();
            if current.0 == changes {
                return current.1.clone();
            }
        }
        let mut configurations = self.objects.list(self.resource);
        configurations.sort_by(|a, b| text(a, "/metadata/name").cmp(text(b, "/metadata/name")));
        let hooks = configurations.iter().flat_map(|configuration| {
            configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten().map(Hook::read)
        });
        let hooks: Arc<[Hook]> = hooks.collect();
        *self.current.write() = (changes, hooks.clone());
        hooks
    }
}
