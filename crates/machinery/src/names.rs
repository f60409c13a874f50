//! Which strings may name things: DNS labels and subdomains, label keys and values, generated names.
//!
//! Every check returns the sentences that Kubernetes prints, and an empty list when the value is fine, so
//! that a caller only has to say which field it looked at. The expressions are matched by hand: names are
//! checked on every write, and an empty `Vec` costs nothing.

/// A DNS label, and everything else that ends up as one.
pub const LABEL_MAX_BYTES: usize = 63;
/// A DNS name without its root.
pub const SUBDOMAIN_MAX_BYTES: usize = 253;
/// Keys and values of all annotations of an object together.
pub const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;
/// Random characters that the server appends to `generateName`.
pub const GENERATED_SUFFIX_BYTES: usize = 5;
/// Letters of generated names: no vowels, so that no words appear, and nothing that is easily misread.
pub const GENERATED_ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";
/// What `fieldManager` may be long.
pub const FIELD_MANAGER_MAX_BYTES: usize = 128;

const LABEL_FMT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
const SUBDOMAIN_FMT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const LABEL_1035_FMT: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_1035_RULE: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character";
const KEY_FMT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const KEY_RULE: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const VALUE_FMT: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const CONFIG_KEY_FMT: &str = "[-._a-zA-Z0-9]+";
const CONFIG_KEY_RULE: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";

/// How the name of a kind's objects is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum NameRule {
    /// Most kinds, all custom resources.
    #[default]
    Subdomain,
    /// Namespaces.
    Label,
    /// Services.
    Label1035,
    /// RBAC kinds: whatever can be one segment of a path.
    PathSegment,
}

impl NameRule {
    /// What is wrong with `name`; a `prefix` (`generateName`) may end in a dash.
    pub fn check(self, name: &str, prefix: bool) -> Vec<String> {
        if self == Self::PathSegment {
            return path_segment(name, prefix);
        }
        let masked;
        let name = match name.strip_suffix('-') {
            Some(rest) if prefix && !rest.is_empty() => {
                let end = rest.char_indices().next_back().map_or(0, |(at, _)| at);
                masked = format!("{}a", &rest[..end]);
                &masked
            }
            _ => name,
        };
        match self {
            Self::Subdomain => dns1123_subdomain(name),
            Self::Label => dns1123_label(name),
            Self::Label1035 => dns1035_label(name),
            Self::PathSegment => unreachable!("handled above"),
        }
    }
}

/// A DNS-1123 label: namespaces, containers, volumes.
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX_BYTES {
        errors.push(max_characters(LABEL_MAX_BYTES));
    }
    if !is_label(value) {
        errors.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            expression(LABEL_RULE, LABEL_FMT, &["my-name", "123-abc"])
        });
    }
    errors
}

/// A DNS-1123 subdomain: the names of most objects, groups, drivers.
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors.push(max_characters(SUBDOMAIN_MAX_BYTES));
    }
    if !is_subdomain(value) {
        errors.push(expression(SUBDOMAIN_RULE, SUBDOMAIN_FMT, &["example.com"]));
    }
    errors
}

/// A DNS-1035 label: starts with a letter; services, CRD names.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX_BYTES {
        errors.push(max_characters(LABEL_MAX_BYTES));
    }
    if !is_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(expression(LABEL_1035_RULE, LABEL_1035_FMT, &["my-name", "abc-123"]));
    }
    errors
}

/// A qualified name: an optional DNS subdomain and `/`, then a name. Label keys, finalizers, resource names.
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut parts = value.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > SUBDOMAIN_MAX_BYTES {
                    errors.push(format!("prefix part {}", max_bytes(SUBDOMAIN_MAX_BYTES)));
                }
                if !is_subdomain(prefix) {
                    let rule = expression(SUBDOMAIN_RULE, SUBDOMAIN_FMT, &["example.com"]);
                    errors.push(format!("prefix part {rule}"));
                }
            }
            name
        }
        _ => {
            let rule = expression(KEY_RULE, KEY_FMT, &["MyName", "my.name", "123-abc"]);
            errors.push(format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX_BYTES {
        errors.push(format!("name part {}", max_bytes(LABEL_MAX_BYTES)));
    }
    if !is_key(name) {
        let rule = expression(KEY_RULE, KEY_FMT, &["MyName", "my.name", "123-abc"]);
        errors.push(format!("name part {rule}"));
    }
    errors
}

/// The value of a label; may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX_BYTES {
        errors.push(max_bytes(LABEL_MAX_BYTES));
    }
    if !value.is_empty() && !is_key(value) {
        errors.push(expression(VALUE_RULE, VALUE_FMT, &["MyValue", "my_value", "12345"]));
    }
    errors
}

