//! OpenAPI documents of what is served, for `kubectl explain`, client-side validation and code generators.
//!
//! A list of [`Resource`]s becomes a version 3 document for each group and version ([`v3()`]), or one version
//! 2 document of everything ([`v2()`]), as JSON; [`gnostic`] turns either into the protobuf that older
//! clients ask for. Documents are made from scratch each time: whoever serves them keeps them, with the
//! [`etag`] that the index ([`v3_index`]) carries.

pub mod gnostic;
mod paths;
mod schemas;
mod v2;
mod v3;
mod wire;

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::schema::Schema;

pub use v2::v2;
pub use v3::v3;

/// `Accept` and `Content-Type` of version 2 as protobuf. Clients ask with `@`, which is not a legal media
/// type any more; the answer is labelled without.
pub const V2_PROTOBUF_REQUESTED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The same for version 3.
pub const V3_PROTOBUF_REQUESTED: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
pub const V3_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";

/// One resource that is served.
#[derive(Clone, Debug)]
pub struct Resource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub namespaced: bool,
    /// As discovery lists them: `get`, `list`, `create`, `update`, `patch`, `delete`, `deletecollection`, `watch`.
    pub verbs: Vec<String>,
    pub subresources: Vec<Subresource>,
    pub schema: Arc<Schema>,
}

/// One subresource, with the kind that is read and written through it.
#[derive(Clone, Debug)]
pub struct Subresource {
    pub name: String,
    pub group: String,
    pub version: String,
    pub kind: String,
    pub verbs: Vec<String>,
    pub schema: Arc<Schema>,
}

impl Resource {
    /// `api/v1`, `apis/storage.k8s.io/v1`: the path of the group and version, and its name in the index.
    pub fn group_version_path(&self) -> String {
        group_version_path(&self.group, &self.version)
    }

    /// What documents call the type: `io.k8s.api.core.v1.Pod`, `io.longhorn.v1beta2.Volume`.
    fn definition(&self) -> String {
        definition_name(&self.schema, &self.group, &self.version, &self.kind)
    }

    fn list_definition(&self) -> String {
        match &self.schema.definition {
            Some(name) => format!("{name}List"),
            None => definition_name(&self.schema, &self.group, &self.version, &self.list_kind),
        }
    }
}

/// `api/v1` or `apis/storage.k8s.io/v1`.
pub fn group_version_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// A custom type is named after its group, most significant part first.
fn definition_name(schema: &Schema, group: &str, version: &str, kind: &str) -> String {
    if let Some(name) = &schema.definition {
        return name.clone();
    }
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// `/openapi/v3`: where each document is, given the path of its group and version and its [`etag`].
pub fn v3_index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let entry = |(path, etag): (&str, &str)| {
        let url = format!("/openapi/v3/{path}?hash={etag}");
        (path.to_owned(), json!({"serverRelativeURL": url}))
    };
    json!({"paths": documents.into_iter().map(entry).collect::<serde_json::Map<_, _>>()})
}

/// The hash that a document is known by.
pub fn etag(document: &[u8]) -> String {
    let mut hex = String::with_capacity(128);
    for byte in Sha512::digest(document) {
        write!(hex, "{byte:02X}").expect("writing to a String must succeed");
    }
    hex
}

#[cfg(test)]
mod tests;
