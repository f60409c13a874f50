//! The policy that a cluster starts with: default roles and bindings, under Kubernetes' names, for what is served here.

use serde_json::{Value, json};

use super::rbac::{CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, GROUP, ROLE_BINDINGS, ROLES, rules_of};
use super::rules::PolicyRule;
use super::{GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_SERVICE_ACCOUNTS, GROUP_UNAUTHENTICATED, User, text};

/// The user that the process of the cluster's controllers may run as.
pub const USER_CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The user that the scheduler runs as.
pub const USER_SCHEDULER: &str = "system:kube-scheduler";

const SYSTEM_NAMESPACE: &str = "kube-system";
const CONTROLLER_ROLE_PREFIX: &str = "system:controller:";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

const READ: &str = "get list watch";
const WRITE: &str = "create update patch delete deletecollection";
const READ_WRITE: &str = "get list watch create update patch delete deletecollection";
const READ_UPDATE: &str = "get list watch update patch";
const RECORD: &str = "create update patch";

/// The identity of one of the cluster's own controllers: a service account in `kube-system`, as in Kubernetes.
pub fn controller_user(name: &str) -> User {
    User::service_account(SYSTEM_NAMESPACE, name, "")
}

/// Words of a list; `core` is the group without a name.
fn words(list: &str) -> Vec<String> {
    list.split_whitespace().map(|word| if word == "core" { String::new() } else { word.to_owned() }).collect()
}

fn rule(verbs: &str, groups: &str, resources: &str) -> PolicyRule {
    PolicyRule { verbs: words(verbs), api_groups: words(groups), resources: words(resources), ..PolicyRule::default() }
}

fn named(verbs: &str, groups: &str, resources: &str, names: &str) -> PolicyRule {
    PolicyRule { resource_names: words(names), ..rule(verbs, groups, resources) }
}

fn paths(verbs: &str, urls: &str) -> PolicyRule {
    PolicyRule { verbs: words(verbs), non_resource_urls: words(urls), ..PolicyRule::default() }
}

fn events() -> PolicyRule {
    rule(RECORD, "core events.k8s.io", "events")
}

/// What every node may, before the node authorizer narrows it down to what is the node's own.
pub(crate) fn node_rules() -> Vec<PolicyRule> {
    vec![
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews localsubjectaccessreviews"),
        rule("create get list watch", "core", "nodes"),
        rule("update patch", "core", "nodes/status"),
        rule("update patch", "core", "nodes"),
        events(),
        rule(READ, "core", "pods"),
        rule("create delete", "core", "pods"),
        rule("update patch", "core", "pods/status"),
        rule("create", "core", "pods/eviction"),
        rule(READ, "core", "secrets configmaps"),
        rule("get", "core", "persistentvolumeclaims persistentvolumes"),
        rule("get create update patch delete", "coordination.k8s.io", "leases"),
        rule("get", "storage.k8s.io", "volumeattachments"),
        rule("create", "core", "serviceaccounts/token"),
        rule("get update patch", "core", "persistentvolumeclaims/status"),
        rule("get watch list", "storage.k8s.io", "csidrivers"),
        rule("get create update patch delete", "storage.k8s.io", "csinodes"),
        rule("get", "core", "serviceaccounts"),
    ]
}

fn view_rules() -> Vec<PolicyRule> {
    vec![
        rule(READ, "core", "pods serviceaccounts persistentvolumeclaims persistentvolumeclaims/status configmaps"),
        rule(READ, "core", "bindings pods/log pods/status namespaces/status"),
        rule(READ, "core", "namespaces"),
        rule(READ, "core events.k8s.io", "events"),
    ]
}

fn edit_rules() -> Vec<PolicyRule> {
    vec![
        rule(READ, "core", "pods/attach pods/exec secrets"),
        rule("impersonate", "core", "serviceaccounts"),
        rule(WRITE, "core", "pods pods/attach pods/exec"),
        rule("create", "core", "pods/eviction"),
        rule(WRITE, "core", "serviceaccounts persistentvolumeclaims configmaps secrets"),
        rule("create", "core", "serviceaccounts/token"),
        rule(WRITE, "core events.k8s.io", "events"),
        rule(READ_WRITE, "coordination.k8s.io", "leases"),
    ]
}

