//! `matchConditions`: expressions that decide, before any call, whether a webhook wants to see a request.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::{Context, Env, Program};
use serde_json::Value;

use super::super::Request;
use super::config::Invocation;
use super::review;
use crate::auth::text;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// One condition, compiled when its configuration is read.
#[derive(Debug)]
pub(super) struct Condition {
    expression: String,
    program: Result<Program, String>,
}

impl Condition {
    pub(super) fn read(condition: &Value) -> Self {
        let expression = text(condition, "/expression").to_owned();
        let program = ENVIRONMENT.compile(&expression).map_err(|errors| errors.to_string());
        Self { expression, program }
    }

    fn holds(&self, variables: &Context<'_, '_>) -> Result<bool, String> {
        let failed =
            |error: &dyn std::fmt::Display| format!("expression '{}' resulted in error: {error}", self.expression);
        let program = self.program.as_ref().map_err(|error| failed(error))?;
        match program.execute(variables).map_err(|error| failed(&error))? {
            cel::Value::Bool(holds) => Ok(holds),
            _ => Err(failed(&"it does not evaluate to bool")),
        }
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
        for hidden in ["uid", "object", "oldObject"] {
            fields.remove(hidden);
        }
    }
    let mut variables = Context::with_env(ENVIRONMENT.clone());
    for (name, value) in [("object", &object), ("oldObject", &old_object), ("request", &asked)] {
        variables.add_variable_from_value(name, to_cel(value));
    }
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

/// Whole numbers are `int`, as in Kubernetes.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(value) => cel::Value::Bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => cel::Value::Int(whole),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(list) => cel::Value::List(Arc::new(list.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let map: HashMap<Key, cel::Value> =
                fields.iter().map(|(key, value)| (Key::String(Arc::new(key.clone())), to_cel(value))).collect();
            cel::Value::Map(Map { map: Arc::new(map) })
        }
    }
}
