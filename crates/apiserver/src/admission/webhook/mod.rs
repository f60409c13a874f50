//! Admission webhooks: rules that live in other processes and are asked over HTTPS.
//!
//! Mutating hooks are called one after the other, each seeing what those before it made of the object; those that ask
//! for it are called once more if somebody changed the object after them. Validating hooks are called at the same time.

mod client;
mod conditions;
mod config;
mod review;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::Value;
use tether_machinery::patch;
use tether_machinery::status::{ApiError, Named};

use self::client::Clients;
use self::config::{FailurePolicy, Hook, Hooks, Invocation, MUTATING, VALIDATING};
use super::{Operation, Request};
use crate::auth::{Objects, text};

/// Calls the webhooks that are configured by objects of the cluster.
pub struct Webhooks {
    objects: Arc<dyn Objects>,
    mutating: Hooks,
    validating: Hooks,
    clients: Clients,
}

/// Why a call did not end with "allowed".
#[derive(Debug)]
enum Failure {
    /// The webhook could not be asked, or answered nonsense: its failure policy decides.
    Calling(String),
    /// The answer, or this server itself, says no.
    Refused(ApiError),
}

/// What a webhook said to a request.
struct Answer {
    warnings: Vec<String>,
    /// The object after the webhook's patch, if that changed it.
    changed: Option<Value>,
}

impl Webhooks {
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self {
            mutating: Hooks::new(MUTATING, objects.clone()),
            validating: Hooks::new(VALIDATING, objects.clone()),
            clients: Clients::default(),
            objects,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.mutating.current().is_empty() && self.validating.current().is_empty()
    }

    /// Lets mutating webhooks change the object. Defaults and validation of the kind have to run again afterwards.
    pub async fn mutate(&self, request: &mut Request, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        let hooks = self.mutating.current();
        if hooks.is_empty() || is_exempt(request) {
            return Ok(());
        }
        // By position: hooks that were called and want to know of later changes, and those that missed some.
        let (mut called, mut missed) = (BTreeSet::new(), BTreeSet::new());
        for (position, hook) in hooks.iter().enumerate() {
            let Some(invocation) = self.matching(hook, request)? else { continue };
            let changed = self.mutate_with(&invocation, request, warnings).await?;
            if changed {
                missed.append(&mut called);
            }
            if hook.reinvoke {
                called.insert(position);
            }
        }
        for position in missed {
            if let Some(invocation) = self.matching(&hooks[position], request)? {
                self.mutate_with(&invocation, request, warnings).await?;
            }
        }
        Ok(())
    }

