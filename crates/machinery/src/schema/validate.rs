//! Is a value what its schema says? In the words of Kubernetes, with its rule for updates: what was wrong
//! before and did not change is not held against the update.

use serde_json::Value;

use super::{Schema, Type, formats, lists};
use crate::field::{ErrorKind, FieldError, Path};

/// Checks a new object.
pub fn validate(value: &Value, schema: &Schema) -> Vec<FieldError> {
    let mut errors = validate_fields(value, None, false, schema);
    errors.extend(validate_lists(value, None, false, schema));
    errors
}

/// Checks what an update made of `old`.
pub fn validate_update(new: &Value, old: &Value, schema: &Schema) -> Vec<FieldError> {
    let mut errors = validate_fields(new, Some(old), false, schema);
    errors.extend(validate_lists(new, Some(old), false, schema));
    errors
}

/// Checks an update through the status subresource: only `status` can have changed.
pub fn validate_status_update(new: &Value, old: &Value, schema: &Schema) -> Vec<FieldError> {
    let mut errors = validate_fields(new, Some(old), true, schema);
    errors.extend(validate_lists(new, Some(old), true, schema));
    errors
}

/// The first half of the checks: is every value what its node says? `status` looks at that field alone.
pub(crate) fn validate_fields(new: &Value, old: Option<&Value>, status: bool, schema: &Schema) -> Vec<FieldError> {
    if !status {
        return Run::default().node(new, schema, old.map(|value| Old { value, schema })).errors;
    }
    match (new.get("status"), schema.properties.get("status")) {
        (Some(status), Some(schema)) => {
            let old = old.and_then(|old| old.get("status")).map(|value| Old { value, schema });
            Run { prefix: Path::new("status"), ..Run::default() }.node(status, schema, old).errors
        }
        _ => Vec::new(),
    }
}

/// The second half: objects inside of objects, and lists that must not hold anything twice.
pub(crate) fn validate_lists(new: &Value, old: Option<&Value>, status: bool, schema: &Schema) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !status {
        lists::embedded_resources(new, schema, false, &Path::root(), &mut errors);
    }
    let duplicates = lists::duplicates(new, schema);
    if !duplicates.is_empty() && old.is_none_or(|old| lists::duplicates(old, schema).is_empty()) {
        errors.extend(duplicates);
    }
    errors
}

/// Checks any value against any node; errors are reported below `path`.
pub fn validate_value(value: &Value, schema: &Schema, path: &Path) -> Vec<FieldError> {
    Run { prefix: path.clone(), ..Run::default() }.node(value, schema, None).errors
}

/// The value that stood here before an update, with the schema that says how its parts are found again.
#[derive(Clone, Copy)]
struct Old<'a> {
    value: &'a Value,
    schema: &'a Schema,
}

impl<'a> Old<'a> {
    fn field(self, name: &str) -> Option<Old<'a>> {
        Some(Old { value: self.value.get(name)?, schema: self.schema.field(name)? })
    }

    fn item(self, item: &Value) -> Option<Old<'a>> {
        let value = lists::correlated(item, self.value.as_array()?, &self.schema.list)?;
        Some(Old { value, schema: self.schema.items.as_deref()? })
    }
}

/// What one node found. `matches` counts the checks that were made; of several alternatives that failed,
/// the one that got furthest explains the failure.
#[derive(Default)]
struct Outcome {
    errors: Vec<FieldError>,
    matches: usize,
}

impl Outcome {
    fn add(&mut self, error: FieldError) {
        if !self.errors.contains(&error) {
            self.errors.push(error);
        }
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        for error in other.errors {
            self.add(error);
        }
    }
}

#[derive(Default)]
struct Run {
    /// Where the value stands in the object; not part of what messages call it.
    prefix: Path,
    /// What messages call the value that is looked at: `spec.list[0]`.
    name: String,
    /// Alternatives around the value, which are told apart by how many checks each got through.
    alternatives: usize,
}

impl Run {
    /// Checks a value; forgives everything if it is what it was before.
    fn node(&mut self, value: &Value, schema: &Schema, old: Option<Old<'_>>) -> Outcome {
        // Most of an object does not change; what would be forgiven is not even looked for.
        if self.alternatives == 0 && old.is_some_and(|old| old.value == value) {
            return Outcome::default();
        }
        let mut outcome = self.schema(value, schema, old);
        if !outcome.errors.is_empty() && old.is_some_and(|old| old.value == value) {
            outcome.errors.clear();
        }
        outcome
    }

