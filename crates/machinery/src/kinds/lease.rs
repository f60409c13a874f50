//! Leases.

use serde_json::Value;

use super::Strategy;
use super::checks::Problems;
use super::edit::{integer, present, set_in, text};
use crate::field::{FieldError, Path};

/// Coordinated leader election is not offered: its fields are dropped, as a stock server drops them.
pub(super) const STRATEGY: Strategy = Strategy {
    prepare_create: |lease, _now| drop_coordination(lease, &Value::Null),
    prepare_update: drop_coordination,
    validate_create: validate,
    validate_update: |new, _old| validate(new),
    ..Strategy::PLAIN
};

fn drop_coordination(new: &mut Value, old: &Value) {
    for field in ["strategy", "preferredHolder"] {
        if present(old, &format!("/spec/{field}")).is_none() {
            set_in(new, "spec", field, Value::Null);
        }
    }
}

fn validate(lease: &Value) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("spec");
    if let Some(seconds) = integer(lease, "/spec/leaseDurationSeconds").filter(|s| *s <= 0) {
        problems.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
    }
    if let Some(count) = integer(lease, "/spec/leaseTransitions").filter(|c| *c < 0) {
        problems.invalid(&path.child("leaseTransitions"), count, "must be greater than or equal to 0");
    }
    if !text(lease, "/spec/preferredHolder").is_empty() && text(lease, "/spec/strategy").is_empty() {
        problems.forbidden(&path.child("preferredHolder"), "may only be specified if `strategy` is defined");
    }
    problems.0
}