/// A key of a ConfigMap or Secret: it may become a file name.
pub fn config_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors.push(max_characters(SUBDOMAIN_MAX_BYTES));
    }
    if value.is_empty() || !value.bytes().all(is_key_byte) {
        errors.push(expression(CONFIG_KEY_RULE, CONFIG_KEY_FMT, &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." => errors.push("must not be '.'".to_owned()),
        ".." => errors.push("must not be '..'".to_owned()),
        _ if value.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// The name of a container's port (RFC 6335).
pub fn port_name(value: &str) -> Vec<String> {
    const MAX: usize = 15;
    let mut errors = Vec::new();
    if value.len() > MAX {
        errors.push(max_characters(MAX));
    }
    if value.is_empty() || !value.bytes().all(is_label_byte) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// One segment of a URL path.
pub fn path_segment(value: &str, prefix: bool) -> Vec<String> {
    if !prefix && (value == "." || value == "..") {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].into_iter().filter(|part| value.contains(part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// The name that `generateName: base` becomes; `random` is [`GENERATED_SUFFIX_BYTES`] letters of
/// [`GENERATED_ALPHABET`]. The base is cut so that the result stays a DNS label.
pub fn generate_name(base: &str, random: &str) -> String {
    let mut end = base.len().min(LABEL_MAX_BYTES - GENERATED_SUFFIX_BYTES);
    while !base.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{random}", &base[..end])
}

fn is_label_byte(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'
}

fn is_key_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

fn is_label(value: &str) -> bool {
    !value.is_empty() && !value.starts_with('-') && !value.ends_with('-') && value.bytes().all(is_label_byte)
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_key(value: &str) -> bool {
    let bytes = value.as_bytes();
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().copied().all(is_key_byte)
}

/// Names count characters, label keys and values count bytes: two generations of the same check upstream.
fn max_characters(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn max_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn expression(rule: &str, fmt: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{fmt}')", examples.join(" or "))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    type Check = fn(&str) -> Vec<String>;

    #[test]
    fn accepted_and_refused() {
        let long = "a".repeat(64);
        let cases: [(Check, &[&str], &[&str]); 5] = [
            (dns1123_label, &["a", "0", "a-b", "a--1"], &["", "-a", "a-", "A", "a.b", "a_b", &long]),
            (dns1123_subdomain, &["a", "a.b", "0.a-b.c"], &["", ".", "a..b", "a.-b", "A.b", "a.b."]),
            (dns1035_label, &["a", "a-0"], &["", "0a", "a.b", "-a", &long]),
            (
                qualified_name,
                &["a", "A_.-b", "example.com/MyName", "0"],
                &["", "/a", "a/", "a/b/c", "-a", "E/a", &long],
            ),
            (label_value, &["", "a", "A_.-b"], &["-", "a b", "a/", &long]),
        ];
        for (check, good, bad) in cases {
            for value in good {
                assert_eq!(check(value), Vec::<String>::new(), "{value:?}");
            }
            for value in bad {
                assert!(!check(value).is_empty(), "{value:?} must be refused");
            }
        }
    }

    #[test]
    fn sentences() {
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns1123_subdomain("A"),
            [
                "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
            ]
        );
        assert_eq!(
            dns1123_label(&"a".repeat(64)),
            ["must be no more than 63 characters"],
            "names are counted in characters"
        );
        assert_eq!(label_value(&"a".repeat(64)), ["must be no more than 63 bytes"], "labels are counted in bytes");
        assert_eq!(
            qualified_name("a/b/c"),
            [
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ]
        );
        assert_eq!(qualified_name("example.com/").first().map(String::as_str), Some("name part must be non-empty"));
    }

    #[test]
    fn prefixes_may_end_in_a_dash() {
        for rule in [NameRule::Subdomain, NameRule::Label, NameRule::Label1035] {
            assert!(rule.check("web-", true).is_empty());
            assert!(!rule.check("web-", false).is_empty());
            assert!(!rule.check("-", true).is_empty());
            assert!(!rule.check("Ä-", false).is_empty());
        }
        assert!(NameRule::PathSegment.check("system:node", false).is_empty());
        assert_eq!(NameRule::PathSegment.check("a/b%", false), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(NameRule::PathSegment.check("..", false), ["may not be '..'"]);
        assert!(NameRule::PathSegment.check("..", true).is_empty());
    }

    #[test]
    fn generated_names_fit_a_label() {
        assert_eq!(generate_name("web-", "x2x4z"), "web-x2x4z");
        let name = generate_name(&"a".repeat(100), "x2x4z");
        assert_eq!((name.len(), &name[58..]), (63, "x2x4z"));
        assert_eq!(generate_name(&"ä".repeat(60), "x2x4z").len(), 63);
    }

    #[test]
    fn config_keys_are_file_names() {
        assert!(config_key("tls.crt").is_empty() && config_key(".hidden").is_empty());
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert_eq!(config_key("..data"), ["must not start with '..'"]);
        assert!(!config_key("a/b").is_empty() && !config_key("").is_empty());
    }

    proptest! {
        /// The expression in the message is the oracle for the code that replaced it.
        #[test]
        fn code_and_printed_expression_agree(value in "[-a-zA-Z0-9_./]{0,12}") {
            let whole = |fmt: &str| Regex::new(&format!("^(?:{fmt})$")).unwrap().is_match(&value);
            prop_assert_eq!(dns1123_label(&value).is_empty(), whole(LABEL_FMT));
            prop_assert_eq!(dns1123_subdomain(&value).is_empty(), whole(SUBDOMAIN_FMT));
            prop_assert_eq!(dns1035_label(&value).is_empty(), whole(LABEL_1035_FMT));
            prop_assert_eq!(label_value(&value).is_empty(), whole(VALUE_FMT));
            prop_assert_eq!(is_key(&value), whole(KEY_FMT));
        }

        #[test]
        fn any_text_is_checked_without_panic(value in any::<String>(), prefix in any::<bool>()) {
            for rule in [NameRule::Subdomain, NameRule::Label, NameRule::Label1035, NameRule::PathSegment] {
                rule.check(&value, prefix);
            }
            qualified_name(&value);
            config_key(&value);
            port_name(&value);
            generate_name(&value, "bbbbb");
        }
    }
}