fn scheduler_rules() -> Vec<PolicyRule> {
    vec![
        events(),
        rule("create", "coordination.k8s.io", "leases"),
        named("get update list watch", "coordination.k8s.io", "leases", "kube-scheduler"),
        rule(READ, "core", "nodes"),
        rule("get list watch delete", "core", "pods"),
        rule("create", "core", "pods/binding bindings"),
        rule("patch update", "core", "pods/status"),
        rule(READ, "core", "persistentvolumeclaims persistentvolumes"),
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        rule(READ, "storage.k8s.io", "csinodes"),
        rule(READ, "storage.k8s.io", "volumeattachments"),
        rule(READ, "core", "namespaces"),
        rule(READ, "storage.k8s.io", "csidrivers"),
        rule(READ, "storage.k8s.io", "csistoragecapacities"),
    ]
}

fn controller_manager_rules() -> Vec<PolicyRule> {
    vec![
        events(),
        rule("create", "coordination.k8s.io", "leases"),
        named("get update", "coordination.k8s.io", "leases", "kube-controller-manager"),
        rule("create", "core", "secrets serviceaccounts"),
        rule("delete", "core", "secrets"),
        rule("get", "core", "namespaces secrets serviceaccounts configmaps"),
        rule("update", "core", "secrets serviceaccounts"),
        rule("create", "authentication.k8s.io", "tokenreviews"),
        rule("create", "authorization.k8s.io", "subjectaccessreviews"),
        rule("list watch", "*", "*"),
        rule("create", "core", "serviceaccounts/token"),
    ]
}

/// The controllers that the embedded cluster runs, with what each may.
fn controllers() -> Vec<(&'static str, Vec<PolicyRule>)> {
    vec![
        (
            "attachdetach-controller",
            vec![
                rule("list watch", "core", "persistentvolumes persistentvolumeclaims"),
                rule(READ, "core", "nodes"),
                rule("patch update", "core", "nodes/status"),
                rule("list watch", "core", "pods"),
                events(),
                rule("get create delete list watch", "storage.k8s.io", "volumeattachments"),
                rule(READ, "storage.k8s.io", "csidrivers"),
                rule(READ, "storage.k8s.io", "csinodes"),
            ],
        ),
        ("generic-garbage-collector", vec![rule("get list watch patch update delete", "*", "*"), events()]),
        (
            "namespace-controller",
            vec![
                rule("get list watch delete", "core", "namespaces"),
                rule("update", "core", "namespaces/finalize namespaces/status"),
                rule("get list watch delete deletecollection", "*", "*"),
            ],
        ),
        (
            "node-controller",
            vec![
                rule("get list watch update delete patch", "core", "nodes"),
                rule("patch update", "core", "nodes/status"),
                rule("patch update", "core", "pods/status"),
                rule("list watch get delete", "core", "pods"),
                rule(READ, "coordination.k8s.io", "leases"),
                events(),
            ],
        ),
        (
            "persistent-volume-binder",
            vec![
                rule("get list watch update create delete", "core", "persistentvolumes"),
                rule("update", "core", "persistentvolumes/status"),
                rule("get list watch update", "core", "persistentvolumeclaims"),
                rule("update", "core", "persistentvolumeclaims/status"),
                rule("list watch get create delete", "core", "pods"),
                rule(READ, "storage.k8s.io", "storageclasses"),
                rule("list watch", "core", "nodes"),
                events(),
                rule("watch", "core", "events"),
            ],
        ),
        (
            "pod-garbage-collector",
            vec![
                rule("list watch delete", "core", "pods"),
                rule(READ, "core", "nodes"),
                rule("patch", "core", "pods/status"),
            ],
        ),
        ("pv-protection-controller", vec![rule("get list watch update", "core", "persistentvolumes"), events()]),
        (
            "pvc-protection-controller",
            vec![
                rule("get list watch update", "core", "persistentvolumeclaims"),
                rule("update", "core", "persistentvolumeclaims/status"),
                rule("list watch get", "core", "pods"),
                events(),
            ],
        ),
        ("root-ca-cert-publisher", vec![rule("create update", "core", "configmaps"), events()]),
        ("service-account-controller", vec![rule("create", "core", "serviceaccounts"), events()]),
    ]
}

