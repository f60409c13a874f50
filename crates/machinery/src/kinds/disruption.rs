//! Pod disruption budgets: how many pods of a group may be evicted at a time.

use serde_json::{Value, json};

use super::Strategy;
use super::checks::{Problems, label_selector, non_negative};
use super::edit::{bump_generation, keep, keep_metadata, present, set, set_in};
use crate::field::{FieldError, Path};

pub(super) const STRATEGY: Strategy = Strategy {
    prepare_create: |budget, _now| {
        set(
            budget,
            "status",
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}),
        );
        set_in(budget, "metadata", "generation", 1.into());
    },
    prepare_update: |new, old| {
        keep(new, old, "status");
        bump_generation(new, old);
    },
    prepare_status: Some(|new, old, _now| {
        keep(new, old, "spec");
        keep_metadata(new, old);
    }),
    validate_create: validate,
    validate_update: |new, _old| validate(new),
    validate_status,
    ..Strategy::PLAIN
};

const POLICIES: &[&str] = &["IfHealthyBudget", "AlwaysAllow"];

fn validate(budget: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("spec");
    let spec = budget.get("spec").unwrap_or(&Value::Null);
    let given = |field: &str| present(spec, &format!("/{field}"));
    if given("minAvailable").is_some() && given("maxUnavailable").is_some() {
        problems.invalid(&path, spec.clone(), "minAvailable and maxUnavailable cannot be both set");
    }
    for field in ["minAvailable", "maxUnavailable"] {
        match given(field) {
            Some(Value::String(text)) => {
                let percent = text.strip_suffix('%').and_then(|number| number.parse::<u32>().ok());
                match percent {
                    None => {
                        let detail = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%', or \
                                      '93%', regex used for validation is '[0-9]+%')";
                        problems.invalid(&path.child(field), text.as_str(), detail);
                    }
                    Some(percent) if percent > 100 => {
                        problems.invalid(&path.child(field), text.as_str(), "must not be greater than 100%");
                    }
                    Some(_) => {}
                }
            }
            Some(_) => non_negative(&mut problems, &path, spec, field),
            None => {}
        }
    }
    problems.optional_choice(spec, "unhealthyPodEvictionPolicy", &path, POLICIES);
    if let Some(selector) = given("selector") {
        label_selector(&mut problems, &path.child("selector"), selector);
    }
    problems.0
}

fn validate_status(new: &Value, _old: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let status = new.get("status").unwrap_or(&Value::Null);
    for field in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        non_negative(&mut problems, &Path::new("status"), status, field);
    }
    problems.0
}

#[cfg(test)]
mod tests {
    use super::super::checks::texts;
    use super::*;

    #[test]
    fn a_budget_says_one_thing_and_says_it_right() {
        let errors = |spec: Value| texts(validate(&json!({"spec": spec})));
        let selector = json!({"matchLabels": {"app": "db"}});
        assert!(errors(json!({"minAvailable": 1, "selector": selector})).is_empty());
        assert!(errors(json!({"maxUnavailable": "30%", "selector": selector})).is_empty());
        for (spec, complaint) in [
            (json!({"minAvailable": 1, "maxUnavailable": 1}), "cannot be both set"),
            (json!({"minAvailable": -1}), "spec.minAvailable"),
            (json!({"maxUnavailable": "half"}), "a valid percent string"),
            (json!({"maxUnavailable": "101%"}), "must not be greater than 100%"),
            (json!({"unhealthyPodEvictionPolicy": "Never"}), "spec.unhealthyPodEvictionPolicy"),
        ] {
            let found = errors(spec.clone());
            assert!(found.len() == 1 && found[0].contains(complaint), "{spec}: {found:?}");
        }
    }
}
