//! May this definition be stored? Names, versions, columns, subresources, what an update must leave alone.
//!
//! Kubernetes validates an internal form in which everything that all versions share has moved to the top
//! of the spec; error paths speak of that form (`spec.validation.openAPIV3Schema…`), and so do these.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{conversion, schema_rules};
use crate::field::{ErrorKind, FieldError, Path};
use crate::names;
use crate::schema::cel::field_path::{self, Step};
use crate::schema::{Props, Type, build};

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
/// Every selectable field is looked at for every event of every watch.
const MAX_SELECTABLE_FIELDS: usize = 8;
const MAX_DEPRECATION_WARNING_BYTES: usize = 256;
const APPROVAL: &str = "api-approved.kubernetes.io";

/// Errors of a definition after [`super::apply_defaults`]; `old` is what an update replaces.
pub fn validate(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (spec, path) = (&crd["spec"], Path::new("spec"));
    if old.is_none() {
        object_name(crd, &mut errors);
    }
    group_and_scope(spec, &path, &mut errors);
    let shared = Shared::of(spec);
    versions(spec, &shared, &path, &mut errors);
    names_of_spec(&spec["names"], &path.child("names"), &mut errors);
    shared_parts(&shared, &path, &mut errors);
    conversion::validate(&spec["conversion"], &path.child("conversion"), &mut errors);
    if let Some(old) = old {
        immutable(spec, old, &path, &mut errors);
    }
    names_syntax(&crd["status"]["acceptedNames"], &Path::new("status.acceptedNames"), &mut errors);
    stored_versions(crd, &mut errors);
    approval(crd, old, &mut errors);
    if spec["preserveUnknownFields"] == true && old.is_none_or(|old| old["spec"]["preserveUnknownFields"] != true) {
        let why =
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(path.child("preserveUnknownFields"), true, why));
    }
    errors
}

/// Errors of an update through the status subresource.
pub fn validate_status(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    names_syntax(&crd["status"]["acceptedNames"], &Path::new("status.acceptedNames"), &mut errors);
    errors
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

fn object_name(crd: &Value, errors: &mut Vec<FieldError>) {
    let name = text(&crd["metadata"], "name");
    let required = format!("{}.{}", text(&crd["spec"]["names"], "plural"), text(&crd["spec"], "group"));
    if name != required {
        let why = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(Path::new("metadata.name"), name, why));
    }
}

fn group_and_scope(spec: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let (group, at) = (text(spec, "group"), path.child("group"));
    let wrong = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if !wrong.is_empty() {
        errors.push(FieldError::invalid(at, group, wrong.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(at, group, "should be a domain with at least one dot"));
    }
    match text(spec, "scope") {
        "" => errors.push(FieldError::required(path.child("scope"), "")),
        "Cluster" | "Namespaced" => {}
        other => errors.push(FieldError::not_supported(path.child("scope"), other, &["Cluster", "Namespaced"])),
    }
}

/// What all versions say alike.
struct Shared<'a> {
    schema: Option<&'a Value>,
    subresources: Option<&'a Value>,
    columns: Option<&'a Value>,
    selectable: Option<&'a Value>,
    /// The names of these, to be left out of each version.
    moved: BTreeSet<&'static str>,
}

impl<'a> Shared<'a> {
    fn of(spec: &'a Value) -> Self {
        let versions = list(spec, "versions");
        let mut moved = BTreeSet::new();
        let mut of = |name: &'static str| {
            let first = versions.first()?;
            let same = versions.iter().all(|version| version[name] == first[name]);
            if same {
                moved.insert(name);
            }
            Some(&first[name]).filter(|value| same && !value.is_null())
        };
        Self {
            schema: of("schema"),
            subresources: of("subresources"),
            columns: of("additionalPrinterColumns"),
            selectable: of("selectableFields"),
            moved,
        }
    }

    fn remains<'v>(&self, version: &'v Value, name: &str) -> &'v Value {
        if self.moved.contains(name) { &Value::Null } else { &version[name] }
    }
}

