//! CustomResourceDefinitions: what one says, and whether it may say that.

mod conversion;
mod defaults;
mod object;
mod scale;
mod schema_rules;
mod validate;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::field::FieldError;
use crate::schema::{self, Schema};
use crate::version;

pub use object::validate_object;
pub use schema_rules::warnings;
pub use validate::{validate, validate_status};

/// What the API server needs to know to serve a custom resource.
#[derive(Clone, Debug)]
pub struct CrdInfo {
    pub group: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub versions: Vec<CrdVersion>,
    /// Versions are converted by a webhook, not by rewriting `apiVersion`.
    pub conversion_webhook: bool,
}

impl CrdInfo {
    /// The version in which objects are stored.
    pub fn storage_version(&self) -> Option<&CrdVersion> {
        self.versions.iter().find(|version| version.storage)
    }

    pub fn version(&self, name: &str) -> Option<&CrdVersion> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// The text of the `Warning` header for clients of a deprecated version: its own, or one that points to the
    /// most stable version that is newer.
    pub fn deprecation(&self, version: &CrdVersion) -> Option<String> {
        if !version.deprecated {
            return None;
        }
        if let Some(text) = &version.deprecation_warning {
            return Some(text.clone());
        }
        let (group, kind) = (&self.group, &self.kind);
        let newer = self.versions.iter().filter(|v| v.served && !v.deprecated);
        let newer = newer.filter(|v| version::rank(&v.name) > version::rank(&version.name));
        let instead = newer.max_by_key(|v| version::rank(&v.name));
        let instead = instead.map_or_else(String::new, |v| format!("; use {group}/{} {kind}", v.name));
        Some(format!("{group}/{} {kind} is deprecated{instead}", version.name))
    }
}

/// One version of a custom resource.
#[allow(clippy::struct_excessive_bools, reason = "the fields of a version are independent flags")]
#[derive(Clone, Debug)]
pub struct CrdVersion {
    pub name: String,
    pub served: bool,
    pub storage: bool,
    pub deprecated: bool,
    pub deprecation_warning: Option<String>,
    pub schema: Arc<Schema>,
    pub status_subresource: bool,
    pub scale: Option<Scale>,
    pub columns: Vec<PrinterColumn>,
    /// Paths that field selectors may name, as they are written there: `spec.color`.
    pub selectable_fields: Vec<String>,
}

/// Where the scale subresource finds its numbers: JSON paths as the definition writes them, `.spec.replicas`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    pub spec_path: String,
    pub status_path: String,
    pub selector_path: Option<String>,
}

/// One column of `kubectl get`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrinterColumn {
    pub name: String,
    /// `integer`, `number`, `string`, `boolean` or `date`.
    pub ty: String,
    pub format: String,
    pub description: String,
    /// 0 is always shown, anything above only with `-o wide`.
    pub priority: i64,
    pub json_path: String,
}

/// Fills in what a definition leaves out: names derived from the kind, no conversion, ports of webhooks.
pub fn apply_defaults(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        let missing = |name: Option<&Value>| name.and_then(Value::as_str).unwrap_or_default().is_empty();
        if !kind.is_empty() && missing(names.get("singular")) {
            names.insert("singular".to_owned(), kind.to_lowercase().into());
        }
        if !kind.is_empty() && missing(names.get("listKind")) {
            names.insert("listKind".to_owned(), format!("{kind}List").into());
        }
    }
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    if let Some(service) = conversion.pointer_mut("/webhook/clientConfig/service").and_then(Value::as_object_mut) {
        service.entry("port").or_insert_with(|| 443.into());
    }
}

/// Reads a definition that [`validate`] accepted. Schemas are compiled; an error names the first one that
/// does not, which can only happen to definitions that were never validated.
pub fn parse(crd: &Value) -> Result<CrdInfo, Vec<FieldError>> {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let versions = spec["versions"].as_array().map_or(&[][..], Vec::as_slice);
    let kind = text(names, "kind");
    let or_default = |given: String, default: String| if given.is_empty() { default } else { given };
    Ok(CrdInfo {
        group: text(spec, "group"),
        list_kind: or_default(text(names, "listKind"), format!("{kind}List")),
        plural: text(names, "plural"),
        singular: or_default(text(names, "singular"), kind.to_lowercase()),
        short_names: texts(names, "shortNames"),
        categories: texts(names, "categories"),
        namespaced: spec["scope"] == "Namespaced",
        versions: versions.iter().map(parse_version).collect::<Result<_, _>>()?,
        conversion_webhook: spec["conversion"]["strategy"] == "Webhook",
        kind,
    })
}

fn parse_version(version: &Value) -> Result<CrdVersion, Vec<FieldError>> {
    let flag = |name: &str| version[name].as_bool().unwrap_or_default();
    let scale = version["subresources"].get("scale").filter(|scale| scale.is_object());
    let columns = version["additionalPrinterColumns"].as_array().map_or(&[][..], Vec::as_slice);
    let selectable = version["selectableFields"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(CrdVersion {
        name: text(version, "name"),
        served: flag("served"),
        storage: flag("storage"),
        deprecated: flag("deprecated"),
        deprecation_warning: version["deprecationWarning"].as_str().map(str::to_owned),
        schema: schema::compile(&version["schema"]["openAPIV3Schema"])?,
        status_subresource: version["subresources"].get("status").is_some_and(|status| !status.is_null()),
        scale: scale.map(|scale| Scale {
            spec_path: text(scale, "specReplicasPath"),
            status_path: text(scale, "statusReplicasPath"),
            selector_path: Some(text(scale, "labelSelectorPath")).filter(|path| !path.is_empty()),
        }),
        columns: columns.iter().map(column).collect(),
        selectable_fields: selectable
            .iter()
            .map(|field| text(field, "jsonPath").trim_start_matches('.').to_owned())
            .collect(),
    })
}

fn column(column: &Value) -> PrinterColumn {
    PrinterColumn {
        name: text(column, "name"),
        ty: text(column, "type"),
        format: text(column, "format"),
        description: text(column, "description"),
        priority: column["priority"].as_i64().unwrap_or_default(),
        json_path: text(column, "jsonPath"),
    }
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value, name: &str) -> Vec<String> {
    let list = value[name].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
