//! Expressions that belong to no schema, such as the conditions of webhooks: their variables are plain JSON.

use std::fmt;

use cel::Program;
use serde_json::Value;

use super::check::{self, Ty};
use super::eval::{Eval, Meter};
use super::functions::Kind;
use super::value::{Fault, Val};
use super::{RULE_COST_LIMIT, cel_go_layout, program};

/// A compiled expression over variables that hold any JSON.
pub struct Expression {
    source: String,
    program: Program,
}

impl Expression {
    /// Compiles `source`; it may mention the `variables` and nothing else, and must be able to give a truth value.
    pub fn compile(source: &str, variables: &[&str]) -> Result<Self, String> {
        let program = program::parse(source).map_err(|errors| cel_go_layout(&errors))?;
        let types = variables.iter().map(|name| (*name, Ty::Known(Kind::Any))).collect();
        let gives_truth = matches!(check::check(&program, types)?, Ty::Known(Kind::Bool | Kind::Any));
        if !gives_truth {
            return Err("must evaluate to bool".to_owned());
        }
        Ok(Self { source: source.to_owned(), program })
    }

    /// The expression as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the expression holds for these values of its variables. What it may spend is bounded as that
    /// of a rule is.
    pub fn holds(&self, variables: &[(&str, &Value)]) -> Result<bool, String> {
        let values = variables.iter().map(|(name, value)| (*name, Val::dynamic(value))).collect();
        let mut meter = Meter::new(RULE_COST_LIMIT);
        match Eval::new(values, &mut meter).run(self.program.expression()) {
            Ok(Val::Bool(holds)) => Ok(holds),
            Ok(other) => Err(format!("expected bool, got {}", other.type_name())),
            Err(Fault::Error(what)) => Err(what),
            Err(Fault::CostLimit) => Err("operation cancelled: actual cost limit exceeded".to_owned()),
        }
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_ask_about_plain_json() {
        let object =
            json!({"metadata": {"labels": {"a/b": "c"}, "name": "n"}, "spec": {"list": [{"n": 1}, {"n": 2.5}]}});
        let request = json!({"operation": "CREATE", "userInfo": {"groups": ["system:nodes"]}});
        let holds = |source: &str| {
            let expression = Expression::compile(source, &["object", "request"]).unwrap();
            expression.holds(&[("object", &object), ("request", &request)])
        };
        for source in [
            "request.operation == 'CREATE' && object.metadata.name == 'n'",
            "object.metadata.labels['a/b'] == 'c'",
            "has(object.metadata.labels) && !has(object.metadata.annotations)",
            "object.spec.list.exists(x, x.n > 2)",
            "'system:nodes' in request.userInfo.groups",
            "object.spec.list == [{'n': 1}, {'n': 2.5}]",
            "type(object.spec.list[0].n) == int && type(object.spec) == map",
        ] {
            assert_eq!(holds(source), Ok(true), "{source}");
        }
        assert_eq!(holds("object.nope == 1"), Err("no such key: nope".to_owned()));
        assert!(Expression::compile("other == 1", &["object"]).is_err());
        assert!(Expression::compile("1 + 1", &[]).is_err());
    }
}
