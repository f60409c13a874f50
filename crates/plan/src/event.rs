//! What a person watching `kubectl get events` is to be told about a decision.

use std::fmt;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use tether_model::reason::Reason;

/// An event about one object. It is published once the changes of its plan are made.
#[derive(Clone, PartialEq)]
pub struct Event {
    pub about: ObjectReference,
    /// Normal or Warning.
    pub warning: bool,
    pub reason: Reason,
    pub note: String,
}

impl Event {
    pub fn normal<K: Metadata<Ty = ObjectMeta> + Resource>(about: &K, reason: Reason, note: impl Into<String>) -> Self {
        Self { about: reference(about), warning: false, reason, note: note.into() }
    }

    pub fn warning<K: Metadata<Ty = ObjectMeta> + Resource>(
        about: &K,
        reason: Reason,
        note: impl Into<String>,
    ) -> Self {
        Self { about: reference(about), warning: true, reason, note: note.into() }
    }
}

fn reference<K: Metadata<Ty = ObjectMeta> + Resource>(object: &K) -> ObjectReference {
    let meta = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.into()),
        kind: Some(K::KIND.into()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// `Normal Scheduled Pod/web: Successfully assigned …`: golden plans show this.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.warning { "Warning" } else { "Normal" };
        let object = |field: &Option<String>| field.clone().unwrap_or_default();
        let (about, name) = (object(&self.about.kind), object(&self.about.name));
        write!(f, "{kind} {} {about}/{name}: {}", self.reason, self.note)
    }
}
