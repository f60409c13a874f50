//! DELETE of one object or of a collection.
//!
//! Deleting is a state before it is an absence: an object with finalizers, or a pod with time left, gets a
//! `deletionTimestamp` and goes when whoever holds it lets go.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};
use tether_machinery::field::{FieldError, Path};
use tether_machinery::json::go_kind;
use tether_machinery::status::ApiError;

use super::filter::Filter;
use super::write::{encode, modified, storage_error};
use super::{Context, list, view};
use crate::admission::Operation;
use crate::object::{self, finalizers, is_deleting, meta_str};
use crate::options;
use crate::request::Query;
use crate::response::{self, Body};
use crate::store::{Change, Entry, Expect, WriteError};

/// The finalizer behind `propagationPolicy=Orphan`.
const ORPHAN: &str = "orphan";
/// The finalizer behind `propagationPolicy=Foreground`.
const FOREGROUND: &str = "foregroundDeletion";
/// How often a deletion is tried again after losing a race against another writer.
const MAX_TRIES: usize = 32;

/// `DeleteOptions`, from the body or the query.
#[derive(Clone, Debug, Default)]
pub(super) struct Options {
    grace_seconds: Option<i64>,
    uid: Option<String>,
    resource_version: Option<String>,
    policy: Option<Policy>,
    pub(super) dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Orphan,
    Background,
    Foreground,
}

impl Options {
    pub(super) fn parse(cx: &Context<'_>) -> Result<Self, ApiError> {
        if cx.body.is_empty() {
            return Self::from_query(cx.query);
        }
        let body = crate::body::decode(cx.headers, &cx.body)?.value;
        match body.get("kind").and_then(Value::as_str) {
            None | Some("" | "DeleteOptions") => Self::from_value(&body),
            Some(other) => {
                Err(ApiError::bad_request(format!("the body of a DELETE must be of kind DeleteOptions, not {other:?}")))
            }
        }
    }

    /// Options as a body or an eviction carries them.
    pub(super) fn from_value(body: &Value) -> Result<Self, ApiError> {
        let precondition = |field: &str| {
            body.get("preconditions").and_then(|p| p.get(field)).and_then(Value::as_str).map(str::to_owned)
        };
        let grace_seconds = match body.get("gracePeriodSeconds").filter(|v| !v.is_null()) {
            None => None,
            Some(value) => Some(value.as_i64().ok_or_else(|| {
                let found = go_kind(value);
                ApiError::bad_request(format!(
                    "json: cannot unmarshal {found} into Go struct field DeleteOptions.gracePeriodSeconds of type int64"
                ))
            })?),
        };
        let policy = body.get("propagationPolicy").and_then(Value::as_str);
        let orphan = body.get("orphanDependents").and_then(Value::as_bool);
        let stages = body.get("dryRun").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let stages: Vec<&str> = stages.iter().filter_map(Value::as_str).collect();
        Ok(Self {
            grace_seconds,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            ..Self::checked(policy, orphan, &stages)?
        })
    }

    fn from_query(query: &Query) -> Result<Self, ApiError> {
        let (policy, orphan) = (query.get("propagationPolicy"), query.flag("orphanDependents"));
        let checked = Self::checked(policy, orphan, query.all("dryRun"))?;
        Ok(Self { grace_seconds: query.number("gracePeriodSeconds")?, ..checked })
    }

    fn checked<S: AsRef<str>>(policy: Option<&str>, orphan: Option<bool>, stages: &[S]) -> Result<Self, ApiError> {
        let path = || Path::new("propagationPolicy");
        let mut errors = Vec::new();
        if let (Some(policy), Some(_)) = (policy, orphan) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid(path(), policy, why));
        }
        let policy = match (policy, orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Policy::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Policy::Background),
            (Some("Foreground"), _) => Some(Policy::Foreground),
            (Some(other), _) => {
                let known = ["Foreground", "Background", "Orphan", "nil"];
                errors.push(FieldError::not_supported(path(), other, &known));
                None
            }
            (None, None) => None,
        };
        errors.extend(options::check_dry_run(stages));
        options::refuse("DeleteOptions", &errors)?;
        Ok(Self { policy, dry_run: !stages.is_empty(), ..Self::default() })
    }

    fn check(&self, cx: &Context<'_>, name: &str, object: &Value) -> Result<(), ApiError> {
        for (words, asked, is, fate) in [
            ("UID", &self.uid, meta_str(object, "uid"), "deleted and then recreated"),
            ("ResourceVersion", &self.resource_version, meta_str(object, "resourceVersion"), "modified"),
        ] {
            if let Some(asked) = asked.as_deref().filter(|a| *a != is) {
                let why = format!(
                    "the {words} in the precondition ({asked}) does not match the {words} in record ({is}). \
                     The object might have been {fate}"
                );
                return Err(ApiError::conflict(cx.resource.kind_named(name), why));
            }
        }
        Ok(())
    }
}

