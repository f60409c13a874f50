//! Server-side apply, and who owns which field.
//!
//! Every write leaves a trace in `metadata.managedFields`: an update makes its manager the owner of what it
//! changed ([`track_update`]), an apply makes it the owner of what its configuration says ([`apply`]). An
//! apply that would change a field of someone else is a conflict; what a manager no longer applies, and no
//! one else owns, is removed.
//!
//! ```text
//!   live ──┬── merge ──► prune what is no longer applied ──► compare with live ──► conflicts? ──► object
//! config ──┘                                                        └──► others lose what changed
//! ```
//!
//! The rules are those of Kubernetes' structured-merge-diff; the [schema](crate::schema::Schema) says what is
//! a leaf. Objects go in as clients see them and come out the same way: a merged object still has to be
//! defaulted and validated by the caller.

mod compare;
mod conflict;
mod element;
mod fields;
mod last_applied;
mod managers;
mod merge;
mod remove;
mod set;
mod text;
mod times;
mod types;
mod validate;

use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Map, Value};

use self::compare::{Comparison, compare};
use self::conflict::Conflicts;
use self::fields::{fields_of, reconciled, with_named};
use self::managers::{Managed, ManagerId, Managers, Operation};
use self::types::{Ty, TypeError};

pub use self::element::PathElement;
pub use self::managers::{ANCIENT_CHANGES, MAX_UPDATE_MANAGERS};
pub use self::set::{DecodeError, FieldPath, FieldSet};
pub use self::text::{Retracked, retrack};
pub use self::times::{keep_times, same_but_times};

use crate::patch::plain_error;
use crate::schema::Schema;
use crate::status::ApiError;

/// The manager of fields that were there before an object was first applied to.
pub const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Metadata that no one owns: the server's own, and what identifies the object.
const UNOWNED_METADATA: [&str; 9] = [
    "clusterName",
    "creationTimestamp",
    "generation",
    "managedFields",
    "name",
    "namespace",
    "resourceVersion",
    "selfLink",
    "uid",
];

static UNOWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    let mut set = FieldSet::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
    for name in UNOWNED_METADATA {
        set = set.union(&FieldSet::of_fields(&[&["metadata", name]]));
    }
    set
});

static EMPTY_OBJECT: LazyLock<Value> = LazyLock::new(|| Value::Object(Map::new()));

/// A write, as far as ownership is concerned.
#[derive(Clone, Copy)]
pub struct Write<'a> {
    /// `fieldManager`, or what stands for it.
    pub manager: &'a str,
    /// The subresource that is written, or empty.
    pub subresource: &'a str,
    /// Group and version of the request: `v1`, `longhorn.io/v1beta2`.
    pub api_version: &'a str,
    pub kind: &'a str,
    pub now: Timestamp,
    pub schema: &'a Schema,
    /// Fields that this write leaves as they are whatever it says, such as `status` for writes to the object
    /// itself. They are neither owned nor in conflict.
    pub reset: &'a FieldSet,
}

impl<'a> Write<'a> {
    fn ty(&self) -> Ty<'a> {
        Ty::Object(self.schema)
    }

    /// When it happens. What is changed through a Scale has no date: Kubernetes loses it on the way from there.
    fn time(&self) -> Option<String> {
        (self.subresource != "scale").then(|| self.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
    }
}

/// What an apply made.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The object with its new `managedFields`, not yet defaulted or validated.
    pub object: Value,
    /// Whether anything differs from the live object.
    pub changed: bool,
}

/// Records in `new` who owns what after a create, update or patch by `write.manager`.
///
/// `new` carries the `managedFields` that the client sent, if any: an empty list, or a list of one empty
/// entry, starts over; otherwise the client's or the live object's entries are continued. If the object does
/// not have the shape that its schema asks for, it loses its `managedFields`, rather than keep wrong ones.
pub fn track_update(live: Option<&Value>, new: &mut Value, write: &Write<'_>) {
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let sent = metadata.remove("managedFields").unwrap_or(Value::Null);
    let kept = live.map(|live| &live["metadata"]["managedFields"]);
    let continued = !write.subresource.is_empty() || sent.is_null() || kept == Some(&sent);
    let entries = match (live, kept) {
        (Some(live), Some(kept)) if continued && unchanged(live, new) => Some(kept.clone()),
        _ => tracked(live, new, &sent, write),
    };
    put_managed_fields(new, entries.filter(|entries| !entries.is_null()));
}

