//! The chain that decides: `system:masters`, then the node rules, then RBAC. Whoever allows first decides; if nobody
//! does, the answer is no, with the reasons that were given on the way.

use std::sync::Arc;

use tether_machinery::status::{ApiError, Named};

use super::node::NodeAuthorizer;
use super::rbac::{Rbac, RoleRef};
use super::rules::PolicyRule;
use super::{Attributes, GROUP_MASTERS, Objects, User};

/// What became of a request, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow { reason: String },
    NoOpinion { reason: String },
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Allow { reason } | Self::NoOpinion { reason } => reason,
        }
    }
}

/// Decides every request.
pub struct Authorizer {
    node: NodeAuthorizer,
    rbac: Rbac,
}

impl Authorizer {
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { node: NodeAuthorizer::new(objects.clone()), rbac: Rbac::new(objects) }
    }

    pub fn authorize(&self, request: &Attributes) -> Decision {
        if request.user.in_group(GROUP_MASTERS) {
            return Decision::Allow { reason: String::new() };
        }
        let mut reasons = Vec::new();
        match self.node.authorize(request) {
            Some(Ok(())) => return Decision::Allow { reason: String::new() },
            Some(Err(reason)) => reasons.push(reason),
            None => {}
        }
        let rbac = self.rbac.authorize(request);
        if rbac.allowed {
            return Decision::Allow { reason: rbac.reason };
        }
        reasons.push(rbac.reason);
        reasons.retain(|reason| !reason.is_empty());
        Decision::NoOpinion { reason: reasons.join("\n") }
    }

    /// The decision as the request path wants it: go on, or answer 403.
    pub fn check(&self, request: &Attributes) -> Result<(), ApiError> {
        match self.authorize(request) {
            Decision::Allow { .. } => Ok(()),
            Decision::NoOpinion { reason } => Err(forbidden(request, &reason)),
        }
    }

    /// Every RBAC rule that applies to a user in a namespace, and what could not be resolved.
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<PolicyRule>, Option<String>) {
        self.rbac.rules_for(user, namespace)
    }

    /// The rules behind a role reference of a binding in `namespace`.
    pub fn role_rules(&self, role: &RoleRef, namespace: &str) -> Result<Arc<[PolicyRule]>, String> {
        self.rbac.role_rules(role, namespace)
    }
}

/// The 403 for a request, in Kubernetes' words.
pub fn forbidden(request: &Attributes, reason: &str) -> ApiError {
    let mut why = sanitize(&explain(request));
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    ApiError::forbidden(Named { group: &request.group, resource: &request.resource, name: &request.name }, why)
}

fn explain(request: &Attributes) -> String {
    let Attributes { user: User { name: user, .. }, verb, group, .. } = request;
    if !request.is_resource {
        return format!("User {user:?} cannot {verb} path {:?}", request.path);
    }
    let resource = match request.subresource.is_empty() {
        true => request.resource.clone(),
        false => format!("{}/{}", request.resource, request.subresource),
    };
    let scope = match request.namespace.is_empty() {
        true => "at the cluster scope".to_owned(),
        false => format!("in the namespace {:?}", request.namespace),
    };
    format!("User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {scope}")
}

/// Names come from outside; a browser must not see markup in an error.
fn sanitize(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
