//! The request path: from an authorized request to the handler of its verb.

mod decode;
mod delete;
mod evict;
mod filter;
pub mod list;
mod live;
mod patch;
mod proxy;
mod review;
mod subresource;
mod view;
mod watch;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response};
use hyper::upgrade::OnUpgrade;
use serde_json::Value;
use tether_machinery::apply::{self, FieldSet};
use tether_machinery::field::FieldError;
use tether_machinery::status::ApiError;

use crate::admission::{GroupVersionKind, GroupVersionResource, Operation, Request};
use crate::auth::User;
use crate::definitions;
use crate::object::meta_str;
use crate::options::{Write, WriteOptions};
use crate::request::{Query, RequestInfo};
use crate::resource::Resource;
use crate::response::{Accepted, Body, Warnings};
use crate::server::Server;
use crate::store::{Entry, Key};

/// One request for a resource, with all that its handlers need.
#[derive(Clone)]
pub struct Context<'a> {
    pub(crate) server: &'a Server,
    pub(crate) resource: Arc<Resource>,
    pub(crate) info: RequestInfo,
    pub(crate) query: &'a Query,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: Bytes,
    /// The connection itself, if it is one that can be handed over.
    pub(crate) upgrade: Option<OnUpgrade>,
    pub(crate) user: User,
    pub(crate) accepted: Accepted,
    pub(crate) warnings: Warnings,
}

/// Calls the handler of the verb.
pub async fn dispatch(cx: &Context<'_>) -> Result<Response<Body>, ApiError> {
    check_served(cx)?;
    if !cx.resource.verbs.contains(&"get") {
        return match cx.resource.plural.as_str() {
            "bindings" => subresource::bind_collection(cx).await,
            _ => review::answer(cx),
        };
    }
    match (cx.info.subresource.as_str(), cx.info.verb) {
        ("" | "status", "get") => list::get(cx),
        ("" | "status", "update") => write::update(cx).await,
        ("" | "status", "patch") => patch::patch(cx).await,
        ("", "list") => list::list(cx),
        ("", "watch") => watch::watch(cx),
        ("", "create") => write::create(cx).await,
        ("", "delete") => delete::delete(cx).await,
        ("", "deletecollection") => delete::delete_collection(cx).await,
        ("" | "status", _) => Err(not_allowed()),
        _ => subresource::answer(cx).await,
    }
}

fn not_allowed() -> ApiError {
    ApiError::method_not_allowed("the server does not allow this method on the requested resource")
}

fn no_such_subresource(cx: &Context<'_>) -> ApiError {
    match cx.resource.is_custom() {
        true => ApiError::not_found(cx.resource.named(&cx.info.name)),
        false => ApiError::no_such_path(),
    }
}

/// Refuses what the path cannot mean for this resource.
fn check_served(cx: &Context<'_>) -> Result<(), ApiError> {
    let info = &cx.info;
    let in_namespace = !info.namespace.is_empty() && info.resource != "namespaces";
    if in_namespace && !cx.resource.namespaced {
        return Err(ApiError::no_such_path());
    }
    let sub = match info.subresource.as_str() {
        "" => None,
        name => Some(cx.resource.subresource(name).ok_or_else(|| no_such_subresource(cx))?),
    };
    let verbs = sub.map_or(&cx.resource.verbs, |s| &s.verbs);
    let needs_namespace = cx.resource.namespaced
        && info.namespace.is_empty()
        && !matches!(info.verb, "list" | "watch" | "deletecollection");
    let at_name = !info.name.is_empty();
    let wrong_level = match info.verb {
        "create" => sub.is_none() && at_name,
        "update" | "patch" => !at_name,
        _ => false,
    };
    if !verbs.contains(&info.verb) || needs_namespace || wrong_level {
        return Err(not_allowed());
    }
    Ok(())
}

