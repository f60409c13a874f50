//! Names of fields that are no identifiers, and how rules write them: `__dash__`, `__namespace__`.

use std::borrow::Cow;

/// Words that the language keeps to itself.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The field that a rule means by a name; none if no field is written like that.
pub(super) fn unescape(name: &str) -> Option<Cow<'_, str>> {
    if !name.contains("__") {
        return Some(name.into());
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(start) = rest.find("__") {
        let inner = &rest[start + 2..];
        let end = inner.find("__").filter(|end| !inner[..*end].contains('_') && *end > 0);
        let Some(end) = end else {
            out.push_str(&rest[..start + 2]);
            rest = inner;
            continue;
        };
        out.push_str(&rest[..start]);
        match &inner[..end] {
            "underscores" => out.push_str("__"),
            "dot" => out.push('.'),
            "dash" => out.push('-'),
            "slash" => out.push('/'),
            word if RESERVED.contains(&word) && name.len() == end + 4 => out.push_str(word),
            _ => return None,
        }
        rest = &inner[end + 2..];
    }
    out.push_str(rest);
    Some(out.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The name that rules use for a field; none if there is no way to write it.
    fn escape(name: &str) -> Option<Cow<'_, str>> {
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        if RESERVED.contains(&name) {
            return Some(format!("__{name}__").into());
        }
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b)) {
            return None;
        }
        if !name.contains(['-', '.', '/']) && !name.contains("__") {
            return Some(name.into());
        }
        let escaped = name.replace("__", "__underscores__").replace('-', "__dash__");
        Some(escaped.replace('.', "__dot__").replace('/', "__slash__").into())
    }

    #[test]
    fn names_are_written_as_kubernetes_writes_them() {
        for (name, escaped) in [
            ("a", "a"),
            ("a_b", "a_b"),
            ("a__b", "a__underscores__b"),
            ("my-field.x/y", "my__dash__field__dot__x__slash__y"),
            ("namespace", "__namespace__"),
            ("namespaces", "namespaces"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(escaped));
            assert_eq!(unescape(escaped).as_deref(), Some(name));
        }
        for name in ["", "1a", "a b", "ä", "$ref"] {
            assert_eq!(escape(name), None, "{name}");
        }
        assert_eq!(unescape("__nope__"), None);
    }

    proptest! {
        #[test]
        fn what_can_be_written_can_be_read(name in "[a-c]{1,3}((__|[./_-])[a-c]{1,3}){0,4}") {
            let escaped = escape(&name);
            let read = unescape(escaped.as_deref().unwrap());
            prop_assert_eq!(read.as_deref(), Some(name.as_str()));
        }
    }
}
