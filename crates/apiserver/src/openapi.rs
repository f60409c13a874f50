//! `/openapi/v2` and `/openapi/v3`: documents made from the registry when somebody asks, kept until it changes.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use tether_machinery::builtin;
use tether_machinery::openapi::{self, gnostic};
use tether_machinery::schema::Schema;

use crate::discovery;
use crate::registry::Registry;
use crate::resource::{Resource, Subresource};
use crate::response::{self, Body};

/// A rendered document and what tells it from others.
#[derive(Clone)]
struct Document {
    bytes: Bytes,
    etag: String,
}

/// Rendered documents, by path and encoding.
#[derive(Default)]
pub struct OpenApi {
    rendered: Mutex<BTreeMap<(String, bool), Document>>,
}

impl OpenApi {
    /// What is served has changed.
    pub fn forget(&self) {
        self.rendered.lock().clear();
    }

    /// Answers `/openapi/…`, if the path is one of its documents.
    pub fn answer(&self, registry: &Registry, path: &str, parts: &Parts) -> Option<Response<Body>> {
        let rest = path.strip_prefix("/openapi/")?;
        let accept = parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let proto = rest != "v3" && accept.contains("proto-openapi.spec");
        let document = self.document(registry, rest, proto)?;
        let quoted = format!("\"{}\"", document.etag);
        let known = parts.headers.get(IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == quoted.as_bytes());
        let content_type = match (rest, proto) {
            (_, false) => "application/json",
            ("v2", true) => openapi::V2_PROTOBUF,
            (_, true) => openapi::V3_PROTOBUF,
        };
        let mut response = response::document(content_type, if known { Bytes::new() } else { document.bytes });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        if let Ok(etag) = HeaderValue::from_str(&quoted) {
            response.headers_mut().insert(ETAG, etag);
        }
        Some(response)
    }

    fn document(&self, registry: &Registry, path: &str, proto: bool) -> Option<Document> {
        let key = (path.to_owned(), proto);
        if let Some(document) = self.rendered.lock().get(&key) {
            return Some(document.clone());
        }
        let bytes = match path {
            "v3" => self.index(registry),
            _ => render(registry, path, proto)?,
        };
        let document = Document { etag: openapi::etag(&bytes), bytes };
        self.rendered.lock().insert(key, document.clone());
        Some(document)
    }

    /// The list of documents, each with the mark under which clients may keep it.
    fn index(&self, registry: &Registry) -> Bytes {
        let mut entries = Vec::new();
        for (group, versions) in registry.groups() {
            for version in versions {
                let path = openapi::group_version_path(&group, &version);
                if let Some(document) = self.document(registry, &format!("v3/{path}"), false) {
                    entries.push((path, document.etag));
                }
            }
        }
        openapi::v3_index(entries.iter().map(|(path, etag)| (path.as_str(), etag.as_str()))).to_string().into()
    }
}

fn render(registry: &Registry, path: &str, proto: bool) -> Option<Bytes> {
    let server = discovery::git_version();
    let (document, encode): (_, fn(&serde_json::Value) -> Vec<u8>) = match path.split('/').collect::<Vec<_>>()[..] {
        ["v2"] => {
            let described: Vec<_> = registry.all().map(|r| describe(r)).collect();
            (openapi::v2(&described, &server), gnostic::v2)
        }
        ["v3", "api", version] => (v3(registry, "", version, &server)?, gnostic::v3),
        ["v3", "apis", group, version] => (v3(registry, group, version, &server)?, gnostic::v3),
        _ => return None,
    };
    Some(if proto { encode(&document).into() } else { document.to_string().into() })
}

fn v3(registry: &Registry, group: &str, version: &str, server: &str) -> Option<serde_json::Value> {
    let described: Vec<_> = registry.group_version(group, version).into_iter().map(|r| describe(r)).collect();
    (!described.is_empty()).then(|| openapi::v3(group, version, &described, server))
}

fn describe(resource: &Resource) -> openapi::Resource {
    openapi::Resource {
        group: resource.group.clone(),
        version: resource.version.clone(),
        kind: resource.kind.clone(),
        list_kind: resource.list_kind.clone(),
        plural: resource.plural.clone(),
        namespaced: resource.namespaced,
        verbs: resource.verbs.iter().map(|v| (*v).to_owned()).collect(),
        subresources: resource.subresources.iter().map(|sub| describe_part(resource, sub)).collect(),
        schema: resource.schema.clone(),
    }
}

fn describe_part(resource: &Resource, sub: &Subresource) -> openapi::Subresource {
    let schema = match sub.kind == resource.kind {
        true => resource.schema.clone(),
        false => builtin::schema(&sub.group, &sub.version, &sub.kind).unwrap_or_else(|| Schema::anything().into()),
    };
    openapi::Subresource {
        name: sub.name.clone(),
        group: sub.group.clone(),
        version: sub.version.clone(),
        kind: sub.kind.clone(),
        verbs: sub.verbs.iter().map(|v| (*v).to_owned()).collect(),
        schema,
    }
}