    fn schema(&mut self, value: &Value, schema: &Schema, old: Option<Old<'_>>) -> Outcome {
        let mut outcome = Outcome::default();
        if schema.ty != Type::Any || checked_format(schema).is_some() {
            match self.type_error(value, schema) {
                Some(error) => outcome.add(error),
                None => outcome.matches += 1,
            }
            outcome.matches += 1;
        }
        let schema = schema.resolve();
        if value.is_null() {
            self.enumeration(value, schema, &mut outcome);
            return outcome;
        }
        self.alternatives += 1;
        self.junctors(value, schema, old, &mut outcome);
        self.alternatives -= 1;
        match value {
            Value::String(text) => self.string(text, schema, &mut outcome),
            Value::Number(_) => self.number(value, schema, &mut outcome),
            Value::Array(list) => self.list(list, schema, old, &mut outcome),
            _ => {}
        }
        self.enumeration(value, schema, &mut outcome);
        if let Value::Object(map) = value {
            self.object(map, schema, old, &mut outcome);
        }
        outcome.matches += 3;
        outcome
    }

    fn path(&self) -> Path {
        self.path_of(&self.name)
    }

    fn path_of(&self, name: &str) -> Path {
        let name = name.strip_prefix('.').unwrap_or(name);
        if name.is_empty() { self.prefix.clone() } else { self.prefix.child(name) }
    }

    fn within<T>(&mut self, suffix: &[&str], check: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.name.len();
        self.name.extend(suffix.iter().copied());
        let result = check(self);
        self.name.truncate(length);
        result
    }

    /// `spec.size in body should be …`, shown with the value.
    fn invalid(&self, value: impl Into<Value>, complaint: &str) -> FieldError {
        FieldError::invalid(self.path(), value, format!("{} in body {complaint}", self.name))
    }

    fn type_error(&self, value: &Value, schema: &Schema) -> Option<FieldError> {
        let mismatch = |want: &str, got: &str| {
            let detail = format!("{} in body must be of type {want}: {got:?}", self.name);
            Some(FieldError::type_invalid(self.path(), got, detail))
        };
        let want = type_name(schema.ty);
        let got = match value {
            Value::Null if schema.nullable || schema.ty == Type::Any => return None,
            Value::Null => return mismatch(want, "null"),
            Value::Bool(_) => "boolean",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::Number(_) if is_integer(value) => "integer",
            Value::Number(_) => "number",
        };
        let fits = match schema.ty {
            Type::Any => true,
            Type::IntOrString => matches!(got, "integer" | "string"),
            Type::Number => matches!(got, "integer" | "number"),
            _ => got == want,
        };
        match checked_format(schema) {
            _ if fits => None,
            Some(format) if !matches!(got, "string" | "array") => mismatch(format, go_format(got)),
            _ => mismatch(want, got),
        }
    }

