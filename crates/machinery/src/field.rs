//! Field paths and field errors, in the words that Kubernetes uses for them.

use std::fmt;

use serde_json::Value;

/// A path to a field, printed the way Kubernetes prints it: `spec.containers[0].name`, `metadata.labels[a/b]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(String);

impl Path {
    /// The object itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// A path that starts at a top-level field or at a dotted path of fields.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// The field `name` below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self(name.to_owned()) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The element `index` of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The entry `key` of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// What is wrong with a field. The names are the `reason` values of a Status' causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
    NotFound,
    Internal,
}

impl ErrorKind {
    /// The machine-readable reason in `details.causes[].reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// One field that is wrong: where, how, with which value, and what would be right.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub kind: ErrorKind,
    pub path: Path,
    /// The offending value, shown for the kinds where Kubernetes shows it.
    pub value: Option<Value>,
    pub detail: String,
}

impl FieldError {
    pub fn required(path: Path, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Required, path, value: None, detail: detail.into() }
    }

    pub fn invalid(path: Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Invalid, path, value: Some(value.into()), detail: detail.into() }
    }

    pub fn type_invalid(path: Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::TypeInvalid, path, value: Some(value.into()), detail: detail.into() }
    }

    pub fn forbidden(path: Path, detail: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Forbidden, path, value: None, detail: detail.into() }
    }

    pub fn duplicate(path: Path, value: impl Into<Value>) -> Self {
        Self { kind: ErrorKind::Duplicate, path, value: Some(value.into()), detail: String::new() }
    }

    /// `allowed` is printed as it comes: Kubernetes sorts some of these lists and others not.
    pub fn not_supported(path: Path, value: impl Into<Value>, allowed: &[&str]) -> Self {
        let names: Vec<String> = allowed.iter().map(|a| format!("{a:?}")).collect();
        let detail = if names.is_empty() { String::new() } else { format!("supported values: {}", names.join(", ")) };
        Self { kind: ErrorKind::NotSupported, path, value: Some(value.into()), detail }
    }

    pub fn too_long(path: Path, max_bytes: usize) -> Self {
        let bytes = if max_bytes == 1 { "byte" } else { "bytes" };
        Self {
            kind: ErrorKind::TooLong,
            path,
            value: None,
            detail: format!("may not be more than {max_bytes} {bytes}"),
        }
    }

    pub fn too_many(path: Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        let detail = format!("must have at most {max} {items}");
        Self { kind: ErrorKind::TooMany, path, value: Some(actual.into()), detail }
    }

    /// The text without the path: what a Status puts into `causes[].message`.
    pub fn body(&self) -> String {
        let words = self.kind.words();
        let shown = match (&self.value, self.kind) {
            (Some(value), kind) if !matches!(kind, ErrorKind::Required | ErrorKind::Forbidden | ErrorKind::TooLong) => {
                format!("{words}: {}", show_value(value))
            }
            _ => words.to_owned(),
        };
        if self.detail.is_empty() { shown } else { format!("{shown}: {}", self.detail) }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl std::error::Error for FieldError {}

fn show_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_print_as_kubernetes_prints_them() {
        let path = Path::new("spec").child("containers").index(0).child("name");
        assert_eq!(path.to_string(), "spec.containers[0].name");
        assert_eq!(Path::new("metadata").child("labels").key("a/b").to_string(), "metadata.labels[a/b]");
    }

    #[test]
    fn errors_name_field_value_and_fix() {
        let e = FieldError::invalid(Path::new("spec.size"), -1, "must be positive");
        assert_eq!(e.to_string(), "spec.size: Invalid value: -1: must be positive");
        let e = FieldError::not_supported(Path::new("a"), "x", &["q", "b"]);
        assert_eq!(e.to_string(), "a: Unsupported value: \"x\": supported values: \"q\", \"b\"");
        assert_eq!(FieldError::required(Path::new("a"), "").to_string(), "a: Required value");
    }
}
