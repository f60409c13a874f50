//! Role based access control: live Role and Binding objects, compiled for fast questions.
//!
//! A compiled policy is kept until one of the four resources changed. Bindings are indexed by the user and group names
//! of their subjects, so that a request looks only at what can concern its user.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::Value;
use tether_machinery::selector::LabelSelector;

use super::rules::PolicyRule;
use super::{Attributes, Objects, User, service_account_user, text};

pub const GROUP: &str = "rbac.authorization.k8s.io";
pub const ROLES: &str = "roles.rbac.authorization.k8s.io";
pub const ROLE_BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";
pub const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
pub const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
const RESOURCES: [&str; 4] = [ROLES, ROLE_BINDINGS, CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS];

/// Whom a binding speaks of.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Subject {
    kind: String,
    name: String,
    namespace: String,
}

impl Subject {
    /// The namespace of a service account; one that is not given is the binding's.
    fn namespace_in<'a>(&'a self, binding: &'a str) -> &'a str {
        if self.namespace.is_empty() { binding } else { &self.namespace }
    }

    fn applies_to(&self, user: &User, namespace: &str) -> bool {
        match self.kind.as_str() {
            "User" => user.name == self.name,
            "Group" => user.in_group(&self.name),
            "ServiceAccount" => {
                let namespace = self.namespace_in(namespace);
                !namespace.is_empty() && user.name == service_account_user(namespace, &self.name)
            }
            _ => false,
        }
    }

    fn describe(&self, namespace: &str) -> String {
        match self.kind.as_str() {
            "ServiceAccount" => {
                format!("{} {:?}", self.kind, format!("{}/{}", self.name, self.namespace_in(namespace)))
            }
            kind => format!("{kind} {:?}", self.name),
        }
    }
}

/// The role that a binding grants.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RoleRef {
    pub api_group: String,
    pub kind: String,
    pub name: String,
}

struct Binding {
    name: String,
    /// Empty for a ClusterRoleBinding.
    namespace: String,
    role: RoleRef,
    subjects: Vec<Subject>,
    /// What the role allows, or why it cannot be found.
    rules: Result<Arc<[PolicyRule]>, String>,
}

impl Binding {
    fn describe(&self, user: &User) -> String {
        let subject = self.subjects.iter().find(|s| s.applies_to(user, &self.namespace));
        let subject = subject.map(|s| s.describe(&self.namespace)).unwrap_or_default();
        let (kind, name) = match self.namespace.is_empty() {
            true => ("ClusterRoleBinding", self.name.clone()),
            false => ("RoleBinding", format!("{}/{}", self.name, self.namespace)),
        };
        format!("{kind} {name:?} of {} {:?} to {subject}", self.role.kind, self.role.name)
    }
}

/// The bindings of one namespace, or of the cluster, and where each subject is named.
#[derive(Default)]
struct Bindings {
    all: Vec<Binding>,
    by_user: HashMap<String, Vec<usize>>,
    by_group: HashMap<String, Vec<usize>>,
}

impl Bindings {
    fn push(&mut self, binding: Binding) {
        let at = self.all.len();
        for subject in &binding.subjects {
            match subject.kind.as_str() {
                "User" => self.by_user.entry(subject.name.clone()).or_default().push(at),
                "Group" => self.by_group.entry(subject.name.clone()).or_default().push(at),
                "ServiceAccount" => {
                    let namespace = subject.namespace_in(&binding.namespace);
                    if !namespace.is_empty() {
                        self.by_user.entry(service_account_user(namespace, &subject.name)).or_default().push(at);
                    }
                }
                _ => {}
            }
        }
        self.all.push(binding);
    }

    /// The bindings that apply to a user, in order of their names.
    fn of(&self, user: &User) -> impl Iterator<Item = &Binding> {
        let mut found: Vec<usize> = self.by_user.get(&user.name).cloned().unwrap_or_default();
        for group in &user.groups {
            found.extend(self.by_group.get(group).into_iter().flatten());
        }
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|at| &self.all[at])
    }
}

/// All roles and bindings at one moment.
#[derive(Default)]
struct Policy {
    changes: [u64; 4],
    roles: HashMap<(String, String), Arc<[PolicyRule]>>,
    cluster_roles: BTreeMap<String, Arc<[PolicyRule]>>,
    cluster: Bindings,
    namespaced: HashMap<String, Bindings>,
}

