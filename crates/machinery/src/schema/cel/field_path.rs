//! The JSON paths of `fieldPath` and `selectableFields`: names and quoted keys, nothing else.

use crate::field::Path;
use crate::schema::Schema;

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The path below the node that it starts from.
    pub path: Vec<Step>,
    pub schema: &'a Schema,
}

/// One step: into a field, or to the value of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Field(String),
    Key(String),
}

impl Found<'_> {
    /// The path as errors print it, below `start`.
    pub(crate) fn below(&self, start: &Path) -> Path {
        self.path.iter().fold(start.clone(), |path, step| match step {
            Step::Field(name) => path.child(name),
            Step::Key(key) => path.key(key),
        })
    }
}

/// Follows `json_path` (`.spec.names['a.b']`) from `schema`; the error says why it leads nowhere.
pub(crate) fn resolve<'a>(json_path: &str, schema: &'a Schema, brackets: bool) -> Result<Found<'a>, String> {
    let mut found = Found { path: Vec::new(), schema };
    let mut rest = json_path;
    while let Some(first) = rest.chars().next() {
        let name;
        (name, rest) = match first {
            '.' => field(&rest[1..])?,
            '[' if brackets => key(&rest[1..])?,
            '[' => return Err("array notation is not allowed".to_owned()),
            _ => return Err(format!("expected [ or . but got: {}", token(rest))),
        };
        let (next, step) = if found.schema.properties.is_empty() {
            (found.schema.additional.as_ref(), Step::Key(name))
        } else {
            (found.schema.properties.get(&name), Step::Field(name))
        };
        found.schema = next.ok_or("does not refer to a valid field")?.resolve();
        found.path.push(step);
    }
    Ok(found)
}

/// Text up to the next delimiter, or the delimiter.
fn token(text: &str) -> &str {
    match text.find(['.', '[', ']']) {
        Some(0) => &text[..1],
        Some(at) => &text[..at],
        None => text,
    }
}

fn field(text: &str) -> Result<(String, &str), String> {
    if text.is_empty() {
        return Err("unexpected end of JSON path".to_owned());
    }
    let name = token(text);
    Ok((name.to_owned(), &text[name.len()..]))
}

fn key(text: &str) -> Result<(String, &str), String> {
    if text.is_empty() {
        return Err("unexpected end of JSON path".to_owned());
    }
    let quoted =
        text.strip_prefix('\'').ok_or_else(|| format!("expected single quoted string but got {}", token(text)))?;
    let mut name = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' => {
                let after = &quoted[at + 1..];
                let closed = after.strip_prefix(']');
                return match closed {
                    Some(rest) => Ok((name, rest)),
                    None if after.is_empty() => Err("unexpected end of JSON path".to_owned()),
                    None => Err(format!("expected ] but got {}", token(after))),
                };
            }
            '\\' => match chars.next() {
                Some((_, escaped)) => name.push(escaped),
                None => break,
            },
            _ => name.push(c),
        }
    }
    Err(format!("expected single quoted string but got {text}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::schema::compile;

    fn schema() -> std::sync::Arc<Schema> {
        compile(&json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "a": {"type": "string"}, "x.y": {"type": "string"},
            "map": {"type": "object", "additionalProperties": {"type": "object",
                "properties": {"b": {"type": "integer"}}}}}}}}))
        .unwrap()
    }

    #[test]
    fn paths_lead_to_fields() {
        let schema = schema();
        for (path, want) in [
            (".spec.a", "root.spec.a"),
            (".spec['a']", "root.spec.a"),
            (".spec['x.y']", "root.spec.x.y"),
            (".spec.map['k/v'].b", "root.spec.map[k/v].b"),
            (".spec.map.key", "root.spec.map[key]"),
        ] {
            let found = resolve(path, &schema, true).unwrap();
            assert_eq!(found.below(&Path::new("root")).to_string(), want);
        }
        for (path, why) in [
            (".spec.z", "does not refer to a valid field"),
            (".spec.a.b", "does not refer to a valid field"),
            ("spec", "expected [ or . but got: spec"),
            (".", "unexpected end of JSON path"),
            (".spec[0]", "expected single quoted string but got 0"),
            (".spec['a'", "unexpected end of JSON path"),
        ] {
            assert_eq!(resolve(path, &schema, true).unwrap_err(), why, "{path}");
        }
        assert_eq!(resolve(".spec['a']", &schema, false).unwrap_err(), "array notation is not allowed");
    }

    proptest! {
        #[test]
        fn no_path_upsets_it(path in r"[.\[\]'\\a-c]{0,16}") {
            let _ = resolve(&path, &schema(), true);
        }
    }
}
