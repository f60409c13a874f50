//! Schemas of the kinds that Kubernetes brings.
//!
//! They are generated when they are first asked for, from the schemas that `k8s-openapi` carries, and kept.
//! Nodes are shared by definition name: `ObjectMeta` exists once, however many kinds have metadata. What
//! those schemas leave out — how lists merge, for patches and for server-side apply, and which words a
//! field takes — are tables of facts in [`overlay`] and [`enums`].

mod enums;
mod generate;
mod kinds;
mod overlay;

use std::sync::{Arc, LazyLock};

pub use kinds::{KINDS, Kind, find as kind};

use crate::schema::{Schema, Type};

/// `io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta`
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// The schema of a kind that Kubernetes brings, if it is one that is known here.
pub fn schema(group: &str, version: &str, kind: &str) -> Option<Arc<Schema>> {
    let kind = kinds::find(group, version, kind)?;
    definition(kind.definition).cloned()
}

/// A definition by its OpenAPI name: `io.k8s.api.core.v1.PodSpec`.
pub fn definition(name: &str) -> Option<&'static Arc<Schema>> {
    generate::definition(name)
}

/// The metadata of every object.
pub fn object_meta() -> &'static Arc<Schema> {
    definition(OBJECT_META).expect("ObjectMeta must be a definition")
}

/// `apiVersion`, `kind` or `metadata`, as every object has them.
pub(crate) fn type_meta_field(name: &str) -> Arc<Schema> {
    static NAMESPACE: LazyLock<Arc<Schema>> =
        LazyLock::new(|| schema("", "v1", "Namespace").expect("Namespace must be a kind"));
    NAMESPACE
        .properties
        .get(name)
        .cloned()
        .unwrap_or_else(|| Arc::new(Schema { ty: Type::String, ..Schema::default() }))
}

#[cfg(test)]
mod tests;
