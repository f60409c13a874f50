//! Nobody grants what they do not have: checks on writes of roles and bindings.

use serde_json::Value;
use tether_machinery::status::{ApiError, Named};

use super::rbac::{GROUP, RoleRef, role_ref, rules_of};
use super::rules::{PolicyRule, describe, missing, quoted_list};
use super::{Attributes, Authorizer, GROUP_MASTERS, text};

/// Is this write of an RBAC object within what its author may grant? `request` is the request as it was authorized,
/// `object` what would be stored, `old` what is stored. Other resources pass.
pub fn check_escalation(
    authorizer: &Authorizer,
    request: &Attributes,
    object: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if request.group != GROUP || !request.is_resource || request.user.in_group(GROUP_MASTERS) {
        return Ok(());
    }
    let is_role = matches!(request.resource.as_str(), "roles" | "clusterroles");
    if !is_role && !matches!(request.resource.as_str(), "rolebindings" | "clusterrolebindings") {
        return Ok(());
    }
    if old.is_some_and(|old| only_collection_fields_differ(object, old)) {
        return Ok(());
    }
    let check = Check { authorizer, request, name: text(object, "/metadata/name") };
    if is_role { check.role(object, old) } else { check.binding(object) }
}

struct Check<'a> {
    authorizer: &'a Authorizer,
    request: &'a Attributes,
    name: &'a str,
}

impl Check<'_> {
    fn role(&self, role: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        // The name of a new role is in its body: a permission for a name is not one to create it.
        let name = if self.request.verb == "create" { "" } else { &self.request.name };
        if self.may("escalate", &self.request.resource, name) {
            return Ok(());
        }
        self.holds(&rules_of(role)).map_err(|why| self.forbidden(&why))?;
        // An aggregate can gather anything, and can keep anything from being taken away.
        if [Some(role), old].into_iter().flatten().any(gathers) && self.holds(&full_authority()).is_err() {
            return Err(self.forbidden("must have cluster-admin privileges to use the aggregationRule"));
        }
        Ok(())
    }

    fn binding(&self, binding: &Value) -> Result<(), ApiError> {
        let role = role_ref(binding);
        let resource = match role.kind.as_str() {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            // Validation has something to say about such a reference.
            _ => return Ok(()),
        };
        if self.may("bind", resource, &role.name) {
            return Ok(());
        }
        let rules = self.rules_behind(&role, resource)?;
        self.holds(&rules).map_err(|why| self.forbidden(&why))
    }

    fn rules_behind(&self, role: &RoleRef, resource: &str) -> Result<std::sync::Arc<[PolicyRule]>, ApiError> {
        let missing = |_| ApiError::not_found(Named { group: GROUP, resource, name: &role.name });
        self.authorizer.role_rules(role, &self.request.namespace).map_err(missing)
    }

    /// Explicit permission to go beyond one's own: the verbs `escalate` and `bind`.
    fn may(&self, verb: &str, resource: &str, name: &str) -> bool {
        let request = Attributes {
            user: self.request.user.clone(),
            verb: verb.to_owned(),
            group: GROUP.to_owned(),
            version: "*".to_owned(),
            resource: resource.to_owned(),
            namespace: self.request.namespace.clone(),
            name: name.to_owned(),
            is_resource: true,
            ..Attributes::default()
        };
        self.authorizer.authorize(&request).is_allowed()
    }

    /// The author's own rules must cover `rules`.
    fn holds(&self, rules: &[PolicyRule]) -> Result<(), String> {
        let user = &self.request.user;
        let (held, error) = self.authorizer.rules_for(user, &self.request.namespace);
        let lacking = missing(&held, rules);
        if lacking.is_empty() {
            return Ok(());
        }
        let resolution = error.map(|error| format!("; resolution errors: [{error}]")).unwrap_or_default();
        Err(format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}{resolution}",
            user.name,
            quoted_list(&user.groups),
            describe(lacking)
        ))
    }

    fn forbidden(&self, why: &str) -> ApiError {
        ApiError::forbidden(Named { group: GROUP, resource: &self.request.resource, name: self.name }, why)
    }
}

fn gathers(role: &Value) -> bool {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    selectors.is_some_and(|selectors| !selectors.is_empty())
}