    async fn mutate_with(
        &self,
        invocation: &Invocation<'_>,
        request: &mut Request,
        warnings: &mut Vec<String>,
    ) -> Result<bool, ApiError> {
        let answer = self.call(invocation, request, true).await;
        let Some(answer) = settle(invocation.hook, answer)? else { return Ok(false) };
        warnings.extend(answer.warnings);
        match answer.changed {
            Some(object) => {
                request.object = object;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Lets validating webhooks refuse the write.
    pub async fn validate(&self, request: &Request, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        let hooks = self.validating.current();
        if hooks.is_empty() || is_exempt(request) {
            return Ok(());
        }
        let mut invocations = Vec::new();
        for hook in hooks.iter() {
            invocations.extend(self.matching(hook, request)?);
        }
        let answers = join_all(invocations.iter().map(|invocation| self.call(invocation, request, false))).await;
        let mut refused = None;
        for (invocation, answer) in invocations.iter().zip(answers) {
            match settle(invocation.hook, answer) {
                Ok(answer) => warnings.extend(answer.into_iter().flat_map(|answer| answer.warnings)),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// How a hook is to be called for a request, if at all.
    fn matching<'a>(&self, hook: &'a Hook, request: &Request) -> Result<Option<Invocation<'a>>, ApiError> {
        // Whatever is wrong with a selector concerns only requests that the rules are for.
        let namespace = self.namespace_matches(hook, request);
        let object = object_matches(hook, request);
        if matches!(namespace, Ok(false)) || matches!(object, Ok(false)) {
            return Ok(None);
        }
        let Some(invocation) = hook.invocation(request, &*self.objects) else { return Ok(None) };
        namespace?;
        object?;
        if hook.conditions.is_empty() {
            return Ok(Some(invocation));
        }
        match conditions::all_true(&hook.conditions, request, &invocation) {
            Ok(true) => Ok(Some(invocation)),
            Ok(false) => Ok(None),
            Err(error) if hook.failure_policy == FailurePolicy::Ignore => {
                tracing::warn!(webhook = hook.name, error, "match conditions failed, webhook skipped");
                Ok(None)
            }
            Err(error) => Err(request.forbidden(error)),
        }
    }

    fn namespace_matches(&self, hook: &Hook, request: &Request) -> Result<bool, ApiError> {
        let is_namespace = request.resource.resource == "namespaces" && request.resource.group.is_empty();
        if request.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = hook.namespace_selector.as_ref().map_err(ApiError::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        let written = matches!(request.operation, Operation::Create | Operation::Update);
        if is_namespace && request.subresource.is_empty() && written {
            return Ok(selector.matches(&request.object.pointer("/metadata/labels")));
        }
        let name = if is_namespace { &request.name } else { &request.namespace };
        let namespace = self
            .objects
            .get("namespaces", "", name)
            .ok_or_else(|| ApiError::not_found(Named { group: "", resource: "namespaces", name }))?;
        Ok(selector.matches(&namespace.pointer("/metadata/labels")))
    }

    async fn call(&self, invocation: &Invocation<'_>, request: &Request, mutating: bool) -> Result<Answer, Failure> {
        let hook = invocation.hook;
        if request.dry_run && !hook.dry_run_safe {
            let words = format!("admission webhook {:?} does not support dry run", hook.name);
            return Err(Failure::Refused(ApiError::bad_request(words)));
        }
        let version = hook.review_version().ok_or_else(|| {
            let words = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            Failure::Calling(format!("could not create admission objects: {words}"))
        })?;
        let uid = uuid::Uuid::new_v4().to_string();
        let sent = review::request(&uid, version, request, invocation);
        let reply = self.clients.post(&hook.client, sent.to_string().into(), hook.timeout).await;
        let reply = reply.map_err(|error| Failure::Calling(format!("failed to call webhook: {error}")))?;
        let response = review::response(&reply, &uid, version, mutating)
            .map_err(|error| Failure::Calling(format!("received invalid webhook response: {error}")))?;
        if !response.allowed {
            return Err(Failure::Refused(review::refusal(&hook.name, &response.status)));
        }
        let changed = match response.patch {
            Some(patch) => apply(hook, request, invocation, &patch)?,
            None => None,
        };
        Ok(Answer { warnings: response.warnings, changed })
    }
}

/// Whoever could change the configuration of webhooks from a webhook could lock everybody out.
fn is_exempt(request: &Request) -> bool {
    request.kind.group == "admissionregistration.k8s.io"
}

fn object_matches(hook: &Hook, request: &Request) -> Result<bool, ApiError> {
    let selector = hook.object_selector.as_ref().map_err(ApiError::internal)?;
    let selects = |object: &Value| !object.is_null() && selector.matches(&object.pointer("/metadata/labels"));
    let old = request.old_object.as_deref();
    Ok(selector.is_everything() || selects(&request.object) || old.is_some_and(selects))
}

/// Turns a failed call into what the hook's failure policy makes of it; `None`: go on as if it were not there.
fn settle(hook: &Hook, answer: Result<Answer, Failure>) -> Result<Option<Answer>, ApiError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::Refused(error)) => Err(error),
        Err(Failure::Calling(error)) if hook.failure_policy == FailurePolicy::Ignore => {
            tracing::warn!(webhook = hook.name, error, "failed calling webhook, failing open");
            Ok(None)
        }
        Err(Failure::Calling(error)) => {
            tracing::warn!(webhook = hook.name, error, "failed calling webhook, failing closed");
            Err(ApiError::internal(format!("failed calling webhook {:?}: {error}", hook.name)))
        }
    }
}

/// The object with a webhook's patch, in the version it was written in; `None` if it is the same as before.
fn apply(hook: &Hook, request: &Request, invocation: &Invocation<'_>, patch: &Value) -> Result<Option<Value>, Failure> {
    if patch.as_array().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    let refuse = |words: String| Failure::Refused(ApiError::internal(words));
    if request.object.is_null() {
        let name = &hook.name;
        return Err(refuse(format!(
            "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
        )));
    }
    let seen = invocation.convert(&request.object);
    let mut patched = patch::json(&seen, patch).map_err(|error| refuse(error.message))?;
    for field in ["apiVersion", "kind"] {
        if text(&patched, &format!("/{field}")) != text(&seen, &format!("/{field}")) {
            return Err(refuse(format!("admission webhook {:?} changed the object's {field}", hook.name)));
        }
    }
    patched["apiVersion"] = request.object["apiVersion"].clone();
    Ok((patched != request.object).then_some(patched))
}

/// What the API says about timeouts: 1 to 30 seconds, 10 unless told.
fn timeout(seconds: Option<i64>) -> Duration {
    Duration::from_secs(seconds.unwrap_or(10).clamp(1, 30) as u64)
}

#[cfg(test)]
mod tests;