/// Whether nothing differs that anyone could own. Cheaper than to compare field by field and find nothing.
fn unchanged(live: &Value, new: &Value) -> bool {
    let (Some(live), Some(new)) = (live.as_object(), new.as_object()) else { return false };
    let rest = |object: &'_ Map<String, Value>| object.len() - usize::from(object.contains_key("metadata"));
    let owned = |metadata: &'_ Value| {
        metadata
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !UNOWNED_METADATA.contains(&name.as_str()))
            .count()
    };
    let same_metadata = match (live.get("metadata"), new.get("metadata")) {
        (Some(live), Some(new)) => {
            owned(live) == owned(new)
                && new
                    .as_object()
                    .into_iter()
                    .flatten()
                    .all(|(name, value)| UNOWNED_METADATA.contains(&name.as_str()) || live.get(name) == Some(value))
        }
        _ => false,
    };
    same_metadata
        && rest(live) == rest(new)
        && new.iter().all(|(name, value)| name == "metadata" || live.get(name) == Some(value))
}

fn tracked(live: Option<&Value>, new: &Value, sent: &Value, write: &Write<'_>) -> Option<Value> {
    let managers = managers_before(live, sent, write);
    // An object that exists without entries is not tracked until it is applied to.
    if managers.0.is_empty() && live.is_some() {
        return None;
    }
    updated(managers, live.unwrap_or(&EMPTY_OBJECT), new, write.manager, write).ok()?.encode()
}

/// The entries that a write continues from.
fn managers_before(live: Option<&Value>, sent: &Value, write: &Write<'_>) -> Managers {
    if write.subresource.is_empty() {
        if managers::is_reset(sent) {
            return Managers::default();
        }
        match Managers::decode(sent) {
            Ok(managers) if !managers.0.is_empty() => return managers,
            // A client that does not know managedFields must not delete them by leaving them out.
            _ => {}
        }
    }
    live.and_then(|live| Managers::decode(&live["metadata"]["managedFields"]).ok()).unwrap_or_default()
}

/// The managers after `manager` turned `old` into `new` by an update.
fn updated(
    mut managers: Managers,
    old: &Value,
    new: &Value,
    manager: &str,
    write: &Write<'_>,
) -> Result<Managers, TypeError> {
    reconcile(&mut managers, write.ty());
    let changes = compare(old, new, write.ty())?.without(write.reset);
    let touched = changes.modified.union(&changes.added);
    let own = touched.difference(&UNOWNED);
    let id = ManagerId::new(manager, Operation::Update, write.api_version, write.subresource);
    // Most writers change what they changed before.
    let again = managers.0.get(&id).is_some_and(|before| {
        !own.is_empty() && own == touched && own.is_subset(before.set()) && !before.set().meets(&changes.removed)
    });
    let before = if again { managers.0.remove(&id) } else { None };
    for managed in managers.0.values_mut() {
        lose(managed, &changes);
    }
    managers.0.retain(|_, managed| !managed.set().is_empty());
    if let Some(mut same) = before {
        same.written_at(write.time());
        managers.0.insert(id, same);
    } else if !own.is_empty() {
        let set = managers.0.get(&id).map_or_else(|| own.clone(), |before| own.union(before.set()));
        managers.0.insert(id, Managed::new(set, write.api_version, write.time()));
    }
    managers.cap();
    Ok(managers)
}

/// Takes from a manager what these changes made somebody else's. Most managers lose nothing by most changes.
fn lose(managed: &mut Managed, changes: &Comparison) {
    for changed in [&changes.modified, &changes.added, &changes.removed] {
        if managed.set().meets(changed) {
            managed.own(managed.set().difference(changed));
        }
    }
}

/// Adapts the sets to a schema that has become more atomic since they were written.
fn reconcile(managers: &mut Managers, ty: Ty<'_>) {
    for managed in managers.0.values_mut() {
        if let Some(set) = reconciled(managed.set(), ty) {
            managed.own(set);
        }
    }
}

