//! The `rbac.authorization.k8s.io` group.

use serde_json::Value;

use super::Strategy;
use super::edit::{child, fill_zero, items_mut, text};
use crate::names::NameRule;

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) const ROLE: Strategy = Strategy { name: NameRule::PathSegment, ..Strategy::PLAIN };
pub(super) const CLUSTER_ROLE: Strategy = Strategy { name: NameRule::PathSegment, ..Strategy::PLAIN };
pub(super) const BINDING: Strategy =
    Strategy { default: default_binding, name: NameRule::PathSegment, ..Strategy::PLAIN };

/// Roles, users and groups belong to this API group unless said otherwise; service accounts to the core.
fn default_binding(binding: &mut Value) {
    if let Some(role) = child(binding, "roleRef") {
        fill_zero(role, "apiGroup", GROUP);
    }
    for subject in items_mut(binding, "/subjects") {
        if matches!(text(subject, "/kind"), "User" | "Group")
            && let Some(subject) = subject.as_object_mut()
        {
            fill_zero(subject, "apiGroup", GROUP);
        }
    }
}
