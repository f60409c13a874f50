//! POST, PUT and the common path of every change to an object that exists.
//!
//! A change is computed from the object as it is, then written on the condition that it still is. Changes
//! that do not name a `resourceVersion` are computed again when they lose that race.

use http::{Response, StatusCode};
use serde_json::Value;
use tether_machinery::apply;
use tether_machinery::field::{FieldError, Path};
use tether_machinery::status::ApiError;

use super::live::{Live, Managers};
use super::{Context, decode, view};
use crate::admission::Operation;
use crate::object::{self, meta_str};
use crate::options::WriteOptions;
use crate::random;
use crate::response::{self, Body, View};
use crate::store::{Change, Entry, Expect, WriteError};
use crate::stored::Stored;

/// How often a change without a `resourceVersion` is computed anew after losing a race; Kubernetes' number.
const MAX_CONFLICT_RETRIES: usize = 5;
/// How often a taken `generateName` is replaced by another before the client is told.
const MAX_NAME_TRIES: usize = 8;

/// The result of a change, and whether the object came into being just now.
pub(super) struct Written {
    pub outcome: Outcome,
    pub created: bool,
}

/// The object as the client sees it.
pub(super) enum Outcome {
    /// It was stored; most clients get the very bytes.
    Stored(Entry),
    /// It was not: nothing changed, or nothing was to be.
    Value(Value),
}

impl Written {
    pub(super) fn into_value(self, cx: &Context<'_>) -> Value {
        match self.outcome {
            Outcome::Stored(entry) => cx.resource.read(&entry),
            Outcome::Value(value) => value,
        }
    }

    pub(super) fn respond(self, cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
        let status = if self.created { StatusCode::CREATED } else { StatusCode::OK };
        match (&self.outcome, cx.accepted.view, cx.accepted.yaml) {
            (Outcome::Stored(entry), View::Object, false) => {
                Ok(response::json_bytes(status, cx.resource.present(entry)))
            }
            _ => view::object(cx, status, self.into_value(cx)),
        }
    }
}

/// POST of a new object.
pub async fn create(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let object = decode::object(cx, &options)?;
    create_object(cx, object, &options, Tracking::Update).await?.respond(cx)
}

/// PUT of a whole object.
pub async fn update(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    let options = cx.write_options()?;
    let object = decode::object(cx, &options)?;
    decode::check_name(cx, &object)?;
    if cx.server.store().get(&cx.key()).is_none() && cx.resource.create_on_update() && cx.info.subresource.is_empty() {
        cx.may_create()?;
        return create_object(cx, object, &options, Tracking::Update).await?.respond(cx);
    }
    change(cx, &options, Tracking::Apart, |_| Ok(object.clone())).await?.respond(cx)
}

/// Who the changed fields belong to afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tracking {
    /// The writer takes what it changed.
    Update,
    /// The same, by a change that takes no notice of who manages what.
    Apart,
    /// Server-side apply has settled ownership already.
    Applied,
}

/// Creates `object`, which is clean and of this resource.
pub(super) async fn create_object(
    cx: &Context<'_>,
    object: Value,
    options: &WriteOptions,
    tracking: Tracking,
) -> Result<Written, ApiError> {
    let generated = meta_str(&object, "name").is_empty() && !meta_str(&object, "generateName").is_empty();
    let tries = if generated { MAX_NAME_TRIES } else { 1 };
    let mut last = None;
    for _ in 0..tries {
        match create_once(cx, object.clone(), options, tracking).await {
            Err(e) if e.reason == "AlreadyExists" && generated => last = Some(e),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| ApiError::internal("no name could be generated")))
}

