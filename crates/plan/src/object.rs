//! Which object a change is meant for, and which version of it the decision saw.

use std::fmt;

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tether_model::report::Subject;

/// An object as a decision saw it. A write that is made for a decision carries the uid and, where the decision
/// rests on the content, the version: if either moved on, the write fails and the decision is made again.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
}

impl Target {
    pub fn of<K: Metadata<Ty = ObjectMeta>>(object: &K) -> Self {
        Self::at(object.metadata())
    }

    pub fn at(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

/// `namespace/name@version`: golden plans show this.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}/", self.namespace)?;
        }
        write!(f, "{}@{}", self.name, self.resource_version)
    }
}

/// The object as a report names it.
pub fn subject<K: Metadata<Ty = ObjectMeta> + k8s_openapi::Resource>(object: &K) -> Subject {
    let meta = object.metadata();
    Subject::new(K::KIND, meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// The object's name; an object that the server gave us has one.
pub fn name<K: Metadata<Ty = ObjectMeta>>(object: &K) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

/// The object's namespace, empty for a cluster-scoped object.
pub fn namespace<K: Metadata<Ty = ObjectMeta>>(object: &K) -> &str {
    object.metadata().namespace.as_deref().unwrap_or_default()
}

/// `namespace/name`, as Kubernetes writes it in texts.
pub fn key<K: Metadata<Ty = ObjectMeta>>(object: &K) -> String {
    match namespace(object) {
        "" => name(object).to_owned(),
        namespace => format!("{namespace}/{}", name(object)),
    }
}

pub fn uid<K: Metadata<Ty = ObjectMeta>>(object: &K) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}

pub fn is_deleting<K: Metadata<Ty = ObjectMeta>>(object: &K) -> bool {
    object.metadata().deletion_timestamp.is_some()
}

pub fn annotation<'a, K: Metadata<Ty = ObjectMeta>>(object: &'a K, key: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}

pub fn has_finalizer<K: Metadata<Ty = ObjectMeta>>(object: &K, finalizer: &str) -> bool {
    object.metadata().finalizers.as_ref().is_some_and(|all| all.iter().any(|f| f == finalizer))
}