impl Policy {
    fn compile(objects: &dyn Objects, changes: [u64; 4]) -> Self {
        let mut policy = Self { changes, cluster_roles: cluster_roles(objects), ..Self::default() };
        for role in objects.list(ROLES) {
            let key = (text(&role, "/metadata/namespace").to_owned(), text(&role, "/metadata/name").to_owned());
            policy.roles.insert(key, rules_of(&role).into());
        }
        for binding in by_name(objects.list(CLUSTER_ROLE_BINDINGS)) {
            let binding = policy.binding(&binding);
            policy.cluster.push(binding);
        }
        for binding in by_name(objects.list(ROLE_BINDINGS)) {
            let binding = policy.binding(&binding);
            policy.namespaced.entry(binding.namespace.clone()).or_default().push(binding);
        }
        policy
    }

    fn binding(&self, object: &Value) -> Binding {
        let role = role_ref(object);
        let namespace = text(object, "/metadata/namespace").to_owned();
        Binding {
            name: text(object, "/metadata/name").to_owned(),
            rules: self.rules(&role, &namespace),
            subjects: object.get("subjects").and_then(|s| Vec::<Subject>::deserialize(s).ok()).unwrap_or_default(),
            role,
            namespace,
        }
    }

    /// The rules of a role, looked up for a binding in `namespace`.
    fn rules(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[PolicyRule]>, String> {
        let missing = |kind: &str| format!("{kind}.{GROUP} {:?} not found", role.name);
        match role.kind.as_str() {
            "Role" => {
                let key = (namespace.to_owned(), role.name.clone());
                self.roles.get(&key).cloned().ok_or_else(|| missing("role"))
            }
            "ClusterRole" => self.cluster_roles.get(&role.name).cloned().ok_or_else(|| missing("clusterrole")),
            kind => Err(format!("unsupported role reference kind: {kind:?}")),
        }
    }

    /// The bindings that apply to a user in a namespace: first those of the cluster.
    fn bindings(&self, user: &User, namespace: &str) -> impl Iterator<Item = &Binding> {
        let local = if namespace.is_empty() { None } else { self.namespaced.get(namespace) };
        self.cluster.of(user).chain(local.into_iter().flat_map(|bindings| bindings.of(user)))
    }
}

/// What a binding object points to.
pub fn role_ref(binding: &Value) -> RoleRef {
    binding.get("roleRef").and_then(|r| RoleRef::deserialize(r).ok()).unwrap_or_default()
}

/// The rules written in a role object. One that cannot be read grants nothing.
pub fn rules_of(role: &Value) -> Vec<PolicyRule> {
    let rules = role.get("rules").and_then(Value::as_array);
    rules.into_iter().flatten().filter_map(|rule| PolicyRule::deserialize(rule).ok()).collect()
}

fn by_name(mut objects: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
    objects.sort_by(|a, b| text(a, "/metadata/name").cmp(text(b, "/metadata/name")));
    objects
}

/// Every ClusterRole with its rules, those with an aggregation rule put together from the roles that it selects.
fn cluster_roles(objects: &dyn Objects) -> BTreeMap<String, Arc<[PolicyRule]>> {
    let all = by_name(objects.list(CLUSTER_ROLES));
    all.iter()
        .map(|role| {
            let rules = if is_aggregate(role) { aggregate(role, &all) } else { rules_of(role) };
            (text(role, "/metadata/name").to_owned(), rules.into())
        })
        .collect()
}

/// Are the rules of this ClusterRole those of others?
fn is_aggregate(role: &Value) -> bool {
    role.get("aggregationRule").is_some_and(|rule| !rule.is_null())
}

/// The rules of `role` that its aggregation rule gathers from `all`, without repetition. A selected role may itself be
/// an aggregate, as `view` is in `edit`.
fn aggregate(role: &Value, all: &[Arc<Value>]) -> Vec<PolicyRule> {
    let mut gathered: Vec<PolicyRule> = Vec::new();
    let mut seen = BTreeSet::from([text(role, "/metadata/name").to_owned()]);
    gather(role, all, &mut seen, &mut gathered);
    gathered
}

fn gather(role: &Value, all: &[Arc<Value>], seen: &mut BTreeSet<String>, gathered: &mut Vec<PolicyRule>) {
    let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
    for selector in selectors.into_iter().flatten() {
        for other in all.iter().filter(|other| selects(selector, other)) {
            if !seen.insert(text(other, "/metadata/name").to_owned()) {
                continue;
            }
            if is_aggregate(other) {
                gather(other, all, seen, gathered);
                continue;
            }
            for rule in rules_of(other) {
                if !gathered.contains(&rule) {
                    gathered.push(rule);
                }
            }
        }
    }
}

/// A selector that cannot be understood selects nothing.
fn selects(selector: &Value, role: &Value) -> bool {
    let labels = role.pointer("/metadata/labels");
    LabelSelector::from_object(selector).is_ok_and(|selector| selector.matches(&labels))
}

/// The ClusterRoles whose stored rules are not what their aggregation rule gathers, with the rules they should have.
/// Writing these back makes the objects show what is in force; decisions never wait for it.
pub fn stale_aggregates(objects: &dyn Objects) -> Vec<(String, Vec<PolicyRule>)> {
    let all = by_name(objects.list(CLUSTER_ROLES));
    all.iter()
        .filter(|role| is_aggregate(role))
        .map(|role| (role, aggregate(role, &all)))
        .filter(|(role, rules)| rules_of(role) != *rules)
        .map(|(role, rules)| (text(role, "/metadata/name").to_owned(), rules))
        .collect()
}

/// What RBAC says to a request: whether, and why (or what went wrong while looking).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// The evaluator. Cheap to ask; recompiles by itself when roles or bindings changed.
pub(crate) struct Rbac {
    objects: Arc<dyn Objects>,
    policy: RwLock<Arc<Policy>>,
}

impl Rbac {
    pub(crate) fn new(objects: Arc<dyn Objects>) -> Self {
        // A counter that no store starts at: the first question compiles.
        let policy = Policy { changes: [u64::MAX; 4], ..Policy::default() };
        Self { objects, policy: RwLock::new(Arc::new(policy)) }
    }