/// Roles that are not a controller's own.
fn roles() -> Vec<(&'static str, Vec<PolicyRule>)> {
    const HEALTH: &str = "/livez /readyz /healthz";
    vec![
        ("cluster-admin", vec![rule("*", "*", "*"), paths("*", "*")]),
        (
            "system:discovery",
            vec![paths("get", &format!("{HEALTH} /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*"))],
        ),
        (
            "system:monitoring",
            vec![paths("get", &format!("/metrics /metrics/slis {HEALTH} /livez/* /readyz/* /healthz/*"))],
        ),
        (
            "system:basic-user",
            vec![
                rule("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
                rule("create", "authentication.k8s.io", "selfsubjectreviews"),
            ],
        ),
        ("system:public-info-viewer", vec![paths("get", &format!("{HEALTH} /version /version/"))]),
        ("system:node", node_rules()),
        (
            "system:auth-delegator",
            vec![
                rule("create", "authentication.k8s.io", "tokenreviews"),
                rule("create", "authorization.k8s.io", "subjectaccessreviews"),
            ],
        ),
        ("system:kube-controller-manager", controller_manager_rules()),
        ("system:kube-scheduler", scheduler_rules()),
        (
            "system:volume-scheduler",
            vec![
                rule(READ_UPDATE, "core", "persistentvolumes"),
                rule(READ, "storage.k8s.io", "storageclasses"),
                rule(READ_UPDATE, "core", "persistentvolumeclaims"),
            ],
        ),
        (
            "system:persistent-volume-provisioner",
            vec![
                rule("get list watch create delete", "core", "persistentvolumes"),
                rule("get list watch update", "core", "persistentvolumeclaims"),
                rule(READ, "storage.k8s.io", "storageclasses"),
                rule("watch", "core", "events"),
                events(),
            ],
        ),
        (
            "system:service-account-issuer-discovery",
            vec![paths(
                "get",
                "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/",
            )],
        ),
    ]
}

/// Roles for people, put together by their labels so that custom resources can add to them.
fn aggregates() -> Vec<Value> {
    let admin = vec![
        rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
        rule(READ_WRITE, GROUP, "roles rolebindings"),
    ];
    let label = |to: &str| format!("rbac.authorization.k8s.io/aggregate-to-{to}");
    let gather = |name: &str, into: Option<&str>| {
        let mut role = cluster_role(name, &[]);
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label(name): "true"}}]});
        if let Some(into) = into {
            role["metadata"]["labels"][label(into)] = "true".into();
        }
        role
    };
    let base = |to: &str, rules: &[PolicyRule]| {
        let mut role = cluster_role(&format!("system:aggregate-to-{to}"), rules);
        role["metadata"]["labels"][label(to)] = "true".into();
        role
    };
    let (view, edit) = (view_rules(), edit_rules());
    let mut roles = vec![
        base("admin", &admin),
        base("edit", &edit),
        base("view", &view),
        gather("view", Some("edit")),
        gather("edit", Some("admin")),
        gather("admin", None),
    ];
    // What the aggregates gather from these alone; the server keeps it up to date from here on.
    roles[3]["rules"] = json!(view);
    roles[4]["rules"] = json!([edit.clone(), view.clone()].concat());
    roles[5]["rules"] = json!([edit, view, admin].concat());
    roles
}

