//! Conflicts: fields that an apply would change and another manager owns.

use serde_json::json;

use super::managers::ManagerId;
use super::set::{FieldPath, FieldSet};
use crate::status::ApiError;

/// One field of another manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) manager: ManagerId,
    pub(super) path: FieldPath,
}

/// All conflicts of an apply, by manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conflicts(Vec<Conflict>);

impl Conflicts {
    pub(super) fn add(&mut self, manager: &ManagerId, fields: &FieldSet) {
        let conflict = |path| Conflict { manager: manager.clone(), path };
        self.0.extend(fields.paths().into_iter().map(conflict));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that are not about a field of `allowed`.
    pub(super) fn without(self, allowed: &FieldSet) -> Self {
        Self(self.0.into_iter().filter(|conflict| !allowed.has(&conflict.path.0)).collect())
    }

    fn message(&self) -> String {
        if let [one] = self.0.as_slice() {
            return format!("Apply failed with 1 conflict: conflict with {}: {}", one.manager.shown(), one.path);
        }
        let mut lines = Vec::new();
        let mut manager = None;
        for conflict in &self.0 {
            if manager != Some(&conflict.manager) {
                lines.push(format!("conflicts with {}:", conflict.manager.shown()));
                manager = Some(&conflict.manager);
            }
            lines.push(format!("- {}", conflict.path));
        }
        format!("Apply failed with {} conflicts: {}", self.0.len(), lines.join("\n"))
    }
}

impl From<Conflicts> for ApiError {
    fn from(conflicts: Conflicts) -> Self {
        let cause = |conflict: &Conflict| {
            json!({
                "reason": "FieldManagerConflict",
                "message": format!("conflict with {}", conflict.manager.shown()),
                "field": conflict.path.to_string(),
            })
        };
        let causes: Vec<_> = conflicts.0.iter().map(cause).collect();
        Self::new(409, "Conflict", conflicts.message(), json!({"causes": causes}))
    }
}
