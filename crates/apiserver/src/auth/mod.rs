//! Who is asking, and may they: identities, the attributes a decision is made on, and the chain that decides.
//!
//! ```text
//!   TLS peer certificate ─┐
//!   bearer token          ├─► Authenticator ─► impersonation ─► Authorizer ─► handler
//!   in-process identity  ─┘        401              403             403
//!                                              system:masters, node, RBAC
//! ```
//!
//! Everything here reads live objects through [`Objects`]: a role, a binding, a service account or a pod that was
//! changed by an acknowledged write counts from the next request on.

mod authn;
mod authorizer;
pub mod bootstrap;
mod escalation;
mod impersonate;
pub(crate) mod node;
pub mod rbac;
pub mod review;
pub mod rules;
pub mod token;
pub mod token_request;
pub mod x509;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

pub use authn::Authenticator;
pub use authorizer::{Authorizer, Decision, forbidden};
pub use escalation::check_escalation;
pub use impersonate::impersonate;
pub use x509::PeerCertificates;

/// Every user that proved an identity.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Everybody else.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// Members may do anything; no role can take that away.
pub const GROUP_MASTERS: &str = "system:masters";
/// Node identities, named `system:node:NAME`.
pub const GROUP_NODES: &str = "system:nodes";
/// Every service account.
pub const GROUP_SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The user of a request without credentials.
pub const USER_ANONYMOUS: &str = "system:anonymous";

/// Under this key a user's `extra` names the credential that was shown.
pub const EXTRA_CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

const NODE_USER_PREFIX: &str = "system:node:";
const SERVICE_ACCOUNT_USER_PREFIX: &str = "system:serviceaccount:";

/// The identity behind a request; an `http` request extension once it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// An authenticated user in `groups` and `system:authenticated`.
    pub fn new<G: Into<String>>(name: impl Into<String>, groups: impl IntoIterator<Item = G>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|g| g == GROUP_AUTHENTICATED) {
            groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// Nobody in particular.
    pub fn anonymous() -> Self {
        Self { name: USER_ANONYMOUS.to_owned(), groups: vec![GROUP_UNAUTHENTICATED.to_owned()], ..Self::default() }
    }

    /// The identity of a node: what its client certificate says.
    pub fn node(name: &str) -> Self {
        Self::new(format!("{NODE_USER_PREFIX}{name}"), [GROUP_NODES])
    }

    /// The identity of a service account, with the groups that every one of them has.
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> Self {
        let groups = [GROUP_SERVICE_ACCOUNTS.to_owned(), format!("{GROUP_SERVICE_ACCOUNTS}:{namespace}")];
        Self { uid: uid.to_owned(), ..Self::new(service_account_user(namespace, name), groups) }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// `Some(name)` if this is a node's identity: the user name says so and so does the group.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_USER_PREFIX)?;
        self.in_group(GROUP_NODES).then_some(name)
    }
}

/// The user name of a service account.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_USER_PREFIX}{namespace}:{name}")
}

/// Namespace and name, if `user` is the user name of a service account.
pub fn split_service_account_user(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_USER_PREFIX)?.split_once(':')?;
    let valid = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    valid.then_some((namespace, name))
}

/// What authorization decides on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub user: User,
    /// `get`, `list`, `watch`, `create`, …; the lower-case HTTP method for paths that are no resource.
    pub verb: String,
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// Empty: the request is at cluster scope, or over all namespaces.
    pub namespace: String,
    /// Empty on create and on collections. A list or watch with the field selector `metadata.name=x` names `x`.
    pub name: String,
    /// The path of a request that is not for a resource.
    pub path: String,
    pub is_resource: bool,
    /// The `fieldSelector` parameter as it came; a node may list the pods that it selects to be its own.
    pub field_selector: String,
}

/// Live objects, as far as security needs to see them. `resource` is qualified by its group (`pods`,
/// `clusterroles.rbac.authorization.k8s.io`), `namespace` is empty for what has none.
pub trait Objects: Send + Sync {
    fn list(&self, resource: &str) -> Vec<Arc<Value>>;
    fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>>;
    /// The objects of a namespace whose names begin with `prefix`.
    fn named(&self, resource: &str, namespace: &str, prefix: &str) -> Vec<Arc<Value>> {
        let matches = |object: &Arc<Value>| {
            text(object, "/metadata/namespace") == namespace && text(object, "/metadata/name").starts_with(prefix)
        };
        self.list(resource).into_iter().filter(matches).collect()
    }
    /// Moves with every write to `resource`, never later than the write is acknowledged.
    fn changes(&self, resource: &str) -> u64;
}

/// The string at a JSON pointer, or "".
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use parking_lot::RwLock;

    use super::*;

    /// Objects in memory, with the counters of a store.
    #[derive(Default)]
    pub(crate) struct Memory {
        objects: RwLock<BTreeMap<(String, String, String), Arc<Value>>>,
        writes: AtomicU64,
    }

    impl Memory {
        pub(crate) fn with(objects: impl IntoIterator<Item = (&'static str, Value)>) -> Arc<Self> {
            let memory = Arc::new(Self::default());
            for (resource, object) in objects {
                memory.put(resource, object);
            }
            memory
        }

        pub(crate) fn put(&self, resource: &str, object: Value) {
            let namespace = text(&object, "/metadata/namespace").to_owned();
            let name = text(&object, "/metadata/name").to_owned();
            self.objects.write().insert((resource.to_owned(), namespace, name), Arc::new(object));
            self.writes.fetch_add(1, Ordering::SeqCst);
        }

        pub(crate) fn delete(&self, resource: &str, namespace: &str, name: &str) {
            self.objects.write().remove(&(resource.to_owned(), namespace.to_owned(), name.to_owned()));
            self.writes.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Objects for Memory {
        fn list(&self, resource: &str) -> Vec<Arc<Value>> {
            self.objects.read().iter().filter(|((r, ..), _)| r == resource).map(|(_, o)| o.clone()).collect()
        }

        fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
            self.objects.read().get(&(resource.to_owned(), namespace.to_owned(), name.to_owned())).cloned()
        }

        fn changes(&self, _resource: &str) -> u64 {
            self.writes.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn identities_know_what_they_are() {
        assert_eq!(User::node("n1").node_name(), Some("n1"));
        assert_eq!(User::new("system:node:n1", ["other"]).node_name(), None);
        let user = User::service_account("ns", "sa", "u1");
        assert_eq!(user.name, "system:serviceaccount:ns:sa");
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
        assert_eq!(split_service_account_user(&user.name), Some(("ns", "sa")));
        for other in ["system:serviceaccount:ns", "system:serviceaccount::sa", "system:serviceaccount:a:b:c", "x"] {
            assert_eq!(split_service_account_user(other), None, "{other}");
        }
    }
}