async fn create_once(
    cx: &Context<'_>,
    mut object: Value,
    options: &WriteOptions,
    tracking: Tracking,
) -> Result<Written, ApiError> {
    if !meta_str(&object, "resourceVersion").is_empty() {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    if cx.resource.is_terminating() {
        let why = "create not allowed while custom resource definition is terminating";
        return Err(ApiError::method_not_allowed(why));
    }
    fill_new_metadata(cx, &mut object);
    cx.resource.complete(&mut object);
    // What admission and the server itself add belongs to nobody.
    if tracking != Tracking::Applied {
        cx.track(options, None, &mut object);
    }
    cx.resource.admit(Operation::Create, &cx.info.subresource, &mut object);
    if let Some(why) = cx.resource.refuse_create(&object) {
        return Err(ApiError::forbidden(cx.resource.named(meta_str(&object, "name")), why));
    }
    let mut request = cx.admission(Operation::Create, object, None, options.dry_run);
    cx.mutate(&mut request).await?;
    cx.resource.complete(&mut request.object);
    cx.resource.prepare_create(&mut request.object, cx.server.now());
    cx.establish(&mut request.object);
    let name = meta_str(&request.object, "name").to_owned();
    cx.refuse_invalid(&name, &cx.resource.validate_create(&request.object))?;
    cx.warnings.add(cx.resource.warnings(&request.object, None));
    cx.validate(&request).await?;
    let object = request.object;
    let outcome = if options.dry_run {
        if cx.server.store().get(&cx.key_of(&object)).is_some() {
            return Err(ApiError::already_exists(cx.resource.named(&name)));
        }
        Outcome::Value(object)
    } else {
        let key = cx.key_of(&object);
        let written = cx.server.store().write(key, Expect::Absent, Change::Put(encode(cx, object, None))).await;
        let entry = written.map_err(|e| match e {
            WriteError::Conflict { .. } => ApiError::already_exists(cx.resource.named(&name)),
            other => storage_error(&other),
        })?;
        cx.server.written(&cx.resource);
        Outcome::Stored(entry)
    };
    Ok(Written { outcome, created: true })
}

fn fill_new_metadata(cx: &Context<'_>, object: &mut Value) {
    let now = cx.server.now();
    let meta = object::metadata(object);
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "generation"] {
        meta.remove(field);
    }
    meta.insert("uid".to_owned(), random::uid().into());
    meta.insert("creationTimestamp".to_owned(), object::timestamp(now).into());
    if meta.get("name").and_then(Value::as_str).unwrap_or_default().is_empty()
        && let Some(base) = meta.get("generateName").and_then(Value::as_str)
    {
        let name = tether_machinery::names::generate_name(base, &random::name_suffix());
        meta.insert("name".to_owned(), name.into());
    }
}

/// Bytes with the revision inside, put in when the store has assigned it; `managers` are those that are not in the object.
pub(super) fn encode(cx: &Context<'_>, object: Value, managers: Option<&str>) -> crate::store::Encode {
    let stored = Stored::of(cx.resource.to_stored(object), managers);
    Box::new(move |revision| stored.at(revision))
}

pub(super) fn storage_error(error: &WriteError) -> ApiError {
    match error {
        WriteError::TooLarge { .. } => ApiError::too_large(error.to_string()),
        WriteError::ReadOnly { .. } | WriteError::Closed => ApiError::unavailable(error.to_string()),
        other => ApiError::internal(other),
    }
}

/// Changes the object that the request names: `compute` makes the wished object from the present one.
pub(super) async fn change<F>(
    cx: &Context<'_>,
    options: &WriteOptions,
    tracking: Tracking,
    compute: F,
) -> Result<Written, ApiError>
where
    F: Fn(&Value) -> Result<Value, ApiError> + Send + Sync,
{
    let mut tries = 0;
    loop {
        let (live, wished) = Live::changed(cx, options, tracking, &compute)?;
        let pinned = pinned_revision(cx, &wished, &live.object)?;
        let changed = change_once(cx, options, tracking, &live, wished).await;
        match changed {
            Err(Lost::Race) if !pinned && tries < MAX_CONFLICT_RETRIES => tries += 1,
            Err(Lost::Race) => return Err(modified(cx)),
            Err(Lost::For(error)) => return Err(error),
            Ok(written) => return Ok(written),
        }
    }
}

/// Why a try did not succeed.
enum Lost {
    /// Somebody else changed the object in between.
    Race,
    For(ApiError),
}

impl From<ApiError> for Lost {
    fn from(error: ApiError) -> Self {
        Self::For(error)
    }
}

pub(super) fn modified(cx: &Context<'_>) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    ApiError::conflict(cx.resource.named(&cx.info.name), why)
}