fn metadata(name: &str, namespace: &str) -> Value {
    let mut metadata = json!({
        "name": name,
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
        "annotations": {AUTO_UPDATE: "true"},
    });
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

fn cluster_role(name: &str, rules: &[PolicyRule]) -> Value {
    json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole", "metadata": metadata(name, ""), "rules": rules})
}

fn group(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "Group", "name": name})
}

fn user(name: &str) -> Value {
    json!({"apiGroup": GROUP, "kind": "User", "name": name})
}

fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": SYSTEM_NAMESPACE, "name": name})
}

fn cluster_binding(role: &str, subjects: Vec<Value>) -> Value {
    let mut binding = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": metadata(role, ""),
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
    });
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

fn cluster_bindings() -> Vec<Value> {
    let mut bindings = vec![
        cluster_binding("cluster-admin", vec![group(GROUP_MASTERS)]),
        cluster_binding("system:monitoring", vec![group("system:monitoring")]),
        cluster_binding("system:discovery", vec![group(GROUP_AUTHENTICATED)]),
        cluster_binding("system:basic-user", vec![group(GROUP_AUTHENTICATED)]),
        cluster_binding("system:public-info-viewer", vec![group(GROUP_AUTHENTICATED), group(GROUP_UNAUTHENTICATED)]),
        cluster_binding("system:kube-controller-manager", vec![user(USER_CONTROLLER_MANAGER)]),
        // The scheduler runs in the process of the controllers, under its certificate.
        cluster_binding("system:kube-scheduler", vec![user(USER_SCHEDULER), user(USER_CONTROLLER_MANAGER)]),
        cluster_binding("system:volume-scheduler", vec![user(USER_SCHEDULER), user(USER_CONTROLLER_MANAGER)]),
        // The node authorizer decides for nodes; the binding is there without subjects, as in Kubernetes.
        cluster_binding("system:node", vec![]),
        cluster_binding("system:service-account-issuer-discovery", vec![group(GROUP_SERVICE_ACCOUNTS)]),
    ];
    for (name, _) in controllers() {
        // One process runs all of them here, under one certificate; each also has its own account.
        let subjects = vec![account(name), user(USER_CONTROLLER_MANAGER)];
        bindings.push(cluster_binding(&format!("{CONTROLLER_ROLE_PREFIX}{name}"), subjects));
    }
    bindings
}

/// Leader election of the two components that elect a leader in `kube-system`.
fn leader_locks() -> Vec<(&'static str, Value)> {
    let mut objects = Vec::new();
    for (component, user_name) in
        [("kube-controller-manager", USER_CONTROLLER_MANAGER), ("kube-scheduler", USER_SCHEDULER)]
    {
        let name = format!("system::leader-locking-{component}");
        let rules = [rule("get watch list create update", "coordination.k8s.io", "leases")];
        let api_version = format!("{GROUP}/v1");
        let metadata = metadata(&name, SYSTEM_NAMESPACE);
        objects.push((ROLES, json!({"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": rules})));
        objects.push((
            ROLE_BINDINGS,
            json!({
                "apiVersion": api_version,
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
                "subjects": [user(user_name), account(component)],
            }),
        ));
    }
    objects
}

