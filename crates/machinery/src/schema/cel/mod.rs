//! Rules in schemas (`x-kubernetes-validations`), written in the Common Expression Language.
//!
//! ```text
//!  text ── program ──► tree ── check ──► types fit      (once, when a definition is created)
//!                        │
//!  object + schema ── value ──► eval ──► true, or an error for the field     (on every write)
//! ```
//!
//! A rule that mentions `oldSelf` compares with the value before an update, and is left out where there is
//! none. Rules on what an update did not touch are not held against it.

mod check;
mod convert;
mod depth;
mod escape;
mod eval;
mod expression;
pub(crate) mod field_path;
mod functions;
mod library;
mod lists;
mod operators;
mod program;
mod strings;
mod time;
mod value;

use serde_json::Value;

use super::lists::correlated;
use super::{Rule, Schema, Type};
use crate::field::{ErrorKind, FieldError, Path};
use check::Ty;
use eval::{Eval, Meter};
use functions::Kind;
use value::{Fault, Val, View};

pub use expression::Expression;
pub(crate) use program::Cached;

/// What one rule may spend on one value; Kubernetes' number, about a tenth of a second there.
const RULE_COST_LIMIT: u64 = 1_000_000;
/// What all rules together may spend on one object.
const OBJECT_COST_LIMIT: u64 = 10_000_000;
/// Bytes of a message that an expression makes.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// What a look at a rule found, before it ever runs.
#[derive(Debug, Default)]
pub struct Checked {
    /// Why the rule does not compile.
    pub rule_error: Option<String>,
    /// Why the expression of its message does not compile.
    pub message_error: Option<String>,
    /// The rule compares with the value before the update.
    pub uses_old_self: bool,
}

/// Compiles a rule of `schema`; `root` says that the node is a whole object.
pub fn check(rule: &Rule, schema: &Schema, root: bool) -> Checked {
    let mut checked = Checked::default();
    if rule.rule.trim().is_empty() {
        return checked;
    }
    let Some(this) = Ty::of(schema, view(schema, root)) else {
        checked.rule_error = Some("failed to convert to declType for CEL validation rules".to_owned());
        return checked;
    };
    let old = if rule.optional_old_self { Ty::Optional(Box::new(this.clone())) } else { this.clone() };
    let types = |source: &str, cached: &Cached, want: Kind| -> Result<bool, String> {
        let program = cached.get(source);
        let program = Result::as_ref(program).map_err(|error| cel_go_layout(error))?;
        let variables = vec![("self", this.clone()), ("oldSelf", old.clone())];
        let ty = check::check(program, variables)?;
        Ok(ty == Ty::Known(want) || ty == Ty::Known(Kind::Any))
    };
    match types(&rule.rule, &rule.program, Kind::Bool) {
        Err(errors) => checked.rule_error = Some(format!("compilation failed: {errors}")),
        Ok(false) => checked.rule_error = Some("cel expression must evaluate to a bool".to_owned()),
        Ok(true) => checked.uses_old_self = uses_old_self(rule),
    }
    if let Some(source) = rule.message_expression.as_ref().filter(|_| checked.rule_error.is_none()) {
        match types(source, &rule.message_program, Kind::Text) {
            Err(errors) => checked.message_error = Some(format!("messageExpression compilation failed: {errors}")),
            Ok(false) => checked.message_error = Some("messageExpression must evaluate to a string".to_owned()),
            Ok(true) => {}
        }
    }
    checked
}

/// The parser marks places one column further left than everyone else prints them.
fn cel_go_layout(errors: &str) -> String {
    errors.replace("\n|", "\n |")
}

fn uses_old_self(rule: &Rule) -> bool {
    let program = rule.program.get(&rule.rule);
    program.as_ref().as_ref().is_ok_and(|program| program::mentions(program.expression(), "oldSelf"))
}

fn view(schema: &Schema, root: bool) -> View {
    if root { View::Object } else { View::of(schema) }
}

