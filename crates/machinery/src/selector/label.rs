//! Label selectors: `a=b,c in (d,e),!f,g!=h`, and the object form that controllers and policies carry.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use super::lexer::{Token, Word, words};
use super::{MAX_SELECTOR_BYTES, SelectorError};
use crate::field::{FieldError, Path};
use crate::names;

/// Something that has labels to look up.
pub trait Labels {
    fn label(&self, key: &str) -> Option<&str>;
}

impl Labels for Map<String, Value> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

/// A labels object; null stands for no labels.
impl Labels for Value {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key)?.as_str()
    }
}

impl Labels for BTreeMap<String, String> {
    fn label(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<L: Labels> Labels for Option<&L> {
    fn label(&self, key: &str) -> Option<&str> {
        self.and_then(|labels| labels.label(key))
    }
}

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    Exists,
    DoesNotExist,
    GreaterThan,
    LessThan,
}

const BINARY_OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

impl Requirement {
    /// Checks key, operator and values against each other.
    pub fn new(key: impl Into<String>, operator: Operator, values: Vec<String>) -> Result<Self, SelectorError> {
        let key = key.into();
        let mut errors = Vec::new();
        if let Some(e) = key_error(&key, Path::new("key")) {
            errors.push(e);
        }
        let path = Path::new("values");
        if let Some(detail) = wrong_count(operator, values.len()) {
            let shown = if values.is_empty() { Value::Null } else { values.clone().into() };
            errors.push(FieldError::invalid(path.clone(), shown, detail));
        }
        for (i, value) in values.iter().enumerate() {
            if matches!(operator, Operator::GreaterThan | Operator::LessThan) && value.parse::<i64>().is_err() {
                let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
                errors.push(FieldError::invalid(path.index(i), value.as_str(), detail));
            }
        }
        for (i, value) in values.iter().enumerate() {
            let wrong = names::label_value(value);
            if !wrong.is_empty() {
                errors.push(FieldError::invalid(path.index(i).key(&key), value.as_str(), wrong.join("; ")));
            }
        }
        if errors.is_empty() { Ok(Self { key, operator, values }) } else { Err(aggregate(&errors)) }
    }

    /// Whether `labels` satisfy it.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        let label = labels.label(&self.key);
        let listed = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => label.is_some_and(listed),
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(listed),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.integers(label).is_some_and(|(label, bound)| label > bound),
            Operator::LessThan => self.integers(label).is_some_and(|(label, bound)| label < bound),
        }
    }

    fn integers(&self, label: Option<&str>) -> Option<(i64, i64)> {
        Some((label?.parse().ok()?, self.values.first()?.parse().ok()?))
    }
}

fn wrong_count(operator: Operator, count: usize) -> Option<&'static str> {
    let (right, detail) = match operator {
        Operator::In | Operator::NotIn => (count > 0, "for 'in', 'notin' operators, values set can't be empty"),
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => {
            (count == 1, "exact-match compatibility requires one single value")
        }
        Operator::Exists | Operator::DoesNotExist => {
            (count == 0, "values set must be empty for exists and does not exist")
        }
        Operator::GreaterThan | Operator::LessThan => {
            (count == 1, "for 'Gt', 'Lt' operators, exactly one value is required")
        }
    };
    (!right).then_some(detail)
}

fn key_error(key: &str, path: Path) -> Option<FieldError> {
    let wrong = names::qualified_name(key);
    (!wrong.is_empty()).then(|| FieldError::invalid(path, key, wrong.join("; ")))
}

fn aggregate(errors: &[FieldError]) -> SelectorError {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    SelectorError::Invalid(match texts.as_slice() {
        [one] => one.clone(),
        _ => format!("[{}]", texts.join(", ")),
    })
}

/// The text that parses to the same requirement.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let (key, values) = (&self.key, values.join(","));
        match self.operator {
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// All of its requirements, or nothing at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// `None` selects no object: the object form distinguishes "no selector" from "an empty one".
    requirements: Option<Vec<Requirement>>,
}