impl Context<'_> {
    /// The namespace to look in; None for all of them and for cluster-scoped resources.
    fn namespace(&self) -> Option<&str> {
        (self.resource.namespaced && !self.info.namespace.is_empty()).then_some(self.info.namespace.as_str())
    }

    fn key(&self) -> Key {
        Key::new(&self.resource.storage, self.namespace().unwrap_or_default(), &self.info.name)
    }

    fn key_of(&self, object: &Value) -> Key {
        Key::new(&self.resource.storage, self.namespace().unwrap_or_default(), meta_str(object, "name"))
    }

    /// The object that the path names, or 404.
    fn existing(&self) -> Result<Entry, ApiError> {
        let found = self.server.store().get(&self.key());
        found.ok_or_else(|| ApiError::not_found(self.resource.named(&self.info.name)))
    }

    fn write_options(&self) -> Result<WriteOptions, ApiError> {
        self.options_of(match self.info.verb {
            "update" => Write::Update,
            "patch" => Write::Patch,
            _ => Write::Create,
        })
    }

    fn options_of(&self, write: Write) -> Result<WriteOptions, ApiError> {
        let agent = self.headers.get(http::header::USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        WriteOptions::parse(write, self.query, agent)
    }

    /// The same request in another namespace.
    fn of_namespace(&self, namespace: &str) -> Self {
        let mut other = self.clone();
        if self.resource.namespaced {
            namespace.clone_into(&mut other.info.namespace);
        }
        other
    }

    /// The same request against an object of another resource in the same namespace.
    fn of_resource(&self, group: &str, version: &str, plural: &str, name: &str) -> Result<Self, ApiError> {
        let registry = self.server.registry();
        let resource = registry.get(group, version, plural).ok_or_else(ApiError::no_such_path)?;
        let mut other = self.clone();
        other.resource = resource.clone();
        plural.clone_into(&mut other.info.resource);
        name.clone_into(&mut other.info.name);
        Ok(other)
    }

    /// Mutating admission of this write.
    async fn mutate(&self, request: &mut Request) -> Result<(), ApiError> {
        let mut warnings = Vec::new();
        let outcome = self.server.admission().mutate(request, &mut warnings).await;
        self.warnings.add(warnings);
        outcome
    }

    /// Validating admission of this write.
    async fn validate(&self, request: &Request) -> Result<(), ApiError> {
        let mut warnings = Vec::new();
        let outcome = self.server.admission().validate(request, &mut warnings).await;
        self.warnings.add(warnings);
        outcome
    }

    /// A definition is established by the write that makes or changes it, in the name of the server.
    fn establish(&self, object: &mut Value) {
        if self.resource.storage != definitions::STORAGE || !self.info.subresource.is_empty() {
            return;
        }
        let before = object.clone();
        definitions::establish(object, &self.server.registry(), self.server.now());
        if *object != before {
            let (api_version, reset) = (self.resource.api_version(), self.resource.reset_fields("status"));
            let by_server = apply::Write {
                manager: definitions::MANAGER,
                subresource: "status",
                api_version: &api_version,
                kind: &self.resource.kind,
                now: self.server.now(),
                schema: &self.resource.schema,
                reset: &reset,
            };
            apply::track_update(Some(&before), object, &by_server);
        }
    }

    /// Who changes fields in this request, for managed fields.
    fn ownership<'w>(
        &'w self,
        options: &'w WriteOptions,
        api_version: &'w str,
        reset: &'w FieldSet,
    ) -> apply::Write<'w> {
        apply::Write {
            manager: &options.manager,
            subresource: &self.info.subresource,
            api_version,
            kind: &self.resource.kind,
            now: self.server.now(),
            schema: &self.resource.schema,
            reset,
        }
    }

    /// Records that this request changes what differs between `live` and `new`.
    fn track(&self, options: &WriteOptions, live: Option<&Value>, new: &mut Value) {
        let (api_version, reset) = (self.resource.api_version(), self.resource.reset_fields(&self.info.subresource));
        apply::track_update(live, new, &self.ownership(options, &api_version, &reset));
    }

    fn refuse_invalid(&self, name: &str, errors: &[FieldError]) -> Result<(), ApiError> {
        if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(self.resource.kind_named(name), errors)) }
    }

    /// An update that finds nothing becomes a create, and so does a command in a container: each needs its own permission.
    fn may_create(&self) -> Result<(), ApiError> {
        let update = self.info.attributes(self.user.clone(), self.query);
        self.server.security().authorize_create(&self.user, update)
    }

    /// This write as admission sees it.
    fn admission(&self, operation: Operation, object: Value, old: Option<Arc<Value>>, dry_run: bool) -> Request {
        let (api_version, kind) = self.resource.body_kind(&self.info.subresource);
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        let name = match self.info.name.as_str() {
            "" => meta_str(&object, "name"),
            name => name,
        };
        let options = match operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete | Operation::Connect => "DeleteOptions",
        };
        Request {
            user: self.user.clone(),
            operation,
            kind: GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind },
            resource: GroupVersionResource {
                group: self.resource.group.clone(),
                version: self.resource.version.clone(),
                resource: self.resource.plural.clone(),
            },
            subresource: self.info.subresource.clone(),
            namespace: self.info.namespace.clone(),
            name: name.to_owned(),
            object,
            old_object: old,
            dry_run,
            options: serde_json::json!({"kind": options, "apiVersion": "meta.k8s.io/v1"}),
        }
    }

    /// Whether the body of a patch pins the revision that it is for.
    fn patch_names_revision(&self) -> bool {
        const FIELD: &[u8] = b"resourceVersion";
        if !self.body.windows(FIELD.len()).any(|found| found == FIELD) {
            return false;
        }
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        match &body {
            Value::Array(operations) => operations.iter().any(|op| op["path"] == "/metadata/resourceVersion"),
            patch => !meta_str(patch, "resourceVersion").is_empty(),
        }
    }
}