fn versions(spec: &Value, shared: &Shared<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    let versions = list(spec, "versions");
    for (i, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let at = path.child("versions").index(i).child("schema").child("openAPIV3Schema");
            errors.push(FieldError::required(at, ""));
        }
    }
    let mut seen = BTreeSet::new();
    let mut unique = true;
    for (i, version) in versions.iter().enumerate() {
        let at = path.child("versions").index(i);
        let name = text(version, "name");
        unique &= seen.insert(name);
        let wrong = names::dns1035_label(name);
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(at.child("name"), name, wrong.join(",")));
        }
        deprecation(version, &at.child("deprecationWarning"), errors);
        let status = !version["subresources"]["status"].is_null();
        schema_rules::validate(shared.remains(version, "schema"), status, &at.child("schema"), errors);
        subresources(shared.remains(version, "subresources"), &at.child("subresources"), errors);
        columns(shared.remains(version, "additionalPrinterColumns"), &at.child("additionalPrinterColumns"), errors);
        let selectable = shared.remains(version, "selectableFields");
        selectable_fields(selectable, &version["schema"], &at.child("selectableFields"), errors);
    }
    let at = path.child("versions");
    if !unique {
        errors.push(all_versions(&at, versions, shared, "must contain unique version names"));
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        errors.push(all_versions(&at, versions, shared, "must have exactly one version marked as storage version"));
    }
    // The internal form repeats the name of the first version.
    let first = versions.first().map_or("", |version| text(version, "name"));
    let wrong = names::dns1035_label(first);
    if !first.is_empty() && !wrong.is_empty() {
        errors.push(FieldError::invalid(path.child("version"), first, wrong.join(",")));
    }
}

/// An error about the list of versions, shown as the internal form has it, as far as all versions agree.
fn all_versions(path: &Path, versions: &[Value], shared: &Shared<'_>, why: &str) -> FieldError {
    let one = |version: &Value| {
        let flag = |name: &str| version[name].as_bool().unwrap_or_default();
        let rest = |name: &str| shared.remains(version, name).to_string();
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\"Subresources\":{},\"AdditionalPrinterColumns\":{},\"SelectableFields\":{}}}",
            version["name"],
            flag("served"),
            flag("storage"),
            flag("deprecated"),
            version["deprecationWarning"],
            rest("schema"),
            rest("subresources"),
            rest("additionalPrinterColumns"),
            rest("selectableFields"),
        )
    };
    let shown: Vec<String> = versions.iter().map(one).collect();
    let detail = format!("[{}]: {why}", shown.join(","));
    FieldError { kind: ErrorKind::Invalid, path: path.clone(), value: None, detail }
}

fn shared_parts(shared: &Shared<'_>, path: &Path, errors: &mut Vec<FieldError>) {
    let status = shared.subresources.is_some_and(|subresources| !subresources["status"].is_null());
    if let Some(schema) = shared.schema {
        schema_rules::validate(schema, status, &path.child("validation"), errors);
    }
    if let Some(given) = shared.subresources {
        subresources(given, &path.child("subresources"), errors);
    }
    if let Some(given) = shared.columns {
        columns(given, &path.child("additionalPrinterColumns"), errors);
    }
    if let Some(given) = shared.selectable {
        let schema = shared.schema.unwrap_or(&Value::Null);
        selectable_fields(given, schema, &path.child("selectableFields"), errors);
    }
}

fn deprecation(version: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let mut invalid = |why: String| errors.push(FieldError::invalid(path.clone(), warning, why));
    if version["deprecated"] != true {
        return invalid("can only be set for deprecated versions".to_owned());
    }
    if warning.len() > MAX_DEPRECATION_WARNING_BYTES {
        invalid(format!("must be <= {MAX_DEPRECATION_WARNING_BYTES} characters long"));
    }
    if warning.is_empty() {
        invalid("must not be an empty string".to_owned());
    }
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        invalid(format!("must only contain printable UTF-8 characters; non-printable character found at index {i}"));
    }
}

/// Names are checked for syntax in spec and status; some must be there in the spec.
fn names_of_spec(names: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    for name in ["plural", "singular", "kind", "listKind"] {
        if text(names, name).is_empty() {
            errors.push(FieldError::required(path.child(name), ""));
        }
    }
    names_syntax(names, path, errors);
}