fn full_authority() -> [PolicyRule; 2] {
    let all = || vec!["*".to_owned()];
    [
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

/// Owners and finalizers may be changed by those who clean up, whatever the role says.
fn only_collection_fields_differ(object: &Value, old: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "managedFields", "selfLink"] {
                metadata.remove(field);
            }
        }
        object
    };
    stripped(object) == stripped(old)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::auth::User;
    use crate::auth::rbac::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES};
    use crate::auth::tests::Memory;

    fn pods(verbs: &[&str]) -> Value {
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}])
    }

    /// `ann` reads pods everywhere; `boss` may escalate and bind in namespace `a`.
    fn authorizer() -> Authorizer {
        let rbac =
            |verbs: &[&str], resources: &[&str]| json!({"apiGroups": [GROUP], "resources": resources, "verbs": verbs});
        let role = |name: &str| json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": name});
        let user = |name: &str| json!([{"kind": "User", "name": name}]);
        let objects: Arc<Memory> = Memory::with([
            (CLUSTER_ROLES, json!({"metadata": {"name": "reader"}, "rules": pods(&["get", "list"])})),
            (CLUSTER_ROLES, json!({"metadata": {"name": "writer"}, "rules": pods(&["delete"])})),
            (
                CLUSTER_ROLES,
                json!({"metadata": {"name": "boss"}, "rules": [
                    rbac(&["escalate"], &["roles"]), rbac(&["bind"], &["clusterroles"]),
                ]}),
            ),
            (ROLES, json!({"metadata": {"namespace": "a", "name": "local"}, "rules": pods(&["get"])})),
            (
                CLUSTER_ROLE_BINDINGS,
                json!({"metadata": {"name": "r"}, "roleRef": role("reader"), "subjects": user("ann")}),
            ),
            (
                ROLE_BINDINGS,
                json!({"metadata": {"namespace": "a", "name": "b"}, "roleRef": role("boss"), "subjects": user("boss")}),
            ),
        ]);
        Authorizer::new(objects)
    }

    fn check(user: &str, resource: &str, namespace: &str, object: &Value, old: Option<&Value>) -> Result<(), ApiError> {
        let request = Attributes {
            user: User::new(user, [""; 0]),
            verb: "create".into(),
            group: GROUP.into(),
            resource: resource.into(),
            namespace: namespace.into(),
            is_resource: true,
            ..Attributes::default()
        };
        check_escalation(&authorizer(), &request, object, old)
    }

    fn role(rules: Value) -> Value {
        json!({"metadata": {"name": "new"}, "rules": rules})
    }

    fn binding(kind: &str, name: &str) -> Value {
        json!({"metadata": {"name": "new"}, "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name}})
    }

    #[test]
    fn a_role_may_hold_what_its_author_holds() {
        assert!(check("ann", "clusterroles", "", &role(pods(&["get"])), None).is_ok());
        let error = check("ann", "roles", "a", &role(pods(&["get", "delete", "update"])), None).unwrap_err();
        assert_eq!(error.code, 403);
        assert_eq!(
            error.message,
            "roles.rbac.authorization.k8s.io \"new\" is forbidden: user \"ann\" (groups=[\"system:authenticated\"]) is \
             attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\" \"update\"]}"
        );
    }

    #[test]
    fn escalate_and_bind_lift_the_rule_where_they_are_given() {
        assert!(check("boss", "roles", "a", &role(pods(&["delete"])), None).is_ok());
        assert!(check("boss", "roles", "b", &role(pods(&["delete"])), None).is_err());
        assert!(check("boss", "clusterroles", "", &role(pods(&["delete"])), None).is_err());
        assert!(check("boss", "rolebindings", "a", &binding("ClusterRole", "writer"), None).is_ok());
        assert!(check("boss", "clusterrolebindings", "", &binding("ClusterRole", "writer"), None).is_err());
        assert!(check("boss", "rolebindings", "a", &binding("Role", "local"), None).is_err(), "only cluster roles");
    }

    #[test]
    fn a_binding_may_grant_what_its_author_holds() {
        assert!(check("ann", "clusterrolebindings", "", &binding("ClusterRole", "reader"), None).is_ok());
        assert!(check("ann", "rolebindings", "a", &binding("Role", "local"), None).is_ok());
        assert_eq!(check("ann", "rolebindings", "a", &binding("ClusterRole", "writer"), None).unwrap_err().code, 403);
        let unknown = check("ann", "rolebindings", "b", &binding("Role", "local"), None).unwrap_err();
        assert_eq!(unknown.message, "roles.rbac.authorization.k8s.io \"local\" not found");
    }

    #[test]
    fn aggregation_takes_full_authority() {
        let mut aggregate = role(json!([]));
        aggregate["aggregationRule"] = json!({"clusterRoleSelectors": [{}]});
        let expected = "clusterroles.rbac.authorization.k8s.io \"new\" is forbidden: must have cluster-admin privileges \
                        to use the aggregationRule";
        assert_eq!(check("ann", "clusterroles", "", &aggregate, None).unwrap_err().message, expected);
        let plain = role(json!([]));
        assert_eq!(check("ann", "clusterroles", "", &plain, Some(&aggregate)).unwrap_err().message, expected);
    }

    #[test]
    fn cleaning_up_is_not_granting() {
        let old = role(pods(&["delete"]));
        let mut released = old.clone();
        released["metadata"]["finalizers"] = json!(["x"]);
        assert!(check("ann", "clusterroles", "", &released, Some(&old)).is_ok());
        released["rules"] = pods(&["delete", "get"]);
        assert!(check("ann", "clusterroles", "", &released, Some(&old)).is_err());
        let masters = Attributes {
            user: User::new("root", [GROUP_MASTERS]),
            group: GROUP.into(),
            resource: "clusterroles".into(),
            is_resource: true,
            ..Attributes::default()
        };
        assert!(check_escalation(&authorizer(), &masters, &old, None).is_ok());
    }
}