    fn junctors(&mut self, value: &Value, schema: &Schema, old: Option<Old<'_>>, outcome: &mut Outcome) {
        if !schema.any_of.is_empty() {
            self.any_of(value, schema, old, outcome);
        }
        if !schema.one_of.is_empty() {
            self.one_of(value, schema, old, outcome);
        }
        if !schema.all_of.is_empty() {
            let mut valid = 0;
            for branch in &schema.all_of {
                let result = self.schema(value, branch, old);
                valid += usize::from(result.errors.is_empty());
                outcome.merge(result);
            }
            if valid != schema.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                outcome.add(self.composite(&format!("must validate all the schemas (allOf){none}")));
            }
        }
        if let Some(not) = &schema.not
            && self.schema(value, not, old).errors.is_empty()
        {
            outcome.add(self.composite("must not validate the schema (not)"));
        }
        outcome.matches += 1;
    }

    fn any_of(&mut self, value: &Value, schema: &Schema, old: Option<Old<'_>>, outcome: &mut Outcome) {
        let mut best: Option<Outcome> = None;
        for branch in &schema.any_of {
            let result = self.schema(value, branch, old);
            if result.errors.is_empty() {
                outcome.merge(result);
                return;
            }
            if best.as_ref().is_none_or(|best| result.matches > best.matches) {
                best = Some(result);
            }
        }
        outcome.add(self.composite("must validate at least one schema (anyOf)"));
        outcome.merge(best.unwrap_or_default());
    }

    fn one_of(&mut self, value: &Value, schema: &Schema, old: Option<Old<'_>>, outcome: &mut Outcome) {
        let (mut valid, mut success, mut best) = (0, None, None::<Outcome>);
        for branch in &schema.one_of {
            let result = self.schema(value, branch, old);
            if result.errors.is_empty() {
                valid += 1;
                success.get_or_insert(result);
            } else if valid == 0 && best.as_ref().is_none_or(|best| result.matches > best.matches) {
                best = Some(result);
            }
        }
        if valid == 1 {
            outcome.merge(success.unwrap_or_default());
            return;
        }
        let found =
            if valid == 0 { "Found none valid".to_owned() } else { format!("Found {valid} valid alternatives") };
        outcome.add(self.composite(&format!("must validate one and only one schema (oneOf). {found}")));
        if valid == 0 {
            outcome.merge(best.unwrap_or_default());
        }
    }

    /// An error about the whole of a value, which Kubernetes reports without a field.
    fn composite(&self, complaint: &str) -> FieldError {
        FieldError::invalid(self.prefix.clone(), "", format!("{:?} {complaint}", self.name))
    }

    fn string(&self, text: &str, schema: &Schema, outcome: &mut Outcome) {
        let limits = &schema.limits;
        let length = || text.chars().count() as u64;
        if let Some(max) = limits.max_length.filter(|max| length() > *max) {
            outcome.add(FieldError::too_long(self.path(), max as usize));
        } else if let Some(min) = limits.min_length.filter(|min| length() < *min) {
            outcome.add(self.invalid(text, &format!("should be at least {min} chars long")));
        } else if let Some(pattern) = limits.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
            outcome.add(self.invalid(text, &format!("should match '{pattern}'")));
        }
        outcome.matches += 1;
        if let Some(format) = checked_format(schema).filter(|_| schema.ty != Type::Integer && schema.ty != Type::Number)
        {
            if !formats::holds(format, text) {
                let detail = format!("{} in body must be of type {format}: {text:?}", self.name);
                outcome.add(FieldError::type_invalid(self.path(), text, detail));
            }
            outcome.matches += 1;
        }
    }

    fn number(&self, value: &Value, schema: &Schema, outcome: &mut Outcome) {
        let limits = &schema.limits;
        let number = value.as_f64().unwrap_or_default();
        // A whole number is only ever a multiple of whole numbers.
        let factor = limits.multiple_of.map(|factor| if value.is_i64() { factor.trunc() } else { factor });
        if let Some(factor) = factor.filter(|factor| !is_multiple(number, *factor)) {
            outcome.add(if factor <= 0.0 {
                let detail = format!("factor MultipleOf declared for {} must be positive: {factor}", self.name);
                let shown = if factor.fract() == 0.0 { Value::from(factor as i64) } else { Value::from(factor) };
                FieldError::invalid(self.path(), shown, detail)
            } else {
                self.invalid(value.clone(), &format!("should be a multiple of {factor}"))
            });
        }
        let compare = value.as_i64().filter(|_| value.is_i64());
        // Bounds of whole numbers are compared as whole numbers, as far as a bound can be one.
        let below = |limit: f64| compare.map_or(number < limit, |n| n < limit as i64);
        let above = |limit: f64| compare.map_or(number > limit, |n| n > limit as i64);
        let shown = |limit: f64| compare.map_or_else(|| limit.to_string(), |_| (limit as i64).to_string());
        if let Some(min) = limits.minimum {
            if limits.exclusive_minimum && !above(min) {
                outcome.add(self.invalid(value.clone(), &format!("should be greater than {}", shown(min))));
            } else if below(min) {
                outcome.add(self.invalid(value.clone(), &format!("should be greater than or equal to {}", shown(min))));
            }
        }
        if let Some(max) = limits.maximum {
            if limits.exclusive_maximum && !below(max) {
                outcome.add(self.invalid(value.clone(), &format!("should be less than {}", shown(max))));
            } else if above(max) {
                outcome.add(self.invalid(value.clone(), &format!("should be less than or equal to {}", shown(max))));
            }
        }
        outcome.matches += 2;
    }

    fn list(&mut self, list: &[Value], schema: &Schema, old: Option<Old<'_>>, outcome: &mut Outcome) {
        if let Some(items) = &schema.items {
            for (index, item) in list.iter().enumerate() {
                let old = old.and_then(|old| old.item(item));
                let result = self.within(&["[", &index.to_string(), "]"], |run| run.node(item, items, old));
                outcome.merge(result);
            }
        }
        let (limits, count) = (&schema.limits, list.len() as u64);
        if let Some(min) = limits.min_items.filter(|min| count < *min) {
            outcome.add(self.invalid(count, &format!("should have at least {min} items")));
        }
        if let Some(max) = limits.max_items.filter(|max| count > *max) {
            outcome.add(FieldError::too_many(self.path(), list.len(), max as usize));
        }
        if limits.unique_items && list.iter().enumerate().any(|(i, item)| list[..i].contains(item)) {
            outcome.add(self.invalid("", "shouldn't contain duplicates"));
        }
        outcome.matches += 2;
    }

    fn enumeration(&self, value: &Value, schema: &Schema, outcome: &mut Outcome) {
        let Some(allowed) = &schema.limits.enumeration else { return };
        if allowed.iter().any(|one| !value.is_null() && same(value, one)) {
            return;
        }
        let names: Vec<String> = allowed
            .iter()
            .map(|one| one.as_str().map_or_else(|| format!("{:?}", one.to_string()), |s| format!("{s:?}")))
            .collect();
        outcome.add(FieldError {
            kind: ErrorKind::NotSupported,
            path: self.path(),
            value: Some(value.clone()),
            detail: format!("supported values: {}", names.join(", ")),
        });
    }

    fn object(
        &mut self,
        map: &serde_json::Map<String, Value>,
        schema: &Schema,
        old: Option<Old<'_>>,
        outcome: &mut Outcome,
    ) {
        let (limits, count) = (&schema.limits, map.len() as u64);
        if let Some(min) = limits.min_properties.filter(|min| count < *min) {
            outcome.add(self.invalid(count, &format!("should have at least {min} properties")));
        }
        if let Some(max) = limits.max_properties.filter(|max| count > *max) {
            outcome.add(FieldError::too_many(self.path(), map.len(), max as usize));
        }
        for (key, value) in map.iter().filter(|(key, _)| !schema.properties.contains_key(*key)) {
            if schema.forbid_additional {
                let detail = format!("{}.{key} in body is a forbidden property", self.name);
                outcome.add(FieldError::invalid(self.path(), key.as_str(), detail));
            } else if let Some(values) = &schema.additional {
                let old = old.and_then(|old| old.field(key));
                outcome.merge(self.within(&[".", key], |run| run.node(value, values, old)));
            }
        }
        for (name, property) in &schema.properties {
            if let Some(value) = map.get(name) {
                let dot = if self.name.is_empty() { "" } else { "." };
                let old = old.and_then(|old| old.field(name));
                outcome.merge(self.within(&[dot, name], |run| run.node(value, property, old)));
            }
        }
        for name in schema.required.iter().filter(|name| !map.contains_key(*name)) {
            outcome.add(FieldError::required(self.path_of(&format!("{}.{name}", self.name)), ""));
        }
        outcome.matches += 1;
    }
}

fn type_name(ty: Type) -> &'static str {
    match ty {
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::IntOrString => "integer,string",
        Type::Any => "",
    }
}

/// What Go calls the format of a decoded number.
fn go_format(json_type: &str) -> &'static str {
    match json_type {
        "integer" => "int64",
        "number" => "float64",
        _ => "",
    }
}

/// The format, if it is one that is checked for this type.
fn checked_format(schema: &Schema) -> Option<&str> {
    let format = schema.format.as_deref()?;
    let known = match schema.ty {
        Type::Any | Type::String => formats::is_known(format),
        Type::Integer => matches!(format, "int32" | "int64"),
        Type::Number => matches!(format, "float" | "double"),
        _ => false,
    };
    known.then_some(format)
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.is_finite() && n.fract() == 0.0)
}

fn is_multiple(number: f64, factor: f64) -> bool {
    if factor <= 0.0 {
        return false;
    }
    let quotient = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    quotient.fract() == 0.0
}

/// Equality of values where 1 and 1.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => a == b || a.as_f64() == b.as_f64(),
        _ => a == b,
    }
}

#[cfg(test)]
#[path = "validate_tests.rs"]
mod tests;
