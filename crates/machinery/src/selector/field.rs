//! Field selectors: `metadata.name=x,status.phase!=Running`.
//!
//! Which fields can be selected by is for each kind to say; here a selector is a list of terms.

use std::fmt;
use std::str::FromStr;

use super::{MAX_SELECTOR_BYTES, SelectorError};

/// How a field compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldOperator {
    Equals,
    NotEquals,
}

/// One condition on one field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    pub field: String,
    pub operator: FieldOperator,
    pub value: String,
}

impl FieldRequirement {
    /// Whether a field with this value satisfies it; a field that is not there counts as empty.
    pub fn matches(&self, value: &str) -> bool {
        (self.value == value) == (self.operator == FieldOperator::Equals)
    }
}

impl fmt::Display for FieldRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = match self.operator {
            FieldOperator::Equals => "=",
            FieldOperator::NotEquals => "!=",
        };
        write!(f, "{}{operator}{}", self.field, escape(&self.value))
    }
}

/// All of its requirements together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Parses what a client put into `fieldSelector`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_SELECTOR_BYTES {
            return Err(SelectorError::TooLong);
        }
        let mut terms = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::new();
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, operator, value)) = split_term(term) else {
                return Err(SelectorError::Term { selector: text.to_owned(), term: term.to_owned() });
            };
            requirements.push(FieldRequirement { field: field.to_owned(), operator, value: unescape(value)? });
        }
        Ok(Self { requirements })
    }

    /// A selector of one field by one value.
    pub fn equals(field: impl Into<String>, value: impl Into<String>) -> Self {
        let requirement =
            FieldRequirement { field: field.into(), operator: FieldOperator::Equals, value: value.into() };
        Self { requirements: vec![requirement] }
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The conditions, sorted by their text.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The value that `field` must have, if the selector says so.
    pub fn exact(&self, field: &str) -> Option<&str> {
        let exact = |r: &&FieldRequirement| r.field == field && r.operator == FieldOperator::Equals;
        self.requirements.iter().find(exact).map(|r| r.value.as_str())
    }
}

impl FromStr for FieldSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

/// Splits at commas that no backslash precedes; escapes stay.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits at the first operator; field names know no escapes.
fn split_term(term: &str) -> Option<(&str, FieldOperator, &str)> {
    let at = term.bytes().enumerate().position(|(i, b)| b == b'=' || (b == b'!' && term[i..].starts_with("!=")))?;
    let (field, rest) = term.split_at(at);
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, FieldOperator::NotEquals, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((field, FieldOperator::Equals, value))
}

fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

fn unescape(text: &str) -> Result<String, SelectorError> {
    let mut value = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                Some(c) => return Err(SelectorError::Escape(format!("\\{c}"))),
                None => return Err(SelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(SelectorError::Unescaped(u32::from(c))),
            _ => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn terms() {
        let selector = FieldSelector::parse("status.phase!=Running,metadata.name==x,,spec.nodeName=").unwrap();
        assert_eq!(selector.to_string(), "metadata.name=x,spec.nodeName=,status.phase!=Running");
        assert_eq!(selector.exact("metadata.name"), Some("x"));
        assert_eq!(selector.exact("status.phase"), None);
        let phase = &selector.requirements()[2];
        assert!(phase.matches("Pending") && phase.matches("") && !phase.matches("Running"));
        assert!(FieldSelector::parse("").unwrap().is_everything());
    }

    #[test]
    fn escapes_and_errors() {
        let selector = FieldSelector::parse(r"a=x\,y\=z\\").unwrap();
        assert_eq!(selector.requirements()[0].value, r"x,y=z\");
        assert_eq!(selector.to_string(), r"a=x\,y\=z\\");
        for (text, message) in [
            ("a", "invalid selector: 'a'; can't understand 'a'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            (r"a=\x", r"invalid field selector: invalid escape sequence: \x"),
            (r"a=b\", r"invalid field selector: invalid escape sequence: \"),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn any_value_survives_print_and_parse(value in any::<String>()) {
            let selector = FieldSelector::equals("metadata.name", value.clone());
            let parsed = FieldSelector::parse(&selector.to_string()).unwrap();
            prop_assert_eq!(parsed.exact("metadata.name"), Some(value.as_str()));
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in any::<String>()) {
            let _ = FieldSelector::parse(&text);
        }
    }
}