/// DELETE of one object.
pub async fn delete(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = Options::parse(cx)?;
    let by_delete = (Operation::Delete, Value::Null);
    let (object, gone) = delete_named(cx, &cx.info.name, &options, by_delete).await?;
    if gone && !cx.resource.returns_deleted() {
        let mut details = json!({"name": meta_str(&object, "name"), "kind": cx.resource.plural});
        if !cx.resource.group.is_empty() {
            details["group"] = cx.resource.group.as_str().into();
        }
        details["uid"] = meta_str(&object, "uid").into();
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        });
        return Ok(response::json(StatusCode::OK, &status));
    }
    view::object(cx, StatusCode::OK, object)
}

/// DELETE of everything that the selectors name.
pub async fn delete_collection(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = Options::parse(cx)?;
    let filter = Filter::parse(&cx.resource, cx.query, &cx.info)?;
    let page = list::page(cx, &filter)?;
    for entry in &page.entries {
        let namespaced = cx.of_namespace(&entry.key.namespace);
        let by_delete = (Operation::Delete, Value::Null);
        match delete_named(&namespaced, &entry.key.name, &options, by_delete).await {
            Err(e) if e.code != 404 => return Err(e),
            _ => {}
        }
    }
    view::list(cx, &page)
}

/// Deletes, or begins to; `operation` and `object` are what admission is told (an eviction is a create). Returns the last state and whether the object is gone.
pub(super) async fn delete_named(
    cx: &Context<'_>,
    name: &str,
    options: &Options,
    (operation, object): (Operation, Value),
) -> Result<(Value, bool), ApiError> {
    let mut key = cx.key();
    name.clone_into(&mut key.name);
    for _ in 0..MAX_TRIES {
        let entry = cx.server.store().get(&key).ok_or_else(|| ApiError::not_found(cx.resource.named(name)))?;
        let current = Arc::new(cx.resource.read(&entry));
        options.check(cx, name, &current)?;
        let mut request = cx.admission(operation, object.clone(), Some(current.clone()), options.dry_run);
        name.clone_into(&mut request.name);
        cx.mutate(&mut request).await?;
        cx.validate(&request).await?;
        let next = begin(cx, &current, options);
        let gone = cx.resource.deletion_is_complete(&next);
        if options.dry_run || (!gone && next == *current) {
            return Ok((next, gone));
        }
        match write(cx, &entry, next, gone).await {
            Ok(entry) => return Ok((cx.resource.read(&entry), gone)),
            Err(WriteError::Conflict { .. }) => {}
            Err(other) => return Err(storage_error(&other)),
        }
    }
    Err(modified(cx))
}

async fn write(cx: &Context<'_>, entry: &Entry, next: Value, gone: bool) -> Result<Entry, WriteError> {
    let change = if gone { Change::Delete(encode(cx, next, None)) } else { Change::Put(encode(cx, next, None)) };
    let key = (*entry.key).clone();
    let written = cx.server.store().write(key, Expect::Revision(entry.revision), change).await?;
    cx.server.written(&cx.resource);
    Ok(written)
}

/// The object with its deletion begun: time stamp, grace and the finalizers that the policy asks for.
fn begin(cx: &Context<'_>, current: &Value, options: &Options) -> Value {
    let mut next = current.clone();
    // Kubernetes takes a negative time for the shortest one that is not at once.
    let asked = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    let grace = cx.resource.deletion_grace(current, asked);
    let meta = object::metadata(&mut next);
    if is_deleting(current) {
        let left = meta.get("deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        if grace < left {
            meta.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
            if grace > 0 {
                meta.insert("deletionTimestamp".to_owned(), in_seconds(cx, grace).into());
            }
        }
        return next;
    }
    set_policy(meta, options.policy);
    meta.insert("deletionTimestamp".to_owned(), in_seconds(cx, grace).into());
    meta.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
    if let Some(generation) = meta.get("generation").and_then(Value::as_i64) {
        meta.insert("generation".to_owned(), (generation + 1).into());
    }
    cx.resource.on_deletion(&mut next, cx.server.now());
    next
}

fn in_seconds(cx: &Context<'_>, seconds: i64) -> String {
    object::timestamp(cx.server.now() + jiff::SignedDuration::from_secs(seconds))
}

/// Orphaning and foreground deletion are finalizers that the garbage collector works off. Without a policy,
/// one that the object already carries stays.
fn set_policy(meta: &mut serde_json::Map<String, Value>, policy: Option<Policy>) {
    let Some(policy) = policy else { return };
    let wrapped = json!({"metadata": {"finalizers": meta.get("finalizers").cloned().unwrap_or_default()}});
    let mut list: Vec<String> =
        finalizers(&wrapped).into_iter().filter(|f| *f != ORPHAN && *f != FOREGROUND).map(str::to_owned).collect();
    match policy {
        Policy::Orphan => list.push(ORPHAN.to_owned()),
        Policy::Foreground => list.push(FOREGROUND.to_owned()),
        Policy::Background => {}
    }
    if list.is_empty() {
        meta.remove("finalizers");
    } else {
        meta.insert("finalizers".to_owned(), list.into());
    }
}