fn names_syntax(names: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    for name in ["plural", "singular"] {
        let value = text(names, name);
        let wrong = names::dns1035_label(value);
        if !value.is_empty() && !wrong.is_empty() {
            errors.push(FieldError::invalid(path.child(name), value, wrong.join(",")));
        }
    }
    for name in ["kind", "listKind"] {
        let value = text(names, name);
        let wrong = names::dns1035_label(&value.to_lowercase());
        if !value.is_empty() && !wrong.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
            errors.push(FieldError::invalid(path.child(name), value, why));
        }
    }
    let labels = |name: &str, errors: &mut Vec<FieldError>| {
        for (i, value) in list(names, name).iter().filter_map(Value::as_str).enumerate() {
            let wrong = names::dns1035_label(value);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(path.child(name).index(i), value, wrong.join(",")));
            }
        }
    };
    labels("shortNames", errors);
    let (kind, list_kind) = (text(names, "kind"), text(names, "listKind"));
    if !kind.is_empty() && kind == list_kind {
        let why = "kind and listKind may not be the same";
        errors.push(FieldError::invalid(path.child("listKind"), list_kind, why));
    }
    labels("categories", errors);
}

fn subresources(subresources: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let scale = &subresources["scale"];
    if scale.is_null() {
        return;
    }
    for (name, roots, required, why) in [
        ("specReplicasPath", &[".spec."][..], true, "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."], true, "should be a json path under .status"),
        ("labelSelectorPath", &[".spec.", ".status."], false, "should be a json path under either .spec or .status"),
    ] {
        let (given, at) = (text(scale, name), path.child(&format!("scale.{name}")));
        if given.is_empty() {
            if required {
                errors.push(FieldError::required(at, ""));
            }
        } else if !given.starts_with('.') {
            errors.push(FieldError::invalid(at, given, "must be a simple json path starting with ."));
        } else if !roots.iter().any(|root| given.starts_with(root)) {
            errors.push(FieldError::invalid(at, given, why));
        }
    }
}

fn columns(columns: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    for (i, column) in columns.as_array().into_iter().flatten().enumerate() {
        let at = path.index(i);
        if text(column, "name").is_empty() {
            errors.push(FieldError::required(at.child("name"), ""));
        }
        let (ty, why) = (text(column, "type"), format!("must be one of {}", COLUMN_TYPES.join(",")));
        if ty.is_empty() {
            errors.push(FieldError::required(at.child("type"), why));
        } else if !COLUMN_TYPES.contains(&ty) {
            errors.push(FieldError::invalid(at.child("type"), ty, why));
        }
        let format = text(column, "format");
        if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
            let why = format!("must be one of {}", COLUMN_FORMATS.join(","));
            errors.push(FieldError::invalid(at.child("format"), format, why));
        }
        let json_path = text(column, "jsonPath");
        if json_path.is_empty() {
            errors.push(FieldError::required(at.child("JSONPath"), ""));
        } else if !json_path.starts_with('.') {
            let why = "must be a simple json path starting with .";
            errors.push(FieldError::invalid(at.child("JSONPath"), json_path, why));
        }
    }
}

fn selectable_fields(fields: &Value, schema: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(fields) = fields.as_array().filter(|fields| !fields.is_empty()) else { return };
    let schema = &schema["openAPIV3Schema"];
    if schema.is_null() {
        let why = "may only be set when `version.schema.openAPIV3Schema` is not included";
        errors.push(FieldError::invalid(path.clone(), "", why));
        return;
    }
    // A schema that does not compile has its own errors.
    let Some(compiled) = Props::new(schema).and_then(|props| build(props, path, 0).ok()) else { return };
    let mut seen = BTreeSet::new();
    for (i, field) in fields.iter().enumerate() {
        let (json_path, at) = (text(field, "jsonPath"), path.index(i).child("jsonPath"));
        if json_path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let found = match field_path::resolve(json_path, &compiled, false) {
            Ok(found) => found,
            Err(reason) => {
                errors.push(FieldError::invalid(at, json_path, format!("is an invalid path: {reason}")));
                continue;
            }
        };
        if found.path.first() == Some(&Step::Field("metadata".to_owned())) {
            errors.push(FieldError::invalid(at.clone(), json_path, "must not point to fields in metadata"));
        }
        if !matches!(found.schema.ty, Type::String | Type::Boolean | Type::Integer) {
            let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at.clone(), json_path, why));
        }
        if !seen.insert(found.path) {
            errors.push(FieldError::duplicate(at, json_path));
        }
    }
    if seen.len() > MAX_SELECTABLE_FIELDS {
        errors.push(FieldError::too_many(path.clone(), seen.len(), MAX_SELECTABLE_FIELDS));
    }
}

