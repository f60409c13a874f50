//! Kubernetes' protobuf bodies, and what its Go types do to a JSON object.
//!
//! Clients send built-in kinds as `k8s\0`, an envelope that names the kind, and the object in protobuf.
//! [`decode`] turns that into the JSON that the same client would have sent otherwise. The interface files
//! under `proto/` say which fields exist; they also say which of them vanish when they are empty and which
//! never do. From that, [`trim`] and [`complete`] give any JSON object of a built-in kind the shape that a
//! round trip through Kubernetes' own types would give it.

mod decode;
mod encode;
mod shape;
mod types;
mod wire;

use serde_json::{Map, Value};
use thiserror::Error;

pub use decode::decode;
pub use encode::encode;

/// First bytes of every protobuf body.
pub const MAGIC: &[u8] = b"k8s\0";
/// The media type of protobuf bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Largest body that is looked at: the limit of Kubernetes' own server.
pub const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;

/// Messages within messages. Schemas in CRDs nest deepest: about three for each level of the schema.
const MAX_DEPTH: usize = 128;
/// Values that one body may become. An empty element takes two bytes on the wire and a hundred in memory,
/// so the size of the body alone does not bound the latter.
const MAX_VALUES: usize = 300_000;

/// Why a body cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("the body does not start with the protobuf magic number")]
    NotProtobuf,
    #[error("the body is {0} bytes long, the limit is {MAX_BODY_BYTES}")]
    TooLarge(usize),
    #[error("the body ends in the middle of a field")]
    Truncated,
    #[error("the body has a field of unknown wire type {0}")]
    WireType(u8),
    #[error("the body has a number that is too long")]
    Varint,
    #[error("the body encodes {0} in an unknown way")]
    Encoding(String),
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
    #[error("the body nests more than {MAX_DEPTH} messages")]
    TooDeep,
    #[error("the body has more than {MAX_VALUES} values")]
    TooMany,
    #[error("{field}: {problem}")]
    Field { field: String, problem: String },
}

/// Whether bodies and objects of this kind are known.
pub fn knows(api_version: &str, kind: &str) -> bool {
    types::Types::get().by_kind(api_version, kind).is_some()
}

/// Removes what Kubernetes' types do not keep: nulls, empty lists and maps, zero values of fields that do
/// not tell zero from absent. Quantities and times get their canonical spelling. Kinds that are not built
/// in, and fields that are not known, are left alone.
pub fn trim(api_version: &str, kind: &str, object: &mut Value) {
    let types = types::Types::get();
    if let (Some(message), Some(map)) = (types.by_kind(api_version, kind), object.as_object_mut()) {
        shape::trim(types, message, map);
    }
}

/// [`trim`] for the metadata of an object of any kind.
pub fn trim_metadata(object: &mut Value) {
    let types = types::Types::get();
    let message = types.by_kind("v1", "ConfigMap").expect("ConfigMap must be in the interface files");
    if let Some(metadata) = object.get_mut("metadata").map(Value::take) {
        let mut alone = Map::from_iter([("metadata".to_owned(), metadata)]);
        shape::trim(types, message, &mut alone);
        object["metadata"] = alone.remove("metadata").unwrap_or_else(|| Value::Object(Map::new()));
    }
}

/// Adds what Kubernetes' types always write: empty structures, zeros of required fields, null times.
/// `kubectl get -o yaml` shows them, so the object is stored with them.
pub fn complete(api_version: &str, kind: &str, object: &mut Value) {
    let types = types::Types::get();
    if let (Some(message), Some(map)) = (types.by_kind(api_version, kind), object.as_object_mut()) {
        shape::complete(types, message, map);
    }
}

#[cfg(test)]
mod tests;
