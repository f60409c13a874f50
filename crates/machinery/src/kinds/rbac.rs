//! The `rbac.authorization.k8s.io` group.

use serde_json::{Value, json};

use super::Strategy;
use super::checks::{self, Problems};
use super::edit::{child, fill_zero, items, items_mut, present, same_at, text};
use crate::field::{FieldError, Path};
use crate::names::{self, NameRule};
use crate::selector::LabelSelector;

pub(super) const GROUP: &str = "rbac.authorization.k8s.io";

pub(super) const ROLE: Strategy = Strategy {
    validate_create: |role| validate_role(role, true),
    validate_update: |role, _old| validate_role(role, true),
    name: NameRule::PathSegment,
    ..Strategy::PLAIN
};

pub(super) const CLUSTER_ROLE: Strategy = Strategy {
    validate_create: |role| validate_role(role, false),
    validate_update: |role, _old| validate_role(role, false),
    ..ROLE
};

pub(super) const ROLE_BINDING: Strategy = Strategy {
    default: default_binding,
    validate_create: |binding| validate_binding(binding, true),
    validate_update: |new, old| validate_binding_update(new, old, true),
    name: NameRule::PathSegment,
    ..Strategy::PLAIN
};

pub(super) const CLUSTER_ROLE_BINDING: Strategy = Strategy {
    validate_create: |binding| validate_binding(binding, false),
    validate_update: |new, old| validate_binding_update(new, old, false),
    ..ROLE_BINDING
};

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

fn validate_role(role: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut problems = Problems::new();
    for (index, rule) in items(role, "/rules").iter().enumerate() {
        validate_rule(&mut problems, &Path::new("rules").index(index), rule, namespaced);
    }
    if let Some(aggregation) = present(role, "/aggregationRule").filter(|_| !namespaced) {
        let path = Path::new("aggregationRule.clusterRoleSelectors");
        let selectors = items(aggregation, "/clusterRoleSelectors");
        if selectors.is_empty() {
            problems.required(&path, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (index, selector) in selectors.iter().enumerate() {
            let path = path.index(index);
            checks::label_selector(&mut problems, &path, selector);
            if LabelSelector::from_object(selector).is_err() {
                problems.invalid(&path, Value::Null, "invalid label selector.");
            }
        }
    }
    problems.0
}

fn validate_rule(problems: &mut Problems, path: &Path, rule: &Value, namespaced: bool) {
    let empty = |field: &str| items(rule, &format!("/{field}")).is_empty();
    if empty("verbs") {
        problems.required(&path.child("verbs"), "verbs must contain at least one value");
    }
    let urls = items(rule, "/nonResourceURLs");
    if !urls.is_empty() {
        let at = path.child("nonResourceURLs");
        if namespaced {
            problems.invalid(&at, urls.to_vec(), "namespaced rules cannot apply to non-resource URLs");
        }
        if !empty("apiGroups") || !empty("resources") || !empty("resourceNames") {
            let detail = "rules cannot apply to both regular resources and non-resource URLs";
            problems.invalid(&at, urls.to_vec(), detail);
        }
        return;
    }
    if empty("apiGroups") {
        problems.required(&path.child("apiGroups"), "resource rules must supply at least one api group");
    }
    if empty("resources") {
        problems.required(&path.child("resources"), "resource rules must supply at least one resource");
    }
}

fn validate_binding(binding: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut problems = Problems::new();
    let path = Path::new("roleRef");
    let group = text(binding, "/roleRef/apiGroup");
    if group != GROUP {
        problems.not_supported(&path.child("apiGroup"), group, &[GROUP]);
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = text(binding, "/roleRef/kind");
    if !kinds.contains(&kind) {
        problems.not_supported(&path.child("kind"), kind, kinds);
    }
    match text(binding, "/roleRef/name") {
        "" => problems.required(&path.child("name"), ""),
        name => problems.messages(&path.child("name"), name, names::path_segment(name, false)),
    }
    for (index, subject) in items(binding, "/subjects").iter().enumerate() {
        validate_subject(&mut problems, &Path::new("subjects").index(index), subject, namespaced);
    }
    problems.0
}

fn validate_subject(problems: &mut Problems, path: &Path, subject: &Value, namespaced: bool) {
    problems.present(subject, "name", path);
    let (name, group) = (text(subject, "/name"), text(subject, "/apiGroup"));
    match text(subject, "/kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                problems.messages(&path.child("name"), name, names::dns1123_subdomain(name));
            }
            if !group.is_empty() {
                problems.not_supported(&path.child("apiGroup"), group, &[""]);
            }
            if !namespaced {
                problems.present(subject, "namespace", path);
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                problems.not_supported(&path.child("apiGroup"), group, &[GROUP]);
            }
        }
        other => problems.not_supported(&path.child("kind"), other, &["ServiceAccount", "User", "Group"]),
    }
}

/// A binding grants one role for good; another role is another binding.
fn validate_binding_update(new: &Value, old: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut problems = Problems(validate_binding(new, namespaced));
    if !same_at(new, old, "/roleRef") {
        let part = |field: &str| text(new, &format!("/roleRef/{field}")).to_owned();
        // The error shows the server's own type, whose fields have other names.
        let role = json!({"APIGroup": part("apiGroup"), "Kind": part("kind"), "Name": part("name")});
        problems.invalid(&Path::new("roleRef"), role, "cannot change roleRef");
    }
    problems.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::checks::texts;

    #[test]
    fn rules_name_what_they_allow() {
        let role = json!({"rules": [{"apiGroups": [""], "resources": ["pods"]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        assert_eq!(
            texts(validate_role(&role, true)),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[1].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            ]
        );
        assert_eq!(texts(validate_role(&role, false)).len(), 1);
    }

    #[test]
    fn a_binding_keeps_its_role() {
        let mut old =
            json!({"roleRef": {"kind": "Role", "name": "reader"}, "subjects": [{"kind": "User", "name": "ann"}]});
        default_binding(&mut old);
        assert_eq!(old["roleRef"]["apiGroup"], GROUP);
        assert_eq!(old["subjects"][0]["apiGroup"], GROUP);
        assert_eq!(validate_binding(&old, true), []);
        let mut new = old.clone();
        new["roleRef"]["name"] = "writer".into();
        let errors = texts(validate_binding_update(&new, &old, true));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].ends_with("cannot change roleRef"), "{errors:?}");
    }

    #[test]
    fn cluster_bindings_need_cluster_roles_and_namespaces_of_accounts() {
        let binding = json!({
            "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "reader"},
            "subjects": [{"kind": "ServiceAccount", "name": "default"}, {"kind": "Robot", "name": "r2"}],
        });
        assert_eq!(
            texts(validate_binding(&binding, false)),
            [
                "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
                "subjects[0].namespace: Required value",
                "subjects[1].kind: Unsupported value: \"Robot\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
            ]
        );
    }
}