/// Runs the rules of a schema on an object; `old` is the object before an update.
///
/// Objects that [`super::validate`] found wanting (a field missing, of another type, too long) are not worth
/// asking: see [`blocked`].
pub fn validate(new: &Value, old: Option<&Value>, schema: &Schema) -> Vec<FieldError> {
    run(new, old, schema, true, old.is_some(), &Path::root())
}

/// Runs the rules of a node on a value that stands at `path`; `root` says that the node is a whole object.
pub fn validate_value(new: &Value, old: Option<&Value>, schema: &Schema, root: bool, path: &Path) -> Vec<FieldError> {
    run(new, old, schema, root, false, path)
}

/// The error to report instead of running rules, if `errors` of the schema leave them nothing to stand on.
pub fn blocked(errors: &[FieldError], schema: &Schema) -> Option<FieldError> {
    use ErrorKind::{NotSupported, Required, TooLong, TooMany, TypeInvalid};
    let blocks = |error: &FieldError| matches!(error.kind, NotSupported | Required | TooLong | TooMany | TypeInvalid);
    let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    (schema.has_rules && errors.iter().any(blocks)).then(|| FieldError::invalid(Path::root(), Value::Null, why))
}

fn run(new: &Value, old: Option<&Value>, schema: &Schema, root: bool, ratchet: bool, path: &Path) -> Vec<FieldError> {
    let mut walk = Walk { errors: Vec::new(), spent: 0, out_of_budget: false, ratchet };
    let place = Place { old, unchanged: false, view: view(schema, root) };
    walk.node(new, schema, place, path);
    walk.errors
}

/// What is known about where a value stands.
#[derive(Clone, Copy)]
struct Place<'v> {
    old: Option<&'v Value>,
    /// It, or something around it, is what it was before.
    unchanged: bool,
    view: View,
}

struct Walk {
    errors: Vec<FieldError>,
    spent: u64,
    out_of_budget: bool,
    /// Forgive rules on what did not change.
    ratchet: bool,
}

