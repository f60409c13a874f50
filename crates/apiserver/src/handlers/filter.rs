//! Which objects a list or watch is about: label and field selectors over a resource.

use serde_json::Value;
use tether_machinery::selector::{FieldSelector, LabelSelector};
use tether_machinery::status::ApiError;

use crate::request::{Query, RequestInfo};
use crate::resource::Resource;
use crate::store::Entry;

/// The selectors of one request. Empty selectors cost nothing: objects are then not even parsed.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    labels: Option<LabelSelector>,
    fields: Option<FieldSelector>,
}

impl Filter {
    pub fn parse(resource: &Resource, query: &Query, info: &RequestInfo) -> Result<Self, ApiError> {
        let labels = query.get("labelSelector").map(LabelSelector::parse).transpose();
        let labels = labels.map_err(|e| ApiError::bad_request(e.to_string()))?;
        let selector = query.get("fieldSelector").unwrap_or_default();
        let mut fields = match selector {
            "" => None,
            text => Some(FieldSelector::parse(text).map_err(|e| ApiError::bad_request(e.to_string()))?),
        };
        // `GET …/pods/web?watch=1` is a watch of one object, and that one is all that was authorized.
        if !info.name.is_empty() {
            let fields = fields.get_or_insert_with(|| FieldSelector::equals("metadata.name", info.name.as_str()));
            if fields.exact("metadata.name") != Some(&info.name) {
                return Err(ApiError::bad_request("fieldSelector metadata.name doesn't match requested name"));
            }
        }
        for requirement in fields.iter().flat_map(FieldSelector::requirements) {
            if !resource.selectable(&requirement.field) {
                return Err(ApiError::bad_request(resource.not_selectable(&requirement.field)));
            }
        }
        Ok(Self { labels, fields })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_none() && self.fields.is_none()
    }

    pub fn matches(&self, resource: &Resource, object: &Value) -> bool {
        let labels_match = self.labels.as_ref().is_none_or(|s| s.matches(&object["metadata"]["labels"]));
        labels_match
            && self.fields.as_ref().is_none_or(|selector| {
                selector.requirements().iter().all(|r| r.matches(&resource.field_value(object, &r.field)))
            })
    }

    /// Whether a stored object matches. A thousand watches ask this of every change, so no more of the object is
    /// parsed than the selectors need: nothing for a name, the labels for labels.
    pub fn matches_entry(&self, resource: &Resource, entry: &Entry) -> bool {
        let mut needs_object = false;
        for requirement in self.fields.iter().flat_map(FieldSelector::requirements) {
            match requirement.field.as_str() {
                "metadata.name" if !requirement.matches(&entry.key.name) => return false,
                "metadata.namespace" if !requirement.matches(&entry.key.namespace) => return false,
                "metadata.name" | "metadata.namespace" => {}
                _ => needs_object = true,
            }
        }
        if needs_object {
            return serde_json::from_slice(&entry.value).is_ok_and(|object| self.matches(resource, &object));
        }
        let Some(labels) = &self.labels else { return true };
        serde_json::from_slice::<Labelled>(&entry.value).is_ok_and(|object| labels.matches(&object.metadata.labels))
    }
}

/// The part of an object that label selectors look at; the rest is skipped.
#[derive(serde::Deserialize)]
struct Labelled {
    metadata: LabelledMeta,
}

#[derive(serde::Deserialize)]
struct LabelledMeta {
    #[serde(default)]
    labels: Value,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Method;
    use serde_json::json;

    use super::*;
    use crate::Server;
    use crate::store::Key;

    fn entry(object: &Value) -> Entry {
        let key = Key { resource: "pods".into(), namespace: "shop".into(), name: "web".into() };
        Entry { key: Arc::new(key), revision: 1, value: object.to_string().into() }
    }

    #[tokio::test]
    async fn entries_match_as_their_objects_do() {
        let server = Server::ephemeral().await;
        let resource = server.registry().get("", "v1", "pods").expect("pods must be served").clone();
        let labelled = json!({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "a"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        let bare = json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": {}});
        let queries = [
            "",
            "fieldSelector=metadata.name%3Dweb",
            "fieldSelector=metadata.name%3Dother",
            "fieldSelector=metadata.namespace!%3Dshop",
            "fieldSelector=metadata.name%3Dweb,spec.nodeName%3Dn1",
            "fieldSelector=status.phase!%3DRunning",
            "labelSelector=app",
            "labelSelector=!app",
            "labelSelector=app%3Da&fieldSelector=metadata.name%3Dweb",
            "labelSelector=app%3Db&fieldSelector=metadata.name%3Dweb",
        ];
        for text in queries {
            let query = Query::parse(Some(text)).expect(text);
            let info = RequestInfo::parse(&Method::GET, "/api/v1/namespaces/shop/pods", &query);
            let filter = Filter::parse(&resource, &query, &info).expect(text);
            for object in [&labelled, &bare] {
                let expected = filter.matches(&resource, object);
                assert_eq!(expected, filter.matches_entry(&resource, &entry(object)), "{text} on {object}");
            }
        }
    }
}
