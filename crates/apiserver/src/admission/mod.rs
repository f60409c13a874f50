//! Admission: what happens to a write after it is authorized and before it is stored.
//!
//! First by those who may change it, then by those who may only refuse. Built-in rules come first, then plugins in
//! process (Tether's own rules on a laptop), then webhooks (the same rules on a real cluster): all of them see the
//! same [`Request`].

mod builtin;
mod claim_resize;
mod longhorn;
pub mod node_restriction;
mod storage_restriction;
pub mod webhook;

use std::sync::Arc;

use serde_json::Value;
use tether_machinery::status::{ApiError, Named};

use self::webhook::Webhooks;
use crate::auth::{Authorizer, Objects, User, text};

/// What a request does to its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "CREATE",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
        }
    }
}

/// A kind with its group and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// A resource with its group and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupVersionResource {
    pub group: String,
    pub version: String,
    pub resource: String,
}

/// A write on its way to the store.
#[derive(Clone, Debug)]
pub struct Request {
    pub user: User,
    pub operation: Operation,
    /// The kind of `object`: not the resource's own for subresources such as `eviction` and `token`.
    pub kind: GroupVersionKind,
    pub resource: GroupVersionResource,
    pub subresource: String,
    /// For a Namespace object: its own name.
    pub namespace: String,
    /// On create the object's name; empty if it is still to be generated, or if a collection is deleted.
    pub name: String,
    /// What is to be stored; null on delete.
    pub object: Value,
    /// What is stored; none on create.
    pub old_object: Option<Arc<Value>>,
    pub dry_run: bool,
    /// The operation's options (`CreateOptions`, …) with kind and apiVersion.
    pub options: Value,
}

impl Request {
    /// Whether an object of this core or other resource itself is written, not a part of it.
    pub fn is_main(&self, group: &str, resource: &str) -> bool {
        self.subresource.is_empty() && self.resource.group == group && self.resource.resource == resource
    }

    /// A 403 that names this request's object.
    pub(crate) fn forbidden(&self, why: impl std::fmt::Display) -> ApiError {
        let metadata = |field: &str| text(&self.object, &format!("/metadata/{field}")).to_owned();
        let candidates = [self.name.clone(), metadata("name"), metadata("generateName"), "Unknown".to_owned()];
        let name = candidates.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
        let at = Named { group: &self.resource.group, resource: &self.resource.resource, name: &name };
        ApiError::forbidden(at, why)
    }
}

/// Rules that run in this process.
pub trait Plugin: Send + Sync {
    /// May change the object. Returns warnings.
    fn mutate(&self, _request: &mut Request) -> Result<Vec<String>, ApiError> {
        Ok(Vec::new())
    }

    /// May refuse the write. Returns warnings.
    fn validate(&self, _request: &Request) -> Result<Vec<String>, ApiError> {
        Ok(Vec::new())
    }
}

/// All rules, in order.
pub struct Admission {
    plugins: Vec<Arc<dyn Plugin>>,
    webhooks: Webhooks,
}

impl Admission {
    /// The built-in rules over `objects`, then `plugins`, then whatever webhooks are configured.
    pub fn new(objects: &Arc<dyn Objects>, authorizer: &Arc<Authorizer>, plugins: Vec<Arc<dyn Plugin>>) -> Self {
        let mut all = builtin::plugins(objects, authorizer);
        all.extend(plugins);
        Self { plugins: all, webhooks: Webhooks::new(objects.clone()) }
    }

    /// Whether there is anybody outside of this process who is shown objects.
    pub(crate) fn asks_others(&self) -> bool {
        !self.webhooks.is_empty()
    }

    /// Mutating admission.
    pub(crate) async fn mutate(&self, request: &mut Request, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        for plugin in &self.plugins {
            warnings.extend(plugin.mutate(request)?);
        }
        self.webhooks.mutate(request, warnings).await
    }

    /// Validating admission.
    pub(crate) async fn validate(&self, request: &Request, warnings: &mut Vec<String>) -> Result<(), ApiError> {
        for plugin in &self.plugins {
            warnings.extend(plugin.validate(request)?);
        }
        self.webhooks.validate(request, warnings).await
    }
}