    fn policy(&self) -> Arc<Policy> {
        // Counters first, objects after: a write in between makes the policy newer than its counters, never older.
        let changes = RESOURCES.map(|resource| self.objects.changes(resource));
        let current = self.policy.read().clone();
        if current.changes == changes {
            return current;
        }
        let policy = Arc::new(Policy::compile(&*self.objects, changes));
        *self.policy.write() = policy.clone();
        policy
    }

    pub(crate) fn authorize(&self, request: &Attributes) -> Verdict {
        let policy = self.policy();
        let mut errors = Vec::new();
        for binding in policy.bindings(&request.user, &request.namespace) {
            match &binding.rules {
                Ok(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    let reason = format!("RBAC: allowed by {}", binding.describe(&request.user));
                    return Verdict { allowed: true, reason };
                }
                Ok(_) => {}
                Err(error) => errors.push(error.clone()),
            }
        }
        let reason = if errors.is_empty() { String::new() } else { format!("RBAC: {}", aggregate_errors(errors)) };
        Verdict { allowed: false, reason }
    }

    /// Every rule that applies to a user in a namespace, and what could not be resolved.
    pub(crate) fn rules_for(&self, user: &User, namespace: &str) -> (Vec<PolicyRule>, Option<String>) {
        let policy = self.policy();
        let mut rules = Vec::new();
        let mut errors = Vec::new();
        for binding in policy.bindings(user, namespace) {
            match &binding.rules {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(error) => errors.push(error.clone()),
            }
        }
        (rules, (!errors.is_empty()).then(|| aggregate_errors(errors)))
    }