impl LabelSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self { requirements: Some(Vec::new()) }
    }

    /// Selects no object.
    pub fn nothing() -> Self {
        Self { requirements: None }
    }

    /// Selects by these requirements, which are sorted by key.
    pub fn new(mut requirements: Vec<Requirement>) -> Self {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements: Some(requirements) }
    }

    /// Parses what a client put into `labelSelector`.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MAX_SELECTOR_BYTES {
            return Err(SelectorError::TooLong);
        }
        Parser { words: words(text), at: 0 }.selector()
    }

    /// Reads a `metav1.LabelSelector`; null selects nothing, `{}` everything.
    pub fn from_object(selector: &Value) -> Result<Self, SelectorError> {
        if selector.is_null() {
            return Ok(Self::nothing());
        }
        let mut requirements = Vec::new();
        for (key, value) in object(selector, "matchLabels")?.into_iter().flatten() {
            requirements.push(Requirement::new(key, Operator::Equals, vec![string(value, "matchLabels")?])?);
        }
        for expression in list(selector, "matchExpressions")? {
            let name = string(&expression["operator"], "operator")?;
            let operator = match name.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                _ => return Err(SelectorError::Operator(name)),
            };
            let values = list(expression, "values")?.iter().map(|v| string(v, "values")).collect::<Result<_, _>>()?;
            requirements.push(Requirement::new(string(&expression["key"], "key")?, operator, values)?);
        }
        Ok(Self::new(requirements))
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.requirements.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        self.requirements.as_ref().is_some_and(|all| all.iter().all(|r| r.matches(labels)))
    }

    /// The requirements, sorted by key; none for [`Self::nothing`], which [`Self::is_everything`] tells apart.
    pub fn requirements(&self) -> &[Requirement] {
        self.requirements.as_deref().unwrap_or_default()
    }
}

impl FromStr for LabelSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements().iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

fn wrong_type(field: &str, wanted: &str) -> SelectorError {
    SelectorError::Invalid(format!("{field}: Invalid value: must be {wanted}"))
}

fn object<'a>(from: &'a Value, field: &str) -> Result<Option<&'a Map<String, Value>>, SelectorError> {
    match &from[field] {
        Value::Null => Ok(None),
        Value::Object(map) => Ok(Some(map)),
        _ => Err(wrong_type(field, "an object")),
    }
}

fn list<'a>(from: &'a Value, field: &str) -> Result<&'a [Value], SelectorError> {
    match &from[field] {
        Value::Null => Ok(&[]),
        Value::Array(list) => Ok(list),
        _ => Err(wrong_type(field, "a list")),
    }
}

fn string(value: &Value, field: &str) -> Result<String, SelectorError> {
    match value {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        _ => Err(wrong_type(field, "a string")),
    }
}