impl Walk {
    fn node<'v>(&mut self, value: &'v Value, schema: &'v Schema, place: Place<'v>, path: &Path) {
        if self.out_of_budget || value.is_null() || !schema.has_rules {
            return;
        }
        let unchanged = place.unchanged || (self.ratchet && place.old == Some(value));
        let place = Place { unchanged, ..place };
        for rule in &schema.rules {
            self.rule(rule, value, schema, place, path);
            if self.out_of_budget {
                return;
            }
        }
        match value {
            Value::Array(list) => {
                let Some(items) = &schema.items else { return };
                let before = place.old.and_then(Value::as_array);
                for (index, item) in list.iter().enumerate() {
                    let old = before.and_then(|before| correlated(item, before, &schema.list));
                    let place = Place { old, unchanged, view: View::of(items) };
                    self.node(item, items, place, &path.index(index));
                }
            }
            Value::Object(map) => {
                for (name, field) in map {
                    let old = place.old.and_then(|old| old.get(name)).filter(|old| !old.is_null());
                    if let Some(known) = schema.properties.get(name) {
                        let place = Place { old, unchanged, view: place.view.of_field(name, known) };
                        self.node(field, known, place, &path.child(name));
                    } else if let Some(values) = &schema.additional {
                        let place = Place { old, unchanged, view: View::of(values) };
                        self.node(field, values, place, &path.key(name));
                    }
                }
            }
            _ => {}
        }
    }

    fn rule<'v>(&mut self, rule: &'v Rule, value: &'v Value, schema: &'v Schema, place: Place<'v>, path: &Path) {
        if rule.rule.trim().is_empty() {
            return;
        }
        let complain = |what: String| FieldError::invalid(path.clone(), type_name(schema.ty), what);
        let program = rule.program.get(&rule.rule);
        let program = match Result::as_ref(program) {
            Ok(program) => program,
            Err(error) => return self.errors.push(complain(format!("rule compile error: {error}"))),
        };
        let transition = program::mentions(program.expression(), "oldSelf");
        if transition && place.old.is_none() && !rule.optional_old_self {
            return;
        }
        let outcome = self.evaluate(program, rule, value, schema, place);
        let shown = rule_text(rule);
        match outcome {
            Ok(Val::Bool(true)) => {}
            Ok(_) => {
                let error = self.failed(rule, value, schema, place, path);
                if transition || !place.unchanged {
                    self.errors.push(error);
                }
            }
            Err(Fault::CostLimit) if self.spent > OBJECT_COST_LIMIT => {
                self.out_of_budget = true;
                self.errors.push(complain(OUT_OF_BUDGET.to_owned()));
            }
            Err(Fault::CostLimit) => {
                self.out_of_budget = true;
                let what = "operation cancelled: actual cost limit exceeded";
                self.errors.push(complain(format!(
                    "'{what}': no further validation rules will be run due to call cost exceeds limit for rule: {shown}"
                )));
            }
            Err(Fault::Error(what)) if what.starts_with("no such overload") => self.errors.push(complain(format!(
                "'{what}': call arguments did not match a supported operator, function or macro signature for rule: {shown}"
            ))),
            Err(Fault::Error(what)) => self.errors.push(complain(format!("{what} evaluating rule: {shown}"))),
        }
    }

    fn evaluate<'v>(
        &mut self,
        program: &'v cel::Program,
        rule: &Rule,
        value: &'v Value,
        schema: &'v Schema,
        place: Place<'v>,
    ) -> Result<Val<'v>, Fault> {
        let mut variables = vec![("self", Val::from_json(value, schema, place.view)?)];
        let old = place.old.map(|old| Val::from_json(old, schema, place.view)).transpose()?;
        match (old, rule.optional_old_self) {
            (old, true) => variables.push(("oldSelf", old.map_or(Val::Optional(None), Val::some))),
            (Some(old), false) => variables.push(("oldSelf", old)),
            (None, false) => {}
        }
        let mut meter = Meter::new(RULE_COST_LIMIT.min(OBJECT_COST_LIMIT.saturating_sub(self.spent)));
        let outcome = Eval::new(variables, &mut meter).run(program.expression());
        self.spent = self.spent.saturating_add(meter.used());
        outcome
    }

    /// The error of a rule that is not true, in the words that it brings along.
    fn failed<'v>(
        &mut self,
        rule: &'v Rule,
        value: &'v Value,
        schema: &'v Schema,
        place: Place<'v>,
        path: &Path,
    ) -> FieldError {
        let path = match rule.field_path.as_deref().map(|field| field_path::resolve(field, schema, true)) {
            Some(Ok(found)) => found.below(path),
            _ => path.clone(),
        };
        let detail = self.message(rule, value, schema, place).unwrap_or_else(|| match &rule.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", rule.rule.trim()),
        });
        let shown = (!matches!(schema.ty, Type::Object | Type::Array)).then(|| value.clone());
        match rule.reason.as_deref() {
            Some("FieldValueForbidden") => FieldError::forbidden(path, detail),
            Some("FieldValueRequired") => FieldError::required(path, detail),
            Some("FieldValueDuplicate") => {
                FieldError { kind: ErrorKind::Duplicate, path, value: shown, detail: String::new() }
            }
            _ => FieldError { kind: ErrorKind::Invalid, path, value: shown, detail },
        }
    }

    /// What `messageExpression` says, if it says something that can be shown on one line.
    fn message<'v>(
        &mut self,
        rule: &'v Rule,
        value: &'v Value,
        schema: &'v Schema,
        place: Place<'v>,
    ) -> Option<String> {
        let source = rule.message_expression.as_ref()?;
        let program = Result::as_ref(rule.message_program.get(source)).ok()?;
        let Ok(Val::Text(text)) = self.evaluate(program, rule, value, schema, place) else { return None };
        let text = text.trim();
        let presentable = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
        presentable.then(|| text.to_owned())
    }
}

fn rule_text(rule: &Rule) -> &str {
    rule.message.as_deref().unwrap_or(&rule.rule).trim()
}

fn type_name(ty: Type) -> &'static str {
    match ty {
        Type::Object => "object",
        Type::Array => "array",
        Type::String => "string",
        Type::Integer => "integer",
        Type::Number => "number",
        Type::Boolean => "boolean",
        Type::IntOrString | Type::Any => "",
    }
}

#[cfg(test)]
mod tests;