    /// The rules behind a role reference.
    pub(crate) fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[PolicyRule]>, String> {
        self.policy().rules(role, namespace)
    }
}

/// Several errors in one line: as they are if there is one, otherwise `[a, b]` without repetition.
fn aggregate_errors(errors: Vec<String>) -> String {
    let mut distinct: Vec<String> = Vec::new();
    for error in errors {
        if !distinct.contains(&error) {
            distinct.push(error);
        }
    }
    match distinct.len() {
        1 => distinct.remove(0),
        _ => format!("[{}]", distinct.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::auth::tests::Memory;
    use crate::auth::{Authorizer, Decision};

    fn cluster_role(name: &str, rules: Value) -> (&'static str, Value) {
        (CLUSTER_ROLES, json!({"metadata": {"name": name}, "rules": rules}))
    }

    fn bind_cluster(name: &str, role: &str, subjects: Value) -> (&'static str, Value) {
        let role = json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": role});
        (CLUSTER_ROLE_BINDINGS, json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects}))
    }

    fn bind(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> (&'static str, Value) {
        let role = json!({"apiGroup": GROUP, "kind": role.0, "name": role.1});
        let metadata = json!({"namespace": namespace, "name": name});
        (ROLE_BINDINGS, json!({"metadata": metadata, "roleRef": role, "subjects": subjects}))
    }

    fn can(user: &User, verb: &str, resource: &str, namespace: &str) -> Attributes {
        Attributes {
            user: user.clone(),
            verb: verb.into(),
            version: "v1".into(),
            resource: resource.into(),
            namespace: namespace.into(),
            is_resource: true,
            ..Attributes::default()
        }
    }

    fn reader() -> Value {
        json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    }

    #[test]
    fn bindings_grant_in_their_scope() {
        let objects = Memory::with([
            cluster_role("reader", reader()),
            (ROLES, json!({"metadata": {"namespace": "a", "name": "local"}, "rules": reader()})),
            bind_cluster("everywhere", "reader", json!([{"kind": "User", "name": "ann"}])),
            bind("a", "in-a", ("ClusterRole", "reader"), json!([{"kind": "Group", "name": "devs"}])),
            bind("a", "sa", ("Role", "local"), json!([{"kind": "ServiceAccount", "name": "bot"}])),
            bind("b", "other", ("Role", "local"), json!([{"kind": "User", "name": "bob"}])),
        ]);
        let authorizer = Authorizer::new(objects);
        let (ann, bob) = (User::new("ann", [""; 0]), User::new("bob", [""; 0]));
        let (dev, bot) = (User::new("eve", ["devs"]), User::service_account("a", "bot", "1"));
        let cases = [
            (
                can(&ann, "get", "pods", ""),
                Some("ClusterRoleBinding \"everywhere\" of ClusterRole \"reader\" to User \"ann\""),
            ),
            (
                can(&ann, "get", "pods", "b"),
                Some("ClusterRoleBinding \"everywhere\" of ClusterRole \"reader\" to User \"ann\""),
            ),
            (can(&ann, "delete", "pods", "b"), None),
            (
                can(&dev, "list", "pods", "a"),
                Some("RoleBinding \"in-a/a\" of ClusterRole \"reader\" to Group \"devs\""),
            ),
            (can(&dev, "list", "pods", "b"), None),
            (can(&dev, "list", "pods", ""), None),
            (can(&bot, "get", "pods", "a"), Some("RoleBinding \"sa/a\" of Role \"local\" to ServiceAccount \"bot/a\"")),
            (can(&User::service_account("b", "bot", "1"), "get", "pods", "a"), None),
        ];
        for (request, expected) in cases {
            let expected = match expected {
                Some(by) => Decision::Allow { reason: format!("RBAC: allowed by {by}") },
                None => Decision::NoOpinion { reason: String::new() },
            };
            assert_eq!(authorizer.authorize(&request), expected, "{request:?}");
        }
        let lost = authorizer.check(&can(&bob, "get", "pods", "b")).unwrap_err();
        assert_eq!(
            lost.message,
            "pods is forbidden: User \"bob\" cannot get resource \"pods\" in API group \"\" in the namespace \"b\": \
             RBAC: role.rbac.authorization.k8s.io \"local\" not found"
        );
        let masters = User::new("root", [super::super::GROUP_MASTERS]);
        assert!(authorizer.authorize(&can(&masters, "smash", "atoms", "")).is_allowed());
    }

    #[test]
    fn a_change_counts_at_once() {
        let objects = Memory::with([cluster_role("reader", reader())]);
        let authorizer = Authorizer::new(objects.clone());
        let request = can(&User::new("ann", [""; 0]), "get", "pods", "a");
        assert!(!authorizer.authorize(&request).is_allowed());
        let (resource, binding) = bind_cluster("b", "reader", json!([{"kind": "User", "name": "ann"}]));
        objects.put(resource, binding);
        assert!(authorizer.authorize(&request).is_allowed());
        objects.delete(CLUSTER_ROLES, "", "reader");
        assert_eq!(
            authorizer.authorize(&request).reason(),
            "RBAC: clusterrole.rbac.authorization.k8s.io \"reader\" not found"
        );
    }

    #[test]
    fn aggregates_gather_what_they_select_through_other_aggregates() {
        let role = |name: &str, label: &str, selects: Option<&str>, resource: &str| {
            let mut role = json!({"metadata": {"name": name, "labels": {label: "true"}}});
            match selects {
                Some(s) => role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {s: "true"}}]}),
                None => role["rules"] = json!([{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]),
            }
            (CLUSTER_ROLES, role)
        };
        let objects = Memory::with([
            role("edit", "to-admin", Some("to-edit"), ""),
            role("view", "to-edit", Some("to-view"), ""),
            role("edit-base", "to-edit", None, "secrets"),
            role("view-base", "to-view", None, "pods"),
            // a loop must end
            role("loop", "to-loop", Some("to-loop"), ""),
            bind_cluster("b", "edit", json!([{"kind": "User", "name": "ann"}])),
        ]);
        let authorizer = Authorizer::new(objects.clone());
        let ann = User::new("ann", [""; 0]);
        assert!(authorizer.authorize(&can(&ann, "get", "pods", "")).is_allowed());
        assert!(authorizer.authorize(&can(&ann, "get", "secrets", "")).is_allowed());
        assert!(!authorizer.authorize(&can(&ann, "get", "nodes", "")).is_allowed());
        let stale: BTreeMap<_, _> = stale_aggregates(&*objects).into_iter().collect();
        let resources = |name: &str| stale[name].iter().map(|r| r.resources[0].clone()).collect::<Vec<_>>();
        assert_eq!(stale.keys().collect::<Vec<_>>(), ["edit", "view"]);
        assert_eq!(resources("edit"), ["secrets", "pods"]);
        assert_eq!(resources("view"), ["pods"]);
    }
}
