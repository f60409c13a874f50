//! Which objects a list or watch is about: label and field selectors over a resource.

use serde_json::Value;
use tether_machinery::selector::{FieldSelector, LabelSelector};
use tether_machinery::status::ApiError;

use crate::request::{Query, RequestInfo};
use crate::resource::Resource;

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

    /// Whether the stored bytes of an object match.
    pub fn matches_bytes(&self, resource: &Resource, bytes: &[u8]) -> bool {
        self.is_empty() || serde_json::from_slice(bytes).is_ok_and(|object| self.matches(resource, &object))
    }
}