/// Everything, as (resource, object), roles before what binds them. `kube-system` must exist.
pub fn objects() -> Vec<(&'static str, Value)> {
    let mut objects: Vec<(&'static str, Value)> = Vec::new();
    objects.extend(roles().iter().map(|(name, rules)| (CLUSTER_ROLES, cluster_role(name, rules))));
    objects.extend(aggregates().into_iter().map(|role| (CLUSTER_ROLES, role)));
    for (name, rules) in controllers() {
        objects.push((CLUSTER_ROLES, cluster_role(&format!("{CONTROLLER_ROLE_PREFIX}{name}"), &rules)));
    }
    objects.extend(cluster_bindings().into_iter().map(|binding| (CLUSTER_ROLE_BINDINGS, binding)));
    objects.extend(leader_locks());
    objects
}

/// What has to be written at start, given what is there: `None` if nothing. Rules, subjects, labels and annotations
/// that are missing are added, what somebody added stays, and an object annotated with
/// `rbac.authorization.kubernetes.io/autoupdate: "false"` is left alone.
pub fn reconcile(existing: Option<&Value>, wanted: &Value) -> Option<Value> {
    let Some(existing) = existing else { return Some(wanted.clone()) };
    let annotations = existing.pointer("/metadata/annotations");
    if annotations.and_then(|a| a.get(AUTO_UPDATE)).and_then(Value::as_str) == Some("false") {
        return None;
    }
    if text(existing, "/roleRef/name") != text(wanted, "/roleRef/name") {
        // The role of a binding cannot be changed, so the binding is replaced.
        return Some(wanted.clone());
    }
    let mut merged = existing.clone();
    for field in ["labels", "annotations"] {
        if !merged["metadata"][field].is_object() {
            merged["metadata"][field] = json!({});
        }
        for (key, value) in wanted["metadata"][field].as_object().into_iter().flatten() {
            if merged["metadata"][field].get(key).is_none() {
                merged["metadata"][field][key] = value.clone();
            }
        }
    }
    if wanted.get("aggregationRule").is_none() && wanted.get("rules").is_some() {
        let lacking = super::rules::missing(&rules_of(existing), &rules_of(wanted));
        if !lacking.is_empty() {
            extend(&mut merged, "rules", lacking.iter().map(|rule| json!(rule)));
        }
    }
    let subjects = existing.get("subjects").and_then(Value::as_array).cloned().unwrap_or_default();
    let lacking = wanted.get("subjects").and_then(Value::as_array).into_iter().flatten();
    extend(&mut merged, "subjects", lacking.filter(|subject| !subjects.contains(subject)).cloned());
    (merged != *existing).then_some(merged)
}

fn extend(object: &mut Value, field: &str, values: impl Iterator<Item = Value>) {
    for value in values {
        match object.get_mut(field).and_then(Value::as_array_mut) {
            Some(list) => list.push(value),
            None => object[field] = json!([value]),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::rbac::stale_aggregates;
    use crate::auth::tests::Memory;
    use crate::auth::{Attributes, Authorizer};

    fn policy() -> Arc<Memory> {
        Memory::with(objects())
    }

    fn ask(user: &User, verb: &str, resource: &str) -> Attributes {
        let (group, resource) = resource.split_once('/').unwrap_or(("", resource));
        Attributes {
            user: user.clone(),
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            namespace: "a".into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    fn path(user: &User, path: &str) -> Attributes {
        Attributes { user: user.clone(), verb: "get".into(), path: path.into(), ..Attributes::default() }
    }

    #[test]
    fn strangers_see_health_and_version_and_no_more() {
        let authorizer = Authorizer::new(policy());
        let nobody = User::anonymous();
        for open in ["/livez", "/readyz", "/healthz", "/version"] {
            assert!(authorizer.authorize(&path(&nobody, open)).is_allowed(), "{open}");
        }
        for closed in ["/api", "/apis", "/metrics", "/openapi/v2", "/livez/ping", "/"] {
            assert!(!authorizer.authorize(&path(&nobody, closed)).is_allowed(), "{closed}");
        }
        assert_eq!(
            authorizer.check(&path(&nobody, "/api")).unwrap_err().message,
            "forbidden: User \"system:anonymous\" cannot get path \"/api\""
        );
        assert!(
            !authorizer
                .authorize(&ask(&nobody, "create", "authorization.k8s.io/selfsubjectaccessreviews"))
                .is_allowed()
        );
    }

    #[test]
    fn everybody_else_may_look_around_and_ask_about_themselves() {
        let authorizer = Authorizer::new(policy());
        let ann = User::new("ann", [""; 0]);
        for open in ["/api", "/api/v1", "/apis/apps/v1", "/openapi/v3", "/version/"] {
            assert!(authorizer.authorize(&path(&ann, open)).is_allowed(), "{open}");
        }
        assert!(
            authorizer.authorize(&ask(&ann, "create", "authorization.k8s.io/selfsubjectaccessreviews")).is_allowed()
        );
        assert!(!authorizer.authorize(&ask(&ann, "list", "pods")).is_allowed());
        assert!(!authorizer.authorize(&path(&ann, "/metrics")).is_allowed());
    }

    #[test]
    fn view_edit_and_admin_build_on_each_other() {
        let objects = policy();
        for role in ["view", "edit", "admin"] {
            let binding = json!({
                "metadata": {"namespace": "a", "name": role},
                "roleRef": {"kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "User", "name": role}],
            });
            objects.put(ROLE_BINDINGS, binding);
        }
        assert!(stale_aggregates(&*objects).is_empty(), "the rules written must be those that are gathered");
        let authorizer = Authorizer::new(objects);
        let cases = [
            ("list", "pods", [true, true, true]),
            ("list", "secrets", [false, true, true]),
            ("create", "persistentvolumeclaims", [false, true, true]),
            ("create", "rbac.authorization.k8s.io/rolebindings", [false, false, true]),
            ("create", "rbac.authorization.k8s.io/clusterroles", [false, false, false]),
            ("create", "nodes", [false, false, false]),
        ];
        for (verb, resource, expected) in cases {
            for (role, expected) in ["view", "edit", "admin"].into_iter().zip(expected) {
                let decision = authorizer.authorize(&ask(&User::new(role, [""; 0]), verb, resource));
                assert_eq!(decision.is_allowed(), expected, "{role} {verb} {resource}");
            }
        }
    }

    #[test]
    fn controllers_may_what_they_need() {
        let authorizer = Authorizer::new(policy());
        let scheduler = User::new(USER_SCHEDULER, [""; 0]);
        let binding = Attributes { subresource: "binding".into(), ..ask(&scheduler, "create", "pods") };
        assert!(authorizer.authorize(&binding).is_allowed());
        assert!(authorizer.authorize(&ask(&scheduler, "patch", "persistentvolumeclaims")).is_allowed());
        assert!(!authorizer.authorize(&ask(&scheduler, "get", "secrets")).is_allowed());
        for user in [controller_user("namespace-controller"), User::new(USER_CONTROLLER_MANAGER, [""; 0])] {
            assert!(authorizer.authorize(&ask(&user, "deletecollection", "longhorn.io/volumes")).is_allowed());
        }
        let node_controller = controller_user("node-controller");
        assert!(authorizer.authorize(&ask(&node_controller, "delete", "pods")).is_allowed());
        assert!(!authorizer.authorize(&ask(&node_controller, "delete", "secrets")).is_allowed());
    }

    #[test]
    fn a_start_adds_what_is_missing_and_keeps_what_was_added() {
        let wanted = cluster_role("r", &[rule("get list", "core", "pods")]);
        assert_eq!(reconcile(None, &wanted).unwrap(), wanted);
        assert_eq!(reconcile(Some(&wanted), &wanted), None);
        let mut existing = cluster_role("r", &[rule("get", "core", "pods"), rule("get", "core", "nodes")]);
        existing["metadata"]["labels"] = json!({"mine": "x"});
        let merged = reconcile(Some(&existing), &wanted).unwrap();
        assert_eq!(rules_of(&merged)[2], rule("list", "core", "pods"));
        assert_eq!(merged["metadata"]["labels"]["mine"], "x");
        assert_eq!(merged["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        assert_eq!(reconcile(Some(&merged), &wanted), None);
        existing["metadata"]["annotations"] = json!({AUTO_UPDATE: "false"});
        assert_eq!(reconcile(Some(&existing), &wanted), None);

        let wanted = cluster_binding("r", vec![user("a"), user("b")]);
        let existing = cluster_binding("r", vec![user("c"), user("a")]);
        let merged = reconcile(Some(&existing), &wanted).unwrap();
        assert_eq!(merged["subjects"], json!([user("c"), user("a"), user("b")]));
    }
}