/// Checks what the wished object says about the one it replaces; true if it names a revision.
fn pinned_revision(cx: &Context<'_>, wished: &Value, current: &Value) -> Result<bool, ApiError> {
    let (uid, is) = (meta_str(wished, "uid"), meta_str(current, "uid"));
    // A PUT speaks about the object that it replaces; in the result of a patch, it is a change that is refused.
    if cx.info.verb == "update" && !uid.is_empty() && uid != is {
        let key = cx.resource.registry_key(&cx.info.namespace, &cx.info.name);
        let why = format!(
            "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
             Precondition failed: UID in precondition: {uid}, UID in object meta: {is}"
        );
        return Err(ApiError::conflict(cx.resource.named(&cx.info.name), why));
    }
    let asked = meta_str(wished, "resourceVersion");
    if asked.is_empty() || asked == "0" {
        if cx.info.verb == "update" && !cx.resource.unconditional_update() {
            let path = Path::new("metadata.resourceVersion");
            let missing = FieldError::invalid(path, 0, "must be specified for an update");
            return Err(ApiError::invalid(cx.resource.named(&cx.info.name), &[missing]));
        }
        return Ok(false);
    }
    if let Some(why) = not_a_revision(asked) {
        return Err(ApiError::new(500, "", why, Value::Null));
    }
    if asked != meta_str(current, "resourceVersion") {
        return Err(modified(cx));
    }
    // A patch is computed from the present object and carries its revision along; only a PUT or a patch
    // that names the revision itself pins it.
    Ok(cx.info.verb == "update" || cx.patch_names_revision())
}

/// Why a text is no revision, in the words of Go.
fn not_a_revision(text: &str) -> Option<String> {
    match text.bytes().all(|byte| byte.is_ascii_digit()) {
        false => Some(format!("strconv.ParseUint: parsing {text:?}: invalid syntax")),
        true if text.parse::<u64>().is_err() => {
            Some(format!("strconv.ParseUint: parsing {text:?}: value out of range"))
        }
        true => None,
    }
}

async fn change_once(
    cx: &Context<'_>,
    options: &WriteOptions,
    tracking: Tracking,
    live: &Live,
    mut wished: Value,
) -> Result<Written, Lost> {
    let current = &live.object;
    let name = &cx.info.name;
    let subresource = &cx.info.subresource;
    keep_system_metadata(&mut wished, current);
    cx.resource.complete(&mut wished);
    let managers = match tracking {
        Tracking::Update | Tracking::Apart => live.track(cx, options, &mut wished),
        Tracking::Applied => Managers::Within,
    };
    cx.resource.admit(Operation::Update, subresource, &mut wished);
    let mut request = cx.admission(Operation::Update, wished, Some(current.clone()), options.dry_run);
    cx.mutate(&mut request).await?;
    cx.resource.complete(&mut request.object);
    cx.resource.prepare_update(subresource, &mut request.object, current, cx.server.now());
    cx.establish(&mut request.object);
    apply::keep_times(&mut request.object, current);
    cx.resource.bump_generation(&cx.info.subresource, &mut request.object, current);
    let errors = cx.resource.validate_update(subresource, &request.object, current);
    cx.refuse_invalid(name, &errors)?;
    if subresource.is_empty() {
        cx.warnings.add(cx.resource.warnings(&request.object, Some(current)));
    }
    cx.validate(&request).await?;
    let wished = request.object;
    if live.is_still(&wished, &managers) {
        return Ok(Written { outcome: Outcome::Value(live.managers.within(wished)), created: false });
    }
    if options.dry_run {
        return Ok(Written { outcome: Outcome::Value(managers.within(wished)), created: false });
    }
    let expect = Expect::Revision(live.entry.revision);
    let gone = cx.resource.deletion_is_complete(&wished);
    let encoded = encode(cx, wished, managers.text());
    let change = if gone { Change::Delete(encoded) } else { Change::Put(encoded) };
    match cx.server.store().write(cx.key(), expect, change).await {
        Ok(entry) => {
            cx.server.written(&cx.resource);
            Ok(Written { outcome: Outcome::Stored(entry), created: false })
        }
        Err(WriteError::Conflict { current: None }) => Err(Lost::For(ApiError::not_found(cx.resource.named(name)))),
        Err(WriteError::Conflict { .. }) => Err(Lost::Race),
        Err(other) => Err(Lost::For(storage_error(&other))),
    }
}

/// What the server alone decides stays as it is, whatever the client sent.
fn keep_system_metadata(wished: &mut Value, current: &Value) {
    let old = &current["metadata"];
    let meta = object::metadata(wished);
    let system =
        ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "resourceVersion"];
    for field in system {
        match old.get(field) {
            // A patch has carried it along: most often there is nothing to do.
            Some(value) if meta.get(field) == Some(value) => {}
            Some(value) => {
                meta.insert(field.to_owned(), value.clone());
            }
            None => {
                meta.remove(field);
            }
        }
    }
    meta.remove("selfLink");
    for field in ["name", "uid"] {
        if meta.get(field).and_then(Value::as_str).unwrap_or_default().is_empty()
            && let Some(value) = old.get(field)
        {
            meta.insert(field.to_owned(), value.clone());
        }
    }
}