fn put_managed_fields(object: &mut Value, entries: Option<Value>) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    match entries {
        Some(entries) => metadata.insert("managedFields".to_owned(), entries),
        None => metadata.remove("managedFields"),
    };
}

/// Why an apply failed.
#[derive(Debug, thiserror::Error)]
enum ApplyError {
    #[error("conflicts")]
    Conflicts(Conflicts),
    #[error("failed to merge config: {0}")]
    Merge(TypeError),
    #[error("failed to get field set: {0}")]
    FieldSet(TypeError),
    #[error("failed to prune fields: {0}")]
    Prune(TypeError),
    #[error("failed to compare objects: {0}")]
    Compare(TypeError),
}

impl From<ApplyError> for ApiError {
    fn from(e: ApplyError) -> Self {
        match e {
            ApplyError::Conflicts(conflicts) => conflicts.into(),
            other => plain_error(other.to_string()),
        }
    }
}

/// Applies `config` to the live object, or to none, as `write.manager`.
///
/// Fails with 409 on conflicts, unless `force` takes the fields over; with 400 for a configuration that is
/// no such object or brings `managedFields`.
pub fn apply(live: Option<&Value>, config: &Value, force: bool, write: &Write<'_>) -> Result<Applied, ApiError> {
    check(config, write)?;
    let mut base = live.cloned().unwrap_or_else(|| EMPTY_OBJECT.clone());
    let entries = base.pointer_mut("/metadata/managedFields").map_or(Value::Null, Value::take);
    put_managed_fields(&mut base, None);
    let mut managers =
        Managers::decode(&entries).map_err(|e| plain_error(format!("failed to decode managed fields: {e}")))?;
    if managers.0.is_empty() && live.is_some() {
        managers = updated(managers, &EMPTY_OBJECT, &base, BEFORE_FIRST_APPLY, write)
            .map_err(|e| plain_error(format!("failed to create manager for existing fields: {e}")))?;
    }
    let outcome = match merged(&base, config, managers.clone(), force, write) {
        Err(ApplyError::Conflicts(conflicts)) if write.manager == last_applied::MANAGER => {
            let allowed = last_applied::unchanged_fields(&base, write.api_version, write.ty());
            let conflicts = conflicts.without(&allowed.unwrap_or_default());
            if conflicts.is_empty() {
                merged(&base, config, managers, true, write)
            } else {
                Err(ApplyError::Conflicts(conflicts))
            }
        }
        outcome => outcome,
    };
    let (mut object, managers) = outcome?;
    if write.manager == last_applied::MANAGER {
        last_applied::refresh(&mut object, config);
    }
    put_managed_fields(&mut object, managers.encode());
    let changed = live != Some(&object);
    Ok(Applied { object, changed })
}

/// What is refused before anything is merged.
fn check(config: &Value, write: &Write<'_>) -> Result<(), ApiError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&config["apiVersion"]), text(&config["kind"]));
    if version != write.api_version || kind != write.kind {
        return Err(ApiError::bad_request(format!("invalid object type: {}", go_kind(&version, &kind))));
    }
    if config["metadata"]["managedFields"].as_array().is_some_and(|entries| !entries.is_empty()) {
        return Err(ApiError::bad_request("metadata.managedFields must be nil"));
    }
    validate::validate(config, write.ty()).map_err(|misfits| {
        let (namespace, name) = (text(&config["metadata"]["namespace"]), text(&config["metadata"]["name"]));
        let kind = go_kind(&version, &kind);
        plain_error(format!("failed to create typed patch object ({namespace}/{name}; {kind}): {misfits}"))
    })
}

/// A kind as Go prints it: `/v1, Kind=Pod`, `apps/v1, Kind=Deployment`.
fn go_kind(version: &str, kind: &str) -> String {
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}, Kind={kind}")
}