/// Changing these would lose the objects that are stored under the old ones.
fn immutable(spec: &Value, old: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let old_spec = &old["spec"];
    let conditions = list(&old["status"], "conditions");
    let established = conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True");
    let mut same = |new: &Value, old: &Value, at: Path| {
        if new != old {
            errors.push(FieldError::invalid(at, new.clone(), "field is immutable"));
        }
    };
    if established {
        same(&spec["scope"], &old_spec["scope"], path.child("scope"));
        same(&spec["names"]["kind"], &old_spec["names"]["kind"], path.child("names").child("kind"));
    }
    same(&spec["group"], &old_spec["group"], path.child("group"));
    same(&spec["names"]["plural"], &old_spec["names"]["plural"], path.child("names").child("plural"));
}

/// A version in which objects may still be stored cannot go.
fn stored_versions(crd: &Value, errors: &mut Vec<FieldError>) {
    let path = Path::new("status.storedVersions");
    let versions = list(&crd["spec"], "versions");
    let Some(stored) = crd["status"]["storedVersions"].as_array().filter(|stored| !stored.is_empty()) else {
        // A new definition gets the storage version, if it has one.
        if !versions.iter().any(|version| version["storage"] == true) {
            errors.push(FieldError::invalid(path, Value::Null, "must have at least one stored version"));
        }
        return;
    };
    // A name of the list stands for one version: of two with one name, the second is missing.
    let mut left: Vec<(usize, &str)> = stored.iter().map(|v| v.as_str().unwrap_or_default()).enumerate().collect();
    for version in versions {
        let name = text(version, "name");
        if version["storage"] == true && !left.iter().any(|(_, stored)| *stored == name) {
            let why = format!("must have the storage version {name}");
            errors.push(FieldError::invalid(path.clone(), stored.clone(), why));
        }
        left.retain(|(_, stored)| *stored != name);
    }
    for (i, v) in left {
        let why = format!(
            "missing from spec.versions; {v} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {v} and removes {v} from status.storedVersions"
        );
        errors.push(FieldError::invalid(path.index(i), v, why));
    }
}

#[derive(PartialEq)]
enum Approval {
    Given,
    Missing,
    Invalid,
}

fn approval_of(crd: &Value) -> Approval {
    match crd["metadata"]["annotations"][APPROVAL].as_str().unwrap_or_default() {
        "" => Approval::Missing,
        text if text.starts_with("unapproved") => Approval::Given,
        text => match text.split_once("://") {
            Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/') => Approval::Given,
            _ => Approval::Invalid,
        },
    }
}

/// Groups of the Kubernetes community need a link to their approval.
fn approval(crd: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    let group = text(&crd["spec"], "group");
    let protected =
        |domain: &str| group == domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    if !protected("k8s.io") && !protected("kubernetes.io") {
        return;
    }
    let state = approval_of(crd);
    if old.is_some_and(|old| approval_of(old) == state) {
        return;
    }
    let path = Path::new("metadata.annotations").key(APPROVAL);
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    match state {
        Approval::Given => {}
        Approval::Missing => {
            let why = format!("protected groups must have approval annotation {APPROVAL:?}, {see}");
            errors.push(FieldError::required(path, why));
        }
        Approval::Invalid => {
            let why = format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {see}"
            );
            let value = crd["metadata"]["annotations"][APPROVAL].clone();
            errors.push(FieldError::invalid(path, value, why));
        }
    }
}