/// Recursive descent without recursion: the grammar has no nesting.
struct Parser {
    /// Ends with [`Token::End`], which is never passed.
    words: Vec<Word>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.words[self.at].token
    }

    fn text(&self) -> String {
        self.words[self.at].text.clone()
    }

    fn next(&mut self) -> Word {
        let word = self.words[self.at].clone();
        self.at = (self.at + 1).min(self.words.len() - 1);
        word
    }

    /// `in` and `notin` are ordinary words where no operator can stand.
    fn peek_name(&self) -> Token {
        match self.peek() {
            Token::In | Token::NotIn => Token::Identifier,
            other => other,
        }
    }

    fn unexpected<T>(found: String, expected: &'static str) -> Result<T, SelectorError> {
        Err(SelectorError::Unexpected { found, expected })
    }

    fn selector(mut self) -> Result<LabelSelector, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek_name() {
                Token::End => break,
                Token::Identifier | Token::Not => {}
                _ => return Self::unexpected(self.text(), "!, identifier, or 'end of string'"),
            }
            requirements.push(self.requirement().map_err(|e| SelectorError::Requirement(Box::new(e)))?);
            match self.peek() {
                Token::End => break,
                Token::Comma => {
                    self.next();
                    if !matches!(self.peek_name(), Token::Identifier | Token::Not) {
                        return Self::unexpected(self.text(), "identifier after ','");
                    }
                }
                _ => return Self::unexpected(self.text(), "',' or 'end of string'"),
            }
        }
        Ok(LabelSelector::new(requirements))
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let negated = self.peek() == Token::Not;
        if negated {
            self.next();
        }
        if self.peek_name() != Token::Identifier {
            return Self::unexpected(self.text(), "identifier");
        }
        let key = self.next().text;
        if let Some(e) = key_error(&key, Path::root()) {
            return Err(SelectorError::Invalid(e.to_string()));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek(), Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => BTreeSet::from([self.value()?]),
        };
        Requirement::new(key, operator, values.into_iter().collect())
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        let word = self.next();
        Ok(match word.token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return Self::unexpected(word.text, BINARY_OPERATORS),
        })
    }

    /// A single value; none at all is the empty string (`a=`).
    fn value(&mut self) -> Result<String, SelectorError> {
        match self.peek_name() {
            Token::End | Token::Comma => Ok(String::new()),
            Token::Identifier => Ok(self.next().text),
            _ => Self::unexpected(self.text(), "identifier"),
        }
    }

    /// `(a,b)`; an empty place (`()`, `(,a)`, `(a,)`) is the empty string.
    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        if self.peek() != Token::Open {
            return Err(SelectorError::NoValues { found: self.text() });
        }
        self.next();
        if !matches!(self.peek_name(), Token::Identifier | Token::Comma | Token::Close) {
            return Self::unexpected(self.text(), "',', ')' or identifier");
        }
        let mut values = BTreeSet::new();
        loop {
            match self.peek_name() {
                Token::Identifier => {
                    values.insert(self.next().text);
                }
                Token::Comma | Token::Close => {
                    values.insert(String::new());
                }
                _ => return Self::unexpected(self.text(), "',', or identifier"),
            }
            match self.next() {
                Word { token: Token::Comma, .. } => {}
                Word { token: Token::Close, .. } => return Ok(values),
                Word { text, .. } => return Self::unexpected(text, "',' or ')'"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn selects(selector: &str, labels: &Value) -> bool {
        LabelSelector::parse(selector).unwrap().matches(labels)
    }

    #[test]
    fn matching() {
        let web = json!({"app": "web", "tier": "front", "size": "7"});
        for yes in [
            "",
            "app",
            "app=web",
            "app==web",
            "app in (web,db)",
            "app notin (db)",
            "other notin (db)",
            "other!=x",
            "!other",
            "app!=db,tier=front",
            "size>6",
            "size<8",
            " app = web , tier in ( front , back ) ",
            "app in (,web)",
        ] {
            assert!(selects(yes, &web), "{yes}");
        }
        for no in ["app=db", "!app", "other", "other=", "app in ()", "app notin (web)", "size>7", "app>1", "app=web,x"]
        {
            assert!(!selects(no, &web), "{no}");
        }
        assert!(selects("!a,b!=c", &Value::Null), "an object without labels");
        assert!(selects("a=", &json!({"a": ""})));
        assert!(selects("in in (in,notin)", &json!({"in": "notin"})), "keywords are names where names stand");
    }

    #[test]
    fn canonical_text() {
        for (text, canonical) in [
            ("", ""),
            ("b,a", "a,b"),
            ("a in (z,x,x)", "a in (x,z)"),
            ("a notin (b)", "a notin (b)"),
            ("!a", "!a"),
            ("a == b", "a==b"),
            ("a=", "a="),
            ("a in ()", "a in ()"),
            ("a in (,)", "a in ()"),
            ("x>1,y<2", "x>1,y<2"),
            ("a in (x,,y)", "a in (,x,y)"),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().to_string(), canonical, "{text}");
        }
    }

    #[test]
    fn errors_are_worded_as_kubernetes_words_them() {
        for (text, message) in [
            ("a=b,", "found '', expected: identifier after ','"),
            ("=", "found '=', expected: !, identifier, or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (=", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
            ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
            ("a=)", "unable to parse requirement: found ')', expected: identifier"),
            (
                "x>a",
                "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            (
                "-a=b",
                "unable to parse requirement: <nil>: Invalid value: \"-a\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')",
            ),
            (
                "a=-b",
                "unable to parse requirement: values[0][a]: Invalid value: \"-b\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
            ),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), message, "{text}");
        }
        assert_eq!(LabelSelector::parse(&"a".repeat(MAX_SELECTOR_BYTES + 1)), Err(SelectorError::TooLong));
    }

    #[test]
    fn the_object_form() {
        let selector = LabelSelector::from_object(&json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["front", "back"]},
                {"key": "old", "operator": "DoesNotExist"},
            ],
        }))
        .unwrap();
        assert_eq!(selector.to_string(), "app=web,!old,tier in (back,front)");
        assert!(selector.matches(&json!({"app": "web", "tier": "back"})));
        assert!(!selector.matches(&json!({"app": "web", "tier": "back", "old": ""})));

        assert!(!LabelSelector::from_object(&Value::Null).unwrap().matches(&json!({})));
        assert!(LabelSelector::from_object(&json!({})).unwrap().matches(&json!({})));
        for (object, message) in [
            (
                json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
                "\"Is\" is not a valid label selector operator",
            ),
            (
                json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
                "values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty",
            ),
            (json!({"matchLabels": {"a": 1}}), "matchLabels: Invalid value: must be a string"),
        ] {
            assert_eq!(LabelSelector::from_object(&object).unwrap_err().to_string(), message);
        }
    }

    proptest! {
        #[test]
        fn printing_and_parsing_agree(text in "(!?[a-c]{1,2}|[a-c](=|==|!=)[a-c]?|[a-c] (not)?in \\([a-c]{0,2}(,[a-c]?){0,3}\\)|[a-c][<>][0-9])(,[a-c]){0,3}") {
            let selector = LabelSelector::parse(&text).unwrap();
            let printed = selector.to_string();
            prop_assert_eq!(LabelSelector::parse(&printed).unwrap().to_string(), printed);
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in "[a-c!=<>(), \\PC]{0,40}") {
            if let Ok(selector) = LabelSelector::parse(&text) {
                selector.matches(&json!({"a": "b"}));
            }
        }
    }
}