/// The merged object without its managedFields, and its managers.
fn merged(
    live: &Value,
    config: &Value,
    mut managers: Managers,
    force: bool,
    write: &Write<'_>,
) -> Result<(Value, Managers), ApplyError> {
    let ty = write.ty();
    reconcile(&mut managers, ty);
    let merged = merge::merge(live, config, ty).map_err(ApplyError::Merge)?;
    let own = ManagerId::new(write.manager, Operation::Apply, write.api_version, write.subresource);
    let set = fields_of(config, ty).map_err(ApplyError::FieldSet)?.difference_below(write.reset);
    let (last, time) = managers
        .0
        .remove(&own)
        .map_or((FieldSet::new(), None), |before| (before.set().clone(), before.time().map(str::to_owned)));
    managers.0.insert(own.clone(), Managed::new(set, write.api_version, time));
    let pruned = prune(&merged, &managers, &own, &last, ty).map_err(ApplyError::Prune)?;

    let new = pruned.as_ref().unwrap_or(&merged);
    let changes = compare(live, new, ty).map_err(ApplyError::Compare)?.without(write.reset);
    let mut conflicts = Conflicts::default();
    for (id, managed) in managers.0.iter_mut().filter(|(id, _)| **id != own) {
        let taken = managed.set().intersection(&changes.modified.union(&changes.added));
        if !taken.is_empty() {
            conflicts.add(id, &taken);
        }
        lose(managed, &changes);
    }
    if !force && !conflicts.is_empty() {
        return Err(ApplyError::Conflicts(conflicts));
    }
    let object = match pruned {
        None => merged,
        // Empty maps and lists of the configuration went with their last element; they are still applied.
        Some(pruned) => {
            merge::merge(&without_emptied(pruned, &merged, &managers.owned()), config, ty).map_err(ApplyError::Merge)?
        }
    };
    let changed = !element::same(live, &object);
    if let Some(managed) = managers.0.get_mut(&own) {
        managed.own(managed.set().difference(&UNOWNED));
        // An apply that changes nothing leaves the time as it is, so that it can be no write at all.
        if changed {
            managed.written_at(write.time());
        }
    }
    managers.0.retain(|_, managed| !managed.set().is_empty());
    Ok((if changed { object } else { live.clone() }, managers))
}

/// `merged` without what the manager applied last time, does not apply now, and nobody else owns. `None` if
/// that is all of it.
fn prune(
    merged: &Value,
    managers: &Managers,
    own: &ManagerId,
    last: &FieldSet,
    ty: Ty<'_>,
) -> Result<Option<Value>, TypeError> {
    // Everything that was applied is applied again: there is nothing to look for.
    if managers.0.get(own).is_some_and(|managed| last.is_subset(managed.set())) {
        return Ok(None);
    }
    let named = |set: &FieldSet| with_named(set, Some(ty));
    let all = named(&fields_of(merged, ty)?);
    let pruned = remove::remove(merged.clone(), &named(last), ty);
    // Removing a parent took children with it. Those that someone owns come back …
    let kept = named(&fields_of(&pruned, ty)?).union(&named(&managers.owned()));
    let pruned = remove::remove(merged.clone(), &all.difference(&kept), ty);
    // … and so do those that nobody owns, which this manager has no right to remove either.
    let gone = all.difference(&named(&fields_of(&pruned, ty)?));
    match remove::remove(merged.clone(), &gone.intersection(&named(last)), ty) {
        Value::Null => Ok(Some(EMPTY_OBJECT.clone())),
        pruned => Ok(Some(pruned)),
    }
}

/// Drops the nulls that stand where removal left nothing. What someone owns as such stays, empty.
fn without_emptied(value: Value, merged: &Value, owned: &FieldSet) -> Value {
    let Value::Object(before) = merged else { return value };
    let Value::Object(fields) = value else { return value };
    let nobody = FieldSet::new();
    let kept = fields.into_iter().filter_map(|(name, value)| {
        let Some(before) = before.get(&name) else { return Some((name, value)) };
        let node = owned.field(&name);
        let value = match (value, before) {
            (Value::Null, Value::Object(_)) if node.is_some_and(|node| node.member) => EMPTY_OBJECT.clone(),
            (Value::Null, Value::Null) => Value::Null,
            (Value::Null, _) => return None,
            (value, before) => without_emptied(value, before, node.map_or(&nobody, |node| &node.below)),
        };
        Some((name, value))
    });
    Value::Object(kept.collect())
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
