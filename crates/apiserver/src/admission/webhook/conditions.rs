//! `matchConditions`: expressions that decide, before any call, whether a webhook wants to see a request.

use serde_json::Value;
use tether_machinery::schema::cel::Expression;

use super::super::Request;
use super::config::Invocation;
use super::review;
use crate::auth::text;

/// What a condition may ask about.
const VARIABLES: [&str; 3] = ["object", "oldObject", "request"];

/// One condition, compiled when its configuration is read.
#[derive(Debug)]
pub(super) struct Condition {
    source: String,
    expression: Result<Expression, String>,
}

impl Condition {
    pub(super) fn read(condition: &Value) -> Self {
        let source = text(condition, "/expression").to_owned();
        Self { expression: Expression::compile(&source, &VARIABLES), source }
    }

    fn holds(&self, variables: &[(&str, &Value)]) -> Result<bool, String> {
        let outcome = self.expression.as_ref().map_err(Clone::clone).and_then(|e| e.holds(variables));
        outcome.map_err(|error| format!("expression '{}' resulted in error: {error}", self.source))
    }
}

/// Do all conditions hold? One that does not settles it, even if another cannot be evaluated.
pub(super) fn all_true(
    conditions: &[Condition],
    request: &Request,
    invocation: &Invocation<'_>,
) -> Result<bool, String> {
    let mut asked = review::request("", "v1", request, invocation)["request"].take();
    let (object, old_object) = (asked["object"].take(), asked["oldObject"].take());
    if let Some(fields) = asked.as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "uid" | "object" | "oldObject"));
    }
    let [object_name, old_object_name, request_name] = VARIABLES;
    let variables = [(object_name, &object), (old_object_name, &old_object), (request_name, &asked)];
    let mut errors = Vec::new();
    for condition in conditions {
        match condition.holds(&variables) {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        0 => Ok(true),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}
